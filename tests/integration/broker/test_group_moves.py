"""An operator moves a group that pops: everything that knows its place is moved, durably."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from brokers import BrokerPeer, crashed_broker, peer_of, running_broker
from pop_peer import acknowledge, pop
from replicated_brokers import broker_group, eventually

from triomq.broker.app import BrokerReady
from triomq.remoting.protocol.bodies.offsets import ConsumerOffsetTable
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.headers.offset import (
    CloneGroupOffsetHeader,
    QueryConsumerOffsetHeader,
    ResetOffsetHeader,
    UpdateConsumerOffsetHeader,
)

LONG_MS = 60_000


async def begin(peer: BrokerPeer) -> None:
    await peer.create_topic("T", queues=1)
    for number in range(5):
        await peer.send("T", b"%d" % number, queue_id=0)


async def move(peer: BrokerPeer, offset: int) -> None:
    header = ResetOffsetHeader("G", "T", -1, force=True, queue_id=0, offset=offset)
    assert (await peer.call(Code.INVOKE_BROKER_TO_RESET_OFFSET, header)).code == 0


async def bodies(peer: BrokerPeer, **more: object) -> list[bytes]:
    _, taken = await pop(peer, invisible_ms=LONG_MS, **more)
    return [each.body for each in taken]


ALL = [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("order", [False, True])
async def test_a_queue_whose_messages_are_hidden_gives_those_at_the_new_offset(
    tmp_path: Path, order: bool
) -> None:
    """An ordered queue was blocked until the invisible time was over, whatever an operator did."""
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await begin(peer)
        assert await bodies(peer, order=order) == ALL
        await move(peer, 3)
        assert await bodies(peer, order=order) == [b"3", b"4"]
        await move(peer, 0)
        assert await bodies(peer, order=order) == ALL


async def test_what_is_in_flight_counts_no_more(tmp_path: Path) -> None:
    settings = {"enablePopMessageThreshold": True, "popInflightMessageThreshold": 5}
    async with running_broker(tmp_path, **settings) as ready, peer_of(ready) as peer:
        await begin(peer)
        assert await bodies(peer) == ALL
        await peer.send("T", b"5", queue_id=0)
        assert await bodies(peer) == []
        await move(peer, 5)
        assert await bodies(peer) == [b"5"]


@pytest.mark.parametrize("offset", [5, 0])
async def test_late_acknowledgements_below_the_position_hold(tmp_path: Path, offset: int) -> None:
    """What the old pop took and is acknowledged after the move does not come again from it, and
    frees what counts as in flight.
    """
    settings = {"enablePopMessageThreshold": True, "popInflightMessageThreshold": 6}
    async with running_broker(tmp_path, **settings) as ready, peer_of(ready) as peer:
        await begin(peer)
        _, taken = await pop(peer, invisible_ms=1_500)
        await move(peer, offset)
        for each in taken[:3]:
            await acknowledge(peer, each)
        await peer.send("T", b"5", queue_id=0)
        _, again = await pop(peer, invisible_ms=LONG_MS)
        assert [each.body for each in again] == [*ALL[offset:], b"5"]
        for each in again:
            await acknowledge(peer, each)
        found: list[bytes] = []
        with trio.fail_after(20):
            while len(found) < 2:
                found += await bodies(peer, poll_ms=500)
        await peer.send("T", b"6", queue_id=0)
        assert sorted(found) == [b"3", b"4"]
        assert await bodies(peer) == [b"6"]


async def test_late_acknowledgements_in_order_move_nothing(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await begin(peer)
        _, taken = await pop(peer, invisible_ms=LONG_MS, order=True)
        await move(peer, 5)
        for each in taken:
            await acknowledge(peer, each)
        await peer.send("T", b"5", queue_id=0)
        assert await bodies(peer, order=True) == [b"5"]
        await move(peer, 2)
        await acknowledge(peer, taken[4])  # of a pop from before the move
        assert await bodies(peer, order=True) == [b"2", b"3", b"4", b"5"]


async def test_waiting_pops_are_woken(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path) as ready,
        peer_of(ready) as peer,
        peer_of(ready) as operator,
        trio.open_nursery() as nursery,
    ):
        await begin(peer)
        assert await bodies(peer) == ALL
        taken: list[bytes] = []

        async def wait() -> None:
            taken.extend(await bodies(peer, poll_ms=20_000))

        with trio.fail_after(10):
            nursery.start_soon(wait)
            await trio.sleep(0.1)
            await move(operator, 2)
            while not taken:
                await trio.sleep(0.01)
        assert taken == [b"2", b"3", b"4"]


@pytest.mark.parametrize("order", [False, True])
async def test_a_crash_right_after_the_answer_changes_nothing(tmp_path: Path, order: bool) -> None:
    """Check points from before the move undid it, and acknowledgements of an ordered queue: nothing
    says that the table of offsets covers them, since the disk has them too late.
    """

    async def work(ready: BrokerReady) -> None:
        async with peer_of(ready) as peer:
            await begin(peer)
            _, taken = await pop(peer, invisible_ms=LONG_MS, order=order)
            for each in taken:
                await acknowledge(peer, each)
            await move(peer, 2)

    await crashed_broker(tmp_path, work, flushIntervalCommitLog=60_000)
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        assert await bodies(peer, order=order) == [b"2", b"3", b"4"]


async def test_a_crash_after_the_next_pop_changes_nothing_either(tmp_path: Path) -> None:
    async def work(ready: BrokerReady) -> None:
        async with peer_of(ready) as peer:
            await begin(peer)
            assert await bodies(peer) == ALL
            await move(peer, 2)
            assert await bodies(peer, count=1) == [b"2"]

    await crashed_broker(tmp_path, work, flushIntervalCommitLog=60_000)
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        assert await bodies(peer) == [b"3", b"4"]


async def test_a_member_that_has_not_heard_of_it_cannot_undo_it_after_a_crash(
    tmp_path: Path,
) -> None:
    async def work(ready: BrokerReady) -> None:
        async with peer_of(ready) as peer:
            await begin(peer)
            await peer.commit("G", "T", 0, 4)
            await move(peer, 1)

    await crashed_broker(tmp_path, work)
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        header = UpdateConsumerOffsetHeader("G", "T", 0, 5)
        answer = await peer.call(Code.UPDATE_CONSUMER_OFFSET, header)
        assert answer.remark == "Offset has been previously reset"
        moved = await peer.pull("T", 0, 4)
        assert (moved.remark, moved.header.next_begin_offset) == ("OFFSET_RESET", 1)


async def test_a_clone_moves_in_the_same_way(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await begin(peer)
        await peer.commit("source", "T", 0, 3)
        assert await bodies(peer, order=True) == ALL
        header = CloneGroupOffsetHeader("source", "G", "T", True)
        assert (await peer.call(Code.CLONE_GROUP_OFFSET, header)).code == 0
        assert await bodies(peer, order=True) == [b"3", b"4"]
        answer = await peer.call(Code.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetHeader("G", "T", 0))
        assert answer.ext is not None
        assert answer.ext["offset"] == "3"


@pytest.mark.parametrize("way", ["pull", "pop", "ordered pop"])
@pytest.mark.parametrize("offset", [2, 5])
async def test_a_slave_that_becomes_the_master_right_after_its_copy_has_the_move(
    tmp_path: Path, way: str, offset: int
) -> None:
    """It has the check points and acknowledgements from before the move, too."""
    order = way == "ordered pop"
    async with broker_group(tmp_path) as group:
        master = await group.start(0, "SYNC_MASTER")
        slave = await group.start(1)
        await begin(master.peer)
        if way == "pull":
            await master.peer.commit("G", "T", 0, 4)
        else:
            _, taken = await pop(master.peer, invisible_ms=LONG_MS, order=order)
            for each in taken[:3]:
                await acknowledge(master.peer, each)
        await move(master.peer, offset)

        async def copied() -> bool:
            table = (await slave.peer.call(Code.GET_ALL_CONSUMER_OFFSET)).body
            return ConsumerOffsetTable.decode(bytes(table)).offset_table.get("T@G") == {0: offset}

        await eventually(copied)
        await master.crash()
        await slave.stop()
        promoted = await group.start(0, folder="broker-1")
        if way == "pull":
            moved = await promoted.peer.pull("T", 0, 4)
            assert (moved.remark, moved.header.next_begin_offset) == ("OFFSET_RESET", offset)
            asked = QueryConsumerOffsetHeader("G", "T", 0)
            answer = await promoted.peer.call(Code.QUERY_CONSUMER_OFFSET, asked)
            assert (answer.ext or {})["offset"] == str(offset)
        else:
            await promoted.peer.send("T", b"5", queue_id=0)
            expected = ALL[offset:] or [b"5"]
            assert (await bodies(promoted.peer, order=order))[: len(expected)] == expected
