"""What a lone send waits for on its way through master and slave, and what it need not wait for: turns of the loops."""

from __future__ import annotations

import errno
import mmap
import select
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from replicating import (
    following_slave,
    log_of,
    open_pair,
    quick_config,
    quick_rules,
    read_exactly,
    read_frame,
    serving_master,
    wait_equal,
    wait_until,
)
from stores import draft

from triomq.broker.replication.master import ReplicationMaster
from triomq.broker.replication.waiting import ReplicatedDurability
from triomq.broker.replication.wire import Wire
from triomq.broker.store.disk import Disk
from triomq.broker.store.durability import DurabilityResult
from triomq.broker.store.errors import FlushFailed
from triomq.broker.store.store import MessageStore, open_store

REPORT, FRAME = struct.Struct(">q"), struct.Struct(">qi")
SECONDS_MAX = 30


def fill(store: MessageStore, count: int = 1) -> int:
    """The end of the log."""
    for number in range(count):
        store.append([draft(b"x" * 300, "T", number % 3, unique_key=f"u{store.append_count}")])
    return store.appended.value


@asynccontextmanager
async def peer_of(store: MessageStore, master: ReplicationMaster, port: int) -> AsyncIterator[trio.SocketStream]:
    """A slave as Java's that has everything so far and follows."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(REPORT.pack(store.appended.value))
        await wait_until(lambda: [one.acknowledged for one in master.replicas.replicas.values()] == [store.appended.value])
        await wait_until(lambda: master.connections[0].grown is not None)
        yield stream


async def test_what_senders_wait_for_is_sent_in_the_step_that_stores_it(tmp_path: Path) -> None:
    """No task of the master runs between the append and this look at the slave's socket."""
    async with open_store(quick_config(tmp_path)) as store, serving_master(store) as (master, port):
        ReplicatedDurability(store, master)
        async with peer_of(store, master, port) as stream:
            for _ in range(3):
                start, end = store.appended.value, fill(store)
                assert select.select([stream.socket.fileno()], [], [], SECONDS_MAX)[0]
                assert await read_exactly(stream, FRAME.size + end - start) == FRAME.pack(start, end - start) + log_of(store, start)


async def test_with_sync_flush_a_slave_gets_what_the_disk_has(tmp_path: Path) -> None:
    """Also in place: never before the fsync."""
    async with open_store(quick_config(tmp_path, flush_mode="SYNC_FLUSH")) as store, serving_master(store) as (master, port):
        ReplicatedDurability(store, master)
        async with peer_of(store, master, port) as stream:
            gate = store.flusher.limiter = trio.CapacityLimiter(1)
            await gate.acquire()
            end = fill(store)
            await trio.sleep(0.05)
            assert not select.select([stream.socket.fileno()], [], [], 0)[0]
            gate.release()
            start, size = FRAME.unpack(await read_exactly(stream, FRAME.size))
            assert (start, size, store.flushed.value) == (0, end, end)


async def test_more_than_a_socket_takes_goes_on_by_the_task(tmp_path: Path) -> None:
    """In place as much as goes; the rest in order, also when more is stored meanwhile."""
    config = {"segment_size_bytes": 1 << 22}
    async with open_pair(tmp_path, slave=config, **config) as (store, slave_store), serving_master(store) as (master, port):
        ReplicatedDurability(store, master)
        async with following_slave(slave_store, port):
            await wait_until(lambda: master.connections and master.connections[0].grown is not None)
            for _ in range(3):
                for _ in range(64):
                    store.append([draft(b"y" * 100_000, "T")])
                await trio.lowlevel.checkpoint()
                for _ in range(10):
                    fill(store)
            await wait_equal(store, slave_store)
        assert log_of(slave_store) == log_of(store)


async def read_log(stream: trio.SocketStream, end: int) -> tuple[int, bytes]:
    """Where the frames up to ``end`` begin, and what they hold; each must begin where the one before ends."""
    begin, data = await read_frame(stream)
    with trio.fail_after(SECONDS_MAX):
        while begin + len(data) < end:
            start, more = await read_frame(stream)
            assert start == begin + len(data)
            data += more
    return begin, data


