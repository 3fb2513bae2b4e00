"""What an application does every day with our SDK, on Java's name server and broker of both
releases; an official client beside it reads what we send.
"""

from __future__ import annotations

import datetime
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import processes
import pytest
import trio
from foreign_clients import ForeignClient, foreign_client
from mqadmin_calls import Done, mqadmin
from ordered_group import share_in_order
from request_exchange import exchange
from sent_requests import COMPRESSED_FLAG, COMPRESSION_BITS, SentRequests
from shared_queues import RULES, share_of_two
from topic_reader import read_topic

from triomq import (
    ClientSettings,
    ConsumerSettings,
    Message,
    Producer,
    ProducerSettings,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
)
from triomq.client.admin.admin import Admin

pytestmark = [pytest.mark.compat, pytest.mark.timeout(180)]

VERSIONS = ("5.5.0", "4.9.4")
COUNT = 12
SEGMENT = 65_536


def there(*rows: str) -> pytest.MarkDecorator:
    """The test fills these rows, in the column of the servers that it is given."""
    return pytest.mark.compatible(*rows, peer="java-server-{servers}")


@attrs.frozen
class Servers:
    """Java's, and a Java client beside us. The first messages of the topic History are gone, so no
    new group is told to begin there at offset 0.
    """

    namesrv: str
    client: ForeignClient


@pytest.fixture(scope="module", params=VERSIONS)
def servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Servers]:
    version: str = request.param
    if processes.java_home(version) is None:
        pytest.skip(f"the Java peers {version} are not installed: run `make peers`")
    folder: Path = tmp_path_factory.mktemp(f"java-{version}")
    make_history(folder)
    with (
        processes.java_name_server(version, folder / "namesrv") as namesrv,
        processes.java_broker(
            version,
            folder / "broker",
            "broker-java",
            namesrv,
            storePathRootDir=folder / "store",
            mappedFileSizeCommitLog=SEGMENT,
        ),
        foreign_client(f"java-client-{version}", namesrv, folder) as client,
    ):
        yield Servers(namesrv, client)


def make_history(folder: Path) -> None:
    """A store directory in which the first messages of a topic are deleted; Java's broker would
    take a minute for that.
    """
    with (
        processes.our_name_server(folder) as namesrv,
        processes.our_broker(folder, "broker-java", namesrv, mappedFileSizeCommitLog=SEGMENT) as (
            _,
            broker,
        ),
    ):
        processes.wait_registered(namesrv, "broker-java")

        async def fill() -> None:
            async with Admin(namesrv) as admin, Producer(namesrv, group="writers") as producer:
                await admin.create_topic(
                    "History", cluster="TestCluster", read_queues=4, write_queues=4
                )
                for number in range(24):
                    await producer.send(
                        "History", f"gone {number}".ljust(3_500).encode(), tag="TagA"
                    )

        trio.run(fill)
        broker.terminate()
        broker.wait(60)
    (folder / "store" / "commitlog" / "0".rjust(20, "0")).unlink()


@pytest.fixture
async def topic(request: pytest.FixtureRequest, servers: Servers) -> str:
    """A topic of the test's own, with four queues; its name serves for groups, too."""
    name = "".join(
        letter if letter.isalnum() else "_" for letter in request.node.name.removeprefix("test_")
    )
    async with Admin(servers.namesrv) as admin:
        await admin.create_topic(name, cluster="TestCluster", read_queues=4, write_queues=4)
    return name


async def write(
    servers: Servers, topic: str, *bodies: str, tags: tuple[str, ...] = ("TagA",), keys: int = 0
) -> None:
    """Send with our producer, tags in turn; with ``keys``, to the queues of that many sharding keys
    in turn.
    """
    async with Producer(servers.namesrv, group="writers") as producer:
        for number, body in enumerate(bodies):
            await producer.send(
                topic,
                body.encode(),
                tag=tags[number % len(tags)],
                keys=[f"k-{number}"],
                sharding_key=f"k{number % keys}" if keys else None,
            )


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(60):
        while not condition():
            await trio.sleep(0.02)


