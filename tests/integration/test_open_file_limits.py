"""Server processes with few descriptors: 1,500 idle connections at a limit of 1,024 stop neither server nor store."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import processes
import pytest

from triomq.broker.config import StoreSettings
from triomq.remoting import open_files
from triomq.sync import Producer, PullConsumer

CONNECTIONS = 1_500


@contextmanager
def with_files(limit: int, module: str, arguments: list[str], folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    words = ["sh", "-c", f'ulimit -n {limit} && exec "$@"', "sh", sys.executable, "-m", module, *arguments]
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
    port = processes.free_port()
    with processes.our_name_server(tmp_path) as namesrv:
        conf = processes.write_broker_conf(tmp_path, "broker-a", namesrv, port, haListenPort=0, flushDiskType=flush, mappedFileSizeCommitLog=65_536)
        with with_files(limit, "triomq.broker", ["-c", str(conf)], tmp_path, port) as process:
            processes.wait_registered(namesrv, "broker-a")
            with Producer(namesrv, group="p") as producer:
                producer.send("T", b"before")
                with idle_connections(port):
                    sent = {producer.send("T", b"%d" % number + b"x" * 2_000).message_id for number in range(200)}  # the log grows by files
                    assert process.poll() is None
                sent.add(producer.send("T", b"after").message_id)
            with PullConsumer(namesrv, group="c", subscriptions="T", consume_from="first") as consumer:
                got: set[str] = set()
                while len(got) < 202:
                    messages = consumer.poll(timeout=20)
                    assert messages
                    got |= {message.message_id for message in messages}
            assert sent <= got
    log = (tmp_path / "triomq.broker.log").read_text()
    assert "Traceback" not in log
    assert log.count("turning away a connection") <= 3, "told once in ten seconds"
    assert "raise serverConnectionsMax and the limit of open files (ulimit -n)" in log


def test_a_name_server_survives(tmp_path: Path) -> None:
    port = processes.free_port()
    (tmp_path / "n.conf").write_text(f"kvConfigPath={tmp_path}/kv.json\n")
    with with_files(256, "triomq.namesrv", ["-p", str(port), "-c", str(tmp_path / "n.conf")], tmp_path, port) as process:
        with idle_connections(port):
            assert process.poll() is None
        with processes.our_broker(tmp_path, "broker-a", f"127.0.0.1:{port}"), Producer(f"127.0.0.1:{port}", group="p") as producer:
            producer.send("T", b"x")


def test_what_connections_leave_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    for files, connections, queue_files in ((64, 24, 8), (1024, 384, 128), (4096, 3072, 512), (1_048_576, 50_000, 512)):
        monkeypatch.setattr(open_files, "limit", lambda files=files: files)
        store = StoreSettings().store_config(bytes(8))
        assert (open_files.connections_allowed(50_000), store.open_files_max) == (connections, queue_files)