async def test_what_is_stored_while_a_socket_is_full_goes_next(tmp_path: Path) -> None:
    """Nobody stores anything after it, and no sign of life is due: either would bring it, too."""
    async with open_store(quick_config(tmp_path, segment_size_bytes=1 << 24)) as store:
        rules = quick_rules(store, heartbeat_seconds=3_600, silence_seconds=3_600)
        async with serving_master(store, rules=rules) as (master, port), peer_of(store, master, port) as stream:
            ReplicatedDurability(store, master)
            connection = master.connections[0]
            connection.wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8_192)
            while not connection.wire.is_full:
                store.append([draft(b"y" * 100_000, "T")])
            await wait_until(lambda: connection.grown is None)
            end = fill(store)
            assert connection.wire.is_full
            assert await read_log(stream, end) == (0, log_of(store))


async def test_what_is_stored_before_a_task_has_read_from_the_disk_goes_behind_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_store(quick_config(tmp_path)) as store, serving_master(store) as (master, port):
        ReplicatedDurability(store, master)
        async with peer_of(store, master, port) as stream:
            monkeypatch.setattr(MessageStore, "log_bytes", lambda self, start, end: None)
            fill(store)
            end = fill(store, 2)
            assert await read_log(stream, end) == (0, log_of(store))


@pytest.mark.parametrize("error", [OSError(errno.ENOMEM, "Cannot allocate memory"), ValueError("anything")])
async def test_a_log_that_cannot_be_read_is_not_the_sender_s_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """It is stored and shown to readers; the slave is sent it as soon as it can be read."""

    def fail(self: Disk, fd: int, size: int, *, writable: bool = False) -> mmap.mmap:
        raise error

    async with open_store(quick_config(tmp_path)) as store, serving_master(store) as (master, port):
        ReplicatedDurability(store, master)
        async with peer_of(store, master, port) as stream:
            with monkeypatch.context() as patch:
                patch.setattr(Disk, "map", fail)
                for _ in range(2):
                    store.append_unindexed([draft(b"x" * 300, "T")])
                    store.index_appended()
            assert store.max_offset("T", 0) == 2
            end = fill(store)
            assert await read_log(stream, end) == (0, log_of(store))


async def test_a_log_that_stays_unreadable_ends_the_connection_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Disk, fd: int, size: int, *, writable: bool = False) -> mmap.mmap:
        raise OSError(errno.EMFILE, "Too many open files")

    async with open_store(quick_config(tmp_path)) as store, serving_master(store) as (master, port):
        ReplicatedDurability(store, master)
        with monkeypatch.context() as patch:
            patch.setattr(Disk, "map", fail)
            async with peer_of(store, master, port):
                fill(store)
                await wait_until(lambda: not master.connections)
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(REPORT.pack(0))
            end = fill(store)
            assert await read_log(stream, end) == (0, log_of(store))


async def test_senders_without_a_task_are_told_in_the_order_of_the_log(tmp_path: Path) -> None:
    """By the report that covers them; one that covers nobody tells nobody."""
    async with open_store(quick_config(tmp_path)) as store, serving_master(store) as (master, port):
        waiting = ReplicatedDurability(store, master, timeout_seconds=3_600)
        told: list[tuple[int, object]] = []
        assert not waiting.when_durable(fill(store), lambda result: told.append((0, result)))  # no slave: a task finds that out
        async with peer_of(store, master, port) as stream:
            ends = [fill(store) for _ in range(3)]
            for number, end in enumerate(ends):
                assert waiting.when_durable(end, lambda result, number=number: told.append((number, result)))  # type: ignore[misc]
            await stream.send_all(REPORT.pack(ends[0] - 1))
            await wait_until(lambda: master.connections[0].link.acknowledged == ends[0] - 1)
            assert told == []
            await stream.send_all(REPORT.pack(ends[1]))
            await wait_until(lambda: master.connections[0].link.acknowledged == ends[1])
            assert told == [(0, DurabilityResult.DURABLE), (1, DurabilityResult.DURABLE)]
            await stream.send_all(REPORT.pack(ends[2]))
            await wait_until(lambda: len(told) == 3)


