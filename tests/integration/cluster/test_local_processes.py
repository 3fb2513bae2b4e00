"""``mqlocal`` as a real process: readiness, signals, death of a child or of itself, used ports."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.protocol.bodies.cluster import ClusterTable
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import request

ALL_TOPICS = RequestCode.GET_ALL_TOPIC_CONFIG


@contextmanager
def mqlocal(folder: Path, *options: object) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "triomq.local", "--dir", str(folder), *map(str, options)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(timeout=30)
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stderr.close()


def ready(process: subprocess.Popen[str]) -> Any:
    """Return the JSON line of ``--json``."""
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], 60)[0], "mqlocal said nothing"
    line = process.stdout.readline()
    assert line, process.stderr.read() if process.stderr else ""
    return json.loads(line)


def gone(pids: list[int], seconds: float = 30) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(
            psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
            for pid in pids
        ):
            return True
        time.sleep(0.02)
    return False


def mqadmin(*words: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "triomq.client.mqadmin.cli", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done
    return done.stdout if code == 0 else done.stderr


def test_controllers_choose_the_master_and_go_on_after_a_restart(tmp_path: Path) -> None:
    options = ("--controllers", 3, "--replicas", 2, "--port", 0, "--json")
    with mqlocal(tmp_path, *options) as process:
        state = ready(process)
        assert (len(state["nameServers"]), len(state["controllers"])) == (3, 3)
        assert [broker["name"] for broker in state["brokers"]] == ["broker-a-1", "broker-a-2"]
        namesrv, addresses = state["namesrvAddr"], ";".join(state["controllers"])
        mqadmin("updateTopic", "-c", "DefaultCluster", "-t", "orders", "-n", namesrv)
        mqadmin("sendMessage", "-t", "orders", "-p", "hello", "-n", namesrv)
        for broker in state["brokers"]:  # slaves copy topics every 3 s, and either may lead next
            with BlockingConnection(broker["address"]) as connection:
                deadline = time.monotonic() + 60
                while b'"orders"' not in connection.invoke(request(ALL_TOPICS)).body:
                    assert time.monotonic() < deadline
                    time.sleep(0.1)
    with mqlocal(tmp_path, *options) as process:
        state = ready(process)
        assert ";".join(state["controllers"]) == addresses
        shown = mqadmin("broker", "replicas", "-a", addresses, "-b", "broker-a", "--json")
        assert len(json.loads(shown)["groups"]["broker-a"]["inSyncReplicas"]) == 2
        namesrv = state["namesrvAddr"]
        read = mqadmin("consumeMessage", "-t", "orders", "-n", namesrv, "--json")
        assert [message["body"] for message in json.loads(read)["messages"]] == ["hello"]
    with mqlocal(tmp_path, "--controllers", 1, "--port", 0) as process:
        _, err = process.communicate(timeout=60)
        assert "has the log of 3 controllers" in err


@pytest.mark.feature("1a", "1b", "179d")
def test_a_cluster_starts_works_and_stops(tmp_path: Path) -> None:
    with mqlocal(tmp_path, "--namesrvs", 2, "--brokers", 2, "--port", 0, "--json") as process:
        state = ready(process)
        pids = [server["pid"] for server in (*state["nameServers"], *state["brokers"])]
        assert len(set(pids)) == 4
        python = Path(sys.executable).resolve()
        assert {
            Path(child.exe()).resolve()
            for child in psutil.Process(process.pid).children(recursive=True)
        } == {python}
        assert state["dir"] == str(tmp_path)
        for broker in state["brokers"]:
            lines = Path(broker["config"]).read_text().splitlines()
            assert {"enablePropertyFilter=true", "recallMessageEnable=true"} <= set(lines)
        for server in state["nameServers"]:
            with BlockingConnection(server["address"]) as connection:
                table = ClusterTable.decode(
                    connection.invoke(request(RequestCode.GET_BROKER_CLUSTER_INFO)).body
                )
            assert {name: data.broker_addrs for name, data in table.broker_addr_table.items()} == {
                b["name"]: {0: b["address"]} for b in state["brokers"]
            }
        namesrv = state["namesrvAddr"]
        mqadmin("updateTopic", "-c", "DefaultCluster", "-t", "orders", "-n", namesrv)
        mqadmin("sendMessage", "-t", "orders", "-p", "hello", "-n", namesrv)
        assert (
            json.loads(mqadmin("consumeMessage", "-t", "orders", "-n", namesrv, "--json"))[
                "messages"
            ][0]["body"]
            == "hello"
        )
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "")
    assert gone(pids)
    for broker in state["brokers"]:
        store = Path(broker["store"])
        assert store.is_relative_to(tmp_path)
        assert (store / "commitlog").is_dir()
        assert not (store / "abort").exists(), "the broker did not stop in an orderly way"


@pytest.mark.feature("50a")
def test_messages_survive_a_restart(tmp_path: Path) -> None:
    for expected in (["0"], ["0", "1"]):
        with mqlocal(tmp_path, "--port", 0, "--json") as process:
            namesrv = ready(process)["namesrvAddr"]
            mqadmin("sendMessage", "-t", "orders", "-p", str(len(expected) - 1), "-n", namesrv)
            messages = json.loads(
                mqadmin("consumeMessage", "-t", "orders", "-n", namesrv, "--json")
            )["messages"]
            assert sorted(message["body"] for message in messages) == expected


def test_the_printed_text_says_where_everything_is(tmp_path: Path) -> None:
    with mqlocal(tmp_path, "--port", 0) as process:
        assert process.stdout is not None
        lines = []
        while not lines or not lines[-1].startswith("Ctrl-C"):
            lines.append(process.stdout.readline())
            assert lines[-1], process.stderr.read() if process.stderr else ""
        text = "".join(lines)
        assert str(tmp_path / "logs") in text
        assert str(tmp_path / "store" / "broker-a") in text
        assert "export NAMESRV_ADDR='127.0.0.1:" in text
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0


def test_the_death_of_a_child_ends_the_cluster_with_its_last_log_line(tmp_path: Path) -> None:
    with mqlocal(tmp_path, "--port", 0, "--json", "--quiet") as process:
        state = ready(process)
        os.kill(state["brokers"][0]["pid"], signal.SIGKILL)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err.count("\n") == 1
    assert err.startswith(
        f"mqlocal: broker-a ({state['brokers'][0]['address']}) was killed by SIGKILL"
    )
    assert err.endswith(f"its log is {tmp_path / 'logs' / 'broker-a.log'}\n")
    assert gone([server["pid"] for server in (*state["nameServers"], *state["brokers"])])


def test_children_do_not_survive_their_parent(tmp_path: Path) -> None:
    with mqlocal(tmp_path, "--port", 0, "--json") as process:
        state = ready(process)
        process.kill()
        process.wait(timeout=60)
        assert gone([server["pid"] for server in (*state["nameServers"], *state["brokers"])])
    assert not (Path(state["brokers"][0]["store"]) / "abort").exists(), (
        "the broker did not stop in an orderly way"
    )


def test_a_broker_that_cannot_start(tmp_path: Path) -> None:
    with mqlocal(tmp_path, "--port", 0, "--set", "brokerNmae=x") as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert err.count("\n") == 1
    assert "broker-a" in err
    assert "brokerName" in err, "the child's own line names the nearest key"


@pytest.mark.feature(49)
def test_a_store_in_use(tmp_path: Path) -> None:
    with mqlocal(tmp_path, "--port", 0, "--json") as first:
        ready(first)
        with mqlocal(tmp_path, "--port", 0) as second:
            _, err = second.communicate(timeout=60)
        assert second.returncode == 4
        assert err.count("\n") == 1
        assert first.poll() is None


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        for option in (["--port", port, "--broker-port", 0], ["--port", 0, "--broker-port", port]):
            with mqlocal(tmp_path, *option) as process:
                _, err = process.communicate(timeout=60)
            assert process.returncode == 3
            assert err.startswith(f"mqlocal: port {port} cannot be used (Address already in use)")
            assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--brokers", 0], "--brokers cannot be '0': use a whole number from 1 to 26"),
        (["--borkers", 1], "there is no option --borkers; the nearest is --brokers"),
        (["--set", "x"], "--set cannot be 'x': write key=value"),
        (["--dir", "/proc/nowhere"], "folder /proc/nowhere cannot be used"),
    ],
)
def test_bad_options(tmp_path: Path, options: list[object], complaint: str) -> None:
    with mqlocal(tmp_path, "--port", 0, *options) as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert err.startswith("mqlocal: ")
    assert complaint in err
    assert err.count("\n") == 1