@asynccontextmanager
async def collecting(
    servers: Servers, topic: str, group: str, got: list[str], **more: object
) -> AsyncIterator[PushConsumer]:
    async def handle(message: ReceivedMessage) -> None:
        await trio.lowlevel.checkpoint()
        got.append(message.body.decode())

    arguments: dict[str, object] = {
        "subscriptions": topic,
        "consume_from": "first",
        "handler": handle,
        **more,
    }
    async with PushConsumer(servers.namesrv, group=group, **arguments) as consumer:  # type: ignore[arg-type]
        yield consumer


async def document(servers: Servers, *words: object) -> dict[str, object]:
    done: Done = await mqadmin(*words, "-n", servers.namesrv, "--json")
    assert done.code == 0, done
    return done.document  # type: ignore[no-any-return]


# Sending, read by Java's consumer


@pytest.mark.loss
@there(
    "send",
    "send async",
    "send one-way",
    "batch",
    "automatic batch",
    "send to a queue",
    "compressed zlib",
    "compressed lz4",
    "compressed zstd",
    "properties",
)
async def test_java_reads_all_that_we_send(servers: Servers, topic: str) -> None:
    sent: dict[str, tuple[int, int, str, str]] = {}

    async def send(producer: Producer, body: str, **more: object) -> None:
        receipt = await producer.send(
            topic, body.encode(), tag="TagP", keys=[f"k-{len(body)}"], **more
        )  # type: ignore[arg-type]
        sent[receipt.message_id] = (
            receipt.queue.queue_id,
            receipt.queue_offset,
            body,
            f"k-{len(body)}",
        )

    for name in ("zlib", "lz4", "zstd"):
        async with Producer(
            servers.namesrv, group="py", settings=ProducerSettings(compression=name)
        ) as producer:
            await send(producer, name + "0123456789" * 1000)
    async with Producer(servers.namesrv, group="py") as producer:
        queues = await producer.queues(topic)
        await send(producer, "to the third queue", queue=queues[2])
        assert (
            next(where for where in sent.values() if where[2].startswith("to the"))[0]
            == queues[2].queue_id
        )
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(send, producer, f"at once {number}")
        bodies = [f"batch {number}" for number in range(20)]
        receipts = await producer.send_batch(
            [Message(topic=topic, body=body.encode(), tag="TagP", keys=("k",)) for body in bodies]
        )
        in_batch = {
            (receipt.queue.queue_id, receipt.queue_offset, body, "k")
            for receipt, body in zip(receipts, bodies)
        }
        for number in range(5):
            await producer.send_oneway(topic, f"one-way {number}".encode(), tag="TagP", keys=["k"])
    requests = SentRequests()
    automatic = ProducerSettings(auto_batch=True, send_hooks=[requests])
    async with (
        Producer(servers.namesrv, group="py", settings=automatic) as producer,
        trio.open_nursery() as nursery,
    ):
        for number in range(20):
            nursery.start_soon(send, producer, f"gathered {number}")
    assert requests.batches > 0
    assert requests.batches + requests.singles < 20
    stored = {
        message.body[:4]: message._stored.sys_flag & COMPRESSION_BITS
        for message in await read_topic(servers.namesrv, topic, len(sent) + 25)
    }
    assert [stored[start] for start in (b"zlib", b"lz40", b"zstd", b"gath")] == [
        *COMPRESSED_FLAG.values(),
        0,
    ]
    got = await trio.to_thread.run_sync(
        lambda: servers.client.consumed(topic, topic, len(sent) + 25, tags="TagP")
    )
    assert {one.tag for one in got} == {"TagP"}
    places = {(one.queue_id, one.queue_offset, one.body, one.keys) for one in got}
    assert places >= in_batch | set(sent.values())
    assert {place[2] for place in places - in_batch - set(sent.values())} == {
        f"one-way {number}" for number in range(5)
    }
    alone = {
        one.message_id: one.body
        for one in got
        if one.body.startswith(("at once", "to the", "z", "lz4"))
    }
    assert alone == {message_id: sent[message_id][2] for message_id in alone}
    assert len(alone) == 24