async def test_senders_without_a_task_hear_of_a_slave_that_says_nothing(tmp_path: Path) -> None:
    async with open_store(quick_config(tmp_path)) as store, serving_master(store) as (master, port):
        waiting = ReplicatedDurability(store, master, timeout_seconds=0.05)
        told: list[object] = []
        async with peer_of(store, master, port) as stream, trio.open_nursery() as nursery:
            nursery.start_soon(waiting.run_deadlines)
            for _ in range(2):  # also when nobody has waited meanwhile
                assert waiting.when_durable(fill(store), told.append)
                await wait_until(lambda: told)
                assert told == [DurabilityResult.FLUSH_SLAVE_TIMEOUT]
                told.clear()
            await stream.send_all(REPORT.pack(store.appended.value))
            await wait_until(lambda: master.connections[0].link.acknowledged == store.appended.value)
            assert told == []  # once is enough
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("rules", [{}, {"auto": True}, {"all_in_sync": True}, {"in_sync_replicas": 1}])
async def test_a_slave_out_of_sync_by_what_is_stored_is_waited_for(tmp_path: Path, rules: dict[str, Any]) -> None:
    """Here a slave is in sync only while it has all of the log; the minimum holds for what was let in before, too."""
    async with (
        open_store(quick_config(tmp_path)) as store,
        serving_master(store, min_in_sync_replicas=2, catch_up_seconds=-1.0, **rules) as (master, port),
        peer_of(store, master, port) as stream,
    ):
        waiting = ReplicatedDurability(store, master, timeout_seconds=0.05)
        told: list[object] = []
        assert not waiting.refusal()
        end = fill(store)
        assert waiting.refusal()
        assert not waiting.durable_now(end)
        assert waiting.when_durable(end, told.append)
        assert await waiting.wait_durable(end) is DurabilityResult.FLUSH_SLAVE_TIMEOUT
        await store.flusher.flush()
        assert told == []
        await stream.send_all(REPORT.pack(end))
        await wait_until(lambda: told)
        assert told == [DurabilityResult.DURABLE]
        assert waiting.durable_now(end)
        assert not waiting.refusal()


@pytest.mark.parametrize("slave_first", [False, True])
async def test_a_slave_s_report_hides_no_time_out_of_the_own_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slave_first: bool) -> None:
    """The slave has it, the own disk has said that it was too slow: that is the answer, with and without a task."""
    slow = DurabilityResult.FLUSH_DISK_TIMEOUT

    async def wait_durable(store: MessageStore, log_end: int) -> DurabilityResult:
        await trio.lowlevel.checkpoint()
        return slow

    def when_durable(store: MessageStore, log_end: int, told: Any) -> bool:
        told(slow)
        return True

    async with open_store(quick_config(tmp_path)) as store, serving_master(store) as (master, port):
        waiting = ReplicatedDurability(store, master, timeout_seconds=3_600)
        async with peer_of(store, master, port) as stream, trio.open_nursery() as nursery:
            monkeypatch.setattr(MessageStore, "wait_durable", wait_durable)
            monkeypatch.setattr(MessageStore, "when_durable", when_durable)
            monkeypatch.setattr(MessageStore, "durable_now", lambda store, log_end: False)
            told: list[object] = []
            end = fill(store)
            if slave_first:
                await stream.send_all(REPORT.pack(end))
                await wait_until(lambda: master.connections[0].link.acknowledged == end)

            async def ask() -> None:
                told.append(await waiting.wait_durable(end))

            nursery.start_soon(ask)
            assert waiting.when_durable(end, told.append)
            if not slave_first:
                await trio.testing.wait_all_tasks_blocked(0.01)
                assert told == []
                await stream.send_all(REPORT.pack(end))
            await wait_until(lambda: len(told) == 2)
            assert told == [slow, slow]


