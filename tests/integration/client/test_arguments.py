"""Wrong arguments in every interface: an error that names what was given and what is wanted.

Nothing else happens.
"""

from __future__ import annotations

import asyncio
import datetime
import pydoc
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import attrs
import pytest
import trio
import trio.lowlevel

from triomq import (
    ClientSettings,
    ConsumerSettings,
    Message,
    MessageInvalid,
    MessageQueue,
    NotRunning,
    Producer,
    ProducerSettings,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SettingsError,
    Sql,
    TopicInvalid,
    TrioMQError,
    aio,
    select_by_hash,
    sync,
)
from triomq.client.sdk.push_consumer import ConsumerStatistics
from triomq.testing import InProcessCluster

TEXT_DAY = "2026-01-01"
STRANGE: Any = object()
ELSEWHERE = MessageQueue("Others", "broker-a", 0)

TOPICS: list[tuple[Any, str]] = [
    (None, "must be a text, not NoneType"),
    (5, "must be a text, not int"),
    (b"Orders", r"must be a text, not bytes: write b'Orders'\.decode\(\)"),
    (["Orders"], "must be a text, not list"),
    ("", "1 to 127 characters"),
    ("no dots.", "no dots"),
]
"""(topic, complaint)"""

FIELDS: list[tuple[str, Any, str]] = [
    ("body", "text", r"bytes, not str: encode it, for example with \.encode\(\)"),
    ("body", 5, "bytes, not int"),
    ("body", b"", "empty body"),
    ("tag", 5, "text, not int"),
    ("tag", ["a"], "text, not list"),
    ("tag", "a||b", "without '|'"),
    ("keys", "order-1", r"write keys=\['order-1'\]"),
    ("keys", "k1 k2", r"write keys=\['k1', 'k2'\]"),
    ("keys", b"order-1", "list of texts, not the bytes b'order-1'"),
    ("keys", 5, "list of texts, not the int 5"),
    ("keys", [5], r"text, not the int 5: write str\(5\)"),
    ("keys", [b"k"], r"write b'k'\.decode\(\)"),
    ("keys", ["order 1"], "no blank inside"),
    ("keys", ["a", ""], "needs a character"),
    (
        "properties",
        {"a": 5},
        (
            r"'a' must be a text with a text as its value, not int: convert it, for example with"
            r" str\(\)"
        ),
    ),
    ("properties", {5: "a"}, "not int"),
    ("properties", {"a": None}, "not NoneType"),
    ("properties", {"a": b"b"}, "not bytes"),
    ("properties", [("a", "b")], "a dict of texts, not the list"),
    ("properties", "a=b", "a dict of texts, not the str"),
    ("properties", {"KEYS": "k"}, "reserved"),
    ("properties", {"a": "\x01"}, "0x01"),
    ("properties", {"a": "\ud800"}, "not valid text"),
    ("flag", "1", "a number of 32 bits"),
    ("flag", 1 << 40, "a number of 32 bits"),
]
"""(field of a message, value, complaint)"""

DIRECTIONS: list[tuple[str, Any, str]] = [
    ("queue", "0", "an index of the topic's publish list, not the str '0'"),
    ("queue", 1.0, "not the float 1.0"),
    ("queue", True, "not the bool True"),
    ("queue", 99, "queues 0 to 0"),
    ("queue", -1, "queues 0 to 0"),
    ("queue", ELSEWHERE, "a queue of topic 'Others'"),
    ("sharding_key", 7, "text, not the int 7"),
    ("sharding_key", b"k", "text, not the bytes"),
    ("select", "hash", "select must be a function, not the str 'hash'"),
    (
        "select",
        lambda queues, message: None,
        "must return one of the queues that it gets, not the NoneType None",
    ),
    ("select", lambda queues, message: 0, "not the int 0"),
    ("select", lambda queues, message: ELSEWHERE, "a queue of topic 'Others'"),
]
"""(argument of a send, value, complaint)"""