@there("send by key")
async def test_keys_go_to_the_queues_that_java_takes(servers: Servers, topic: str) -> None:
    theirs = await trio.to_thread.run_sync(lambda: servers.client.send(topic, "key", 5, argument=5))
    async with Producer(servers.namesrv, group="py") as producer:
        ours = [await producer.send(topic, b"x", sharding_key=f"k{number}") for number in range(5)]
    assert [receipt.queue.queue_id for receipt in ours] == [one.queue_id for one in theirs]
    assert len({one.queue_id for one in theirs}) > 1


@pytest.mark.loss
@there("topic by first send", "delay level")
async def test_a_delayed_message_to_an_unknown_topic(servers: Servers) -> None:
    async with Producer(servers.namesrv, group="py") as producer:
        await producer.send("Delayed", b"at once")
        await producer.send("Delayed", b"later", delay_level=1)
    got: list[ReceivedMessage] = []

    async def handle(message: ReceivedMessage) -> None:
        await trio.lowlevel.checkpoint()
        got.append(message)

    async with PushConsumer(
        servers.namesrv,
        group="delayed",
        subscriptions="Delayed",
        consume_from="first",
        handler=handle,
    ):
        await until(lambda: len(got) == 2)
    assert [message.body for message in got] == [b"at once", b"later"]
    assert got[1].stored_at - got[1].born_at >= datetime.timedelta(seconds=0.9)


@pytest.mark.loss
@there("request and reply")
@pytest.mark.feature("162d")
async def test_requests_and_replies(servers: Servers, tmp_path: Path) -> None:
    version = servers.client.peer.removeprefix("java-client-")
    await exchange(version, servers.namesrv, tmp_path)


@pytest.mark.loss
@there("query by key", "query by unique id", "view by offset id")
async def test_looking_for_a_message(servers: Servers, topic: str) -> None:
    await write(servers, topic, "other", "another")
    async with Producer(servers.namesrv, group="py") as producer:
        receipt = await producer.send(topic, b"this one", keys=["wanted"])
    searches = (
        ("queryMsgByKey", "-k", "wanted"),
        ("queryMsgByUniqueKey", "-i", receipt.message_id),
        ("queryMsgById", "-i", receipt.offset_message_id),
    )
    for command, option, value in searches:
        with trio.fail_after(30):  # the index is written a moment after the message
            while (
                found := await mqadmin(
                    command, "-t", topic, option, value, "-n", servers.namesrv, "--json"
                )
            ).code == 4:
                await trio.sleep(0.1)
        assert [(message["body"], message["msgId"]) for message in found.document["messages"]] == [
            ("this one", receipt.message_id)
        ]


# Push consumers


@pytest.mark.loss
@there("push", "tag filter")
async def test_a_tag_filter(servers: Servers, topic: str) -> None:
    """The last message of each queue is wanted, so what is not wanted would have come before."""
    await write(
        servers, topic, *(str(number) for number in range(3 * COUNT)), tags=("TagA", "TagB", "TagC")
    )
    async with Producer(servers.namesrv, group="writers") as producer:
        for queue in await producer.queues(topic):
            await producer.send(topic, b"last", tag="TagB", queue=queue)
    got: list[str] = []
    async with collecting(servers, topic, topic, got, subscriptions={topic: "TagA || TagB"}):
        await until(lambda: len(got) == 2 * COUNT + 4)
    assert sorted(got) == sorted(
        [*4 * ["last"], *(str(number) for number in range(3 * COUNT) if number % 3 != 2)]
    )


