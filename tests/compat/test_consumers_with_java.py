"""Our consumers and the official ones in one group on our cluster: the same shares, the same locks,
the same files. test_a_day_of_our_sdk_with_java.py has shares and locks on Java's broker.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from pathlib import Path

import attrs
import pytest
import trio
from java_consumers import JavaConsumer, java_consumer
from serving import until

from triomq import (
    ClientSettings,
    ConsumerSettings,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    allocate_average,
    allocate_circle,
    allocate_consistent_hash,
)
from triomq.client.admin.admin import Admin
from triomq.client.receiving.allocation import Allocation

pytestmark = [pytest.mark.compat, pytest.mark.timeout(240)]

RULES = {
    "AVG": allocate_average,
    "AVG_BY_CIRCLE": allocate_circle,
    "CONSISTENT_HASH": allocate_consistent_hash,
}


async def create_topic(namesrv: str, topic: str, queues: int) -> int:
    """Create it on every broker; returns how many queues it has in all."""
    async with Admin(namesrv) as admin:
        await admin.create_topic(topic, queues=queues)
        return queues * len(await admin.brokers())


def ours(consumer: PushConsumer, topic: str) -> set[tuple[str, int]]:
    return {
        (queue.broker_name, queue.queue_id) for queue in consumer.assignment if queue.topic == topic
    }


async def settled_shares(
    members: list[PushConsumer | JavaConsumer], topic: str, total: int
) -> list[set[tuple[str, int]]]:
    """Wait until every queue has an owner and none has two, and it stays so; returns the shares."""
    with trio.fail_after(60):
        agreed = 0
        while True:
            shares = [
                await m.owned() if isinstance(m, JavaConsumer) else ours(m, topic) for m in members
            ]
            counts = Counter(itertools.chain.from_iterable(shares))
            agreed = agreed + 1 if len(counts) == total and set(counts.values()) == {1} else 0
            if agreed == 3:
                return shares
            await trio.sleep(0.2)


async def ignore(message: ReceivedMessage) -> None:
    await trio.lowlevel.checkpoint()


def member(namesrv: str, topic: str, rule: Allocation, **more: object) -> PushConsumer:
    arguments: dict[str, object] = {
        "handler": ignore,
        "consume_from": "first",
        "allocate": rule,
        **more,
    }
    return PushConsumer(namesrv, group=f"mixed-{topic}", subscriptions=topic, **arguments)  # type: ignore[arg-type]


@pytest.mark.compatible("shares {strategy}", peer="java-client-5.5.0")
@pytest.mark.compatible("shares {strategy}", peer="java-client-4.9.4")
@pytest.mark.feature("88c")
@pytest.mark.parametrize("strategy", list(RULES))
async def test_every_queue_has_one_owner_on_our_cluster(our_cluster: str, strategy: str) -> None:
    """Two of ours, one Java 5.5.0, one Java 4.9.4; then one of ours leaves."""
    topic, rule = f"Shares_{strategy}", RULES[strategy]
    total = await create_topic(our_cluster, topic, 5)
    group = f"mixed-{topic}"
    async with (
        member(our_cluster, topic, rule) as first,
        java_consumer("5.5.0", our_cluster, topic, group, strategy=strategy) as new,
        java_consumer("4.9.4", our_cluster, topic, group, strategy=strategy) as old,
    ):
        async with member(our_cluster, topic, rule) as second:
            shares = await settled_shares([first, second, new, old], topic, total)
            wanted = sorted([first.client_id, second.client_id, new.client_id, old.client_id])
            queues = sorted(queue for queue in await _queues(our_cluster, topic))
            names = [first.client_id, second.client_id, new.client_id, old.client_id]
            for name, share in zip(names, shares, strict=True):
                assert share == {
                    (queue.broker_name, queue.queue_id) for queue in rule(name, queues, wanted)
                }
        await settled_shares([first, new, old], topic, total)


async def _queues(namesrv: str, topic: str) -> tuple[object, ...]:
    async with Producer(namesrv, group="looker") as producer:
        return await producer.queues(topic)  # type: ignore[no-any-return]


@attrs.define
class Steps:
    """Steps of each key in the order in which they were handled, by any member."""

    bodies: set[str] = attrs.field(factory=set)
    by_key: dict[str, list[int]] = attrs.field(factory=lambda: defaultdict(list))

    def note(self, body: str) -> None:
        key, step = body.split(":")
        self.by_key[key].append(int(step))
        self.bodies.add(body)


async def _order_with_java(namesrv: str, version: str, topic: str) -> None:
    """Members of both kinds join and leave an ordered group under load; every key's steps are
    handled in order, by whomever.
    """
    await create_topic(namesrv, topic, 4)
    keys, group = 8, f"ordered-{topic}"
    handled = Steps()
    steps, enough = 0, trio.Event()
    got: list[JavaConsumer] = []

    async def handle(message: ReceivedMessage) -> None:
        handled.note(message.body.decode())
        await trio.sleep(0.01)

    settings = ConsumerSettings(client=ClientSettings(route_interval=1.0))

    def of_ours() -> PushConsumer:
        return PushConsumer(
            namesrv,
            group=group,
            subscriptions=topic,
            consume_from="first",
            handler=handle,
            ordered=True,
            settings=settings,
        )

    async def send() -> None:
        nonlocal steps
        async with Producer(namesrv, group="orders") as producer:
            while not enough.is_set():
                for key in range(keys):
                    await producer.send(topic, b"%d:%d" % (key, steps), sharding_key=f"order-{key}")
                steps += 1
                await trio.sleep(0.05)

    async with trio.open_nursery() as nursery, of_ours() as first:
        await first.wait_assigned()
        nursery.start_soon(send)
        define = [
            "rocketmq.client.rebalance.waitInterval=1000"
        ]  # 4.9 asks again for a lock in its next round only, after 20 s
        async with java_consumer(
            version, namesrv, topic, group, mode="orderly", work_ms=10, define=define
        ) as java:
            got.append(java)
            with trio.fail_after(60):
                while not java.got:
                    await trio.sleep(0.05)
            async with of_ours():
                await trio.sleep(2)
            enough.set()
        wanted = {f"{key}:{step}" for key in range(keys) for step in range(steps)}
        # A renewal of 4.9 that crosses its own unlocking leaves a lock behind, which ends after a
        # minute only.
        with trio.fail_after(80):
            while not wanted <= handled.bodies | {body for _, _, _, body in java.got}:
                await trio.sleep(0.1)
    assert java.got
    assert handled.bodies
    # Queue offsets give the order of each queue's messages; ours and theirs together must be all of
    # them, each part ascending.
    theirs: dict[str, list[int]] = defaultdict(list)
    for _, _, _, body in java.got:
        key, step = body.split(":")
        theirs[key].append(int(step))
    for key in map(str, range(keys)):
        assert list(dict.fromkeys(handled.by_key[key])) == sorted(set(handled.by_key[key]))
        assert list(dict.fromkeys(theirs[key])) == sorted(set(theirs[key]))
        assert set(handled.by_key[key]) | set(theirs[key]) == set(range(steps))
        # The new owner of a queue goes on where the old owner stopped: no key goes back by more
        # than what was being handled at a change of owner.
        assert len(handled.by_key[key]) + len(theirs[key]) <= steps + 3


@pytest.mark.loss
@pytest.mark.compatible("push in order", "queue locks", peer="java-client-{java_version}")
@pytest.mark.feature("97a", "100a")
async def test_an_ordered_group_of_both_kinds_on_our_cluster(
    our_cluster: str, java_version: str
) -> None:
    await _order_with_java(our_cluster, java_version, f"Ordered_{java_version.replace('.', '_')}")


@pytest.mark.loss
@pytest.mark.compatible("broadcasting offsets", peer="java-client-{java_version}")
async def test_offset_files_go_back_and_forth(
    our_cluster: str, java_version: str, tmp_path: Path
) -> None:
    """A broadcasting consumer of either kind goes on where the other one stopped."""
    topic, group = (
        f"Broadcast_{java_version.replace('.', '_')}",
        f"caches-{java_version}".replace(".", "_"),
    )
    await create_topic(our_cluster, topic, 2)
    seen: list[str] = []

    async def handle(message: ReceivedMessage) -> None:
        await trio.lowlevel.checkpoint()
        seen.append(message.body.decode())

    async def send(numbers: range) -> None:
        async with Producer(our_cluster, group="prices") as producer:
            await producer.send_batch(
                [Message(topic=topic, body=b"%d" % number) for number in numbers]
            )

    async def java_reads(count: int) -> list[str]:
        define = [f"rocketmq.client.localOffsetStoreDir={tmp_path}"]
        async with java_consumer(
            java_version, our_cluster, topic, group, mode="broadcasting", define=define
        ) as java:
            await until(lambda: len(java.got) >= count)
            await trio.sleep(0.3)  # its listener's return is not its bookkeeping
            ids.append(java.client_id)
        return sorted(body for _, _, _, body in java.got)

    ids: list[str] = []
    await send(range(100, 110))
    assert await java_reads(10) == [str(number) for number in range(100, 110)]
    host = ids[0].removesuffix("@DEFAULT")
    assert (tmp_path / ids[0] / group / "offsets.json").exists()
    await send(range(110, 115))
    settings = ConsumerSettings(offset_dir=str(tmp_path), client=ClientSettings(client_ip=host))
    async with PushConsumer(
        our_cluster,
        group=group,
        subscriptions=topic,
        consume_from="first",
        handler=handle,
        broadcast=True,
        settings=settings,
    ) as consumer:
        assert consumer.client_id == ids[0]
        await until(lambda: len(seen) >= 5 and consumer.statistics().unsettled == 0)
    assert sorted(seen) == [str(number) for number in range(110, 115)]
    await send(range(115, 118))
    assert await java_reads(3) == ["115", "116", "117"]
