"""Server processes with few descriptors: 1,500 idle connections at a limit of 1,024 stop neither
server nor store.
"""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import processes
import pytest
import trio
from no_files import no_files_left
from prometheus_client.parser import text_string_to_metric_families
from serving import ECHO, RawPeer, serving, until

from triomq import ProducerSettings, TrioMQError
from triomq.broker.services import registration
from triomq.broker.services.live_settings import LiveSettings
from triomq.broker.services.name_servers import NameServer, NameServerTable
from triomq.broker.services.persisted import Version
from triomq.broker.services.topics import TopicSettings, open_topics
from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.client.connector import Connector
from triomq.remoting.core import open_files
from triomq.remoting.core.errors import ConnectFailed
from triomq.remoting.core.open_files import Places
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import Command
from triomq.remoting.server.handlers import Handler
from triomq.remoting.server.requests import Response
from triomq.sync import Producer, PullConsumer

CONNECTIONS = 1_500


@contextmanager
def with_files(
    limit: int, module: str, arguments: list[str], folder: Path, port: int
) -> Iterator[subprocess.Popen[bytes]]:
    words = [
        "sh",
        "-c",
        f'ulimit -n {limit} && exec "$@"',
        "sh",
        sys.executable,
        "-m",
        module,
        *arguments,
    ]
    with processes.running(words, folder / f"{module}.log", port=port) as process:
        yield process


@contextmanager
def idle_connections(port: int, count: int = CONNECTIONS) -> Iterator[None]:
    with ExitStack() as stack:
        for _ in range(count):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", port))
        yield


@pytest.mark.parametrize(("limit", "flush"), [(1024, "SYNC_FLUSH"), (256, "ASYNC_FLUSH")])
def test_a_broker_survives_and_loses_nothing(tmp_path: Path, limit: int, flush: str) -> None:
    port, monitor = processes.free_port(), processes.free_port()
    with processes.our_name_server(tmp_path) as namesrv:
        conf = processes.write_broker_conf(
            tmp_path,
            "broker-a",
            namesrv,
            port,
            haListenPort=port + 1,
            monitorPort=monitor,
            flushDiskType=flush,
            mappedFileSizeCommitLog=65_536,
        )
        with with_files(limit, "triomq.broker", ["-c", str(conf)], tmp_path, port) as process:
            processes.wait_registered(namesrv, "broker-a")
            with Producer(namesrv, group="p") as producer:
                producer.send("T", b"before")
                with idle_connections(port), idle_connections(port + 1), idle_connections(monitor):
                    sent = {
                        producer.send("T", b"%d" % number + b"x" * 2_000).message_id
                        for number in range(200)
                    }  # the log grows by files
                    assert process.poll() is None
                    with urllib.request.urlopen(
                        f"http://127.0.0.1:{monitor}/metrics", timeout=20
                    ) as answer:
                        page = answer.read().decode()
                sent.add(producer.send("T", b"after").message_id)
            with PullConsumer(
                namesrv, group="c", subscriptions="T", consume_from="first"
            ) as consumer:
                got: set[str] = set()
                while len(got) < 202:
                    messages = consumer.poll(timeout=20)
                    assert messages
                    got |= {message.message_id for message in messages}
            assert sent <= got
    log = (tmp_path / "triomq.broker.log").read_text()
    assert "Traceback" not in log
    figures = {
        (sample.name, sample.labels.get("port"), sample.labels.get("reason")): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    places = {
        kind: figures["triomq_connection_places", kind, None]
        for kind in ("clients", "slaves", "probes")
    }
    assert figures["process_max_fds", None, None] == limit
    assert figures["process_open_fds", None, None] <= sum(places.values()) + limit // 4
    assert all(
        figures["triomq_open_file_refusals_total", kind, "no_place"] >= 10
        for kind in ("clients", "slaves")
    )
    assert all(
        figures["triomq_open_file_refusals_total", kind, "no_descriptor"] == 0 for kind in places
    )
    assert figures["triomq_monitor_connections_closed_total", None, None] >= 10
    assert log.count("turning away a connection") <= 3, "logged once in ten seconds"
    assert f"the limit of open files (ulimit -n, {limit}) leaves" in log


def test_a_broker_without_any_descriptor_left_goes_on_when_some_are_back(tmp_path: Path) -> None:
    """The limit is lowered while it runs, to fewer files than are open."""
    monitor = processes.free_port()
    with processes.our_name_server(tmp_path) as namesrv:
        with processes.our_broker(
            tmp_path,
            "broker-a",
            namesrv,
            monitorPort=monitor,
            mappedFileSizeCommitLog=65_536,
            flushDiskType="SYNC_FLUSH",
        ) as (_, process):
            processes.wait_registered(namesrv, "broker-a")
            with Producer(namesrv, group="p", settings=ProducerSettings(retries=0)) as producer:
                sent = [
                    producer.send("T", b"%d" % number + b"x" * 2_000).message_id
                    for number in range(3)
                ]
                before = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
                resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (10, before[1]))
                refusals = []
                for number in range(60):  # two segments' worth
                    try:
                        sent.append(producer.send("T", b"%d" % number + b"x" * 2_000).message_id)
                    except TrioMQError as error:
                        refusals.append(str(error))
                        if len(refusals) == 3:
                            break
                assert process.poll() is None
                assert len(refusals) == 3, "the log needs another file"
                assert "this process may have 10 (ulimit -n); raise that limit" in refusals[0]
                with socket.create_connection(("127.0.0.1", monitor), timeout=20) as waiting:
                    waiting.sendall(b"GET /live HTTP/1.1\r\n\r\n")
                    time.sleep(0.3)  # it waits in the backlog
                    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, before)
                    assert waiting.recv(1000).startswith(b"HTTP/1.1 200")
                deadline = time.monotonic() + 20
                while True:
                    try:
                        sent.append(producer.send("T", b"after").message_id)
                    except TrioMQError:
                        assert time.monotonic() < deadline
                        time.sleep(0.1)
                    else:
                        break
            with PullConsumer(
                namesrv, group="c", subscriptions="T", consume_from="first"
            ) as consumer:
                got: list[str] = []
                while len(got) < len(sent):
                    messages = consumer.poll(timeout=20)
                    assert messages
                    got += [message.message_id for message in messages]
            assert sorted(got) == sorted(sent)
    log = next(tmp_path.glob("broker-a*.log")).read_text()
    assert "Traceback" not in log
    assert log.count("cannot accept probes for now") == 1