@pytest.mark.loss
@there("push in order")
async def test_in_order(servers: Servers, topic: str) -> None:
    await write(servers, topic, *(str(number) for number in range(3 * COUNT)), keys=5)
    got: list[str] = []
    async with collecting(servers, topic, topic, got, ordered=True):
        await until(lambda: len(got) == 3 * COUNT)
    steps: dict[int, list[int]] = defaultdict(list)
    for body in got:
        steps[int(body) % 5].append(int(body))
    assert steps == {key: list(range(key, 3 * COUNT, 5)) for key in range(5)}


@pytest.mark.loss
@there("push in batches", "group goes on")
async def test_several_at_once_and_a_group_that_goes_on(servers: Servers, topic: str) -> None:
    await write(servers, topic, *(str(number) for number in range(COUNT)), keys=1)
    sizes: list[int] = []
    got: list[str] = []

    async def handle(messages: list[ReceivedMessage]) -> None:
        await trio.lowlevel.checkpoint()
        sizes.append(len(messages))
        got.extend(message.body.decode() for message in messages)

    for count in (COUNT, 3):
        arguments = {
            "subscriptions": topic,
            "consume_from": "first",
            "batch_handler": handle,
            "batch_max": 8,
        }
        async with PushConsumer(servers.namesrv, group=topic, **arguments):  # type: ignore[arg-type]
            await until(lambda count=count: len(got) == count)
        assert max(sizes) > 1
        assert sorted(got, key=int) == [str(number) for number in range(count)]
        got.clear()
        await write(servers, topic, "0", "1", "2", keys=1)


@pytest.mark.loss
@there("broadcasting")
async def test_to_everybody(servers: Servers, topic: str, tmp_path: Path) -> None:
    await write(servers, topic, *(str(number) for number in range(COUNT)))
    first: list[str] = []
    second: list[str] = []

    def named(name: str) -> ConsumerSettings:
        return ConsumerSettings(offset_dir=str(tmp_path), client=ClientSettings(instance_name=name))

    async with (
        collecting(servers, topic, topic, first, broadcast=True, settings=named("one")),
        collecting(servers, topic, topic, second, broadcast=True, settings=named("two")),
    ):
        await until(lambda: len(first) == len(second) == COUNT)
    assert sorted(first) == sorted(second) == sorted(str(number) for number in range(COUNT))


@pytest.mark.loss
@there("from first", "from last", "from timestamp", "lite seek by time")
async def test_where_a_new_group_begins(servers: Servers) -> None:
    topic = "History"
    async with Producer(servers.namesrv, group="writers") as producer:
        for number in range(COUNT):
            await producer.send(topic, f"old {number}".encode())
        await trio.sleep(1)  # 4.9 takes the nearest message, be it before or after
        noon = datetime.datetime.now(datetime.UTC)
        for number in range(COUNT):
            await producer.send(topic, f"new {number}".encode())
    old, new = (
        {f"old {number}" for number in range(COUNT)},
        {f"new {number}" for number in range(COUNT)},
    )
    first: list[str] = []
    late: list[str] = []
    last: list[str] = []
    async with (
        collecting(servers, topic, f"{topic}_1", first),
        collecting(servers, topic, f"{topic}_2", late, consume_from=noon),
        collecting(servers, topic, f"{topic}_3", last, consume_from="last") as consumer,
        PullConsumer(servers.namesrv, group=f"{topic}_4", auto_commit=False) as reader,
    ):
        await consumer.wait_assigned()
        await until(lambda: set(first) >= old | new and len(late) >= COUNT)
        queues = await reader.queues(topic)
        await reader.assign(queues)
        for queue in queues:
            await reader.seek_to_time(queue, noon)
        found: list[str] = []
        with trio.fail_after(30):
            while len(found) < COUNT:
                found += [message.body.decode() for message in await reader.poll(max_messages=100)]
            while not last:
                await write(servers, topic, "last")
    gone = {body for body in first if body.startswith("gone")}
    assert (set(first) - gone - {"last"}, set(late) - {"last"}, set(last)) == (
        old | new,
        new,
        {"last"},
    )
    assert 0 < len(gone) < 24, "it began where the queues begin"
    assert set(found) == new


