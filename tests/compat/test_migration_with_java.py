"""docs/migration.md, step by step: both ways from a Java cluster to ours and back, under a Java
consumer that runs all the time and notices nothing.
"""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import processes
import pytest
from processes import (
    java_command,
    java_peer,
    running,
    wait_registered,
    write_broker_conf,
    write_logback,
)

pytestmark = [pytest.mark.compat, pytest.mark.slow, pytest.mark.timeout(400)]

NAME, TOPIC, GROUP = "broker-moving", "Moving", "movers"
SEGMENT = 65_536
SMALL = {
    "mappedFileSizeCommitLog": SEGMENT,
    "mappedFileSizeConsumeQueue": 20 * 1000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
    # a slave of Java learns its master's address when it registers
    "registerNameServerPeriod": 10_000,
}
SECONDS_MAX = 90
COUNT = 60
VERSION = "5.5.0"
"""Directories and streams of 4.9.4 are proven in test_store_with_java and
test_replication_with_java; each of these tests takes a minute
"""


def need_java(version: str) -> None:
    if processes.java_home(version) is None:
        pytest.skip(f"the Java peers {version} are not installed: run `make peers`")


def lasting_port() -> int:
    """Return a port that is free together with its neighbours and stays free without a listener:
    outgoing connections do not get it.
    """
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(low - 12_000, low - 100, 4)
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for neighbour in range(port - 2, port + 2):
                held.enter_context(socket.socket()).bind(("127.0.0.1", neighbour))
            return port