def test_a_name_server_survives(tmp_path: Path) -> None:
    port = processes.free_port()
    (tmp_path / "n.conf").write_text(f"kvConfigPath={tmp_path}/kv.json\n")
    with with_files(
        256, "triomq.namesrv", ["-p", str(port), "-c", str(tmp_path / "n.conf")], tmp_path, port
    ) as process:
        with idle_connections(port):
            assert process.poll() is None
        with (
            processes.our_broker(tmp_path, "broker-a", f"127.0.0.1:{port}"),
            Producer(f"127.0.0.1:{port}", group="p") as producer,
        ):
            producer.send("T", b"x")


async def test_all_servers_of_a_process_share_its_places(caplog: pytest.LogCaptureFixture) -> None:
    places = Places(3)
    async with serving(places=places, connections_max=2) as one, serving(places=places) as other:
        async with (
            await RawPeer.open(one) as first,
            await RawPeer.open(one) as second,
            await RawPeer.open(other) as third,
        ):
            for peer in (first, second, third):
                assert (await peer.call(ECHO, b"x")).body == b"x"
            async with await RawPeer.open(one) as beyond:  # of its own limit: no place is lost
                await beyond.ended()
            async with await RawPeer.open(other) as beyond:
                await beyond.ended()
            assert (places.taken, places.refused) == (3, 1)
            await first.stream.aclose()
            await until(lambda: places.taken == 2)
            async with await RawPeer.open(other) as fourth:
                assert (await fourth.call(ECHO, b"y")).body == b"y"
                async with await RawPeer.open(other) as beyond:
                    await beyond.ended()
        await until(lambda: places.taken == 0)
        assert [server.statistics().turned_away for server in (one, other)] == [1, 2]
        lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        (
            "turning away a connection: 2 are open, the limit; raise serverConnectionsMax, or close"
            " clients"
        ),
        (
            f"turning away a connection: the limit of open files (ulimit -n, {open_files.limit()})"
            " leaves 3 for clients; raise it, or close clients"
        ),
    ]


async def test_a_connection_that_gets_no_descriptor_says_which_limit_to_raise(
    tmp_path: Path,
) -> None:
    explained = (
        r"cannot connect to 127\.0\.0\.1:\d+: Too many open files: this process may have \d+"
        r" \(ulimit -n\); raise that limit, or close connections"
    )
    async with serving() as server, Connector() as connector:
        address = f"127.0.0.1:{server.port}"
        for _ in range(2):
            with no_files_left(), pytest.raises(ConnectFailed, match=explained):
                await connector.invoke(address, Command(ECHO))
            with no_files_left(), pytest.raises(ConnectFailed, match=explained):
                BlockingConnection(address)
            assert (
                await connector.invoke(address, Command(ECHO, body=b"x"))
            ).body == b"x"  # nothing is remembered of it
            connector.close_address(address)


async def test_a_broker_registers_when_it_has_a_descriptor_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(registration, "RETRY_SECONDS_FIRST", 0.05)
    live, version = LiveSettings(), Version(lambda: 1)
    topics = open_topics(tmp_path, TopicSettings(cluster_name="C", broker_name="b"), live, version)
    settings = registration.RegistrationSettings(
        cluster_name="C", broker_name="b", broker_id=0, broker_address="h:1", ha_address="h:2"
    )
    servers = NameServerTable()
    async with (
        serving([Handler(RequestCode.REGISTER_BROKER, lambda request: Response(0))]) as server,
        Connector(on_lost=servers.connection_lost) as connector,
        trio.open_nursery() as nursery,
    ):
        address = f"127.0.0.1:{server.port}"
        namesrv = servers[address] = NameServer(address)
        task = registration.Registrar(settings, topics, live, servers, connector)
        with no_files_left():
            await nursery.start(task.keep_registered)
            await trio.sleep(0.2)
            assert not namesrv.registered
        await until(lambda: namesrv.registered)
        nursery.cancel_scope.cancel()
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(lines) >= 2
    assert all(
        f"cannot register (cannot connect to {address}: Too many open files: this process may have"
        in line
        for line in lines
    )
