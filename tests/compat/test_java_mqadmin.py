"""RocketMQ's own mqadmin, unmodified, on our cluster: what it prints, and what its commands do to
running Java clients.
"""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from java_commands import JAVA
from processes import (
    PEERS,
    java_command,
    java_home,
    java_mqadmin,
    our_broker,
    our_name_server,
    wait_registered,
    write_logback,
)

from triomq.client.admin.admin import Admin
from triomq.client.mqadmin.commands import load

pytestmark = [pytest.mark.compat, pytest.mark.slow]

Cluster = tuple[str, str]
"""(address of the name server, address of the broker)"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if java_home("5.5.0") is None:
        pytest.skip("the Java peers 5.5.0 are not installed: run `make peers`")
    folder = tmp_path_factory.mktemp("mqadmin")
    with (
        our_name_server(folder) as namesrv,
        our_broker(folder, "broker-a", namesrv) as (address, _),
    ):
        wait_registered(namesrv, "broker-a")
        yield namesrv, address


def admin(cluster: Cluster, text: str, version: str = "5.5.0") -> list[str]:
    """One command a line; ADDR is the broker's address."""
    return java_mqadmin(
        version,
        cluster[0],
        [line.replace("ADDR", cluster[1]).split() for line in text.strip().splitlines()],
    )


def has(text: str, *words: object) -> bool:
    """Does one line of a printed table hold these cells, in this order?"""
    return any(
        re.search(r"\s+".join(re.escape(str(word)) for word in words), line)
        for line in text.splitlines()
    )


@pytest.mark.compatible(
    "admin: topics", "admin: groups", "admin: settings", peer="java-client-5.5.0"
)
@pytest.mark.feature("169a")
def test_topics_groups_and_settings(cluster: Cluster) -> None:
    """Most commands take a second and more, whatever they do: Java starts and stops a client for
    each.
    """
    topic, perm, _, group, config, _, kept, _, namesrv, wiped, closed, _, deleted, topics = admin(
        cluster,
        """
        updateTopic -c TestCluster -t T -r 4 -w 2 -a +message.type=FIFO
        updateTopicPerm -t T -p 4 -b ADDR
        updateTopicPerm -t T -p 6 -b ADDR
        updateSubGroup -c TestCluster -g G -r 3
        getConsumerConfig -g G
        updateBrokerConfig -b ADDR -k enableMixedMessageType -v true
        getBrokerConfig -b ADDR
        updateOrderConf -t T -m put -v broker-a:4
        updateNamesrvConfig -k orderMessageEnable -v true
        wipeWritePerm -b broker-a
        topicRoute -t T
        deleteSubGroup -c TestCluster -g G
        deleteTopic -c TestCluster -t T
        topicList
        """,
    )
    assert "create topic to" in topic
    assert "update topic perm from 6 to 4" in perm
    assert "create subscription group to" in group
    assert has(config, "retryMaxTimes", "=", 3)
    assert has(kept, "enableMixedMessageType", "=", "true")
    assert "success" in namesrv
    assert re.search(r"OK, \d+", wiped)
    assert re.search(r'"orderTopicConf":\s?"broker-a:4"', closed)
    assert re.search(r'"perm":\s?4', closed)
    assert "success" in deleted
    assert {"T", "%RETRY%G"} & set(topics.split()) == set()


@pytest.mark.compatible(
    "admin: topics", "admin: groups", "admin: settings", peer="java-client-4.9.4"
)
@pytest.mark.feature("169a")
async def test_topics_groups_and_settings_by_the_old_one(cluster: Cluster) -> None:
    """It cannot show groups, so we look; the rest is read back by it."""
    if java_home("4.9.4") is None:
        pytest.skip("the Java peers 4.9.4 are not installed: run `make peers`")
    commands = """
        updateTopic -c TestCluster -t Old -r 4 -w 2
        updateTopicPerm -t Old -p 4 -b ADDR
        updateSubGroup -c TestCluster -g old -r 3
        updateBrokerConfig -b ADDR -k enableMixedMessageType -v false
        getBrokerConfig -b ADDR
        topicRoute -t Old
    """
    _, perm, _, _, config, route = await trio.to_thread.run_sync(
        lambda: admin(cluster, commands, "4.9.4")
    )
    assert "update topic perm from 6 to 4" in perm
    assert has(config, "enableMixedMessageType", "=", "false")
    for figure in ('"readQueueNums": 4', '"writeQueueNums": 2', '"perm": 4'):
        assert figure.replace(" ", "") in route.replace(" ", "")
    async with Admin(cluster[0]) as looking:
        group = await looking.group_config("old", cluster[1])
    assert group is not None
    assert group.retry_max_times == 3


