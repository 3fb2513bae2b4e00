"""What comes again is what was popped, whatever the clock does, and nothing of a new topic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from brokers import BrokerPeer, crashed_broker, peer_of, running_broker
from jumping_clock import DAY, jumping_clock
from pop_peer import Popped, pop
from virtual_time import in_virtual_time

from triomq.broker.app import BrokerReady
from triomq.broker.services.pop.reviver import Reviver
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.headers.offset import ResetOffsetHeader
from triomq.remoting.protocol.headers.topic import DeleteTopicHeader

INVISIBLE_MS = 1_500


async def again(peer: BrokerPeer, count: int) -> list[bytes]:
    """Pop until ``count`` messages came."""
    found: list[Popped] = []
    with trio.fail_after(30):
        while len(found) < count:
            found += (await pop(peer, poll_ms=1_000, invisible_ms=30_000))[1]
    return sorted(each.body for each in found)


@pytest.mark.parametrize("restart", [False, True])
async def test_what_is_not_acknowledged_comes_again_after_the_clock_went_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restart: bool
) -> None:
    clock = jumping_clock(monkeypatch)
    bodies = [b"%d" % number for number in range(5)]
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 4)
        for number, body in enumerate(bodies):
            await peer.send("T", body, queue_id=number % 4)
        clock.offset = -10.0
        _, taken = await pop(peer, invisible_ms=INVISIBLE_MS)
        assert sorted(each.body for each in taken) == bodies
        if not restart:
            assert await again(peer, 5) == bodies
            return
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        assert await again(peer, 5) == bodies


async def test_a_message_from_the_future_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stored times go on from the newest one, while the clock is far behind it."""
    clock = jumping_clock(monkeypatch)
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 4)
        clock.offset = DAY
        await peer.send("T", b"from the future")
        clock.offset = 0.0
        await peer.send("T", b"now", queue_id=1)
        _, taken = await pop(peer, invisible_ms=INVISIBLE_MS)
        assert len(taken) == 2
        assert await again(peer, 2) == [b"from the future", b"now"]


class Turns(trio.abc.Instrument):
    """Counts the turns of the event loop."""

    count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


@pytest.mark.parametrize("restart", [False, True])
async def test_pops_that_are_due_together_take_turns_with_other_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restart: bool
) -> None:
    """Messages in the page cache come again without a wait: thousands would stop all others."""
    turns, seen, stored = Turns(), list[int](), Reviver._store

    async def noted(self: Reviver, *arguments: Any) -> None:
        seen.append(turns.count)
        await stored(self, *arguments)

    monkeypatch.setattr(Reviver, "_store", noted)
    trio.lowlevel.add_instrument(turns)
    count = 50

    async def all_again(peer: BrokerPeer) -> None:
        bodies = await again(peer, count)
        assert len(set(bodies)) == len(set(seen[-count:])) == count

    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 1)
        for number in range(count):
            await peer.send("T", b"%d" % number)
        for _ in range(count):
            assert len((await pop(peer, count=1, invisible_ms=INVISIBLE_MS))[1]) == 1
        if not restart:
            await all_again(peer)
    if restart:
        await trio.sleep(INVISIBLE_MS / 1000)
        async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
            await all_again(peer)
    assert len(seen) >= count


@in_virtual_time
async def test_a_message_that_cannot_come_again_holds_back_no_other(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 1)
        await peer.send("T", bytes(5_000))
        await peer.send("T", b"small")
        _, taken = await pop(peer, invisible_ms=INVISIBLE_MS)
        assert len(taken) == 2
    async with running_broker(tmp_path, maxMessageSize=1_000) as ready, peer_of(ready) as peer:
        assert await again(peer, 1) == [b"small"]


@in_virtual_time
async def test_a_message_of_a_new_topic_does_not_come_in_place_of_the_old_one(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 4)
        await peer.send("T", b"old")
        _, taken = await pop(peer, invisible_ms=INVISIBLE_MS)
        assert len(taken) == 1
        assert (await peer.call(Code.DELETE_TOPIC_IN_BROKER, DeleteTopicHeader("T"))).code == 0
        await peer.create_topic("T", 4)
        await peer.send("T", b"new")
        _, taken = await pop(peer, invisible_ms=60_000)
        assert [each.body for each in taken] == [b"new"]
        await trio.sleep(INVISIBLE_MS / 1000 + 2)
        assert (await pop(peer, invisible_ms=60_000))[1] == []


@pytest.mark.parametrize("by_pops", [False, True])
async def test_after_a_kill_no_offset_of_the_old_topic_counts_in_the_new_one(
    tmp_path: Path, by_pops: bool
) -> None:
    async def work(ready: BrokerReady) -> None:
        async with peer_of(ready) as peer:
            await peer.create_topic("T", 1)
            for number in range(4):
                await peer.send("T", b"old %d" % number, queue_id=0)
            if by_pops:
                assert len((await pop(peer, invisible_ms=60_000))[1]) == 4
            else:
                moved = ResetOffsetHeader(topic="T", group="G", timestamp=-1, force=True)
                assert (await peer.call(Code.INVOKE_BROKER_TO_RESET_OFFSET, moved)).code == 0
            assert (await peer.call(Code.DELETE_TOPIC_IN_BROKER, DeleteTopicHeader("T"))).code == 0
            await peer.create_topic("T", 1)
            for number in range(5):
                await peer.send("T", b"new %d" % number, queue_id=0)

    await crashed_broker(tmp_path, work)
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        assert [each.body for each in (await pop(peer))[1]] == [b"new %d" % n for n in range(5)]
