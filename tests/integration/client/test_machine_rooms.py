"""Machine rooms over sockets: brokers called ``room@name``, producers and consumers nearby."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
from serving import until

from triomq import (
    ClientSettings,
    ConsumerSettings,
    MessageInvalid,
    MessageQueue,
    Producer,
    PushConsumer,
    allocate_machine_room,
    allocate_machine_room_nearby,
    select_by_machine_room,
)
from triomq.testing import InProcessCluster, local_cluster


@pytest.fixture
async def rooms() -> AsyncIterator[InProcessCluster]:
    async with local_cluster(brokers=("east@a", "west@b")) as cluster, cluster.admin() as admin:
        await admin.create_topic("Orders", queues=2)
        yield cluster


def member(
    cluster: InProcessCluster,
    name: str,
    *,
    group: str,
    allocate: object,
    seen: list[tuple[str, str]] | None = None,
) -> PushConsumer:
    async def handle(message: object) -> None:
        await trio.lowlevel.checkpoint()
        if seen is not None:
            seen.append((name, message.queue.broker_name))  # type: ignore[attr-defined]

    client = ClientSettings(instance_name=name, route_interval=0.2, heartbeat_interval=0.5)
    return PushConsumer(
        cluster.namesrv_address, group=group, subscriptions="Orders", consume_from="first",
        handler=handle, allocate=allocate,  # type: ignore[arg-type]
        settings=ConsumerSettings(rebalance_retry=0.05, error_delay=0.05, client=client),
    )  # fmt: skip


def owned(consumer: PushConsumer) -> list[tuple[str, int]]:
    return [
        (queue.broker_name, queue.queue_id)
        for queue in consumer.assignment
        if queue.topic == "Orders"
    ]


EAST, WEST = [("east@a", 0), ("east@a", 1)], [("west@b", 0), ("west@b", 1)]


@pytest.mark.feature("69a")
async def test_a_producer_sends_only_to_its_rooms(rooms: InProcessCluster) -> None:
    async with Producer(rooms.namesrv_address, group="shop") as producer:
        near = [
            (
                await producer.send("Orders", b"x", select=select_by_machine_room("east"))
            ).queue.broker_name
            for _ in range(12)
        ]
        both = {
            (
                await producer.send("Orders", b"x", select=select_by_machine_room(["east", "west"]))
            ).queue.broker_name
            for _ in range(40)
        }
        with pytest.raises(
            MessageInvalid, match=r"machine rooms \['south'\].*these are \['east@a', 'west@b'\]"
        ):
            await producer.send("Orders", b"x", select=select_by_machine_room("south"))
    assert set(near) == {"east@a"}
    assert both == {"east@a", "west@b"}


async def test_only_queues_of_the_rooms_are_divided(rooms: InProcessCluster) -> None:
    async with (
        member(rooms, "first", group="inside", allocate=allocate_machine_room(["east"])) as first,
        member(rooms, "second", group="inside", allocate=allocate_machine_room(["east"])) as second,
    ):
        await until(lambda: sorted(owned(first) + owned(second)) == EAST and len(owned(first)) == 1)


async def test_members_take_the_queues_nearby_and_those_of_rooms_without_members(
    rooms: InProcessCluster,
) -> None:
    def room_of_queue(queue: MessageQueue) -> str:
        return queue.broker_name.partition("@")[0]

    def room_of_member(client_id: str) -> str:
        return client_id.partition("@")[2].partition("-")[0]

    rule = allocate_machine_room_nearby(room_of_queue, room_of_member)
    seen: list[tuple[str, str]] = []
    async with member(rooms, "east-1", group="nearby", allocate=rule, seen=seen) as east:
        async with member(rooms, "west-1", group="nearby", allocate=rule, seen=seen) as west:
            await until(lambda: (owned(east), owned(west)) == (EAST, WEST))
            async with Producer(rooms.namesrv_address, group="shop") as producer:
                for _ in range(8):
                    await producer.send("Orders", b"x")
            await until(lambda: len(seen) == 8)
            assert {(name[:4], broker[:4]) for name, broker in seen} == {
                ("east", "east"),
                ("west", "west"),
            }
        await until(lambda: owned(east) == EAST + WEST)
