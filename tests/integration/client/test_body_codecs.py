"""Bodies as objects, in the three interfaces: JSON, msgspec; what happens to a body that does not
fit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import attrs
import msgspec
import pytest
import trio
from threaded_cluster import cluster_in_a_thread

import triomq
from triomq import (
    BodyCodec,
    ConsumerSettings,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SettingsError,
    json_codec,
    sync,
)
from triomq.testing import InProcessCluster


class Order(msgspec.Struct, frozen=True):
    number: int
    customer: str


ORDERS = BodyCodec(msgspec.json.encode, msgspec.json.Decoder(Order).decode)
GOOD, BAD = Order(1, "Ada"), b'{"number": "one"}'
QUICK = ConsumerSettings(retry_delay=0.01, max_reconsume_times=1)


async def send_both(address: str) -> None:
    async with Producer(address, group="p") as producer:
        await producer.send_batch(
            [Message(topic="T", body=BAD), Message(topic="T", body=ORDERS.encode(GOOD))]
        )


async def dead_letters(address: str, group: str) -> list[bytes]:
    async with PushConsumer(
        address, group="reader", subscriptions=f"%DLQ%{group}", consume_from="first"
    ) as consumer:
        with trio.fail_after(30):
            message = await consumer.__anext__()
            await message.ack()
            return [message.body]


async def test_an_unfit_body_goes_where_the_handler_says(
    triomq_cluster: InProcessCluster, caplog: pytest.LogCaptureFixture
) -> None:
    address = triomq_cluster.namesrv_address
    await triomq_cluster.create_topic("T", queues=1)
    await send_both(address)

    async def consume(group: str, unfit: Any) -> list[tuple[Order, str]]:
        handled: list[tuple[Order, str]] = []
        fit = trio.Event()

        @ORDERS.handler(unfit=unfit)
        async def handle(order: Order, message: ReceivedMessage) -> None:
            await trio.lowlevel.checkpoint()
            handled.append((order, message.topic))
            fit.set()

        async with PushConsumer(
            address,
            group=group,
            subscriptions="T",
            consume_from="first",
            handler=handle,
            concurrency=1,
            settings=QUICK,
        ):
            with trio.fail_after(30):
                await fit.wait()
        return handled

    assert await consume("buries", "dead_letter") == [(GOOD, "T")]
    assert await dead_letters(address, "buries") == [BAD]
    assert "becomes a dead letter: its body does not fit: Expected `int`" in caplog.text

    assert await consume("fails", "retry") == [(GOOD, "T")]
    assert "handler failed on" in caplog.text

    refused: list[tuple[bytes, str]] = []

    async def refuse(message: ReceivedMessage, error: Exception) -> None:
        await trio.lowlevel.checkpoint()
        refused.append((message.body, str(error)))

    assert await consume("asks", refuse) == [(GOOD, "T")]
    assert refused == [(BAD, "Expected `int`, got `str` - at `$.number`")]


def test_plain_handlers_have_it_too() -> None:
    done = threading.Event()
    handled: list[object] = []

    @json_codec.handler()
    def handle(value: object, message: sync.ReceivedMessage) -> None:
        handled.append(value)
        done.set()

    with cluster_in_a_thread(topic="T", queues=1) as address:
        with sync.Producer(address, group="p") as producer:
            producer.send("T", b"\xff no JSON")
            producer.send("T", json_codec.encode({"größe": [1, None, True]}))
        with sync.PushConsumer(
            address, group="g", subscriptions="T", consume_from="first", handler=handle
        ):
            assert done.wait(30)
        with sync.PushConsumer(
            address, group="reader", subscriptions="%DLQ%g", consume_from="first"
        ) as reader:
            (dead,) = reader.take(timeout=30)
            assert dead.body == b"\xff no JSON"
            dead.ack()
    assert handled == [{"größe": [1, None, True]}]


@attrs.frozen
class NoMessage:
    body: bytes = b"{}"


@pytest.mark.parametrize(
    ("wrong", "error", "match"),
    [
        (lambda: BodyCodec(1, 2), SettingsError, "encode must be a function"),
        (lambda: BodyCodec(len, "x"), SettingsError, "decode must be a function"),
        (lambda: json_codec.handler(unfit="drop"), SettingsError, "'retry', 'dead_letter' or"),
        (lambda: json_codec.handler()("x"), SettingsError, "a handler must be a function"),
        (
            lambda: json_codec.handler()(print)([NoMessage()]),
            triomq.HandlerInvalid,
            "takes one message, not the list",
        ),
        (lambda: json_codec.encode(float("nan")), ValueError, "not JSON compliant"),
    ],
)
def test_wrong_codecs_and_handlers_are_refused(
    wrong: Callable[[], object], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        wrong()