@contextmanager
def java_on(version: str, conf: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    home = conf.parent / f"java-{port}"
    write_logback(home)
    with running(
        java_command(
            version, "org.apache.rocketmq.broker.BrokerStartup", "-c", str(conf), home=home
        ),
        home / "broker.log",
        port=port,
    ) as process:
        yield process


@contextmanager
def ours_on(conf: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    with running(
        [sys.executable, "-m", "triomq.broker", "-c", str(conf)],
        conf.with_suffix(".log"),
        port=port,
    ) as process:
        yield process


def end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(60)


class Consumer:
    """A Java consumer of its own process that is started once and must get everything."""

    def __init__(self, version: str, namesrv: str, folder: Path, count: int) -> None:
        self.output = folder / "consumer.txt"
        self.stream = self.output.open("wb")
        command = java_command(
            version,
            "Peer",
            "consume",
            namesrv,
            TOPIC,
            GROUP,
            "*",
            str(count),
            "200",
            define=["peer.pollNameServer=1000"],
        )
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self.stream, stderr=subprocess.DEVNULL
        )

    def bodies(self) -> set[str]:
        """What it has got so far, by tag and body."""
        lines = [line.split("\t") for line in self.output.read_text().splitlines()]
        return {f"{line[2]} {line[7]}" for line in lines if line[0] == "GOT" and len(line) == 8}

    def wait_for(self, wanted: set[str]) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while not wanted <= self.bodies():
            if time.monotonic() > deadline or self.process.poll() not in (None, 0):
                raise AssertionError(
                    f"the consumer misses {len(wanted - self.bodies())} messages:"
                    f" {sorted(wanted - self.bodies())[:5]} …"
                )
            time.sleep(0.1)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(30)
        self.stream.close()


@contextmanager
def consuming(version: str, namesrv: str, folder: Path, count: int) -> Iterator[Consumer]:
    consumer = Consumer(version, namesrv, folder, count)
    try:
        yield consumer
    finally:
        consumer.close()


def send(version: str, namesrv: str, tag: str, count: int = COUNT) -> set[str]:
    """Send with a Java producer; a name server may still tell it of a master that has gone, then it
    sends again.
    """
    lines = java_peer(version, "send", namesrv, TOPIC, str(count), tag, "sync", seconds=120)
    assert [line[1] for line in lines if line[0] == "SENT"] == ["SEND_OK"] * count
    return {f"{tag} body-{number}" for number in range(count)}


def log_of(store: Path) -> tuple[int, bytes]:
    files = sorted((store / "commitlog").glob("[0-9]*"))
    return (int(files[0].name) if files else 0), b"".join(
        path.read_bytes() for path in files
    ).rstrip(b"\0")


def wait_copied(master: Path, slave: Path) -> int:
    """Until the slave has everything up to the master's end; where its log begins."""
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline:
        (begin, copy), (first, whole) = log_of(slave), log_of(master)
        if copy and copy == whole[begin - first :]:
            return begin
        time.sleep(0.1)
    raise AssertionError(
        f"the slave's log differs: {log_of(master)[0]} + {len(log_of(master)[1])} bytes against"
        f" {log_of(slave)[0]} + {len(log_of(slave)[1])}"
    )


def offsets_saved(store: Path) -> str:
    """consumerOffset.json, which a stop of Java and of ours brings up to date."""
    return (store / "config" / "consumerOffset.json").read_text()


@pytest.mark.loss
@pytest.mark.compatible("migration in place", peer="java-server-5.5.0")
@pytest.mark.feature("187a", "187b")
def test_java_is_stopped_and_ours_started_on_its_directory(tmp_path: Path) -> None:
    """The same broker.conf, the same port, the same directory; the name server stays Java's. Then
    the way back.
    """
    need_java(VERSION)
    port, store = lasting_port(), tmp_path / "store"
    with processes.java_name_server(VERSION, tmp_path / "namesrv") as namesrv:
        conf = write_broker_conf(
            tmp_path, NAME, namesrv, port, haListenPort=port + 1, storePathRootDir=store, **SMALL
        )
        with java_on(VERSION, conf, port) as java:
            wait_registered(namesrv, NAME)
            sent = send(VERSION, namesrv, "Java")
            with consuming(VERSION, namesrv, tmp_path, 3 * COUNT) as consumer:
                consumer.wait_for(sent)
                end(java)
                with ours_on(conf, port) as ours:
                    wait_registered(namesrv, NAME)
                    sent |= send(VERSION, namesrv, "Ours")
                    consumer.wait_for(sent)
                    end(ours)
                with java_on(VERSION, conf, port):
                    wait_registered(namesrv, NAME)
                    sent |= send(VERSION, namesrv, "Back")
                    consumer.wait_for(sent)
                assert consumer.bodies() == sent


@pytest.mark.loss
@pytest.mark.compatible("migration by slave", peer="java-server-5.5.0")
@pytest.mark.feature("188a", "188b")
def test_our_slave_takes_over_from_a_java_master_and_gives_back(tmp_path: Path) -> None:
    """Closed files of the log are copied first, since a Java master sends a new slave its last file
    only; then slave, switch, and the way back.
    """
    need_java(VERSION)
    java_port, our_port = lasting_port(), lasting_port()
    java_store, our_store = tmp_path / "java-store", tmp_path / "our-store"
    with processes.java_name_server(VERSION, tmp_path / "namesrv") as namesrv:

        def conf(who: str, **settings: object) -> Path:
            port, store = (java_port, java_store) if who == "java" else (our_port, our_store)
            return write_broker_conf(
                tmp_path / who,
                NAME,
                namesrv,
                port,
                haListenPort=port + 1,
                storePathRootDir=store,
                **SMALL,
                **settings,
            )

        with java_on(VERSION, conf("java", brokerRole="ASYNC_MASTER"), java_port) as java:
            wait_registered(namesrv, NAME)
            sent = send(VERSION, namesrv, "Java", 6 * COUNT)  # several files of the log
            with consuming(VERSION, namesrv, tmp_path, 8 * COUNT) as consumer:
                consumer.wait_for(sent)
                closed = sorted((java_store / "commitlog").glob("[0-9]*"))[:-2]
                assert closed, "the test wants several files"
                (our_store / "commitlog").mkdir(parents=True)
                for path in closed:
                    shutil.copy2(path, our_store / "commitlog")
                with ours_on(
                    conf("ours", brokerRole="SLAVE", brokerId=1, slaveReadEnable="true"), our_port
                ) as slave:
                    assert wait_copied(java_store, our_store) == 0
                    wait_offsets(our_store)
                    end(java)
                    end(slave)
                # switched over
                with ours_on(conf("ours", brokerRole="ASYNC_MASTER"), our_port) as master:
                    wait_registered(namesrv, NAME)
                    sent |= send(VERSION, namesrv, "Ours")
                    consumer.wait_for(sent)
                    with java_on(
                        VERSION, conf("java", brokerRole="SLAVE", brokerId=1), java_port
                    ) as back:
                        assert wait_copied(our_store, java_store) == 0
                        wait_offsets(java_store, same_as=our_store)
                        end(master)
                        end(back)
                # and back
                with java_on(VERSION, conf("java", brokerRole="ASYNC_MASTER"), java_port):
                    wait_registered(namesrv, NAME)
                    sent |= send(VERSION, namesrv, "Back")
                    consumer.wait_for(sent)
                assert consumer.bodies() == sent
    done = subprocess.run(
        [sys.executable, "-m", "triomq.broker.inspect", "verify", str(our_store)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def wait_offsets(store: Path, *, same_as: Path | None = None) -> None:
    """Until the slave's file has the group's offsets; those of the other store if one is given."""
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        try:
            text = offsets_saved(store)
            if f"{TOPIC}@{GROUP}" in text and (
                same_as is None or rows(text) == rows(offsets_saved(same_as))
            ):
                return
        except (FileNotFoundError, IndexError):
            text = "nothing"
        if time.monotonic() > deadline:
            raise AssertionError(f"the offsets of {GROUP} did not come: {text[-800:]}")
        time.sleep(0.2)


def rows(text: str) -> list[tuple[str, str]]:
    """(queue, offset) of the group in consumerOffset.json; fastjson writes the numbers of queues
    without quotes.
    """
    return sorted(
        re.findall(r'"?(\d+)"?\s*:\s*(\d+)', text.split(f'"{TOPIC}@{GROUP}"')[1].partition("}")[0])
    )
