"""Values that the SDK accepts besides those on its pages.

They are whole numbers of other libraries, iterables of texts, time limits that are over or
infinite.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import numbers
import subprocess
import sys
from collections.abc import Callable, Iterable

import pytest
import trio

from triomq import (
    ConsumerSettings,
    Message,
    NoNameServer,
    NotRunning,
    Producer,
    ProducerSettings,
    PullConsumer,
    PushConsumer,
    aio,
    sync,
)
from triomq.client.core.arguments import (
    check_count,
    check_offset,
    check_retry_level,
    check_seconds,
    check_timeout,
)
from triomq.client.core.config import ClientSettings
from triomq.client.core.errors import CallTimeout
from triomq.client.receiving.assignment import Assignment
from triomq.testing import InProcessCluster


class Whole:
    """A whole number that is not an ``int``, as NumPy's are."""

    def __init__(self, value: int) -> None:
        self._value = value

    def __index__(self) -> int:
        return self._value


numbers.Integral.register(Whole)

KEYS: list[Callable[[], Iterable[str]]] = [
    lambda: ["a", "b"],
    lambda: {"a": 1, "b": 2}.keys(),
    lambda: {"a": 1, "b": 2},
    lambda: frozenset(["a", "b"]),
    lambda: (key for key in ("a", "b")),
    lambda: map(str, ("a", "b")),
]


def test_checks_return_plain_numbers() -> None:
    results = (
        check_count("n", Whole(3)),
        check_offset(Whole(0)),
        check_seconds("t", Whole(2)),
        check_timeout(Whole(2)),
        check_retry_level(Whole(20)),
    )
    assert results == (3, 0, 2.0, 2.0, 20)
    assert [type(result) for result in results] == [int, int, float, float, int]
    assert [
        check_timeout(value) for value in (None, -0.5, -math.inf, math.inf, 10**400, -(10**400))
    ] == [None, 0.0, 0.0, math.inf, math.inf, 0.0]