@pytest.mark.loss
@there("from last")
async def test_the_last_of_a_young_queue(servers: Servers, topic: str) -> None:
    """A 5.x broker says that the group has no offset; a 4.9 one says 0 as to its own clients, which
    then read the queue from its beginning.
    """
    old, new = (
        [f"old {number}" for number in range(COUNT)],
        [f"new {number}" for number in range(COUNT)],
    )
    await write(servers, topic, *old)
    got: list[str] = []
    async with collecting(servers, topic, topic, got, consume_from="last"):
        await write(servers, topic, *new)
        await until(lambda: set(got) >= set(new))
    assert sorted(got) == sorted(new if servers.client.peer == "java-client-5.5.0" else old + new)


@pytest.mark.loss
@there("retry", "dead letter")
async def test_failures(servers: Servers, topic: str) -> None:
    await write(servers, topic, "good", "again", "dead", "hopeless")
    got: list[tuple[str, int]] = []

    async def handle(message: ReceivedMessage) -> None:
        body = message.body.decode()
        got.append((body, message.reconsume_times))
        if body == "dead" or (body == "again" and message.reconsume_times == 0):
            await message.retry(1)
        if body == "hopeless":
            await message.dead_letter()

    settings = ConsumerSettings(max_reconsume_times=1)
    async with (
        PushConsumer(
            servers.namesrv,
            group=topic,
            subscriptions=topic,
            consume_from="first",
            handler=handle,
            settings=settings,
        ),
        Admin(servers.namesrv) as admin,
        PullConsumer(servers.namesrv, group="undertaker", consume_from="first") as reader,
    ):
        await until(lambda: len(got) == 6)
        dead: dict[bytes, tuple[str, ...]] = {}
        with trio.fail_after(60):
            while f"%DLQ%{topic}" not in await admin.topics():
                await trio.sleep(0.05)
            await reader.assign(await reader.queues(f"%DLQ%{topic}"))
            while len(dead) < 2:
                dead |= {message.body: message.keys for message in await reader.poll()}
    assert sorted(got) == [
        *(("again", 0), ("again", 1), ("dead", 0), ("dead", 1)),
        *(("good", 0), ("hopeless", 0)),
    ]
    assert dead == {b"dead": ("k-2",), b"hopeless": ("k-3",)}


@pytest.mark.loss
@there("shares {rule}")
@pytest.mark.parametrize("rule", list(RULES))
async def test_a_group_of_both_kinds(servers: Servers, rule: str) -> None:
    topic, ours, count = f"Shares_{rule}", [], 64
    async with Admin(servers.namesrv) as admin, Producer(servers.namesrv, group="py") as producer:
        await admin.create_topic(topic, cluster="TestCluster", read_queues=16, write_queues=16)
        queues = await producer.queues(topic)

    async def handle(message: ReceivedMessage) -> None:
        await trio.lowlevel.checkpoint()
        ours.append((message.queue.queue_id, message.body.decode()))

    async with PushConsumer(
        servers.namesrv,
        group=topic,
        subscriptions=topic,
        consume_from="first",
        handler=handle,
        allocate=RULES[rule],
    ) as consumer:
        with servers.client.consuming(topic, topic, mode=rule) as name:
            mine = await share_of_two(servers.namesrv, consumer, topic, rule, queues)
            await write(servers, topic, *(str(number) for number in range(count)))
            await until(lambda: len(ours) + len(servers.client.got(name)) >= count)
            theirs = [(one.queue_id, one.body) for one in servers.client.got(name)]
    assert sorted(int(body) for _, body in [*ours, *theirs]) == list(range(count))
    assert {queue_id for queue_id, _ in ours} == mine
    assert {queue_id for queue_id, _ in theirs} == set(range(16)) - mine


