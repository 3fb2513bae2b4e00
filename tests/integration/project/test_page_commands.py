"""Every command line of README and docs: our programs are run with exactly these words (addresses
and folders replaced), on a real cluster.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import pytest
import trio
from mqadmin_calls import Done, mqadmin
from page_shell import Shell, of, until
from pages import ROOT, blocks, pages
from processes import free_port

from triomq import (
    ClientSettings,
    Producer,
    ProducerSettings,
    PushConsumer,
    ReceivedMessage,
    SendStatus,
)
from triomq.client.mqadmin.core.command_list import LIST
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.send import SendBackHeader
from triomq.remoting.protocol.record import StoredMessage
from triomq.sync import Producer as SyncProducer
from triomq.sync import PullConsumer as SyncPullConsumer
from triomq.testing import InProcessCluster, local_cluster

OURS = {"mqadmin", "mqstore", "mqlocal", "mqnamesrv", "mqbroker"}
OTHERS = {
    "mqconsole": "tests/integration/console/test_console_process.py",
    "mqpipeline": "tests/integration/pipeline/test_front.py",
    "triomq": "tests/integration/client/test_running.py",
    "make": "targets exist (below); CI runs them",
    "docker": "tests/compose",
    "kubectl": "tests/integration/project/test_deploy_files.py reads the files",
    "systemctl": "tests/integration/project/test_deploy_files.py has systemd verify the units",
    "useradd": "as systemctl",
    "chown": "as systemctl",
    "/opt/triomq/bin/mqconsole": "tests/integration/console/test_console_process.py",
    "install": "as systemctl",
    "mkdir": "a folder for secrets",
    "tar": "test_procedures.py",
    "python3": "a new environment; the zip: tests/integration/spark/test_shipping.py",
    "/opt/triomq/bin/pip": "tests/integration/project/test_packaging.py",
    "pip": "tests/integration/project/test_packaging.py",
    "pytest": "the tests themselves",
    "git": "a clone",
    "cd": "a clone",
    "export": "read by the commands below it",
}
"""programs of others, and what stands for running the line"""


def lines() -> list[tuple[str, list[str]]]:
    return [(block.page, words) for block in blocks("sh", "console") for words in block.commands]


def test_every_program_is_known_and_every_target_exists() -> None:
    found = lines()
    assert len(found) > 100
    assert {words[0] for _, words in found} <= OURS | set(OTHERS)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {words[1] for _, words in found if words[0] == "make"} <= targets


SHOWN = 10
"""messages that ``topic tail`` waits for"""


RECORDS = ("CHANGELOG.md", "docs/adr", "docs/experiments", "docs/compatibility", "docs/features")
"""pages that keep the words of their day, or of RocketMQ"""
BOTH_NAMES = ("docs/mqadmin", "docs/migration.md")


def test_pages_use_the_grouped_names() -> None:
    """``mqadmin topic list``; one page tells which names of RocketMQ these are."""
    classic = re.compile(rf"\bmqadmin ({'|'.join(set(LIST) - {'doctor', 'completion', 'top'})})\b")
    found = {
        str(page): names
        for page in (path.relative_to(ROOT) for path in pages())
        if not str(page).startswith(RECORDS + BOTH_NAMES)
        and (names := classic.findall((ROOT / page).read_text()))
    }
    assert found == {}
    assert classic.search("see `mqadmin topicList`")


@attrs.define
class Stage:
    """A cluster in which the examples of mqadmin have something to show."""

    cluster: InProcessCluster
    folder: Path
    producer: Producer
    consumer: PushConsumer
    dead: StoredMessage
    """what the group gave up"""
    ids: dict[str, str] = attrs.field(factory=dict)

    async def set(self) -> None:
        """As every example finds it: a topic with messages, a group that reads it and has a dead
        letter, a broker that may be written.
        """
        broker, sent = self.cluster.brokers[0].address, 0
        for words in (
            ("updateBrokerConfig", "-b", broker, "-k", "brokerPermission", "-v", "6"),
            ("updateTopic", "-b", broker, "-t", "orders", "-r", "8", "-w", "8", "-p", "6"),
            ("updateSubGroup", "-c", "DefaultCluster", "-g", "billing"),
            ("addWritePerm", "-b", "broker-a"),
            ("clusterExport", "-o", str(self.folder / "cluster.yaml"), "--offsets"),
        ):
            done = await mqadmin(*words, "-n", self.cluster.namesrv_address)
            assert done.code == 0, (words, done)
        async with self.cluster.admin() as admin:
            back = SendBackHeader(self.dead.log_offset, "billing", -1, "", "orders")
            await admin.ask(broker, RequestCode.CONSUMER_SEND_MSG_BACK, back)
            with trio.fail_after(60):  # the broker registers topics after a purge, and permissions
                while not {"%DLQ%billing", "orders"} <= set(await admin.topics()):
                    await trio.sleep(0.02)
                while any(data.perm != 6 for data in (await admin.route("orders")).queue_datas):
                    await trio.sleep(0.02)
            stored = await admin.topic_stats("orders")  # an example deletes the topic
        while sum(table.message_count for table in stored.values.values()) + sent < SHOWN:
            await self.producer.send("orders", b"order", keys=["order-1"], tag="paid")
            sent += 1

    def words(self, words: list[str]) -> list[str]:
        """The example's words with the addresses, folders and ids of here."""
        broker = self.cluster.brokers[0].address
        known = {
            "127.0.0.1:9876": self.cluster.namesrv_address,
            "ns1:9876;ns2:9876": self.cluster.namesrv_address,
            "192.168.1.5:9876": self.cluster.namesrv_address,
            "127.0.0.1:10911": broker,
            "/data/store": str(self.folder),
            "/var/lib/triomq/broker-a": str(self.folder),
            "topics.json": str(self.folder / "topics.json"),
            "groups.json": str(self.folder / "groups.json"),
            "cluster.yaml": str(self.folder / "cluster.yaml"),
            "Orders": "orders",
            **self.ids,
        }
        return [known.get(word, word) for word in words]