async def test_senders_without_a_task_wait_for_disk_and_slaves(tmp_path: Path) -> None:
    """SYNC_FLUSH: told when the slave has reported what this disk has; an fsync that fails is what they hear, whoever has reported."""
    async with open_pair(tmp_path, flush_mode="SYNC_FLUSH", slave={"flush_mode": "SYNC_FLUSH"}) as (store, slave_store), serving_master(store) as (master, port):
        waiting = ReplicatedDurability(store, master, timeout_seconds=3_600)
        told: list[object] = []
        async with following_slave(slave_store, port):
            await wait_until(lambda: master.replicas.replicas)
            for _ in range(3):
                end = fill(store)
                assert waiting.when_durable(end, told.append)
                assert told == []
                await wait_until(lambda: told)
                assert told == [DurabilityResult.DURABLE]
                assert min(store.flushed.value, slave_store.flushed.value) >= end
                told.clear()
            failure = FlushFailed(tmp_path, OSError(5, "Input/output error"))
            gate = store.flusher.limiter = trio.CapacityLimiter(1)
            await gate.acquire()
            assert waiting.when_durable(fill(store), told.append)
            for waiter in store.flusher._waiting:
                waiter.told(failure)
            store.flusher._waiting.clear()
            assert told == [failure]
            gate.release()


# --- the wire --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def wires() -> Iterator[tuple[Wire, Wire]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        first = socket.create_connection(listener.getsockname())
        second, _ = listener.accept()
    for end in (first, second):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8_192)
        end.setblocking(False)
    yield Wire(first), Wire(second)
    first.close()
    second.close()


def test_a_socket_that_takes_no_option_is_taken() -> None:
    """As one whose peer is gone, where that is an error."""
    first, second = socket.socketpair()  # no TCP, so TCP_NODELAY is refused
    with first, second:
        assert Wire(first).post(b"sent")
        assert second.recv(10) == b"sent"


async def test_posted_bytes_keep_their_order_whoever_drains(wires: tuple[Wire, Wire]) -> None:
    first, second = wires
    pieces = [bytes([number]) * (400 * number) for number in range(1, 60)]
    first_of_all = b"begin" + b"".join(pieces)
    got = bytearray()
    async with trio.open_nursery() as nursery:

        async def send(some: list[bytes]) -> None:
            for piece in some:
                await first.send(piece)

        assert first.post(b"begin")
        await first.drain()
        posted = [first.post(piece) for piece in pieces]
        assert not posted[-1]
        assert first.is_full
        nursery.start_soon(send, [b"<1>"])
        nursery.start_soon(send, [b"<2>"])
        with trio.fail_after(SECONDS_MAX):
            while len(got) < len(first_of_all) + 6:
                got += await second.receive()
    assert got in (first_of_all + b"<1><2>", first_of_all + b"<2><1>")  # which of the two tasks is first is Trio's choice
    assert not first.is_full


async def test_pieces_posted_together_keep_their_order(wires: tuple[Wire, Wire]) -> None:
    """More than a system takes at once, behind what waits already, and before what comes; some are empty."""
    first, second = wires
    pieces = [bytes([number % 251]) * (number % 90) for number in range(3_000)]
    got, expected = bytearray(), b"".join(pieces)
    assert first.post_all([b"be", b"", b"gin"])
    assert not first.post_all(pieces)
    assert not first.post(b"<1>")
    assert not first.post_all([b"<2>", memoryview(b"<3>")])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(first.drain)
        with trio.fail_after(SECONDS_MAX):
            while len(got) < 5 + len(expected) + 9:
                got += await second.receive()
    assert got == b"begin" + expected + b"<1><2><3>"
    assert not first.is_full


async def test_a_broken_wire_says_so_to_everybody(wires: tuple[Wire, Wire]) -> None:
    first, second = wires
    second.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    second.close()
    with trio.fail_after(SECONDS_MAX), pytest.raises(trio.BrokenResourceError):
        await first.receive()
    with pytest.raises(trio.BrokenResourceError):
        first.post_all([b"x"])
    assert not first.post(b"x")
    with pytest.raises(trio.BrokenResourceError):
        await first.drain()
    with pytest.raises(trio.BrokenResourceError):
        await first.send(b"x")