@pytest.mark.loss
@there("queue locks")
async def test_an_ordered_group_of_both_kinds(servers: Servers) -> None:
    await share_in_order(servers.namesrv, servers.client, "OrderedByBoth")


@there("running information", "consume directly", "reset while running")
async def test_a_running_consumer_is_asked(servers: Servers) -> None:
    """Through Java's broker our mqadmin sees the consumer's state, lets it handle a message again,
    and moves its offsets.

    4.9 moves a group only if it knows its offsets of all queues, so there is one; 5.5 tells the
    consumer when its pull ends.
    """
    topic = "Asked"
    await document(servers, "updateTopic", "-c", "TestCluster", "-t", topic, "-r", 1, "-w", 1)
    got: list[str] = []
    async with Producer(servers.namesrv, group="writers") as producer:
        receipt = await producer.send(topic, b"once")
    async with collecting(
        servers, topic, topic, got, settings=ConsumerSettings(suspend=2, offset_interval=0.5)
    ) as consumer:
        await until(lambda: got == ["once"])
        status = await mqadmin(
            "consumerStatus", "-g", topic, "-i", consumer.client_id, "-n", servers.namesrv
        )
        assert topic in status.out, status
        words = (
            "queryMsgById",
            "-i",
            receipt.offset_message_id,
            "-g",
            topic,
            "-d",
            consumer.client_id,
            "-t",
            topic,
            "-n",
            servers.namesrv,
        )
        handled = await mqadmin(*words)
        assert "CR_SUCCESS" in handled.out, handled
        await until(lambda: got == ["once", "once"])
        await until(lambda: consumer.statistics().unsettled == 0)
        with trio.fail_after(30):  # until the offset is stored
            while (
                await mqadmin(
                    "resetOffsetByTime", "-g", topic, "-t", topic, "-s", 0, "-n", servers.namesrv
                )
            ).code != 0:
                await trio.sleep(0.2)
        await until(lambda: got == ["once", "once", "once"])


# Pull consumers


@pytest.mark.loss
@there("pull", "pull and commit", "lite assign", "lite seek", "lite commit")
async def test_assign_seek_and_commit(servers: Servers, topic: str) -> None:
    await write(servers, topic, *(str(number) for number in range(COUNT)), keys=1)
    async with PullConsumer(servers.namesrv, group=topic, auto_commit=False) as consumer:
        (queue,) = [
            queue
            for queue in await consumer.queues(topic)
            if await consumer.max_offset(queue) == COUNT
        ]
        await consumer.assign([queue])
        for seek, expected in (
            (lambda: consumer.seek(queue, 4), range(4, COUNT)),
            (lambda: consumer.seek_to_begin(queue), range(COUNT)),
        ):
            await seek()
            got: list[ReceivedMessage] = []
            with trio.fail_after(30):
                while len(got) < len(expected):
                    got += await consumer.poll(max_messages=100)
            assert [(message.queue_offset, message.body.decode()) for message in got] == [
                (offset, str(offset)) for offset in expected
            ]
        await consumer.seek_to_end(queue)
        await write(servers, topic, "later", keys=1)
        with trio.fail_after(30):
            assert [message.body for message in await consumer.poll()] == [b"later"]
        await consumer.commit({queue: 7})
        assert await consumer.committed(queue) == 7
    lines = await trio.to_thread.run_sync(
        lambda: servers.client.ask("pull", topic, topic, queue.broker_name, queue.queue_id, 7, 1, 8)
    )
    assert [line[8] for line in lines if line[0] == "READ"] == ["7"]
    async with PullConsumer(servers.namesrv, group=topic, auto_commit=False) as consumer:
        await consumer.assign(await consumer.queues(topic))
        with trio.fail_after(30):
            assert (await consumer.poll(max_messages=1))[0].body == b"8", (
                "Java's client has stored 8"
            )


