"""The real ``mqbroker`` process: how it starts, refuses to start, stops, dies, and comes back with
every acknowledged message.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import processes
import pytest

from triomq.broker.config import BrokerConfig
from triomq.broker.options import load_broker_config
from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.protocol.bodies.groups import SubscriptionGroupConfig
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.offset import (
    GetMaxOffsetHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from triomq.remoting.protocol.headers.pull import (
    SUBSCRIPTION,
    PullMessageHeader,
    PullMessageResponseHeader,
)
from triomq.remoting.protocol.headers.send import SendMessageHeader, SendMessageResponseHeader
from triomq.remoting.protocol.headers.topic import GroupHeader
from triomq.remoting.protocol.record_reader import decode_records

SMALL = {"mappedFileSizeCommitLog": 1024 * 1024, "maxHashSlotNum": 1000, "maxIndexNum": 100_000}
NOBODY = "127.0.0.1:9"
QUEUES = 4


@contextlib.contextmanager
def lone_broker(
    folder: Path, port: int | None = None, namesrv: str = NOBODY, **settings: object
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """(address, process) of a broker whose name server is down: that must not matter."""
    port = port or processes.free_port()
    conf = processes.write_broker_conf(folder, "broker-a", namesrv, port, **{**SMALL, **settings})
    with processes.running(
        [sys.executable, "-m", "triomq.broker", "-c", str(conf)], folder / "broker-a.log", port=port
    ) as process:
        yield f"127.0.0.1:{port}", process


def send(
    connection: BlockingConnection, topic: str, body: bytes, queue_id: int
) -> SendMessageResponseHeader:
    header = SendMessageHeader(
        "P",
        topic,
        "TBW102",
        QUEUES,
        queue_id,
        0,
        int(time.time() * 1000),
        0,
        f"UNIQ_KEY\x01{body.decode():0>32}\x02",
    )
    answer = connection.invoke(request(Code.SEND_MESSAGE_V2, header, body), timeout=10)
    assert answer.code == 0, answer.remark
    return answer.header(SendMessageResponseHeader)


def pull_all(address: str, topic: str) -> dict[int, list[bytes]]:
    """Queue -> bodies, in order."""
    found: dict[int, list[bytes]] = {}
    with BlockingConnection(address) as connection:
        for queue_id in range(QUEUES):
            bodies: list[bytes] = []
            offset = 0
            while True:
                header = PullMessageHeader(
                    "G", topic, queue_id, offset, 32, SUBSCRIPTION, 0, 0, 0, "*"
                )
                answer = connection.invoke(request(Code.PULL_MESSAGE, header), timeout=10)
                if answer.code != 0:
                    assert answer.code == 19, answer.remark
                    break
                bodies += [message.body for message in decode_records(bytes(answer.body))]
                offset = answer.header(PullMessageResponseHeader).next_begin_offset
            found[queue_id] = bodies
    return found


class Sender(threading.Thread):
    """Sends to one queue until its connection breaks; ``acknowledged`` are the bodies that the
    broker said it has.
    """

    def __init__(self, address: str, topic: str, queue_id: int) -> None:
        super().__init__(daemon=True)
        self.address, self.topic, self.queue_id = address, topic, queue_id
        self.acknowledged: list[bytes] = []

    def run(self) -> None:
        try:
            with BlockingConnection(self.address) as connection:
                number = 0
                while True:
                    body = b"%d.%d" % (self.queue_id, number)
                    offset = send(connection, self.topic, body, self.queue_id).queue_offset
                    assert offset == number
                    self.acknowledged.append(body)
                    number += 1
        except RemotingError:
            return


@pytest.mark.feature("38b", "42b", "48c", "51a", "51b")
def test_kill_9_under_load_loses_no_acknowledged_message(tmp_path: Path) -> None:
    port = processes.free_port()
    acknowledged: dict[int, list[bytes]] = {}
    for life in range(3):
        topic = f"Life{life}"
        with lone_broker(tmp_path, port) as (address, process):
            for earlier in range(life):
                check(pull_all(address, f"Life{earlier}"), acknowledged, earlier)
            senders = [Sender(address, topic, queue_id) for queue_id in range(QUEUES)]
            for sender in senders:
                sender.start()
            while sum(len(sender.acknowledged) for sender in senders) < 2000:
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
            process.wait()
            for sender in senders:
                sender.join(timeout=20)
                assert not sender.is_alive()
                acknowledged[100 * life + sender.queue_id] = sender.acknowledged
        assert (tmp_path / "store" / "abort").exists()
    with lone_broker(tmp_path, port) as (address, _):
        for life in range(3):
            check(pull_all(address, f"Life{life}"), acknowledged, life)


def check(found: dict[int, list[bytes]], acknowledged: dict[int, list[bytes]], life: int) -> None:
    """Check that every acknowledged message is there, in order and once, and at most one message
    more: the one in flight.
    """
    for queue_id, bodies in found.items():
        wanted = acknowledged[100 * life + queue_id]
        assert bodies[: len(wanted)] == wanted
        assert len(bodies) - len(wanted) <= 1


@pytest.mark.feature("48b", "50b", "50c", "50d", "90a")
def test_messages_offsets_and_topics_outlive_an_orderly_stop(tmp_path: Path) -> None:
    port = processes.free_port()
    with (
        lone_broker(tmp_path, port) as (address, process),
        BlockingConnection(address) as connection,
    ):
        for number in range(50):
            send(connection, "T", b"%d" % number, number % QUEUES)
        connection.invoke(
            request(Code.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetHeader("G", "T", 1, 7))
        )
        group = SubscriptionGroupConfig(group_name="Fussy", retry_max_times=3)
        assert (
            connection.invoke(
                request(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, group.encode())
            ).code
            == 0
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 0
    assert not (tmp_path / "store" / "abort").exists()
    with lone_broker(tmp_path, port, autoCreateTopicEnable="false") as (address, _):
        found = pull_all(address, "T")
        assert sorted(int(body) for bodies in found.values() for body in bodies) == list(range(50))
        with BlockingConnection(address) as connection:
            answer = connection.invoke(
                request(Code.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetHeader("G", "T", 1))
            )
            assert answer.header(OffsetResponseHeader).offset == 7
            assert send(connection, "T", b"50", 0).queue_offset == 13
            answer = connection.invoke(
                request(Code.GET_SUBSCRIPTIONGROUP_CONFIG, GroupHeader("Fussy"))
            )
            assert SubscriptionGroupConfig.decode(bytes(answer.body)).retry_max_times == 3


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_what_was_accepted(tmp_path: Path, sign: signal.Signals) -> None:
    """Requests that are in the pipe when the signal comes are answered or not done; nothing in
    between.
    """
    with lone_broker(tmp_path) as (address, process), BlockingConnection(address) as connection:
        send(connection, "T", b"0", 0)
        header = SendMessageHeader("P", "T", "TBW102", QUEUES, 0, 0, 0, 0, "")
        opaques = [
            connection.send(request(Code.SEND_MESSAGE_V2, header, b"%d" % number))
            for number in range(1, 200)
        ]
        process.send_signal(sign)
        answered = 1
        try:
            for opaque in opaques:
                assert connection.receive(opaque, timeout=10).code == 0
                answered += 1
        except RemotingError:
            pass
        assert process.wait(timeout=10) == 0
    with lone_broker(tmp_path) as (address, _):
        assert pull_all(address, "T")[0][:answered] == [
            b"%d" % number for number in range(answered)
        ]


def test_the_load_generator_counts_what_the_broker_has(tmp_path: Path) -> None:
    """``make bench`` trusts it: every answered request is a message in one of the eight queues, and
    none failed.
    """
    program = Path(__file__).resolve().parents[2] / "bench" / "bench_broker.py"
    with lone_broker(tmp_path) as (address, _):
        command = [
            sys.executable,
            str(program),
            address,
            "--seconds",
            "0.3",
            "--shapes",
            "1x1,1x64,8x4",
            "--json",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        rows = json.loads(done.stdout)
        assert [(row["connections"], row["in_flight"], row["failed"]) for row in rows] == [
            (1, 1, 0),
            (1, 64, 0),
            (8, 4, 0),
        ]
        with BlockingConnection(address) as connection:
            ends = [
                connection.invoke(
                    request(Code.GET_MAX_OFFSET, GetMaxOffsetHeader("BenchTopic", queue_id))
                )
                .header(OffsetResponseHeader)
                .offset
                for queue_id in range(8)
            ]
        assert sum(ends) == sum(row["messages"] for row in rows)
        assert min(ends) > 0


# What keeps it from starting


def refuse(conf: Path, *arguments: str, **env: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "triomq.broker", "-c", str(conf), *arguments]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **env},
    )
    return done.returncode, done.stderr


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("0.0.0.0", 0))
        other.listen()
        port = other.getsockname()[1]
        code, text = refuse(
            processes.write_broker_conf(tmp_path, "broker-a", NOBODY, port, **SMALL)
        )
    assert code == 3
    assert (
        text.splitlines()[-1]
        == f"mqbroker: cannot listen on 0.0.0.0:{port}: the port is in use; stop the process that"
        " holds it or set listenPort to another port"
    )
    assert "Traceback" not in text


@pytest.mark.feature(49)
def test_a_store_that_another_broker_has_locked(tmp_path: Path) -> None:
    with lone_broker(tmp_path) as (_, process):
        conf = processes.write_broker_conf(
            tmp_path, "broker-b", NOBODY, processes.free_port(), **SMALL
        )
        code, text = refuse(conf)
    assert code == 4
    last = text.splitlines()[-1]
    assert f"the store is locked by process {process.pid}" in last
    assert "stop that broker first, or give this one another storePathRootDir" in last
    assert "Traceback" not in text


def test_a_damaged_table(tmp_path: Path) -> None:
    conf = processes.write_broker_conf(tmp_path, "broker-a", NOBODY, processes.free_port(), **SMALL)
    config = tmp_path / "store" / "config"
    config.mkdir(parents=True)
    (config / "topics.json").write_text("{ this is no table")
    (config / "topics.json.bak").write_text("neither is this")
    code, text = refuse(conf)
    assert code == 5
    assert "topics.json cannot be read" in text.splitlines()[-1]
    assert "restore one of them, or move both away" in text.splitlines()[-1]
    assert "Traceback" not in text


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder that takes no folders")
@pytest.mark.parametrize(
    ("key", "place", "reason"),
    [
        ("storePathRootDir", "/proc/store", "no folder can be made there"),
        ("storePathCommitLog", "/proc/store", "no folder can be made there"),
        ("storePathRootDir", f"/tmp/{'x' * 300}", "File name too long"),
    ],
)
def test_a_path_at_which_no_store_can_be(tmp_path: Path, key: str, place: str, reason: str) -> None:
    conf = processes.write_broker_conf(tmp_path, "broker-a", NOBODY, processes.free_port(), **SMALL)
    code, text = refuse(conf, "-D", f"{key}={place}")
    assert code == 2
    last = text.splitlines()[-1]
    assert last.startswith(f"mqbroker: {place}")
    assert last.endswith(f"{reason}; choose another storePathRootDir or storePathCommitLog")
    assert "Traceback" not in text


@pytest.mark.parametrize("name", ["consumerOffset.json", "delayDelivered"])
def test_a_folder_in_place_of_a_table(tmp_path: Path, name: str) -> None:
    conf = processes.write_broker_conf(tmp_path, "broker-a", NOBODY, processes.free_port(), **SMALL)
    path = tmp_path / "store" / "config" / name
    path.mkdir(parents=True)
    code, text = refuse(conf)
    assert code == 5
    last = text.splitlines()[-1]
    assert last.startswith(f"mqbroker: {path}: ")
    assert last.endswith("move it away or choose another storePathRootDir")
    assert "Traceback" not in text


@pytest.mark.feature("149d")
def test_an_unknown_key(tmp_path: Path) -> None:
    conf = processes.write_broker_conf(tmp_path, "broker-a", NOBODY, 0, brokerNam="x")
    code, text = refuse(conf)
    assert code == 2
    last = text.splitlines()[-1]
    assert last.startswith(
        f"mqbroker: {conf.name}:9: unknown key brokerNam; did you mean brokerName"
    )
    assert "Traceback" not in text


def test_an_advertised_name_that_nobody_knows(tmp_path: Path) -> None:
    conf = processes.write_broker_conf(
        tmp_path,
        "broker-a",
        NOBODY,
        processes.free_port(),
        brokerIP1="no.such.host.invalid",
        **SMALL,
    )
    code, text = refuse(conf)
    assert code == 2
    assert "brokerIP1=no.such.host.invalid" in text.splitlines()[-1]
    assert "Traceback" not in text


def test_name_servers_that_are_down_do_not_keep_it_from_serving(tmp_path: Path) -> None:
    namesrv_port = processes.free_port()
    with lone_broker(tmp_path, namesrv=f"127.0.0.1:{namesrv_port}") as (address, _):
        with BlockingConnection(address) as connection:
            assert send(connection, "T", b"0", 0).queue_offset == 0
        log = tmp_path / "broker-a.log"
        wait_for(
            lambda: f"name server 127.0.0.1:{namesrv_port}: cannot register" in log.read_text()
        )
        assert "clients that ask it will not find this broker" in log.read_text()
        with processes.our_name_server(tmp_path, namesrv_port) as namesrv:
            wait_for(lambda: f"registered with name server {namesrv}" in log.read_text())


def wait_for(condition: object, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_print_config_is_read_back(tmp_path: Path) -> None:
    conf = processes.write_broker_conf(tmp_path, "broker-a", NOBODY, 12345, maxMessageSize=99)
    command = [
        sys.executable,
        "-m",
        "triomq.broker",
        "-c",
        str(conf),
        "-n",
        "ns:1;ns:2",
        "--print-config",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert done.stderr == ""
    printed = tmp_path / "printed.conf"
    printed.write_text(done.stdout)
    config: BrokerConfig = load_broker_config(printed, environment={}).config
    assert (config.listen_port, config.store.message_size_bytes_max, config.namesrv_addresses) == (
        12345,
        99,
        ("ns:1", "ns:2"),
    )
    assert not (tmp_path / "store").exists()


# Hostile input


@pytest.fixture(scope="module")
def lasting_broker(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[str, subprocess.Popen[bytes], Path]]:
    """(address, process, log) of one broker for all hostile input: it must outlive that."""
    folder = tmp_path_factory.mktemp("hostile")
    with lone_broker(folder) as (address, process):
        yield address, process, folder / "broker-a.log"


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00" * 4096,
        b"\xff" * 4096,
        struct.pack(">II", 16 * 1024 * 1024 + 1, 10),
        struct.pack(">II", 100, 200),
        struct.pack(">II", 20, 0x07000010) + b"x" * 16,
        struct.pack(">II", 14, 10) + b"not json..",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=[
        "http",
        "zeros",
        "ones",
        "too-long",
        "header-beyond-frame",
        "header-type",
        "no-json",
        "tls",
    ],
)
def test_garbage_costs_its_sender_the_connection_and_nobody_else_anything(
    lasting_broker: tuple[str, subprocess.Popen[bytes], Path], data: bytes
) -> None:
    address, process, log = lasting_broker
    with BlockingConnection(address) as good:
        before = send(good, "T", b"0", 0).queue_offset
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=10) as bad:
            bad.sendall(data)
            bad.shutdown(socket.SHUT_WR)
            while bad.recv(65536):
                pass
        assert send(good, "T", b"1", 0).queue_offset == before + 1
        assert process.poll() is None
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize(
    "fields",
    [{}, {"queueId": "x"}, {"queueId": str(2**40)}, {"queueOffset": "-9223372036854775809"}],
)
def test_header_fields_that_are_missing_or_unreadable_are_answered(
    lasting_broker: tuple[str, subprocess.Popen[bytes], Path], fields: dict[str, str]
) -> None:
    address, _, _ = lasting_broker
    with BlockingConnection(address) as connection:
        command = request(Code.PULL_MESSAGE)
        command.ext = {"consumerGroup": "G", "topic": "T", **fields}
        answer = connection.invoke(command)
        assert answer.code == 1
        assert re.search("PullMessageHeader", answer.remark or "")
        send(connection, "T", b"0", 0)


@pytest.mark.feature("51b")
def test_consumer_offsets_outlive_kill_9_once_they_are_written(tmp_path: Path) -> None:
    """Every ``flushConsumerOffsetInterval``; what was committed later is what comes again."""
    port = processes.free_port()
    table = tmp_path / "store" / "config" / "consumerOffset.json"
    with (
        lone_broker(tmp_path, port, flushConsumerOffsetInterval=50) as (address, process),
        BlockingConnection(address) as connection,
    ):
        for number in range(20):
            send(connection, "T", b"%d" % number, 1)
        connection.invoke(
            request(Code.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetHeader("G", "T", 1, 7))
        )
        deadline = time.monotonic() + 20
        while not (table.exists() and '"T@G"' in table.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.kill()
        process.wait()
    with lone_broker(tmp_path, port) as (address, _), BlockingConnection(address) as connection:
        answer = connection.invoke(
            request(Code.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetHeader("G", "T", 1))
        )
        assert answer.header(OffsetResponseHeader).offset == 7
