"""The procedures of the pages for operators, each as a whole: their commands, run on real servers,
with clients that go on, and what must be true afterwards.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import attrs
import pytest
from page_shell import Shell, of, until
from pages import blocks
from processes import free_port
from small_file_system import SmallFileSystem, why_not

from triomq import ReceivedMessage, SendStatus, TrioMQError
from triomq.sync import Producer as SyncProducer
from triomq.sync import PullConsumer as SyncPullConsumer
from triomq.sync import PushConsumer as SyncPushConsumer

OPERATIONS, DEPLOY = "docs/operations.md", "docs/deploy.md"


@pytest.mark.slow
@pytest.mark.feature("200b")
def test_a_broker_is_copied_to_another_folder(shell: Shell) -> None:
    """A backup and its restore, as another machine would do it: another folder, another port."""
    page, namesrv = "docs/operations.md", f"127.0.0.1:{shell.ports['9876']}"
    old, new = shell.home / "old", shell.home / "new"

    def here(folder: Path, *words: str) -> str:
        return of(page, *words).replace("/var/lib/triomq", str(folder))

    def start(folder: Path, port: int) -> None:
        folder.mkdir(exist_ok=True)
        (shell.home / "broker-a.conf").write_text(
            f"brokerName=broker-a\nlistenPort={port}\nbrokerIP1=127.0.0.1\n"
            f"storePathRootDir={folder}/broker-a\n"
        )
        shell.start(of(page, "mqbroker", "-n", "127.0.0.1:9876", "-c", "broker-a.conf"), port)
        until(shell, "mqadmin cluster list -n 127.0.0.1:9876", f"127.0.0.1:{port}")

    def consumed(count: int) -> list[bytes]:
        found: list[bytes] = []
        with SyncPullConsumer(
            namesrv, group="billing", subscriptions="Orders", consume_from="first"
        ) as consumer:
            deadline = time.monotonic() + 60
            while len(found) < count and time.monotonic() < deadline:
                found += [message.body for message in consumer.poll(timeout=5)]
            consumer.commit()
        return found

    shell.start(of("README.md", "mqnamesrv", "-p"), shell.ports["9876"])
    start(old, shell.ports["10911"])
    with SyncProducer(namesrv, group="shop") as producer:
        producer.send("Orders", b"1")
    assert consumed(1) == [b"1"]
    with SyncProducer(namesrv, group="shop") as producer:
        producer.send("Orders", b"2")
    broker = shell.running.pop()
    broker.send_signal(signal.SIGTERM)
    assert broker.wait(timeout=60) == 0
    shell.run(here(old, "mqstore", "verify"))
    shell.run(here(old, "tar", "-C", "/var/lib/triomq", "-cf"))
    new.mkdir()
    shell.run(here(new, "tar", "-C", "/var/lib/triomq", "-xf"))
    shell.run(here(new, "mqstore", "verify"))
    start(new, free_port())
    assert consumed(1) == [b"2"], "of the copy; the first one is consumed"


@pytest.mark.slow
@pytest.mark.feature("200b")
def test_a_broker_is_added_and_takes_over(shell: Shell) -> None:
    """Running clients send to the new broker and read there, and the old one can be stopped."""
    page, namesrv = "docs/operations.md", f"127.0.0.1:{shell.ports['9876']}"

    def start(name: str, port: int) -> None:
        (shell.home / f"{name}.conf").write_text(
            f"brokerName={name}\nlistenPort={port}\nbrokerIP1=127.0.0.1\n"
            f"storePathRootDir={shell.home / name}\n"
        )
        shell.start(of(page, "mqbroker -n 127.0.0.1:9876 -c", f"{name}.conf"), port)
        until(shell, "mqadmin cluster list -n 127.0.0.1:9876", f"127.0.0.1:{port}")

    shell.environment["NAMESRV_ADDR"] = namesrv
    shell.start(of("README.md", "mqnamesrv", "-p"), shell.ports["9876"])
    start("broker-a", shell.ports["10911"])
    shell.run("mqadmin topic create -c DefaultCluster -t Orders -r 2 -w 2")
    sent, read = set[bytes](), set[bytes]()

    with (
        SyncProducer(namesrv, group="shop") as producer,
        SyncPullConsumer(namesrv, group="billing", subscriptions="Orders") as consumer,
    ):
        consumer.wait_assigned()

        def send() -> str:
            sent.add(body := b"%d" % len(sent))
            return producer.send("Orders", body).queue.broker_name

        def read_all() -> None:
            deadline = time.monotonic() + 60
            while read != sent and time.monotonic() < deadline:
                read.update(message.body for message in consumer.poll(timeout=1))
            assert read == sent
            consumer.commit()

        shell.run(of(page, "mqadmin cluster export -c DefaultCluster -o topics.yaml"))
        start("broker-b", free_port(span=3))
        shell.run(of(page, "mqadmin cluster apply topics.yaml"))
        assert "broker-b" in shell.run(of(page, "mqadmin topic route Orders"))
        deadline, used = time.monotonic() + 90, set[str]()
        while len(used) < 2 and time.monotonic() < deadline:
            used.add(send())
            time.sleep(0.1)
        assert used == {"broker-a", "broker-b"}
        read_all()
        assert "safe to stop" in shell.run(of(page, "mqadmin broker drain broker-a"))
        old = shell.running.pop(1)
        old.send_signal(signal.SIGTERM)
        assert old.wait(timeout=60) == 0
        shell.run("mqadmin broker forget broker-a")
        assert send() == "broker-b"
        read_all()


def write_pair(shell: Shell, ports: dict[str, int], **more: str) -> None:
    """Write ``master.conf`` and ``slave.conf`` as the page of replication has them."""
    both = next(block.text for block in blocks("properties") if block.page == "docs/replication.md")
    columns = [re.split(r"\s{2,}", line.strip()) for line in both.splitlines()]
    assert columns[0] == ["# master", "# slave"]
    for number, (name, port) in enumerate(ports.items()):
        lines = [column[number] for column in columns[1:]]
        here = {
            "listenPort": port,
            "haListenPort": port + 1,
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "storePathRootDir": shell.home / name,
            **more,
        }
        lines += [f"{key}={value}" for key, value in here.items()]
        (shell.home / f"{name}.conf").write_text("\n".join(lines) + "\n")


def read_all(namesrv: str, group: str, wanted: set[bytes], seconds: float = 60) -> set[bytes]:
    """Return the bodies that a new group finds in ``Orders``, once it has those that are wanted."""
    found: set[bytes] = set()
    with SyncPullConsumer(
        namesrv, group=group, subscriptions="Orders", consume_from="first"
    ) as consumer:
        deadline = time.monotonic() + seconds
        while not wanted <= found and time.monotonic() < deadline:
            found.update(message.body for message in consumer.poll(timeout=1))
    return found


IN_SYNC = "mqadmin broker replication -c DefaultCluster --json"


@pytest.mark.slow
@pytest.mark.feature("200b")
def test_a_slave_loses_its_disk_and_then_the_master_is_lost(shell: Shell) -> None:
    """The slave copies what its master has; as the next master it has all that was confirmed."""
    namesrv = f"127.0.0.1:{shell.ports['9876']}"
    shell.environment["NAMESRV_ADDR"] = namesrv
    ports = {"master": shell.ports["10911"], "slave": free_port()}
    write_pair(shell, ports)
    shell.start(of("README.md", "mqnamesrv", "-p"), shell.ports["9876"])
    for name, port in ports.items():
        shell.start(of("README.md", "mqbroker -n 127.0.0.1:9876 -c", f"{name}.conf"), port)
    until(shell, IN_SYNC, '"inSyncSlaveNum":1')
    confirmed: set[bytes] = set()

    def send(count: int) -> None:
        with SyncProducer(namesrv, group="shop") as producer:
            for _ in range(count):
                body = b"%d" % len(confirmed)
                deadline = time.monotonic() + 60
                while producer.send("Orders", body).status != SendStatus.STORED:
                    assert time.monotonic() < deadline
                confirmed.add(body)

    send(50)
    slave = shell.running.pop()
    slave.kill()
    slave.wait()
    shutil.rmtree(shell.home / "slave")
    shell.start(of(OPERATIONS, "mqbroker -n 127.0.0.1:9876 -c slave.conf"), ports["slave"])
    until(shell, IN_SYNC, '"inSyncSlaveNum":1')
    until(shell, of(OPERATIONS, "mqadmin broker replication"), "#InSyncSlaveNum\t1")
    assert str(ports["slave"]) in shell.run(of(OPERATIONS, "mqadmin cluster list"))
    send(50)
    master = shell.running.pop(1)
    master.kill()
    master.wait()
    slave = shell.running.pop()
    slave.send_signal(signal.SIGTERM)
    assert slave.wait(timeout=60) == 0
    page = next(
        line
        for line in (Path(__file__).parents[3] / DEPLOY).read_text().splitlines()
        if line.startswith("**A lost master.**")
    )
    assert "brokerRole=SYNC_MASTER" in page
    conf = shell.home / "slave.conf"
    text = conf.read_text()
    for old, new in (("brokerRole=SLAVE", "brokerRole=ASYNC_MASTER"), ("brokerId=1", "brokerId=0")):
        assert old in text
        text = text.replace(old, new)
    conf.write_text(text)
    shell.start(of(OPERATIONS, "mqbroker -n 127.0.0.1:9876 -c slave.conf"), ports["slave"])
    until(shell, of(OPERATIONS, "mqadmin cluster list"), str(ports["slave"]))
    assert confirmed - read_all(namesrv, "audit", confirmed) == set()


@attrs.define
class Clients:
    """A producer and a consumer that go on whatever is restarted, each in a thread of its own."""

    namesrv: str
    confirmed: set[bytes] = attrs.field(factory=set)
    read: set[bytes] = attrs.field(factory=set)
    failures: list[str] = attrs.field(factory=list)
    over: threading.Event = attrs.field(factory=threading.Event)

    def send(self) -> None:
        number = 0
        with SyncProducer(self.namesrv, group="shop") as producer:
            while not self.over.is_set():
                number += 1
                body = b"%d" % number
                try:
                    producer.send("Orders", body)
                except Exception as error:  # what is not confirmed need not be there
                    self.failures.append(repr(error))
                else:
                    self.confirmed.add(body)
                time.sleep(0.02)

    def consume(self) -> None:
        with SyncPullConsumer(
            self.namesrv, group="billing", subscriptions="Orders", consume_from="first"
        ) as consumer:
            while not self.over.is_set():
                self.read.update(message.body for message in consumer.poll(timeout=0.2))
                with contextlib.suppress(TrioMQError):  # a dead broker; the next call commits
                    consumer.commit()


COMMITS_BACK = 300


def older_tree(folder: Path) -> Path:
    """Unpack the tree of an older commit, which the programs of ``env PYTHONPATH=`` it are from."""
    root = Path(__file__).parents[3]
    git = ["git", "-C", str(root)]
    found = subprocess.run(
        [*git, "rev-list", f"--skip={COMMITS_BACK}", "--max-count=1", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    if not found:
        pytest.skip(f"this clone has no commit {COMMITS_BACK} before its last one")
    folder.mkdir()
    packed = subprocess.run([*git, "archive", found], capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed, check=True)
    return folder


@pytest.mark.nightly
@pytest.mark.feature("200b")
@pytest.mark.timeout(600)
def test_every_server_is_upgraded_one_after_the_other(shell: Shell) -> None:
    """In the order of the page, from the programs of an older commit to those of today: name
    servers, slaves, masters; clients lose nothing meanwhile, and old clients work at the end.
    """
    old = f"env PYTHONPATH={older_tree(shell.home / 'older')} "
    text = (Path(__file__).parents[3] / DEPLOY).read_text()
    steps = re.findall(
        r"^\d\. \*\*(.+?)\.\*\*", text.partition("## Rolling restart")[2], re.MULTILINE
    )
    assert steps[:4] == ["Name servers", "Slaves", "Masters", "Clients"]
    name_servers = [shell.ports["9876"], free_port()]
    namesrv = ";".join(f"127.0.0.1:{port}" for port in name_servers)
    shell.environment["NAMESRV_ADDR"] = namesrv
    ports = {"master": shell.ports["10911"], "slave": free_port()}
    write_pair(shell, ports, inSyncReplicas="1")
    other = free_port()
    (shell.home / "other.conf").write_text(
        f"brokerName=broker-b\nlistenPort={other}\nbrokerIP1=127.0.0.1\n"
        f"storePathRootDir={shell.home / 'other'}\n"
    )
    running: dict[str, subprocess.Popen[bytes]] = {}

    def start(name: str, line: str, port: int) -> None:
        shell.start(line, port)
        running[name] = shell.running[-1]

    def start_broker(name: str, port: int, version: str = "") -> None:
        line = of("README.md", "mqbroker -n 127.0.0.1:9876 -c", "slave.conf")
        line = line.partition(" #")[0].replace("slave.conf", f"{name}.conf")
        start(name, version + line.replace("-n 127.0.0.1:9876", f"-n '{namesrv}'"), port)
        until(shell, of(DEPLOY, "mqadmin cluster list"), f"127.0.0.1:{port}")

    def stop(name: str) -> None:
        process = running.pop(name)
        shell.running.remove(process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0

    for port in name_servers:
        start(f"ns-{port}", f"{old}mqnamesrv -p {port}", port)
    for name, port in (*ports.items(), ("other", other)):
        start_broker(name, port, old)
    shell.run("mqadmin topic create -c DefaultCluster -t Orders -r 2 -w 2")
    until(shell, IN_SYNC, '"inSyncSlaveNum":1')
    first = {process.pid for process in running.values()}
    clients = Clients(namesrv)
    threads = [threading.Thread(target=work) for work in (clients.send, clients.consume)]
    for thread in threads:
        thread.start()
    try:
        for port in name_servers:
            stop(f"ns-{port}")
            start(f"ns-{port}", f"mqnamesrv -p {port}", port)
            until(shell, f"mqadmin cluster list -n 127.0.0.1:{port}", *map(str, ports.values()))
        stop("slave")
        start_broker("slave", ports["slave"])
        until(shell, IN_SYNC, '"inSyncSlaveNum":1')
        for name, broker, port in (
            ("master", "broker-a", ports["master"]),
            ("other", "broker-b", other),
        ):
            drain = of(DEPLOY, "mqadmin broker drain broker-a").replace("broker-a", broker)
            assert "safe to stop" in shell.run(drain.partition(" #")[0])
            stop(name)
            start_broker(name, port)
            shell.run(of(DEPLOY, "mqadmin broker undrain broker-a").replace("broker-a", broker))
        until(shell, IN_SYNC, '"inSyncSlaveNum":1')
        shell.run(f"{old}mqadmin bench send --rate 50 --duration 1")
        before = len(clients.confirmed)
        deadline = time.monotonic() + 60
        while len(clients.confirmed) < before + 50 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert len(clients.confirmed) >= before + 50, ("clients go on", clients.failures[-3:])
        deadline = time.monotonic() + 60
        while not clients.confirmed <= clients.read and time.monotonic() < deadline:
            time.sleep(0.1)
    finally:
        clients.over.set()
        for thread in threads:
            thread.join(60)
    assert not first & {process.pid for process in running.values()}, "every one was replaced"
    lost = clients.confirmed - clients.read
    assert lost - read_all(namesrv, "audit", lost) == set()


DISK_BYTES = 96 << 20


@pytest.mark.nightly
@pytest.mark.feature("200b")
@pytest.mark.timeout(600)
def test_a_broker_dies_a_disk_fills_and_a_message_is_poison(shell: Shell) -> None:
    """With the page's commands and clients that go on: nothing that was confirmed is lost."""
    if missing := why_not():
        pytest.skip(missing)
    namesrv = f"127.0.0.1:{shell.ports['9876']}"
    shell.environment["NAMESRV_ADDR"] = namesrv
    ports = {"broker-a": shell.ports["10911"], "broker-b": free_port(), "broker-c": free_port()}
    running: dict[str, subprocess.Popen[bytes]] = {}

    def start(name: str) -> None:
        line = of("README.md", "mqbroker -n 127.0.0.1:9876 -c", "slave.conf").partition(" #")[0]
        shell.start(line.replace("slave.conf", f"{name}.conf"), ports[name])
        running[name] = shell.running[-1]
        until(shell, "mqadmin cluster list --json || true", f"127.0.0.1:{ports[name]}")

    def lacking(line: str) -> str:
        """Run a line whose answer lacks the dead broker; return what it prints."""
        done = shell.ended(line)
        assert (done.returncode, "broker-c" in done.stderr) == (3, True), (line, done)
        return done.stdout

    shell.start(of("README.md", "mqnamesrv", "-p"), shell.ports["9876"])
    for name, port in ports.items():
        (shell.home / f"{name}.conf").write_text(
            f"brokerName={name}\nlistenPort={port}\nbrokerIP1=127.0.0.1\nhaListenPort=0\n"
            f"mappedFileSizeCommitLog={8 << 20}\nstorePathRootDir={shell.home / name / 'store'}\n"
        )
    poison, healthy = threading.Event(), threading.Event()

    def handle(message: ReceivedMessage) -> None:
        if "poison" in message.keys:
            if not healthy.is_set():
                raise ValueError("no such customer")
            poison.set()

    with SmallFileSystem(shell.home / "broker-a", size_bytes=DISK_BYTES) as disk:
        for name in ports:
            start(name)
        shell.run("mqadmin topic create -c DefaultCluster -t Orders -r 2 -w 2")
        shell.run("mqadmin group create -c DefaultCluster -g mailing -r 1")
        clients = Clients(namesrv)
        threads = [threading.Thread(target=work) for work in (clients.send, clients.consume)]
        for thread in threads:
            thread.start()
        try:
            with (
                SyncPushConsumer(namesrv, group="mailing", subscriptions="Orders", handler=handle),
                SyncProducer(namesrv, group="shop") as producer,
            ):
                running.pop("broker-c").kill()
                shell.running.pop().wait()
                disk.fill(leave=DISK_BYTES // 5)
                producer.send("Orders", b"poison", keys=["poison"])
                until(shell, "mqadmin cluster list || true", "connection lost")
                assert "connection lost" in lacking(of(OPERATIONS, "mqadmin cluster list"))
                full = lacking(of(OPERATIONS, "mqadmin broker disk -c"))
                assert "expired files go at any hour" in full.partition("reached")[0]
                drain = of(OPERATIONS, "mqadmin broker drain broker-a")
                assert "safe to stop" in shell.run(drain)
                shell.run(of(OPERATIONS, "mqadmin broker set", "-b", "127.0.0.1:10911"))
                why = of(OPERATIONS, "mqadmin group why billing").replace("billing", "mailing")
                until(shell, f"{why} || true", "dead-letters", "no such customer", "broker-silent")
                assert "gave it up" in lacking("mqadmin message explain poison")
                disk.free()
                shell.run("mqadmin broker undrain broker-a")
                start("broker-c")
                until(shell, of(OPERATIONS, "mqadmin cluster list"), *map(str, ports.values()))
                healthy.set()
                again = of(OPERATIONS, "mqadmin dlq resend billing").partition(" --key")[0]
                again = again.replace("billing", "mailing")
                assert "1 of 1 sent" in shell.run(f"{again} --only-group --yes")
                assert poison.wait(60)
            before = len(clients.confirmed)
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline and not (
                len(clients.confirmed) > before and clients.confirmed <= clients.read
            ):
                time.sleep(0.1)
        finally:
            clients.over.set()
            for thread in threads:
                thread.join(60)
        assert clients.failures == [], "sends find a broker that takes them"
        lost = clients.confirmed - clients.read
        assert lost - read_all(namesrv, "audit", lost) == set()
        disk_user = running["broker-a"]
        shell.running.remove(disk_user)
        disk_user.send_signal(signal.SIGTERM)
        assert disk_user.wait(timeout=60) == 0