@pytest.mark.loss
@there("lite subscribe", "lite auto-commit", "lite queue listener")
async def test_subscribe_auto_commit_and_new_queues(servers: Servers, topic: str) -> None:
    await write(
        servers, topic, *(str(number) for number in range(2 * COUNT)), tags=("TagB", "TagA"), keys=1
    )
    settings = ConsumerSettings(client=ClientSettings(route_interval=0.2))
    async with PullConsumer(
        servers.namesrv,
        group=topic,
        subscriptions={topic: "TagA"},
        consume_from="first",
        settings=settings,
    ) as consumer:
        got: list[str] = []
        with trio.fail_after(30):
            while len(got) < COUNT:
                got += [message.body.decode() for message in await consumer.poll(max_messages=100)]
        assert sorted(got, key=int) == [str(number) for number in range(1, 2 * COUNT, 2)]
        watch = consumer.watch_queues(topic)
        assert len(await anext(watch)) == 4
        await document(servers, "updateTopic", "-c", "TestCluster", "-t", topic, "-r", 6, "-w", 6)
        with trio.fail_after(30):
            assert len(await anext(watch)) == 6
    progress = await document(servers, "consumerProgress", "-g", topic, "-t", topic)
    assert sum(row["consumerOffset"] for row in progress["queues"]) == 2 * COUNT  # type: ignore[attr-defined]


# Administration


@pytest.mark.loss
@there("admin: offsets", "admin: messages", "admin: settings", "admin: groups", "admin: topics")
async def test_administration(servers: Servers) -> None:
    """What our commands change is read back from Java by other requests."""
    topic, group = "Administrated", "administrated"
    (address,) = [
        broker["address"] for broker in (await document(servers, "clusterList"))["brokers"]
    ]  # type: ignore[attr-defined]
    await document(servers, "updateTopic", "-c", "TestCluster", "-t", topic, "-r", 1, "-w", 1)
    await document(servers, "updateSubGroup", "-c", "TestCluster", "-g", group, "-r", 5)
    for number in range(3):
        sent = await document(servers, "sendMessage", "-t", topic, "-p", f"body {number}")
        assert sent["sendResult"] == "SEND_OK"
    bodies = (await document(servers, "consumeMessage", "-t", topic))["messages"]
    assert {message["body"] for message in bodies} == {f"body {number}" for number in range(3)}  # type: ignore[attr-defined]

    got: list[str] = []
    async with collecting(servers, topic, group, got):
        await until(lambda: len(got) == 3)

    async def behind(who: str) -> object:
        return (await document(servers, "consumerProgress", "-g", who, "-t", topic))["diffTotal"]

    await document(
        servers,
        "resetOffsetByTime",
        "-g",
        group,
        "-t",
        topic,
        "-s",
        int(time.time() * 1000) - 3_600_000,
    )
    assert await behind(group) == 3
    await document(servers, "cloneGroupOffset", "-s", group, "-d", f"{group}-copy", "-t", topic)
    assert await behind(f"{group}-copy") == 3
    await document(servers, "skipAccumulatedMessage", "-g", group, "-t", topic)
    assert await behind(group) == 0
    await document(
        servers, "updateBrokerConfig", "-b", address, "-k", "waitTimeMillsInSendQueue", "-v", 250
    )
    assert (await document(servers, "getBrokerConfig", "-b", address))["brokers"][address][
        "waitTimeMillsInSendQueue"
    ] == "250"  # type: ignore[index]
    await document(servers, "wipeWritePerm", "-b", "broker-java")
    assert [
        data["perm"] for data in (await document(servers, "topicRoute", "-t", topic))["queueDatas"]
    ] == [4]  # type: ignore[attr-defined]