@pytest.fixture
async def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    monkeypatch.chdir(tmp_path)  # examples write files here
    async with local_cluster() as cluster:
        monkeypatch.setenv("NAMESRV_ADDR", cluster.namesrv_address)
        broker = cluster.brokers[0].address
        done = await mqadmin("updateTopic", "-b", broker, "-t", "orders", "-r", "8", "-w", "8")
        assert done.code == 0, done
        seen = trio.Event()

        async def handle(message: ReceivedMessage) -> None:
            await trio.lowlevel.checkpoint()
            seen.set()

        settings = ProducerSettings(client=ClientSettings(instance_name="4242"))
        async with (
            Producer(cluster.namesrv_address, group="shop", settings=settings) as producer,
            PushConsumer(
                cluster.namesrv_address,
                group="billing",
                subscriptions="orders",
                consume_from="first",
                handler=handle,
            ) as consumer,
        ):
            queue = (await producer.queues("orders"))[0]
            for number in range(120):
                receipt = await producer.send(
                    "orders", b"order %d" % number, keys=["order-1"], tag="paid", queue=queue
                )
            traced = ProducerSettings(client=ClientSettings(trace=True))
            async with Producer(cluster.namesrv_address, group="shop", settings=traced) as tracing:
                receipt = await tracing.send("orders", b"traced", keys=["order-1"], queue=queue)
            with trio.fail_after(30):
                await seen.wait()
            (tmp_path / "topics.json").write_text(
                json.dumps(
                    [{"topicName": "invoices", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}]
                )
            )
            (tmp_path / "groups.json").write_text(
                json.dumps([{"groupName": "mailing", "consumeEnable": True}])
            )
            connected = await mqadmin("consumerConnection", "-g", "billing", "--json")
            (client,) = re.findall(r'"clientId": ?"([^"]+)"', connected.out)
            ids = {
                "7F00000100002A9F0000000000000000": receipt.offset_message_id,
                "7F0000010AC018B4AAC2514F3A9B0000": receipt.message_id,
                "10.0.0.7@4242": client,
            }
            async with cluster.admin() as admin:
                (dead,) = await admin.read(receipt.queue, receipt.queue_offset, count=1)
            yield Stage(
                cluster,
                tmp_path,
                producer,
                consumer,
                dead,
                {key: str(value) for key, value in ids.items()},
            )