@pytest.mark.compatible("admin: offsets", "admin: messages", peer="java-client-{version}")
@pytest.mark.parametrize("version", ["5.5.0", "4.9.4"])
def test_offsets_and_figures_of_a_group_without_members(cluster: Cluster, version: str) -> None:
    if java_home(version) is None:
        pytest.skip(f"the Java peers {version} are not installed: run `make peers`")
    topic = f"Off-{version[0]}"
    offline, clone = f"offline-{version[0]}", f"clone-{version[0]}"
    _, _, _, sent, reset, behind, _, level, cloned, broker, entries = admin(
        cluster,
        f"""
        updateTopic -c TestCluster -t {topic} -r 1 -w 1
        updateSubGroup -c TestCluster -g {offline}
        updateSubGroup -c TestCluster -g {clone}
        sendMessage -t {topic} -p hello -k k1 -c tagA
        resetOffsetByTime -g {offline} -t {topic} -s 0
        consumerProgress -g {offline}
        skipAccumulatedMessage -g {offline} -t {topic}
        consumerProgress -g {offline}
        cloneGroupOffset -s {offline} -d {clone} -t {topic}
        brokerConsumeStats -b ADDR
        queryCq -t {topic} -q 0 -i 0 -b ADDR
        """,
        version,
    )
    assert has(sent, "broker-a", 0, "SEND_OK")
    assert has(reset, "broker-a", 0, 0)
    assert has(behind, topic, "broker-a", 0, 1, 0, 1)
    assert has(level, topic, "broker-a", 0, 1, 1, 0)
    assert "success" in cloned
    for group in (offline, clone):
        assert has(broker, topic, group, "broker-a", 0, 1, 1, 0)
    assert "max: 1, min: 0" in entries
    assert "eval=false" in entries, "without a group"


class JavaConsumer:
    """A running Java 5.5.0 push consumer; its deliveries as they come."""

    def __init__(self, namesrv: str, topic: str, group: str) -> None:
        command = java_command(
            "5.5.0", "Peer", "consume", namesrv, topic, group, "*", "1000000", "100"
        )
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.lines: list[str] = []
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)

    def bodies(self) -> list[str]:
        return [line.rstrip("\n").split("\t")[-1] for line in self.lines if line.startswith("GOT")]

    def wait(self, count: int, seconds: float = 60) -> list[str]:
        deadline = time.monotonic() + seconds
        while len(self.bodies()) < count:
            assert time.monotonic() < deadline, (
                f"{count} deliveries expected, there were {self.bodies()}"
            )
            time.sleep(0.05)
        return self.bodies()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.mark.compatible(
    "running information", "consume directly", "reset while running", peer="java-client-5.5.0"
)
def test_what_the_broker_asks_and_tells_a_running_java_consumer(
    cluster: Cluster, tmp_path: Path
) -> None:
    """consumerConnection (203), consumerStatus (307), a message consumed on demand (309), a reset
    by time (222) that makes it consume again.
    """
    admin(cluster, "updateTopic -c TestCluster -t Live -r 1 -w 1")
    consumer = JavaConsumer(cluster[0], "Live", "live")
    try:
        sent = admin(cluster, "sendMessage -t Live -p first -k k1")[0]
        message_id = sent.split()[-1]
        assert consumer.wait(1) == ["first"]
        (connection,) = admin(cluster, "consumerConnection -g live")
        client_id = next(line.split()[0] for line in connection.splitlines() if "JAVA" in line)
        assert has(connection, "Live", "*")
        running, directly, reset = admin(
            cluster,
            f"""
            consumerStatus -g live -i {client_id}
            queryMsgById -t Live -i {message_id} -g live -d {client_id}
            resetOffsetByTime -g live -t Live -s 0
            """,
        )
        assert "PROP_CONSUME_TYPE" in running
        assert has(running, "Live", "broker-a", 0)
        assert "CR_SUCCESS" in directly
        assert has(reset, "broker-a", 0, 0)
        assert consumer.wait(3) == ["first", "first", "first"], (
            "once by itself, once on demand, once after the reset"
        )
    finally:
        consumer.stop()


DIFFERENCES = [
    ("consumerProgress", "", "alert", True),
    ("consumerProgress", "", "alert-seconds", True),
    ("queryMsgById", "s", "sendMessage", True),
    ("queryMsgById", "u", "unitName", True),
    ("startMonitoring", "i", "interval", True),
]
"""(command, letter, name, whether it takes a value): sending a message again is the business of
sendMessage, and only ours has the interval and alerts.
"""


@pytest.mark.feature("169c")
def test_our_commands_have_the_names_and_options_of_java_s() -> None:
    """As RocketMQ's own ``mqadmin help COMMAND`` prints them."""
    if java_home("5.5.0") is None:
        pytest.skip("the Java peers 5.5.0 are not installed: run `make peers`")
    write_logback(PEERS / "home")
    ours = {name: load(name) for name in JAVA}
    asked = "".join(f"help\t{name}\n" for name in ours)
    done = subprocess.run(
        java_command("5.5.0", "Mqadmin"),
        input=asked,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    outputs = done.stdout.split("\n===\n")[:-1]
    assert len(outputs) == len(ours) > 35, done.stderr[-2000:]
    differences = []
    for (name, command), text in zip(ours.items(), outputs, strict=True):
        assert f"usage: mqadmin {name} " in text, text
        theirs = {
            (name, letter, long, bool(value))
            for letter, long, value in re.findall(
                r"^ +(?:-(\w+),)?--(\w+)((?: \w+)? +<arg>)?", text, re.MULTILINE
            )
        }
        mine = {
            (name, option.letter, option.name, bool(option.placeholder))
            for option in command.options
        }
        differences += mine ^ {
            one for one in theirs if one[1:3] not in {("h", "help"), ("n", "namesrvAddr")}
        }
    assert sorted(differences) == DIFFERENCES
