"""What an application does every day, done by the official clients on our cluster and read back by
our SDK, or the other way round.

Each client is one program for all tests, so the tests of one client follow each other, in the order
of this file.
"""

from __future__ import annotations

import datetime
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import access_run
import attrs
import processes
import pytest
import trio
from foreign_clients import ForeignClient, Got, Refused, Sent, foreign_client
from frame_tap import frame_tap
from hooked_cluster import hooked_cluster
from mqadmin_calls import mqadmin
from ordered_group import share_in_order
from shared_queues import RULES, share_of_two

from triomq import MessageQueue, PushConsumer, ReceivedMessage, SendReceipt, select_by_go_hash, sync
from triomq.client.admin.admin import Admin
from triomq.remoting.protocol.codes import SerializeType
from triomq.remoting.server.request_hooks import VerifySignature

pytestmark = [pytest.mark.compat, pytest.mark.timeout(180)]

JAVA = ("java-client-5.5.0", "java-client-4.9.4")
GO = "go-client"
COUNT = 12
ONLY_JAVA = pytest.mark.parametrize("client", JAVA, indirect=True)
ONLY_GO = pytest.mark.parametrize("client", [GO], indirect=True)


def here(*rows: str) -> pytest.MarkDecorator:
    """The test fills these rows, in the column of the client that it is given."""
    return pytest.mark.compatible(*rows, peer="{client}")