def may_fail(words: list[str], done: Done) -> bool:
    """``doctor`` ends with 1 when this machine has a problem, ``group why`` when the group has one,
    as a group with dead letters has; they must then have said which.
    """
    finds = {"doctor": "problem", "group": "dlq show"}
    return (
        (words[0] == "doctor" or words[:2] == ["group", "why"])
        and done.code == 1
        and finds[words[0]] in done.out
    )


ELSEWHERE = {
    "order-17": "test_daily_tasks.py",
    "broker-b": "test_daily_tasks.py",
    "tls": "test_the_commands_of_tls",
    "cluster import": "groups with members: tests/integration/admin/test_cluster_commands.py",
    "broker drain": "groups without members: tests/integration/admin/test_draining.py",
    "broker forget": "a broker that left: tests/integration/admin/test_missing_brokers.py",
    "security init": "tests/integration/access/test_security_init.py",
    "context": "tests/integration/admin/test_contexts.py",
    "--context": "tests/integration/admin/test_contexts.py",
    "user": "a broker with access control: tests/compat/test_mqadmin_side_by_side.py",
    "acl": "as user",
    "cold-reads": "as user",
    "limit-cold-reads": "as user",
    "unlimit-cold-reads": "as user",
    "read-ahead": "as user",
    "set-flush-offset": "as user",
    "print-compaction-log": "tests/integration/admin/test_printing.py",
    "-a 127.0.0.1:9878": "controllers: tests/integration/admin/test_controller_commands.py",
    "epochs": "a broker in controller mode: as -a",
    "monitor": "does not end: tests/integration/admin/test_silent_servers.py",
    "cluster latency": "does not end: tests/integration/admin/test_printing.py",
    "replication": "with -i it does not end: tests/integration/admin",
}
"""words of a line -> what stands for running it"""


def runnable(words: list[str]) -> list[str]:
    """Return the words without what would not end."""
    if "--watch" in words:
        at = words.index("--watch")
        words = words[:at] + words[at + 2 :]
    return words


@pytest.mark.timeout(400)
@pytest.mark.feature("200b")
async def test_the_examples_of_mqadmin(stage: Stage) -> None:
    ran = 0
    for page, line in lines():
        text = f" {' '.join(line)} "
        elsewhere = page == "docs/security.md" or any(f" {words} " in text for words in ELSEWHERE)
        if line[0] != "mqadmin" or elsewhere:
            continue
        await stage.set()
        words = runnable(stage.words(line[1:]))
        done = None
        with trio.move_on_after(60):
            done = await mqadmin(*words)
        assert done is not None, f"does not end: {page}, {line}"
        if done.code == 2 and "--yes" in done.err:  # it would ask on a terminal
            done = await mqadmin(*words, "--yes")
        assert done.code == 0 or may_fail(words, done), (page, line, words, done)
        assert done.out or "--alert" in line or "--alert-seconds" in line  # silent if all is well
        ran += 1
    assert ran > 60


async def test_an_example_with_a_wrong_option_is_found(stage: Stage) -> None:
    assert (await mqadmin(*stage.words(["topicRoute", "-t", "orders", "--wrong"]))).code == 2


PAGE = "README.md"


@pytest.mark.slow
@pytest.mark.feature("149b", "200b", "200c")
def test_the_servers_of_the_readme(shell: Shell) -> None:
    page, (namesrv, broker) = PAGE, shell.ports.values()
    (shell.home / "broker.conf").write_text(
        f"brokerName=broker-c\nlistenPort={broker}\nbrokerIP1=127.0.0.1\nstorePathRootDir={shell.home}/store\n"
    )
    shell.start(of(page, "mqnamesrv", "-p"), namesrv)
    shell.start(of(page, "mqbroker", "-n", "127.0.0.1:9876", "-c", "broker.conf"), broker)
    until(shell, of(page, "mqadmin", "cluster", "list"), "broker-c")
    address = f"127.0.0.1:{namesrv}"
    with SyncProducer(address, group="shop") as producer:
        receipt = producer.send("Orders", b"{}", keys=["order-17"])
    with SyncPullConsumer(
        address, group="billing", subscriptions="Orders", consume_from="first"
    ) as consumer:
        assert [message.body for message in consumer.poll(timeout=30)] == [b"{}"]
        consumer.commit()
    assert "broker-c" in shell.run(of(page, "mqadmin", "topic", "status"))
    assert json.loads(shell.run(of(page, "mqadmin", "group", "lag")))
    shell.stop()
    shell.running.clear()
    for line in (line for line in text_lines("docs/mqstore.md") if line.startswith("mqstore")):
        out = shell.run(
            line.partition(" | jq")[0]
            .partition("   #")[0]
            .replace("--queue 3 --from 1000", f"--queue {receipt.queue.queue_id} --from 0")
        )
        assert out
        if "--key" in line:
            assert json.loads(out.splitlines()[0])["keys"] == ["order-17"], out