DELAYS: list[tuple[str, Any, str]] = [
    ("delay_level", "3", "whole number, not the str '3'"),
    ("delay_level", 3.0, "not the float"),
    ("delay_level", True, "not the bool"),
    ("delay_level", 1 << 31, "delay_level 2147483648 does not exist"),
    ("delay_level", -1, "delay_level -1 does not exist"),
]


async def refuses(
    kind: type[TrioMQError],
    complaint: str,
    call: Callable[..., Awaitable[object]],
    *arguments: Any,
    **named: Any,
) -> None:
    with pytest.raises(kind, match=complaint) as caught, trio.fail_after(10):
        await call(*arguments, **named)
    assert isinstance(caught.value, ValueError)


async def test_wrong_arguments_of_sends(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("Orders", queues=1)
    for settings in (ProducerSettings(), ProducerSettings(auto_batch=True)):
        async with Producer(
            triomq_cluster.namesrv_address, group="shop", settings=settings
        ) as producer:
            loose: Any = producer
            for topic, complaint in TOPICS:
                await refuses(TopicInvalid, complaint, loose.send, topic, b"x")
                await refuses(TopicInvalid, complaint, loose.send, Message(topic=topic, body=b"x"))
                await refuses(TopicInvalid, complaint, loose.send_oneway, topic, b"x")
                await refuses(
                    TopicInvalid, complaint, loose.send_batch, [Message(topic=topic, body=b"x")]
                )
                await refuses(TopicInvalid, complaint, loose.queues, topic)
            for field, value, complaint in FIELDS:
                given = {"topic": "Orders", "body": b"x", field: value}
                message: Any = Message(**given)
                await refuses(MessageInvalid, complaint, loose.send, **given)
                await refuses(MessageInvalid, complaint, loose.send, message)
                await refuses(MessageInvalid, complaint, loose.send_oneway, **given)
                await refuses(MessageInvalid, complaint, loose.send_oneway, message)
                await refuses(
                    MessageInvalid,
                    complaint,
                    loose.send_batch,
                    [Message(topic="Orders", body=b"x"), message],
                )
            for name, value, complaint in (
                *DIRECTIONS,
                *DELAYS,
                ("message_id", 5, "message_id must be a text, not the int 5"),
            ):
                await refuses(
                    MessageInvalid, complaint, loose.send, "Orders", b"x", **{name: value}
                )
                if name != "message_id":
                    await refuses(
                        MessageInvalid,
                        complaint,
                        loose.send_oneway,
                        "Orders",
                        b"x",
                        **{name: value},
                    )
                if (name, value, complaint) in DIRECTIONS:
                    await refuses(
                        MessageInvalid,
                        complaint,
                        loose.send_batch,
                        [Message(topic="Orders", body=b"x")],
                        **{name: value},
                    )
            for messages in (
                Message(topic="Orders", body=b"x"),
                [b"x"],
                [Message(topic="Orders", body=b"x"), "x"],
                iter(()),
                5,
                None,
            ):
                await refuses(
                    MessageInvalid, r"a batch is a list of Message", loose.send_batch, messages
                )
            await refuses(MessageInvalid, "a message needs a body", loose.send, "Orders")
            await refuses(MessageInvalid, "a message needs a body", loose.send_oneway, "Orders")
            receipt = await producer.send(
                "Orders",
                b"x",
                keys=["a", "b"],
                tag="t",
                properties={"p": "v"},
                select=select_by_hash("k"),
            )
            assert receipt.queue_offset == (0 if not settings.auto_batch else 1), (
                "nothing of all that was sent"
            )


NAMES: list[tuple[Any, str]] = [
    (None, "text, not NoneType"),
    (5, "text, not int"),
    (b"g", r"text, not bytes: write b'g'\.decode\(\)"),
    ([], "text, not list"),
    ("", "1 to 120|1 to 255"),
    ("a b", "letters, digits"),
]

SUBSCRIPTIONS: list[tuple[Any, str]] = [
    (None, "dict of topic → tags, not the NoneType None"),
    (5, "not the int 5"),
    (b"T", "not the bytes b'T'"),
    (Sql("a = 1"), "not the Sql"),
    ([5], "text, not int"),
    ({5: "*"}, "text, not int"),
    ({"T": 5}, "the int 5 is not a tag expression; write 'TagA || TagB'"),
    ({"T": ["a", "b"]}, "is not a tag expression"),
    ({"T": b"a"}, "is not a tag expression"),
    ({"T": " || "}, "names no tag"),
    ({"T": Sql(STRANGE)}, "an SQL expression must be a text, not the object"),
    ({"T": Sql("")}, "is empty"),
]


@pytest.mark.parametrize(
    "door",
    [
        Producer,
        PushConsumer,
        PullConsumer,
        sync.Producer,
        sync.PushConsumer,
        sync.PullConsumer,
        aio.Producer,
        aio.PushConsumer,
        aio.PullConsumer,
    ],
)
def test_wrong_constructor_arguments(door: Any) -> None:
    consumer = not door.__name__.startswith("Producer")
    pushes = door.__name__.startswith("Push")
    good: dict[str, Any] = {"group": "g", **({"subscriptions": "T"} if pushes else {})}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"group": group}, complaint) for group, complaint in NAMES
    ]
    wrong += [
        ({"namesrv": namesrv}, "a text or a list of texts")
        for namesrv in (5, b"a:1", [5], {"a": 1})
    ]
    wrong += [({"namesrv": "a:b"}, "write 'host:port'")]
    other = ConsumerSettings() if not consumer else ProducerSettings()
    wrong += [
        ({"settings": settings}, "settings must be (Producer|Consumer)Settings")
        for settings in ({}, other, 5)
    ]
    if consumer:
        wrong += [
            ({"subscriptions": subscriptions}, complaint)
            for subscriptions, complaint in SUBSCRIPTIONS
            if subscriptions is not None or pushes
        ]
        wrong += [
            ({"consume_from": start}, "or an aware datetime")
            for start in (None, 5, "begin", TEXT_DAY)
        ]
        wrong += [({"consume_from": datetime.datetime(2026, 1, 1)}, "no time zone")]
    if pushes:
        wrong += [({"allocate": "AVG"}, "allocate must be a function, not the str 'AVG'")]
    if pushes and door is sync.PushConsumer:
        wrong += [
            ({"concurrency": 0}, "1 or greater"),
            ({"concurrency": "3"}, "whole number"),
            ({"handler": "f"}, "handler must be a function"),
        ]
    if door is PushConsumer:
        wrong += [
            ({name: value}, complaint)
            for name in ("concurrency", "batch_max")
            for value, complaint in (
                (0, "1 or greater"),
                ("3", "whole number"),
                (1.5, "whole number"),
            )
        ]
        wrong += [
            ({name: "f"}, "must be an async function, not the str 'f'")
            for name in ("handler", "batch_handler")
        ]
        wrong += [({"on_assignment": 5}, "on_assignment must be a function")]
        wrong += [({"subscriptions": []}, "names no topic")]
    door("a:1", **good)
    for arguments, complaint in wrong:
        with pytest.raises(ValueError, match=complaint) as caught:
            door(**{"namesrv": "a:1", **good, **arguments})
        assert isinstance(caught.value, TrioMQError), arguments


