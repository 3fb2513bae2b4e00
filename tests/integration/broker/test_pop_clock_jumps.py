"""The wall clock of a broker jumps while messages are popped: their invisible times go on by the
steady clock, of ordered ones and at an acting slave, too.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import trio
from brokers import BrokerPeer, peer_of, running_broker
from jumping_clock import DAY, JumpingClock, jumping_clock
from pop_peer import Popped, acknowledge, pop
from replicated_brokers import broker_group, eventually

from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.consuming.popped_requests import changed_handle
from triomq.remoting.protocol.headers.pop import (
    ChangeInvisibleTimeHeader,
    ChangeInvisibleTimeResponseHeader,
)

JUMPS = [3_600.0, 40 * DAY, -3_600.0, -40 * DAY]
HIDDEN_MS = 8_000
LONG_MS = 60_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> JumpingClock:
    return jumping_clock(monkeypatch)


async def taken_from(
    peer: BrokerPeer, count: int, invisible_ms: int, *, order: bool = False
) -> list[Popped]:
    found: list[Popped] = []
    with trio.fail_after(40):
        while len(found) < count:
            found += (await pop(peer, poll_ms=300, invisible_ms=invisible_ms, order=order))[1]
    return found


async def changed(peer: BrokerPeer, popped: Popped, invisible_ms: int) -> Popped:
    """Give a message another invisible time; return it with its new handle."""
    handle = popped.handle
    header = ChangeInvisibleTimeHeader(
        "G", popped.topic, handle.queue_id, handle.encode(), handle.offset, invisible_ms
    )
    answer = await peer.call(Code.CHANGE_MESSAGE_INVISIBLETIME, header)
    assert answer.code == 0, answer.remark
    made = answer.header(ChangeInvisibleTimeResponseHeader)
    return Popped(popped.message, changed_handle(handle, made), popped.topic)


@pytest.mark.parametrize("jump", JUMPS)
async def test_popped_messages(tmp_path: Path, clock: JumpingClock, jump: float) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 1)
        for body in (b"acknowledged", b"changed", b"shortened", b"left"):
            await peer.send("T", body)
        begun = time.monotonic()
        done, longer, shorter, left = await taken_from(peer, 4, HIDDEN_MS)
        clock.offset = jump
        await acknowledge(peer, done)
        held = await changed(peer, longer, LONG_MS)
        await changed(peer, shorter, 2_000)
        (first,) = await taken_from(peer, 1, LONG_MS)
        assert first.body == shorter.body
        (second,) = await taken_from(peer, 1, LONG_MS)
        assert second.body == left.body
        assert time.monotonic() - begun > HIDDEN_MS / 1000, "it came before its time was over"
        for each in (first, second, held):
            await acknowledge(peer, each)
        clock.offset = 0.0
        for _ in range(3):
            assert (await pop(peer, poll_ms=1_000))[1] == []
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        for _ in range(3):
            assert (await pop(peer, poll_ms=1_000))[1] == []


@pytest.mark.parametrize("jump", JUMPS)
async def test_an_ordered_queue(tmp_path: Path, clock: JumpingClock, jump: float) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 1)
        for body in (b"0", b"1", b"2"):
            await peer.send("T", body)
        begun = time.monotonic()
        first, second, _ = await taken_from(peer, 3, HIDDEN_MS, order=True)
        clock.offset = jump
        assert await pop(peer, order=True) == (ResponseCode.POLLING_TIMEOUT, [])
        await acknowledge(peer, first)
        second = await changed(peer, second, HIDDEN_MS)
        assert second.handle.invisible_ms >= HIDDEN_MS
        again = await taken_from(peer, 2, LONG_MS, order=True)
        assert time.monotonic() - begun > HIDDEN_MS / 1000, "they came before their time was over"
        assert [each.body for each in again] == [b"1", b"2"]


async def test_an_ordered_queue_after_a_restart_with_a_clock_set_back(
    tmp_path: Path, clock: JumpingClock
) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 1)
        await peer.send("T", b"0")
        await taken_from(peer, 1, 2_000, order=True)
    clock.offset = -3_600.0
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        assert [each.body for each in await taken_from(peer, 1, LONG_MS, order=True)] == [b"0"]


@pytest.mark.parametrize("jump", [3_600.0, -3_600.0])
async def test_an_acting_slave(tmp_path: Path, clock: JumpingClock, jump: float) -> None:
    settings = {
        "enableSlaveActingMaster": True,
        "enableRemoteEscape": True,
        "syncBrokerMemberGroupPeriod": 100,
    }
    async with broker_group(tmp_path, acting_master=True) as group:
        other = await group.start(0, folder="other", brokerName="broker-b")
        await other.peer.create_topic("T", 1)
        master = await group.start(0, "SYNC_MASTER", **settings)
        await master.peer.create_topic("T", 1)
        slave = await group.start(1, **settings)

        async def stored() -> bool:
            return (await master.peer.send_raw("T", b"m")).code == 0

        async def serves() -> bool:
            return (await pop(slave.peer, topic="None"))[0] != ResponseCode.SYSTEM_BUSY

        await eventually(stored)
        await stored()
        await master.crash()
        await eventually(serves)
        begun = time.monotonic()
        taken = await taken_from(slave.peer, 2, HIDDEN_MS)
        clock.offset = jump
        await acknowledge(slave.peer, taken[0])
        again = await taken_from(other.peer, len(taken) - 1, LONG_MS)
        assert time.monotonic() - begun > HIDDEN_MS / 1000, "they came before their time was over"
        assert len(again) == len(taken) - 1
