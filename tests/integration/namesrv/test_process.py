"""``mqnamesrv`` as a process: options, exit codes, one-line errors, signals, start-up."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from frames import FrameClient
from processes import free_port

from triomq.remoting.core.properties_file import parse_properties
from triomq.remoting.protocol.codes import RequestCode as Code

READY = re.compile(r"mqnamesrv: name server ready on [^ ]*:(\d+)\n")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "triomq.namesrv", *arguments]


def run(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "HOME": str(home)},
        stdin=subprocess.DEVNULL,
    )


@contextmanager
def started(home: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run a name server; yield it and its port."""
    process = subprocess.Popen(
        command(*arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HOME": str(home)},
        stdin=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        line = process.stdout.readline()
        match = READY.fullmatch(line)
        assert match is not None, line + process.stderr.read()
        yield process, int(match[1])
    finally:
        process.kill()
        process.communicate()


def test_effective_configuration_is_printed_and_can_be_used(tmp_path: Path) -> None:
    file = tmp_path / "n.properties"
    file.write_text("listenPort=19876\nserverSelectorThreads=3\nserverWorkerThreads=8\n")
    printed = run(
        tmp_path, "-c", str(file), "-p", "29876", "-D", "orderMessageEnable=true", "--print-config"
    )
    assert (printed.returncode, printed.stderr) == (0, "")
    values = parse_properties(printed.stdout)
    assert (
        values["listenPort"],
        values["serverSelectorThreads"],
        values["orderMessageEnable"],
    ) == ("29876", "3", "true")
    assert values["kvConfigPath"] == str(tmp_path / "namesrv" / "kvConfig.json")
    again = tmp_path / "again.properties"
    again.write_text(printed.stdout)
    assert run(tmp_path, "-c", str(again), "--print-config").stdout == printed.stdout


@pytest.mark.feature("149d")
@pytest.mark.parametrize(
    ("arguments", "text", "code", "line"),
    [
        (
            ["-p", "70000"],
            "",
            2,
            "mqnamesrv: option -p: listenPort=70000: out of range; use 0 to 65535",
        ),
        (
            [],
            "listenPort=abc\n",
            2,
            "mqnamesrv: n.conf:1: listenPort=abc: not a whole number; use 0 to 65535",
        ),
        (
            [],
            "\nlistenprt=1\n",
            2,
            (
                "mqnamesrv: n.conf:2: unknown key listenprt; did you mean listenPort?"
                " (docs/configuration/mqnamesrv.md lists every setting)"
            ),
        ),
        (
            [],
            "a=\\u1\n",
            2,
            (
                "mqnamesrv: n.conf:1: malformed escape \\u1 (write \\u and four hex digits);"
                " correct the line"
            ),
        ),
        (
            [],
            "controllerType = jRaft\n",
            2,
            (
                "mqnamesrv: n.conf:1: controllerType=jRaft is not offered by this version"
                " (controllers that agree by jRaft); remove the key, and name the controllers by"
                " controllerDLegerPeers"
            ),
        ),
        (
            [],
            "enableControllerInNamesrv = true\n",
            2,
            (
                "mqnamesrv: enableControllerInNamesrv=true without controllerDLegerPeers; write"
                " controllerDLegerPeers=n0-127.0.0.1:9878 with this machine's address"
            ),
        ),
        (
            ["--log-level", "LOUD"],
            "",
            2,
            "mqnamesrv: option --log-level: unknown level LOUD; use DEBUG, INFO, WARNING or ERROR",
        ),
        (
            ["--log-dir", "/dev/null/x"],
            "",
            2,
            (
                "mqnamesrv: option --log-dir: cannot write to /dev/null/x: not a directory; name a"
                " directory that this user may write"
            ),
        ),
        (["-D", "bindAddress=203.0.113.7"], "", 2, "mqnamesrv: cannot listen on 203.0.113.7:0: "),
        (
            ["-D", "kvConfigPath=/dev/null/kv.json"],
            "",
            5,
            (
                "mqnamesrv: /dev/null/kv.json: not a directory; give the name server the right to"
                " read it, or set kvConfigPath"
            ),
        ),
    ],
)
def test_a_failed_start_is_one_line_and_an_exit_code(
    tmp_path: Path, arguments: list[str], text: str, code: int, line: str
) -> None:
    file = tmp_path / "n.conf"
    file.write_text(text)
    port = [] if "-p" in arguments else ["-p", "0"]
    done = run(tmp_path, "-c", str(file), *port, *arguments)
    assert done.returncode == code
    assert done.stdout == ""
    assert done.stderr.startswith(line)
    assert done.stderr.count("\n") == 1


def test_a_port_in_use_is_one_line_and_code_three(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("0.0.0.0", 0))
        holder.listen()
        port = holder.getsockname()[1]
        done = run(tmp_path, "-p", str(port))
    assert done.returncode == 3
    assert (
        done.stderr
        == f"mqnamesrv: cannot listen on 0.0.0.0:{port}: the port is in use; stop the process that"
        " holds it or set listenPort to another port\n"
    )


def test_unknown_options_are_usage_errors(tmp_path: Path) -> None:
    for arguments in (["--prot", "1"], ["-p"], ["surplus"]):
        done = run(tmp_path, *arguments)
        assert done.returncode == 2
        assert done.stderr.startswith("usage: mqnamesrv")


@pytest.mark.feature("149a")
async def test_it_serves_warns_and_stops_on_sigterm(tmp_path: Path) -> None:
    file, configured = tmp_path / "n.conf", free_port()
    file.write_text(
        f"listenPort={configured}\n"
        "serverCallbackExecutorThreads=4\nclientWorkerThreads=4\nclusterTest=true\n"
    )
    with started(tmp_path, "-c", str(file), "--log-dir", str(tmp_path / "logs")) as (process, port):
        assert port == configured
        async with FrameClient(port) as client:
            assert (await client.call(Code.GET_BROKER_CLUSTER_INFO)).code == 0
            process.send_signal(signal.SIGTERM)
            await client.ended()
        output, errors = await trio.to_thread.run_sync(process.communicate)
        assert (process.returncode, output, errors) == (0, "", "")
    log = (tmp_path / "logs" / "mqnamesrv.log").read_text()
    assert (
        "WARNING triomq.remoting.core.process: ignored, no meaning here: clientWorkerThreads,"
        " serverCallbackExecutorThreads (docs/configuration/java-keys-mqnamesrv.md says why)" in log
    )
    assert "without effect: clusterTest (looking up" in log
    assert "SIGTERM: stopping" in log


@pytest.mark.feature(23)
async def test_sigusr1_logs_what_each_task_waits_for(tmp_path: Path) -> None:
    with started(tmp_path, "-p", "0") as (process, port):
        process.send_signal(signal.SIGUSR1)
        async with FrameClient(port) as client:  # it goes on
            assert (await client.call(Code.GET_BROKER_CLUSTER_INFO)).code == 0
        process.send_signal(signal.SIGTERM)
        _, errors = await trio.to_thread.run_sync(process.communicate)
        assert process.returncode == 0
    dump = re.findall(r"WARNING triomq\.remoting\.core\.process: task +(\S+) (.*)", errors)
    waits = dict(dump)
    assert re.search(r"\bboss\.py:\d+ in run$", waits["boss"])
    assert {"selector-0", "pool-default-0"} <= set(waits), waits


async def test_ctrl_c_stops_it_too_and_logs_go_to_standard_error(tmp_path: Path) -> None:
    with started(tmp_path, "-p", "0") as (process, _):
        process.send_signal(signal.SIGINT)
        _, errors = await trio.to_thread.run_sync(process.communicate)
        assert process.returncode == 0
        assert "INFO triomq.remoting.core.process: SIGINT: stopping" in errors