def text_lines(page: str) -> list[str]:
    return [
        line
        for block in blocks("sh", "console")
        if block.page == page
        for line in block.text.splitlines()
    ]


@pytest.mark.slow
@pytest.mark.feature("200b", "200c")
@pytest.mark.parametrize(
    ("page", "line"),
    [(PAGE, "mqlocal"), ("docs/testing.md", "mqlocal --namesrvs 2")],
)
def test_a_local_cluster(page: str, line: str, shell: Shell) -> None:
    namesrv = shell.ports["9876"]
    shell.start(of(page, line), namesrv, f"--port {namesrv} --broker-port {shell.ports['10911']}")
    until(
        shell,
        f"mqadmin clusterList -n 127.0.0.1:{namesrv}",
        "broker-b" if "--brokers 2" in of(page, line) else "broker-a",
    )


@pytest.mark.slow
@pytest.mark.feature("200b", "200c")
def test_the_master_and_slave_of_the_readme(shell: Shell) -> None:
    page = PAGE
    of_page = [block.text for block in blocks("properties") if block.page == "docs/replication.md"]
    both = of_page[0]  # the second one is that of controller mode
    columns = [re.split(r"\s{2,}", line.strip()) for line in both.splitlines()]
    assert columns[0] == ["# master", "# slave"]
    ports = {"master": shell.ports["10911"], "slave": free_port()}
    for number, (name, port) in enumerate(ports.items()):
        lines = [column[number] for column in columns[1:]]
        lines += [
            f"listenPort={port}",
            f"haListenPort={port + 1}",
            "brokerIP1=127.0.0.1",
            "brokerIP2=127.0.0.1",
            f"storePathRootDir={shell.home}/{name}",
        ]
        (shell.home / f"{name}.conf").write_text("\n".join(lines) + "\n")
    shell.start(of(page, "mqnamesrv", "-p"), shell.ports["9876"])
    shell.start(of(page, "mqbroker", "-n", "127.0.0.1:9876", "-c", "master.conf"), ports["master"])
    shell.start(of(page, "mqbroker", "-n", "127.0.0.1:9876", "-c", "slave.conf"), ports["slave"])
    until(shell, of(page, "mqadmin", "cluster", "list"), str(ports["master"]), str(ports["slave"]))
    with SyncProducer(f"127.0.0.1:{shell.ports['9876']}", group="shop") as producer:
        deadline = time.monotonic() + 60
        while (
            producer.send("Orders", b"{}").status != SendStatus.STORED
        ):  # the slave is not near enough in the first moments
            assert time.monotonic() < deadline


@pytest.mark.slow
@pytest.mark.feature("200b")
def test_the_commands_of_tls(shell: Shell) -> None:
    page = "docs/security.md"
    namesrv, broker = shell.ports.values()
    shell.run(of(page, "mqadmin", "tls", "init"))
    shell.run(of(page, "mqadmin", "tls", "check", "--tls"))
    shell.start(of(page, "mqnamesrv"), namesrv, f"-p {namesrv}")
    shell.start(
        of(page, "mqbroker"),
        broker,
        f"-D listenPort={broker} -D haListenPort=0 -D brokerIP1=127.0.0.1",
    )
    variable, _, file = of(page, "export").partition(" #")[0].split()[1].partition("=")
    shell.environment[variable] = file.replace("~", str(shell.home))
    until(shell, of(page, "mqadmin", "cluster", "list"), str(broker))
    shell.run(of(page, "mqadmin", "tls", "check", "--connect"))
    for line in text_lines("docs/mqadmin/security.md"):
        if line.startswith("mqadmin tls init"):
            shell.run(line.replace("~/tls", f"~/tls-{abs(hash(line))}"))
    shell.run(
        of("docs/mqadmin/security.md", "mqadmin", "tls", "check").replace(
            "broker.example.com:10911", "localhost:10911"
        )
    )
