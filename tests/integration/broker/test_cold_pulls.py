"""Consumers that are days behind wait for the disk, and only they."""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from brokers import BrokerPeer, peer_of, running_broker
from serving import until

from triomq.broker.services.cold_pulls import AT_A_TIME, ColdPulls
from triomq.broker.services.pop.held_pops import HeldPops
from triomq.broker.store.core.errors import StoreIoError
from triomq.broker.store.core.results import GetResult
from triomq.broker.store.store import MessageStore
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command
from triomq.remoting.protocol.headers.pop import PopMessageHeader
from triomq.remoting.protocol.record_reader import decode_records


@attrs.define(eq=False)
class SlowDisk:
    """Messages of the topic "Old" are on a disk that gives one answer for each ticket."""

    begun: list[int] = attrs.field(factory=list)
    tickets: trio.Semaphore = attrs.field(factory=lambda: trio.Semaphore(0))
    broken: bool = False


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    slow = SlowDisk()
    get, get_cold = MessageStore.get, MessageStore.get_cold

    def warm(self: MessageStore, topic: str, *arguments: Any, **more: Any) -> GetResult | None:
        return None if topic == "Old" else get(self, topic, *arguments, **more)

    async def cold(
        self: MessageStore, topic: str, queue_id: int, offset: int, **more: Any
    ) -> GetResult:
        slow.begun.append(queue_id)
        await slow.tickets.acquire()
        if slow.broken:
            raise StoreIoError(Path("commitlog/0"), OSError(errno.EIO, "Input/output error"))
        return await get_cold(self, topic, queue_id, offset, **more)

    monkeypatch.setattr(MessageStore, "get", warm)
    monkeypatch.setattr(MessageStore, "get_cold", cold)
    return slow


@pytest.mark.feature("36b", "36c")
async def test_a_consumer_far_behind_takes_its_turn_and_nothing_else(
    tmp_path: Path, disk: SlowDisk
) -> None:
    async with (
        running_broker(tmp_path, pullMessageThreadPoolNums=2) as broker,
        peer_of(broker) as far,
        peer_of(broker) as other,
        peer_of(broker) as near,
    ):
        for topic in ("Old", "New"):
            await near.create_topic(topic, 2)
            await near.send(topic, queue_id=0)
        await near.send("Old", queue_id=1)
        answered: list[int] = []

        async def pull(peer: Any, queue_id: int) -> None:
            got = await peer.pull("Old", queue_id)
            assert (got.code, len(got.messages)) == (0, 1)
            answered.append(queue_id)

        async with trio.open_nursery() as nursery:
            for _ in range(40):
                nursery.start_soon(pull, far, 0)
            await until(lambda: len(disk.begun) == AT_A_TIME)
            # More pulls wait for the disk than the pool has workers, and those of memory do not
            # notice.
            with trio.fail_after(5):
                assert (await near.pull("New")).code == 0
            nursery.start_soon(pull, other, 1)
            await trio.testing.wait_all_tasks_blocked()
            while 1 not in disk.begun:
                disk.tickets.release()
                await trio.testing.wait_all_tasks_blocked(0.01)
            # It came last and is served after at most one more pull of the other.
            assert disk.begun.index(1) <= AT_A_TIME + 1
            for _ in range(50):
                disk.tickets.release()
        assert sorted(answered) == [0] * 40 + [1]


async def test_a_reader_hears_of_a_disk_that_fails(tmp_path: Path, disk: SlowDisk) -> None:
    async with running_broker(tmp_path) as broker, peer_of(broker) as peer:
        await peer.create_topic("Old", 1)
        await peer.send("Old")
        disk.broken = True
        disk.tickets.release()
        refused = await peer.pull_raw("Old")
        assert refused.code == 1
        assert "Input/output error" in str(refused.remark)
        disk.broken = False
        disk.tickets.release()
        assert (await peer.pull("Old")).code == 0


@pytest.mark.parametrize("end", ["its client leaves", "too many wait", "the disk fails"])
async def test_a_pop_that_never_reads_the_disk_leaves_its_queue_to_others(
    tmp_path: Path, disk: SlowDisk, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Also to one that has passed the queue meanwhile, and waits."""
    add, hold = ColdPulls.add, HeldPops.hold
    added, held = list[Any](), list[Any]()
    monkeypatch.setattr(ColdPulls, "add", lambda *a, **k: [added.append(a), add(*a, **k)][1])
    monkeypatch.setattr(HeldPops, "hold", lambda *a: [held.append(a), hold(*a)][1])
    async with (
        running_broker(tmp_path) as broker,
        peer_of(broker) as other,
        peer_of(broker) as stays,
        trio.open_nursery() as nursery,
    ):
        await stays.create_topic("Old", 1)
        await stays.send("Old")
        if end == "too many wait":
            with monkeypatch.context() as full:
                full.setattr(ColdPulls, "add", lambda *a, **k: False)
                assert (await pop_old(other)).code == ResponseCode.SYSTEM_BUSY
        elif end == "the disk fails":
            disk.broken = True
            disk.tickets.release()
            assert (await pop_old(other)).code == ResponseCode.SYSTEM_ERROR
            disk.broken = False
        else:
            for _ in range(AT_A_TIME):
                nursery.start_soon(partial(stays.pull, "Old"))
            await until(lambda: len(disk.begun) == AT_A_TIME)
            async with peer_of(broker) as leaves:
                nursery.start_soon(quietly, pop_old, leaves)
                await until(lambda: len(added) == AT_A_TIME + 1)
                nursery.start_soon(quietly, pop_old, other)
                await until(lambda: len(held) == 1)
        for _ in range(2 * AT_A_TIME):
            disk.tickets.release()
        with trio.fail_after(5):
            if end == "its client leaves":
                await until(lambda: len(disk.begun) > AT_A_TIME)
            else:
                answer = await pop_old(stays)
                assert len(decode_records(bytes(answer.body))) == 1
        nursery.cancel_scope.cancel()


async def pop_old(peer: BrokerPeer) -> Command:
    header = PopMessageHeader(
        consumer_group="G",
        topic="Old",
        queue_id=-1,
        message_count_max=32,
        invisible_ms=60_000,
        poll_ms=20_000,
        init_mode=0,
        born_timestamp=int(time.time() * 1000),
    )
    return await peer.call(RequestCode.POP_MESSAGE, header, timeout=30)


async def quietly(ask: Callable[[BrokerPeer], Awaitable[object]], peer: BrokerPeer) -> None:
    with contextlib.suppress(RemotingError):
        await ask(peer)


async def test_the_pulls_of_a_client_that_has_gone_are_forgotten() -> None:
    pulls, done = ColdPulls(at_a_time=1, waiting_max=3), list[str]()

    async def job(name: str) -> None:
        done.append(name)

    for name in ("a1", "a2"):
        assert pulls.add("a", lambda name=name: job(name))  # type: ignore[misc]
    assert pulls.add("b", lambda: job("b1"))
    assert not pulls.add("c", lambda: job("c1")), "the number of waiting pulls is limited"
    pulls.forget_client("a")
    assert pulls.waiting == 1
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pulls.run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert (done, pulls.waiting) == (["b1"], 0)