async def test_whole_numbers_of_other_types(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("Orders", queues=2)
    async with Producer(triomq_cluster.namesrv_address, group="shop") as producer:
        for _ in range(3):
            receipt = await producer.send("Orders", b"x", queue=Whole(1), delay_level=Whole(0))
        assert receipt.queue_offset == 2
    async with PullConsumer(
        triomq_cluster.namesrv_address, group="readers", consume_from="first"
    ) as consumer:
        await consumer.assign([receipt.queue])
        await consumer.seek(receipt.queue, Whole(1))
        with trio.fail_after(30):
            assert (await consumer.poll(max_messages=Whole(1)))[0].queue_offset == 1
        await consumer.commit({receipt.queue: Whole(2)})
        assert await consumer.committed(receipt.queue) == 2


@pytest.mark.parametrize("auto_batch", [False, True])
async def test_keys_may_be_any_iterable_of_texts(
    auto_batch: bool, triomq_cluster: InProcessCluster
) -> None:
    """They are also read more than once: by a selector, and for a message that is sent twice. White
    space other than the blank is part of a key.
    """
    await triomq_cluster.create_topic("Orders", queues=1)
    seen: list[tuple[str, ...]] = []
    async with Producer(
        iter([triomq_cluster.namesrv_address]),
        group="shop",
        settings=ProducerSettings(auto_batch=auto_batch),
    ) as producer:

        def select(queues: object, message: Message) -> object:
            seen.append(message.keys)
            return queues[0]  # type: ignore[index]

        for make in KEYS:
            await producer.send("Orders", b"x", keys=make())
            await producer.send("Orders", b"x", keys=make(), select=select)  # type: ignore[arg-type]
            await producer.send_oneway("Orders", b"x", keys=make())
            message = Message(topic="Orders", body=b"x", keys=make())
            await producer.send(message)
            await producer.send_batch([message, message])
        sent = 6 * len(KEYS)
        await producer.send("Orders", b"x", keys=["a\tb", "c\u3000d\n"])
        await producer.send("Orders", b"x", keys=iter(()))
    assert [set(keys) for keys in seen] == [{"a", "b"}] * len(KEYS)
    async with PullConsumer(
        {triomq_cluster.namesrv_address},
        group="readers",
        consume_from="first",
        subscriptions={"t": "Orders"}.values(),
    ) as consumer:
        got: list[tuple[str, ...]] = []
        with trio.fail_after(30):
            while len(got) < sent + 2:
                got += [message.keys for message in await consumer.poll()]
    others = [keys for keys in got if set(keys) != {"a", "b"}]
    assert (len(got) - len(others), others) == (sent, [("a\tb", "c\u3000d\n"), ()])


async def test_a_retry_accepts_levels_that_only_the_broker_knows_and_the_dead_letters(
    triomq_cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    send_back = Assignment.send_back

    async def noted(self: Assignment, message: object, delay_level: int) -> bool:
        asked.append(delay_level)
        return await send_back(self, message, delay_level)  # type: ignore[arg-type]

    monkeypatch.setattr(Assignment, "send_back", noted)
    async with Producer(triomq_cluster.namesrv_address, group="shop") as producer:
        for _ in range(3):
            await producer.send("Orders", b"x")
    topics = (topic for topic in ("Orders",))
    async with PushConsumer(
        triomq_cluster.namesrv_address, group="readers", subscriptions=topics, consume_from="first"
    ) as consumer:
        with trio.fail_after(30):
            for level in (20, Whole(18), -1):
                (message,) = await consumer.take(max_messages=Whole(1))
                assert await message.retry(level)
    assert asked == [20, 18, -1]
    async with PullConsumer(
        triomq_cluster.namesrv_address,
        group="undertakers",
        subscriptions="%DLQ%readers",
        consume_from="first",
    ) as dead:
        with trio.fail_after(30):
            assert [message.body for message in await dead.poll()] == [b"x"]


def test_time_limits_that_are_over_or_endless(namesrv: str) -> None:
    """``deadline - now`` may be negative, and a limit may be longer than locks can wait."""
    with sync.Producer(namesrv, group="shop") as producer:
        for number, timeout in enumerate((math.inf, 1e10, Whole(60))):
            assert producer.send("Orders", b"x", queue=0, timeout=timeout).queue_offset == number  # type: ignore[arg-type]
        for timeout in (-0.001, -math.inf, 0):
            with contextlib.suppress(CallTimeout):
                producer.queues("Orders", timeout=timeout)
        assert [
            receipt.queue_offset
            for receipt in producer.send_many([Message(topic="New", body=b"x")], window=Whole(2))
        ] == [0]
    with sync.PullConsumer(namesrv, group="readers", consume_from="first") as consumer:
        assert consumer.poll(timeout=-0.01) == []
        consumer.assign(queue for queue in consumer.queues("Orders"))
        assert consumer.poll(max_messages=Whole(1), timeout=math.inf)[0].body == b"x"  # type: ignore[arg-type]


def test_a_stop_after_a_start_that_failed_does_nothing() -> None:
    impatient = ClientSettings(route_timeout=0.1)
    blocking = sync.PullConsumer(
        "127.0.0.1:1",
        group="readers",
        subscriptions="Orders",
        settings=ConsumerSettings(client=impatient),
    )
    with pytest.raises(NoNameServer):
        blocking.start()
    blocking.stop()
    with pytest.raises(NotRunning, match="started before"):
        blocking.start()

    async def main() -> None:
        loose = aio.Producer(
            "127.0.0.1:1", group="shop", settings=ProducerSettings(client=impatient)
        )
        with pytest.raises(NoNameServer):
            await loose.start()
        await loose.stop()

    asyncio.run(main())


_CHILD = """
import os, sys
from triomq import sync

made = sync.Producer(sys.argv[1], group="made")
child = os.fork()
if not child:
    try:
        made.start()
        print("sent", made.send("Orders", b"x").queue_offset)
        made.stop()
        print("alive", made._portal._thread.is_alive(), flush=True)
        os._exit(0)
    finally:
        os._exit(1)
assert os.waitpid(child, 0)[1] == 0
"""


def test_an_object_made_before_a_fork_may_be_started_in_the_child(namesrv: str) -> None:
    """Pre-forking servers make such objects at import."""
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, namesrv],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "sent 0\nalive False\n"), done.stderr