@attrs.frozen
class Cluster:
    """A name server and a broker of ours, and topics with a past: their first messages are deleted,
    so no new group is told to begin at offset 0.
    """

    namesrv: str
    broker: str
    noon: datetime.datetime
    """The messages old-0 … of History and Past were stored before, new-0 … of History after it."""
    first: frozenset[str]
    """All bodies that History has."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("ours")
    other_hour = f"{(time.localtime().tm_hour + 12) % 24:02d}"
    settings = {
        "mappedFileSizeCommitLog": 65_536,
        "fileReservedTime": 0,
        "deleteWhen": other_hour,
        "deleteCommitLogFilesInterval": 0,
        "cleanResourceInterval": 50,
    }
    with (
        processes.our_name_server(folder) as namesrv,
        processes.our_broker(folder, "broker-a", namesrv, **settings) as (address, _),
    ):
        processes.wait_registered(namesrv, "broker-a")
        for topic in ("History", "Past"):
            create(namesrv, topic, 4)
            write(namesrv, topic, *(f"gone-{number}".ljust(3_000) for number in range(20)))
        write(namesrv, "Past", "the last of a file".ljust(4_000))
        trio.run(delete_what_is_old, namesrv)
        for topic in ("History", "Past"):
            write(namesrv, topic, *(f"old-{number}" for number in range(COUNT)))
        now = time.time()
        time.sleep(1.2 - now % 1)  # clients say it in whole seconds
        noon = datetime.datetime.fromtimestamp(int(time.time()), datetime.UTC)
        write(namesrv, "History", *(f"new-{number}" for number in range(COUNT)))
        bodies = [message.body.decode() for message in read(namesrv, "History").values()]
        assert {f"{word}-{number}" for word in ("old", "new") for number in range(COUNT)} <= set(
            bodies
        )
        yield Cluster(namesrv, address, noon, frozenset(bodies))


async def delete_what_is_old(namesrv: str) -> None:
    """Until the first messages of each queue are gone."""
    done = await mqadmin("deleteExpiredCommitLog", "-c", "TestCluster", "-n", namesrv)
    assert done.code == 0, done
    async with Admin(namesrv) as admin:
        queues = [queue for topic in ("History", "Past") for queue in await admin.queues(topic)]
        with trio.fail_after(30):
            while not all([await admin.min_offset(queue) > 0 for queue in queues]):
                await trio.sleep(0.05)


@pytest.fixture(scope="module", params=[*JAVA, GO])
def client(
    request: pytest.FixtureRequest, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ForeignClient]:
    peer: str = request.param
    there = (
        (processes.PEERS / "go" / "peer").exists()
        if peer == GO
        else processes.java_home(peer.removeprefix("java-client-"))
    )
    if not there:
        pytest.skip(f"{peer} is not installed: run `make peers`")
    with foreign_client(peer, cluster.namesrv, tmp_path_factory.mktemp(peer)) as running:
        if peer in JAVA:  # which looks for new queues for the first time after ten seconds
            create(cluster.namesrv, f"Growing_{peer[-5:].replace('.', '_')}", 2)
            running.ask(
                "lite",
                "watcher",
                "watchers",
                "false",
                "watch",
                f"Growing_{peer[-5:].replace('.', '_')}",
            )
        resetting(running, cluster.namesrv)
        # All but Java 5 begin at offset 0, are told that this is gone, and try the right one 20
        # seconds later.
        running.ask(
            "push",
            "patient",
            "History",
            f"patient-{peer}".replace(".", "_"),
            "*",
            "concurrent",
            "first",
            1,
            16,
        )
        yield running


def resetting(client: ForeignClient, namesrv: str) -> None:
    """Have it consume three messages, then move the group to the beginning. Clients of before 5.0
    rest for ten seconds meanwhile, so the test comes later.
    """
    topic = f"Reset_{client.peer.replace('.', '_')}"
    create(namesrv, topic, 1)
    write(namesrv, topic, "0", "1", "2")
    client.ask("push", "resetting", topic, topic, "*", "concurrent", "first", 1, 16)
    client.wait_got("resetting", 3)
    done = trio.run(mqadmin, "resetOffsetByTime", "-g", topic, "-t", topic, "-s", 0, "-n", namesrv)
    assert done.code == 0, done


@pytest.fixture
def topic(request: pytest.FixtureRequest, cluster: Cluster) -> str:
    """A topic of the test's own, with four queues; its name serves for groups, too. A second try
    gets another one.
    """
    name = "".join(
        letter if letter.isalnum() else "_" for letter in request.node.name.removeprefix("test_")
    )
    if (tries := getattr(request.node, "execution_count", 1)) > 1:
        name += f"_try{tries}"
    create(cluster.namesrv, name, 4)
    return name


def create(namesrv: str, topic: str, queues: int) -> None:
    async def run() -> None:
        async with Admin(namesrv) as admin:
            await admin.create_topic(topic, queues=queues)

    trio.run(run)


def write(
    namesrv: str, topic: str, *bodies: str, tags: tuple[str, ...] = ("TagA",), keys: int = 0
) -> list[SendReceipt]:
    """Send with our producer, tags in turn; with ``keys``, to the queues of that many sharding keys
    in turn.
    """
    with sync.Producer(namesrv, group="writers") as producer:
        return [
            producer.send(
                topic,
                body.encode(),
                tag=tags[number % len(tags)],
                keys=[f"k-{number}"],
                sharding_key=f"k{number % keys}" if keys else None,
            )
            for number, body in enumerate(bodies)
        ]


def read(namesrv: str, topic: str, count: int | None = None) -> dict[str, ReceivedMessage]:
    """Message id -> message, of all that the topic has (or will have, with a count), as our
    consumer sees it.
    """
    found: list[ReceivedMessage] = []
    with sync.PullConsumer(namesrv, group="readers", auto_commit=False) as consumer:
        consumer.assign(queues := consumer.queues(topic))
        for queue in queues:
            consumer.seek_to_begin(queue)
        wanted = (
            sum(consumer.max_offset(queue) - consumer.min_offset(queue) for queue in queues)
            if count is None
            else count
        )
        deadline = time.monotonic() + 30
        while len(found) < wanted and time.monotonic() < deadline:
            found += consumer.poll(max_messages=100, timeout=1)
    assert len(found) == wanted
    return {message.message_id.upper(): message for message in found}


def committed(namesrv: str, group: str, queue: MessageQueue, wanted: int) -> int | None:
    """The offset that the broker has for the group; waits a while for the one that is wanted, since
    clients store it without waiting for an answer.
    """
    with sync.PullConsumer(namesrv, group=group, auto_commit=False) as consumer:
        consumer.queues(queue.topic)
        deadline = time.monotonic() + 30
        while (offset := consumer.committed(queue)) != wanted and time.monotonic() < deadline:
            time.sleep(0.02)
    return offset


def eventually(ask: Callable[[], list[list[str]]]) -> list[list[str]]:
    """What is asked, as soon as it is not refused: the index is written a moment after the
    message.
    """
    deadline = time.monotonic() + 30
    while True:
        try:
            return ask()
        except Refused:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def assert_where_they_said(namesrv: str, topic: str, sent: list[Sent]) -> None:
    found = read(namesrv, topic, len(sent))
    assert {one.status for one in sent} == {"SEND_OK"}
    assert {one.message_id.upper(): (one.queue_id, one.queue_offset) for one in sent} == {
        message_id: (message.queue.queue_id, message.queue_offset)
        for message_id, message in found.items()
    }


# Sending


@pytest.mark.loss
@here("send", "properties")
@pytest.mark.feature("1a", "1b", "65a")
def test_sends(client: ForeignClient, cluster: Cluster, topic: str) -> None:
    assert_where_they_said(cluster.namesrv, topic, client.send(topic, "sync", COUNT))
    found = {
        message.properties["number"]: message
        for message in read(cluster.namesrv, topic, COUNT).values()
    }
    assert {
        number: (message.body.decode(), message.tag, message.keys)
        for number, message in found.items()
    } == {str(number): (f"body-{number}", "TagA", (f"key-{number}",)) for number in range(COUNT)}


@pytest.mark.loss
@here("send async")
def test_many_sends_under_way(client: ForeignClient, cluster: Cluster, topic: str) -> None:
    assert_where_they_said(cluster.namesrv, topic, client.send(topic, "async", COUNT))


@pytest.mark.loss
@here("send one-way")
def test_one_way(client: ForeignClient, cluster: Cluster, topic: str) -> None:
    assert client.send(topic, "oneway", COUNT) == []
    assert {message.body for message in read(cluster.namesrv, topic, COUNT).values()} == {
        b"body-%d" % number for number in range(COUNT)
    }


@pytest.mark.loss
@here("batch")
def test_a_batch(client: ForeignClient, cluster: Cluster, topic: str) -> None:
    (sent,) = client.send(topic, "batch", COUNT)
    found = read(cluster.namesrv, topic, COUNT).values()
    assert {(message.queue_offset, message.body, message.keys) for message in found} == {
        (number, b"body-%d" % number, (f"key-{number}",)) for number in range(COUNT)
    }
    assert {message.queue.queue_id for message in found} == {sent.queue_id}


@here("send by key")
def test_keys_go_to_their_queues(client: ForeignClient, cluster: Cluster, topic: str) -> None:
    """Ours chooses the same queues: by Java's hash, or by the Go client's own."""
    sent = client.send(topic, "key", COUNT, argument=5)
    found = read(cluster.namesrv, topic, COUNT)
    queues = {
        f"k{int(found[one.message_id.upper()].properties['number']) % 5}": found[
            one.message_id.upper()
        ].queue.queue_id
        for one in sent
    }
    assert len(set(queues.values())) > 1
    with sync.Producer(cluster.namesrv, group="writers") as producer:
        for key, queue_id in queues.items():
            how = {"select": select_by_go_hash(key)} if client.peer == GO else {"sharding_key": key}
            assert producer.send(topic, b"ours", **how).queue.queue_id == queue_id


@here("send to a queue")
def test_a_queue_of_the_sender_s_choice(
    client: ForeignClient, cluster: Cluster, topic: str
) -> None:
    client.send(topic, "queue", COUNT, argument=2)
    assert {message.queue.queue_id for message in read(cluster.namesrv, topic, COUNT).values()} == {
        2
    }


@pytest.mark.loss
@here("compressed zlib")
def test_compressed_bodies(client: ForeignClient, cluster: Cluster, topic: str) -> None:
    """Both ways: their bodies are read by us, ours by them."""
    client.send(topic, "large", 3)
    for message in read(cluster.namesrv, topic, 3).values():
        assert message.body == b"body-%d-" % int(message.properties["number"]) + b"0123456789" * 900
        assert message._stored.sys_flag & 1, "it was compressed"
    ours = "ours " * 2000
    write(cluster.namesrv, topic, ours)
    got = client.consumed(topic, topic, 4)
    assert [one.body for one in got if one.body.startswith("ours")] == [ours]


@pytest.mark.loss
@here("delay level")
def test_delays(client: ForeignClient, cluster: Cluster, topic: str) -> None:
    client.send(topic, "delay", 2, argument=1)
    found = read(cluster.namesrv, topic, 2).values()
    assert {message.body for message in found} == {b"body-0", b"body-1"}
    for message in found:
        assert message.stored_at - message.born_at >= datetime.timedelta(seconds=0.9)


@here("topic by first send")
def test_the_first_message_makes_the_topic(client: ForeignClient, cluster: Cluster) -> None:
    topic = f"Unknown_{client.peer.replace('.', '_')}"
    client.send(topic, "sync", COUNT)
    found = read(cluster.namesrv, topic, COUNT).values()
    assert {message.queue.queue_id for message in found} == {0, 1, 2, 3}


@here("query by unique id", "view by offset id")
@ONLY_JAVA
def test_finds_a_message_by_its_ids(client: ForeignClient, cluster: Cluster, topic: str) -> None:
    write(cluster.namesrv, topic, *(f"other {number}" for number in range(5)))
    (receipt,) = write(cluster.namesrv, topic, "this one")
    for message_id in (receipt.message_id, receipt.offset_message_id):
        ((_, *words),) = eventually(
            lambda message_id=message_id: client.ask("view", topic, message_id)
        )
        found = Got.of(words)
        assert (found.body, found.queue_id, found.queue_offset) == (
            "this one",
            receipt.queue.queue_id,
            receipt.queue_offset,
        )


@pytest.mark.loss
@here("query by key")
@ONLY_JAVA
@pytest.mark.feature(46)
def test_finds_messages_by_key(client: ForeignClient, cluster: Cluster, topic: str) -> None:
    client.send(topic, "sync", 20)
    version = client.peer.removeprefix("java-client-")
    lines = processes.java_peer(version, "query", cluster.namesrv, topic, "key-3,key-17")
    assert {(line[1], line[3]) for line in lines if line[0] == "FOUND"} == {
        ("key-3", "body-3"),
        ("key-17", "body-17"),
    }


# Push consumers


@pytest.mark.loss
@here("push", "tag filter")
@pytest.mark.feature("1b")
def test_a_tag_filter(client: ForeignClient, cluster: Cluster, topic: str) -> None:
    """The last message of each queue is wanted, so what is not wanted would have come before."""
    write(
        cluster.namesrv,
        topic,
        *(f"{number}" for number in range(3 * COUNT)),
        tags=("TagA", "TagB", "TagC"),
    )
    with sync.Producer(cluster.namesrv, group="writers") as producer:
        for queue in producer.queues(topic):
            producer.send(topic, b"last", tag="TagB", queue=queue)
    got = client.consumed(topic, topic, 2 * COUNT + 4, tags="TagA || TagB")
    assert {one.tag for one in got} == {"TagA", "TagB"}
    assert {one.body for one in got} == {
        "last",
        *(str(number) for number in range(3 * COUNT) if number % 3 != 2),
    }


@here("push in order")
def test_in_order(client: ForeignClient, cluster: Cluster, topic: str) -> None:
    write(cluster.namesrv, topic, *(str(number) for number in range(3 * COUNT)), keys=5)
    steps: dict[int, list[int]] = defaultdict(list)
    for one in client.consumed(topic, topic, 3 * COUNT, mode="orderly"):
        steps[int(one.body) % 5].append(int(one.body))
    assert steps == {key: list(range(key, 3 * COUNT, 5)) for key in range(5)}


@pytest.mark.loss
@here("push in batches")
def test_several_at_once(client: ForeignClient, cluster: Cluster, topic: str) -> None:
    write(cluster.namesrv, topic, *(str(number) for number in range(COUNT)), keys=1)
    got = client.consumed(topic, topic, COUNT, batch=8)
    assert {one.body for one in got} == {str(number) for number in range(COUNT)}
    assert max(one.together for one in got) > 1


@pytest.mark.loss
@here("broadcasting")
def test_to_everybody(client: ForeignClient, cluster: Cluster, topic: str) -> None:
    write(cluster.namesrv, topic, *(str(number) for number in range(COUNT)))
    with (
        client.consuming(topic, topic, mode="broadcasting") as first,
        client.consuming(topic, topic, mode="broadcasting") as second,
    ):
        for name in (first, second):
            assert {one.body for one in client.wait_got(name, COUNT)} == {
                str(number) for number in range(COUNT)
            }


@pytest.mark.loss
@here("group goes on")
def test_a_group_goes_on(client: ForeignClient, cluster: Cluster, topic: str) -> None:
    write(cluster.namesrv, topic, *(f"first {number}" for number in range(COUNT)), keys=1)
    with client.consuming(topic, topic) as name:
        client.wait_got(name, COUNT)
        time.sleep(0.3)  # the listener's return is not the client's bookkeeping
    write(cluster.namesrv, topic, *(f"second {number}" for number in range(5)), keys=1)
    assert {one.body for one in client.consumed(topic, topic, 5)} == {
        f"second {number}" for number in range(5)
    }


@pytest.mark.loss
@here("from timestamp")
def test_from_a_time(client: ForeignClient, cluster: Cluster, topic: str) -> None:
    got = client.consumed("History", topic, COUNT, begin=cluster.noon.strftime("%Y%m%d%H%M%S"))
    assert {one.body for one in got} == {f"new-{number}" for number in range(COUNT)}


@pytest.mark.loss
@here("from last")
def test_from_the_end(client: ForeignClient, cluster: Cluster, topic: str) -> None:
    """A client does not say when it has found the end, so messages are sent until one comes."""
    with client.consuming("Past", topic, begin="last") as name:
        deadline = time.monotonic() + 60
        while not client.got(name):
            assert time.monotonic() < deadline
            write(cluster.namesrv, "Past", "late", "late", "late", "late")
        assert {one.body for one in client.got(name)} == {"late"}


@pytest.mark.loss
@here("retry", "dead letter")
@pytest.mark.feature("124b", 126)
def test_failures(client: ForeignClient, cluster: Cluster, topic: str) -> None:
    create(
        cluster.namesrv, f"%RETRY%{topic}", 1
    )  # brokers make it at the first heartbeat, and clients look for it half a minute later
    receipts = {
        receipt.message_id: receipt
        for receipt in write(cluster.namesrv, topic, "good", "again", "dead")
    }
    with client.consuming(topic, topic, reconsume_max=1) as name:
        client.wait_got(name, 5)
        dead = read_when_there(cluster.namesrv, f"%DLQ%{topic}")
        got = client.got(name)
    assert sorted((one.body, one.reconsume_times) for one in got) == [
        ("again", 0),
        ("again", 1),
        ("dead", 0),
        ("dead", 1),
        ("good", 0),
    ]
    assert [(message.body, message.message_id in receipts) for message in dead] == [(b"dead", True)]


def read_when_there(namesrv: str, topic: str) -> list[ReceivedMessage]:
    """The messages of a topic that is made any moment."""

    async def wait() -> None:
        async with Admin(namesrv) as admin:
            with trio.fail_after(30):
                while topic not in await admin.topics():
                    await trio.sleep(0.05)

    trio.run(wait)
    return list(read(namesrv, topic, 1).values())


@pytest.mark.loss
@here("running information", "consume directly")
async def test_a_running_consumer_is_asked(client: ForeignClient, cluster: Cluster) -> None:
    """Our mqadmin sees its state, and lets it handle a message that it had already."""
    topic = f"Asked_{client.peer.replace('.', '_')}"
    async with Admin(cluster.namesrv) as admin:
        await admin.create_topic(topic, queues=1)
    (receipt,) = await trio.to_thread.run_sync(lambda: write(cluster.namesrv, topic, "once"))
    with client.consuming(topic, topic) as name:
        await trio.to_thread.run_sync(lambda: client.wait_got(name, 1))
        connection = (
            await mqadmin("consumerConnection", "-g", topic, "-n", cluster.namesrv, "--json")
        ).document
        (client_id,) = [one["clientId"] for one in connection["clients"]]
        status = await mqadmin(
            "consumerStatus", "-g", topic, "-i", client_id, "-n", cluster.namesrv
        )
        assert status.code == 0, status
        assert topic in status.out
        words = (
            "queryMsgById",
            "-i",
            receipt.offset_message_id,
            "-g",
            topic,
            "-d",
            client_id,
            "-t",
            topic,
            "-n",
            cluster.namesrv,
        )
        handled = await mqadmin(*words)
        assert "CR_SUCCESS" in handled.out, handled
        assert [
            one.body for one in await trio.to_thread.run_sync(lambda: client.wait_got(name, 2))
        ] == ["once", "once"]


@pytest.mark.loss
@here("shares {rule}")
@ONLY_GO
@pytest.mark.feature("87a", "87b")
@pytest.mark.parametrize("rule", ["AVG", "AVG_BY_CIRCLE"])
async def test_a_group_of_both_kinds(client: ForeignClient, cluster: Cluster, rule: str) -> None:
    topic, ours, count = f"Both_{rule}", [], 40
    async with Admin(cluster.namesrv) as admin:
        await admin.create_topic(topic, queues=8)
        queues = await admin.queues(topic)

    async def handle(message: ReceivedMessage) -> None:
        await trio.lowlevel.checkpoint()
        ours.append((message.queue.queue_id, message.body.decode()))

    async with PushConsumer(
        cluster.namesrv,
        group=topic,
        subscriptions=topic,
        consume_from="first",
        handler=handle,
        allocate=RULES[rule],
    ) as consumer:
        with client.consuming(topic, topic, mode=rule) as name:
            mine = await share_of_two(cluster.namesrv, consumer, topic, rule, queues)
            await trio.to_thread.run_sync(
                lambda: write(cluster.namesrv, topic, *(str(number) for number in range(count)))
            )
            with trio.fail_after(60):
                while len(ours) + len(client.got(name)) < count:
                    await trio.sleep(0.05)
            theirs = [(one.queue_id, one.body) for one in client.got(name)]
    assert sorted(int(body) for _, body in [*ours, *theirs]) == list(range(count))
    assert {queue_id for queue_id, _ in ours} == mine
    assert {queue_id for queue_id, _ in theirs} == set(range(8)) - mine


@pytest.mark.loss
@here("queue locks")
@ONLY_GO
async def test_an_ordered_group_of_both_kinds(client: ForeignClient, cluster: Cluster) -> None:
    await share_in_order(cluster.namesrv, client, "OrderedByBoth")


# Pull consumers


@here("pull", "pull and commit")
def test_pulls_from_a_queue(client: ForeignClient, cluster: Cluster, topic: str) -> None:
    queue = write(cluster.namesrv, topic, *(str(number) for number in range(COUNT)), keys=1)[
        0
    ].queue
    lines = client.ask("pull", topic, topic, queue.broker_name, queue.queue_id, 3, 4, 5)
    assert [(line[0], line[2], line[8]) for line in lines if line[0] == "READ"] == [
        ("READ", str(offset), str(offset)) for offset in range(3, 7)
    ]
    assert next(line[1:] for line in lines if line[0] == "VALUE") == ["0", "7", "0", str(COUNT)]
    assert committed(cluster.namesrv, topic, queue, 5) == 5


def polled(client: ForeignClient, name: str, count: int) -> list[Got]:
    return [Got.of(line[1:]) for line in client.ask("lite-poll", name, count)]


@pytest.mark.loss
@here("lite assign", "lite seek")
@ONLY_JAVA
def test_lite_pull_seeks(client: ForeignClient, cluster: Cluster, topic: str) -> None:
    queue = write(cluster.namesrv, topic, *(str(number) for number in range(COUNT)), keys=1)[
        0
    ].queue
    client.ask("lite", topic, topic, "false", "assign", topic)
    # Its client does not take back a pull that is under way when it seeks: what that brings is
    # delivered after all. So none may be that brings anything.
    assert [one.queue_offset for one in polled(client, topic, COUNT)] == [*range(COUNT)]
    for where, offsets in (
        ("4", range(4, COUNT)),
        ("begin", range(COUNT)),
        ("end", range(COUNT, COUNT + 1)),
    ):
        client.ask("lite-seek", topic, topic, queue.queue_id, where)
        if where == "end":
            write(cluster.namesrv, topic, str(COUNT), keys=1)
        assert [(one.queue_offset, one.body) for one in polled(client, topic, len(offsets))] == [
            (offset, str(offset)) for offset in offsets
        ]
    client.ask("lite-stop", topic)


@pytest.mark.loss
@here("lite seek by time")
@ONLY_JAVA
def test_lite_pull_seeks_a_time(client: ForeignClient, cluster: Cluster, topic: str) -> None:
    client.ask("lite", topic, topic, "false", "assign", "History")
    # As above: a pull that is under way at a seek may bring nothing.
    assert {one.body for one in polled(client, topic, len(cluster.first))} == cluster.first
    for queue_id in range(4):
        client.ask(
            "lite-seek", topic, "History", queue_id, f"@{int(cluster.noon.timestamp() * 1000)}"
        )
    assert {one.body for one in polled(client, topic, COUNT)} == {
        f"new-{number}" for number in range(COUNT)
    }
    client.ask("lite-stop", topic)


@pytest.mark.loss
@here("lite subscribe", "lite commit")
@ONLY_JAVA
def test_lite_pull_subscribes_and_commits(
    client: ForeignClient, cluster: Cluster, topic: str
) -> None:
    queue = write(
        cluster.namesrv,
        topic,
        *(str(number) for number in range(2 * COUNT)),
        tags=("TagB", "TagA"),
        keys=1,
    )[0].queue
    client.ask("lite", topic, topic, "false", "subscribe", topic, "TagA")
    assert [one.body for one in polled(client, topic, COUNT)] == [
        str(number) for number in range(1, 2 * COUNT, 2)
    ]
    client.ask("lite-commit", topic)
    client.ask("lite-stop", topic)
    assert committed(cluster.namesrv, topic, queue, 2 * COUNT) == 2 * COUNT
    write(cluster.namesrv, topic, "later", keys=1)
    client.ask("lite", f"{topic}_2", topic, "false", "subscribe", topic, "TagA")
    assert [one.body for one in polled(client, f"{topic}_2", 1)] == ["later"]
    client.ask("lite-stop", f"{topic}_2")


@here("lite auto-commit")
@ONLY_JAVA
def test_lite_pull_commits_by_itself(client: ForeignClient, cluster: Cluster, topic: str) -> None:
    """At a poll after its interval, what earlier polls returned."""
    queue = write(cluster.namesrv, topic, *(str(number) for number in range(COUNT)), keys=1)[
        0
    ].queue
    client.ask("lite", topic, topic, "true", "subscribe", topic, "*")
    polled(client, topic, COUNT)
    time.sleep(1.1)
    write(cluster.namesrv, topic, "one more", keys=1)
    polled(client, topic, 1)
    client.ask("lite-stop", topic)
    assert committed(cluster.namesrv, topic, queue, COUNT) == COUNT


@here("lite queue listener")
@ONLY_JAVA
def test_lite_pull_is_told_of_new_queues(client: ForeignClient, cluster: Cluster) -> None:
    create(cluster.namesrv, f"Growing_{client.peer[-5:].replace('.', '_')}", 5)
    client.wait(lambda: client.numbers("watcher")[-1:] == [5], lambda: client.numbers("watcher"))


# What needs a cluster or a client of its own, and is for the Go client


@here("admin: topics")
@ONLY_GO
@pytest.mark.skipif(access_run.ON, reason="the Go client does not sign this request")
async def test_creates_a_topic(client: ForeignClient, cluster: Cluster) -> None:
    assert client.ask("create", "MadeByGo", cluster.broker) == [["VALUE", "MadeByGo"]]
    async with Admin(cluster.namesrv) as admin:
        (queues,) = (await admin.route("MadeByGo")).queue_datas
    assert (queues.read_queue_count, queues.write_queue_count) == (3, 3)


@pytest.mark.loss
@here("reset while running")
def test_offsets_are_reset_under_it(client: ForeignClient) -> None:
    """That was done when the client started."""
    assert {one.body for one in client.wait_got("resetting", 6)[3:]} == {"0", "1", "2"}


@pytest.mark.loss
@here("from first")
def test_from_the_beginning(client: ForeignClient, cluster: Cluster) -> None:
    """The consumer was started with the client."""
    client.wait(
        lambda: {one.body for one in client.got("patient")} >= cluster.first,
        lambda: client.got("patient"),
    )
    assert {one.body for one in client.got("patient")} == cluster.first


@pytest.mark.loss
@pytest.mark.compatible("header JSON", peer="go-client")
async def test_go_speaks_json(cluster: Cluster, tmp_path: Path) -> None:
    async with frame_tap(cluster.namesrv) as tap:

        def talk() -> list[Got]:
            with foreign_client(GO, tap.address, tmp_path) as client:
                client.send("Tapped", "sync", COUNT)
                return client.consumed("Tapped", "tapped", COUNT)

        got = await trio.to_thread.run_sync(talk)
    assert {one.body for one in got} == {f"body-{number}" for number in range(COUNT)}
    assert {command.serialize for command in (*tap.asked, *tap.answered)} == {SerializeType.JSON}


@pytest.mark.loss
@pytest.mark.compatible("signed requests", "unsigned refused", "refused send", peer="go-client")
async def test_go_signs_and_is_refused_without(tmp_path: Path) -> None:
    async with hooked_cluster(
        tmp_path, [VerifySignature({"rocketmq2": "12345678"}.get)]
    ) as namesrv:

        def talk() -> list[Got]:
            with foreign_client(
                GO, namesrv, tmp_path, PEER_ACCESS_KEY="rocketmq2", PEER_SECRET_KEY="12345678"
            ) as client:
                client.send("SignedByGo", "sync", COUNT)
                return client.consumed("SignedByGo", "signed", COUNT)

        def fail() -> str:
            with (
                foreign_client(GO, namesrv, tmp_path, PEER_ACCESS_KEY="") as client,
                pytest.raises(Refused) as refused,
            ):
                client.send("SignedByGo", "sync", 1)
            return str(refused.value)

        got = await trio.to_thread.run_sync(talk)
        assert {one.body for one in got} == {f"body-{number}" for number in range(COUNT)}
        assert "No accessKey is configured" in await trio.to_thread.run_sync(fail)