async def test_wrong_arguments_of_a_pull_consumer(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("Orders", queues=1)
    async with Producer(triomq_cluster.namesrv_address, group="shop") as producer:
        await producer.send("Orders", b"x")
    async with PullConsumer(
        triomq_cluster.namesrv_address, group="readers", consume_from="first"
    ) as consumer:
        loose: Any = consumer
        for subscriptions, complaint in SUBSCRIPTIONS:
            with pytest.raises((SettingsError, TopicInvalid), match=complaint):
                await loose.subscribe(subscriptions)
        for queues in (None, 5, "Orders", MessageQueue("Orders", "broker-a", 0)):
            await refuses(SettingsError, "a list of queues, not", loose.assign, queues)
        await refuses(
            SettingsError, r"a queue is wanted, not the str 'Orders'", loose.assign, ["Orders"]
        )
        (queue,) = await consumer.queues("Orders")
        await refuses(SettingsError, "is not a tag expression", loose.assign, [queue], tags=5)
        await consumer.assign([queue])
        for topic, complaint in TOPICS:
            await refuses(TopicInvalid, complaint, loose.queues, topic)
            with pytest.raises(TopicInvalid, match=complaint):
                loose.watch_queues(topic)
        for wrong in (None, "Orders", 0, [queue], ("Orders", "broker-a", 0)):
            for method in ("committed", "min_offset", "max_offset", "seek_to_begin", "seek_to_end"):
                await refuses(SettingsError, "a queue is wanted", getattr(loose, method), wrong)
            await refuses(SettingsError, "a queue is wanted", loose.seek, wrong, 0)
            for method in ("position", "pause", "resume"):
                with pytest.raises(SettingsError, match="a queue is wanted"):
                    getattr(loose, method)(wrong)
        for offset in (None, "0", 1.0, True, -1, 1 << 63):
            await refuses(
                SettingsError,
                "an offset must be a whole number from 0 on",
                loose.seek,
                queue,
                offset,
            )
            await refuses(
                SettingsError,
                "an offset must be a whole number from 0 on",
                loose.commit,
                {queue: offset},
            )
            with pytest.raises(SettingsError, match="an offset must be a whole number from 0 on"):
                loose.commit_nowait({queue: offset})
        await refuses(
            SettingsError, "a dict of queue → offset, not the list", loose.commit, [queue]
        )
        await refuses(SettingsError, "a queue is wanted, not the str", loose.commit, {"Orders": 0})
        for instant, complaint in (
            (None, "aware datetime"),
            (5, "aware datetime"),
            ("first", "aware datetime"),
            (datetime.datetime(2026, 1, 1), "no time zone"),
        ):
            await refuses(SettingsError, complaint, loose.seek_to_time, queue, instant)
            await refuses(SettingsError, complaint, loose.offset_for_time, queue, instant)
        for count in (0, -1, "3", None, 1.5):
            await refuses(
                SettingsError, "max_messages must be", partial(loose.poll, max_messages=count)
            )
        assert consumer.position(queue) == 0
        assert [message.body for message in await consumer.poll()] == [b"x"]
        assert await consumer.committed(queue) is None


async def test_wrong_arguments_of_a_push_consumer(triomq_cluster: InProcessCluster) -> None:
    async with Producer(triomq_cluster.namesrv_address, group="shop") as producer:
        await producer.send("Orders", b"x")
    async with PushConsumer(
        triomq_cluster.namesrv_address,
        group="readers",
        subscriptions="Orders",
        consume_from="first",
    ) as consumer:
        loose: Any = consumer
        for subscriptions, complaint in SUBSCRIPTIONS:
            with pytest.raises((SettingsError, TopicInvalid), match=complaint):
                await loose.subscribe(subscriptions)
        for topic, complaint in TOPICS:
            await refuses(TopicInvalid, complaint, loose.unsubscribe, topic)
        await refuses(SettingsError, "max_messages must be", partial(loose.take, max_messages=0))
        await refuses(
            SettingsError, "concurrency must be", loose.run, lambda message: None, concurrency=0
        )
        await refuses(
            SettingsError,
            "batch_max must be",
            loose.run_batches,
            lambda messages: None,
            batch_max=0,
        )
        await refuses(SettingsError, "a handler must be an async function", loose.run, 5)
        with trio.fail_after(10):
            (message,) = await consumer.take()
        wrong: Any = message
        for value, complaint in (
            (-2, "-2 does not exist: 0 for the broker's delay, which grows"),
            (1 << 31, "does not exist"),
            ("1", "whole number"),
            (None, "whole number"),
            (True, "whole number"),
        ):
            await refuses(MessageInvalid, complaint, wrong.retry, value)
        for pause in ("1", -1, True):
            await refuses(
                SettingsError, "pause must be a number of seconds", wrong.retry, pause=pause
            )
        assert not message.settled
        assert await message.ack()


@pytest.mark.parametrize("batches", [False, True])
@pytest.mark.parametrize("in_the_background", [False, True])
async def test_a_handler_that_returns_nothing_to_await_ends_the_consumer(
    triomq_cluster: InProcessCluster, batches: bool, in_the_background: bool
) -> None:
    """Otherwise each message would come again and again, although it was handled."""
    async with Producer(triomq_cluster.namesrv_address, group="shop") as producer:
        for _ in range(8):
            await producer.send("Orders", b"x")

    class Plain:
        def __call__(self, what: Any) -> None:
            """As for ``triomq.sync``."""

    plain: Any = Plain()
    given: dict[str, Any] = (
        {"batch_handler" if batches else "handler": plain} if in_the_background else {}
    )
    complaint = (
        r"is not an async function, it returned the NoneType None: write `async def`, or use"
        r" triomq\.sync"
    )
    with pytest.raises(SettingsError, match=complaint), trio.fail_after(20):  # noqa: PT012 - the end of the block raises
        async with PushConsumer(
            triomq_cluster.namesrv_address,
            group="readers",
            subscriptions="Orders",
            consume_from="first",
            **given,
        ) as consumer:
            wrong: Any = consumer
            if in_the_background:
                await trio.sleep_forever()
            await (wrong.run_batches(plain) if batches else wrong.run(plain))


async def test_a_plain_function_is_refused_before_anything_starts() -> None:
    def plain(what: Any) -> None:
        """As for ``triomq.sync``."""

    async def later(what: Any) -> None:
        await trio.lowlevel.checkpoint()

    def promising(what: Any) -> Awaitable[None]:
        return later(what)

    class Shop:
        def handle(self, what: Any) -> None:
            """A method."""

    loose: Any = PushConsumer
    for name in ("handler", "batch_handler"):
        for function in (plain, Shop().handle, print):
            with pytest.raises(
                SettingsError,
                match=(
                    r"is not an async function: write `async def`, or use"
                    r" triomq\.sync\.PushConsumer"
                ),
            ):
                loose("127.0.0.1:1", group="readers", subscriptions="Orders", **{name: function})
        loose("127.0.0.1:1", group="readers", subscriptions="Orders", **{name: promising})
    blocking: Any = sync.PushConsumer

    async def handle(what: Any) -> None:
        await trio.lowlevel.checkpoint()

    for name in ("handler", "batch_handler"):
        with pytest.raises(
            SettingsError,
            match=(
                f"{name} must be a plain function, and .* is an async one: use"
                " triomq.aio.PushConsumer"
            ),
        ):
            blocking("127.0.0.1:1", group="readers", subscriptions="Orders", **{name: handle})


@pytest.mark.parametrize("kind", [Producer, PushConsumer, PullConsumer])
def test_the_error_outside_trio_names_the_right_class(kind: Any) -> None:
    async def main() -> None:
        more = {} if kind is Producer else {"subscriptions": "Orders"}
        with pytest.raises(
            NotRunning,
            match=(
                rf"under asyncio use triomq\.aio\.{kind.__name__}, without a loop"
                rf" triomq\.sync\.{kind.__name__}"
            ),
        ):
            async with kind("127.0.0.1:1", group="g", **more):
                pass

    asyncio.run(main())


@pytest.mark.parametrize(
    ("kind", "values", "complaint"),
    [
        (
            ProducerSettings,
            {"send_timeout": "3"},
            "send_timeout must be a number or None, not the str '3'",
        ),
        (ProducerSettings, {"retries": 2.5}, "retries must be a whole number, not the float 2.5"),
        (ProducerSettings, {"retries": True}, "retries must be a whole number, not the bool True"),
        (ProducerSettings, {"retry_codes": 5}, "retry_codes must be a set, not the int 5"),
        (
            ProducerSettings,
            {"client": ProducerSettings()},
            "client must be ClientSettings, not the ProducerSettings",
        ),
        (
            ConsumerSettings,
            {"pull_batch": "32"},
            "pull_batch must be a whole number, not the str '32'",
        ),
        (ConsumerSettings, {"offset_dir": 5}, "offset_dir must be a text or None, not the int 5"),
        (ClientSettings, {"busy_poll": 1}, "busy_poll must be True or False, not the int 1"),
        (ClientSettings, {"tls": True}, "tls must be Tls or None, not the bool True"),
        (ClientSettings, {"rpc_hooks": 7}, "rpc_hooks must be a list, not the int 7"),
    ],
)
def test_a_setting_of_a_wrong_type_names_its_field(
    kind: Any, values: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        kind(**values)
    assert complaint in str(caught.value)


def test_every_setting_is_in_help() -> None:
    for kind in (ClientSettings, ProducerSettings, ConsumerSettings):
        text = pydoc.render_doc(kind)
        for field in attrs.fields(kind):
            assert f"`{field.name}`" in text, (kind.__name__, field.name)


async def test_a_handler_may_be_any_callable_with_an_awaitable_result(
    triomq_cluster: InProcessCluster,
) -> None:
    seen: list[bytes] = []

    class Handler:
        async def __call__(self, message: ReceivedMessage) -> None:
            await trio.lowlevel.checkpoint()
            seen.append(message.body)

    for number, handler in enumerate(
        (Handler(), lambda message: Handler()(message), Handler().__call__)
    ):
        async with Producer(triomq_cluster.namesrv_address, group="shop") as producer:
            await producer.send("Orders", b"%d" % number)
        async with PushConsumer(
            triomq_cluster.namesrv_address,
            group="readers",
            subscriptions="Orders",
            consume_from="first",
            handler=handler,
        ) as consumer:
            with trio.fail_after(20):
                while consumer.statistics() != _idle(consumer) or len(seen) <= number:
                    await trio.sleep(0.01)
    assert seen == [b"0", b"1", b"2"]


def _idle(consumer: PushConsumer) -> ConsumerStatistics:
    now = consumer.statistics()
    return ConsumerStatistics(
        queues=now.queues, unsettled=0, waiting=0, set_aside=0, topics=now.topics
    )


def test_the_other_interfaces_refuse_the_same_arguments(namesrv: str) -> None:
    """They pass the arguments on unchanged: a text of keys does not become a list of letters."""
    with sync.Producer(namesrv, group="shop") as producer:
        loose: Any = producer
        for field, value, complaint in FIELDS:
            with pytest.raises(MessageInvalid, match=complaint):
                loose.send(**{"topic": "Orders", "body": b"x", field: value}, timeout=10)
            with pytest.raises(MessageInvalid, match=complaint):
                loose.send_oneway(**{"topic": "Orders", "body": b"x", field: value}, timeout=10)
        for timeout in ("5", float("nan"), True):
            with pytest.raises(SettingsError, match="timeout must be a number of seconds"):
                loose.send("Orders", b"x", timeout=timeout)
        with pytest.raises(SettingsError, match="window must be"):
            list(loose.send_many([], window=0))
    with sync.PullConsumer(namesrv, group="readers") as puller:
        wrong: Any = puller
        with pytest.raises(SettingsError, match="timeout must be a number of seconds"):
            wrong.poll(timeout="5")
        with pytest.raises(SettingsError, match="max_messages"):
            wrong.poll(max_messages=0)

    async def main() -> None:
        async with aio.Producer(namesrv, group="shop") as producer:
            loose: Any = producer
            for field, value, complaint in FIELDS:
                with pytest.raises(MessageInvalid, match=complaint):
                    await loose.send(**{"topic": "Orders", "body": b"x", field: value})

    asyncio.run(main())
