"""What a single send waits for on its way through master and slave, and what it need not wait for:
turns of the loops.
"""

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
    impatient,
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
from stores import draft, wait_durable

from triomq.broker.replication.link_socket import LinkSocket
from triomq.broker.replication.master import ReplicationMaster
from triomq.broker.replication.replicated_durability import ReplicatedDurability
from triomq.broker.replication.transfer import HELLO, NAME_MAX
from triomq.broker.store.core.config import FlushMode
from triomq.broker.store.core.errors import FlushFailed
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.log.durability import DurabilityResult
from triomq.broker.store.log.flusher import Flusher
from triomq.broker.store.opening import open_store
from triomq.broker.store.store import MessageStore

REPORT, FRAME = struct.Struct(">q"), struct.Struct(">qi")
SECONDS_MAX = 30


def fill(store: MessageStore, count: int = 1) -> int:
    """Append a message; return the end of the log."""
    for number in range(count):
        store.append([draft(b"x" * 300, "T", number % 3, unique_key=f"u{store.appended.value}")])
    return store.appended.value


@asynccontextmanager
async def peer_of(
    store: MessageStore, master: ReplicationMaster, port: int
) -> AsyncIterator[trio.SocketStream]:
    """A peer like Java's slave that has the whole log and follows."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(REPORT.pack(store.appended.value))
        await wait_until(
            lambda: (
                [one.acknowledged for one in master.replicas.replicas.values()]
                == [store.appended.value]
            )
        )
        await wait_until(lambda: master.connections[0].grown is not None)
        yield stream


async def test_what_senders_wait_for_is_sent_in_the_step_that_stores_it(tmp_path: Path) -> None:
    """No task of the master runs between the append and the read from the slave's socket."""
    async with (
        open_store(quick_config(tmp_path)) as store,
        serving_master(store, awaited=True) as (master, port),
    ):
        async with peer_of(store, master, port) as stream:
            for _ in range(3):
                start, end = store.appended.value, fill(store)
                assert select.select([stream.socket.fileno()], [], [], SECONDS_MAX)[0]
                assert await read_exactly(stream, FRAME.size + end - start) == FRAME.pack(
                    start, end - start
                ) + log_of(store, start)


async def test_with_sync_flush_a_slave_gets_what_the_disk_has(tmp_path: Path) -> None:
    """Also in place: never before the fsync."""
    async with (
        open_store(quick_config(tmp_path, flush_mode=FlushMode.SYNC)) as store,
        serving_master(store, awaited=True) as (master, port),
    ):
        async with peer_of(store, master, port) as stream:
            gate = store.flusher.limiter = trio.CapacityLimiter(1)
            await gate.acquire()
            end = fill(store)
            await trio.sleep(0.05)
            assert not select.select([stream.socket.fileno()], [], [], 0)[0]
            gate.release()
            start, size = FRAME.unpack(await read_exactly(stream, FRAME.size))
            assert (start, size, store.flushed.value) == (0, end, end)


async def test_what_a_socket_does_not_take_is_sent_by_the_task(tmp_path: Path) -> None:
    """The socket takes a part in place; the task sends the rest in order, with what comes later."""
    config = {"segment_size_bytes": 1 << 22}
    async with (
        open_pair(tmp_path, slave=config, **config) as (store, slave_store),
        serving_master(store, awaited=True) as (master, port),
    ):
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
    """Return where the frames up to ``end`` begin, and their bytes; each must begin where the one
    before ends.
    """
    begin, data = await read_frame(stream)
    with trio.fail_after(SECONDS_MAX):
        while begin + len(data) < end:
            start, more = await read_frame(stream)
            assert start == begin + len(data)
            data += more
    return begin, data


async def test_what_is_stored_while_a_socket_is_full_is_sent_next(tmp_path: Path) -> None:
    """No message is stored after it and no sign of life is due: either would send it, too."""
    async with open_store(quick_config(tmp_path, segment_size_bytes=1 << 24)) as store:
        rules = quick_rules(store, heartbeat_seconds=3_600, silence_seconds=3_600)
        async with (
            serving_master(store, awaited=True, rules=rules) as (master, port),
            peer_of(store, master, port) as stream,
        ):
            connection = master.connections[0]
            connection.link_socket.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8_192)
            while not connection.link_socket.is_full:
                store.append([draft(b"y" * 100_000, "T")])
            await wait_until(lambda: connection.grown is None)
            end = fill(store)
            assert connection.link_socket.is_full
            assert await read_log(stream, end) == (0, log_of(store))


async def test_what_is_stored_during_a_disk_read_is_sent_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        open_store(quick_config(tmp_path)) as store,
        serving_master(store, awaited=True) as (master, port),
    ):
        async with peer_of(store, master, port) as stream:
            monkeypatch.setattr(MessageStore, "log_bytes", lambda self, start, end: None)
            fill(store)
            end = fill(store, 2)
            assert await read_log(stream, end) == (0, log_of(store))


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOMEM, "Cannot allocate memory"), ValueError("anything")]
)
async def test_a_log_that_cannot_be_read_does_not_fail_the_send(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The message is stored and shown to readers; the slave gets it as soon as it can be read."""

    def fail(self: Disk, fd: int, size: int, *, writable: bool = False) -> mmap.mmap:
        raise error

    async with (
        open_store(quick_config(tmp_path)) as store,
        serving_master(store, awaited=True) as (master, port),
    ):
        async with peer_of(store, master, port) as stream:
            with monkeypatch.context() as patch:
                patch.setattr(Disk, "map", fail)
                for _ in range(2):
                    store.append_unindexed([draft(b"x" * 300, "T")])
                    store.indexer.index_offered()
            assert store.max_offset("T", 0) == 2
            end = fill(store)
            assert await read_log(stream, end) == (0, log_of(store))


async def test_a_log_that_stays_unreadable_ends_only_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Disk, fd: int, size: int, *, writable: bool = False) -> mmap.mmap:
        raise OSError(errno.EMFILE, "Too many open files")

    async with (
        open_store(quick_config(tmp_path)) as store,
        serving_master(store, awaited=True) as (master, port),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(Disk, "map", fail)
            async with peer_of(store, master, port):
                fill(store)
                await wait_until(lambda: not master.connections)
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(REPORT.pack(0))
            end = fill(store)
            assert await read_log(stream, end) == (0, log_of(store))


async def test_callbacks_of_senders_run_in_the_order_of_the_log(tmp_path: Path) -> None:
    """The report that covers a send runs its callback; a report that covers none runs none."""
    async with (
        open_store(quick_config(tmp_path)) as store,
        serving_master(store, awaited=True) as (master, port),
    ):
        waiting = ReplicatedDurability(store, master, timeout_seconds=3_600)
        results: list[tuple[int, object]] = []
        waiting.when_durable(fill(store), lambda result: results.append((0, result)))  # no slave
        assert results == [(0, DurabilityResult.SLAVE_NOT_AVAILABLE)]
        results.clear()
        async with peer_of(store, master, port) as stream:
            ends = [fill(store) for _ in range(3)]
            for number, end in enumerate(ends):
                waiting.when_durable(
                    end, lambda result, number=number: results.append((number, result))
                )  # type: ignore[misc]
            await stream.send_all(REPORT.pack(ends[0] - 1))
            await wait_until(lambda: master.connections[0].link.acknowledged == ends[0] - 1)
            assert results == []
            await stream.send_all(REPORT.pack(ends[1]))
            await wait_until(lambda: master.connections[0].link.acknowledged == ends[1])
            assert results == [(0, DurabilityResult.DURABLE), (1, DurabilityResult.DURABLE)]
            await stream.send_all(REPORT.pack(ends[2]))
            await wait_until(lambda: len(results) == 3)


@pytest.mark.parametrize("ours", [False, True])
async def test_the_first_report_of_a_peer_is_not_a_copy(tmp_path: Path, ours: bool) -> None:
    """Sends wait for such a slave at once, but it counts only when it has acknowledged bytes that
    were sent to it.
    """
    async with (
        open_store(quick_config(tmp_path)) as store,
        serving_master(store, awaited=True, in_sync_replicas=3) as (master, port),
    ):
        waiting = ReplicatedDurability(store, master, timeout_seconds=3_600)
        results: list[object] = []
        async with (
            peer_of(store, master, port) as first,
            await trio.open_tcp_stream("127.0.0.1", port) as other,
        ):
            await other.send_all(REPORT.pack(0))
            await wait_until(lambda: len(master.replicas.replicas) == 2)
            end = fill(store)
            waiting.when_durable(end, results.append)
            await wait_until(lambda: master.connections[0].link.next_offset == end)
            await first.send_all(REPORT.pack(end))
            await wait_until(lambda: master.mark(1).value == end)
            async with await trio.open_tcp_stream("127.0.0.1", port) as claiming:
                await claiming.send_all((REPORT.pack(HELLO) if ours else b"") + REPORT.pack(end))
                if ours:
                    await wait_until(
                        lambda: len(master.connections) == 3 and master.connections[2].bytes_sent
                    )
                    await claiming.send_all(REPORT.pack(NAME_MAX - 7))
                await wait_until(lambda: len(master.replicas.replicas) == 3)
                assert (results, master.mark(2).value, master.replicas.available(end)) == ([], 0, 3)
                end = fill(store)
                await wait_until(lambda: master.connections[2].link.next_offset == end)
                await claiming.send_all(REPORT.pack(end))
                await wait_until(lambda: results)
                assert results == [DurabilityResult.DURABLE]
                await wait_until(lambda: master.connections[0].link.next_offset == end)
                await first.send_all(REPORT.pack(end))
                await wait_until(lambda: master.mark(1).value == end)


async def test_an_orderly_stop_waits_until_every_slave_has_the_whole_log_or_is_gone(
    tmp_path: Path,
) -> None:
    async with (
        open_store(quick_config(tmp_path)) as store,
        serving_master(store, awaited=True) as (master, port),
        trio.open_nursery() as nursery,
    ):
        done = trio.Event()

        async def stop() -> None:
            await master.wait_copied()
            done.set()

        async with (
            peer_of(store, master, port) as first,
            await trio.open_tcp_stream("127.0.0.1", port) as other,
        ):
            await other.send_all(REPORT.pack(0))
            await wait_until(lambda: len(master.replicas.replicas) == 2)
            end = fill(store, 2)
            await wait_until(
                lambda: {connection.link.next_offset for connection in master.connections} == {end}
            )
            nursery.start_soon(stop)
            for stream, position in ((first, end - 1), (other, end - 1), (first, end)):
                await stream.send_all(REPORT.pack(position))
                await wait_until(
                    lambda position=position: any(
                        one.acknowledged == position for one in master.replicas.replicas.values()
                    )
                )
                await trio.testing.wait_all_tasks_blocked(0.01)
                assert not done.is_set()
            await other.aclose()
            with trio.fail_after(SECONDS_MAX):
                await done.wait()


async def test_callbacks_of_senders_time_out_if_a_slave_is_silent(tmp_path: Path) -> None:
    async with (
        open_store(quick_config(tmp_path)) as store,
        serving_master(store, awaited=True) as (master, port),
    ):
        waiting = ReplicatedDurability(store, master, timeout_seconds=0.05)
        results: list[object] = []
        async with peer_of(store, master, port) as stream, trio.open_nursery() as nursery:
            nursery.start_soon(waiting.run_deadlines)
            for _ in range(2):  # also if no send has waited meanwhile
                waiting.when_durable(fill(store), results.append)
                await wait_until(lambda: results)
                assert results == [DurabilityResult.FLUSH_SLAVE_TIMEOUT]
                results.clear()
            await stream.send_all(REPORT.pack(store.appended.value))
            await wait_until(
                lambda: master.connections[0].link.acknowledged == store.appended.value
            )
            assert results == []  # once is enough
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "rules", [{}, {"auto": True}, {"all_in_sync": True}, {"in_sync_replicas": 1}]
)
async def test_a_slave_out_of_sync_by_what_is_stored_is_waited_for(
    tmp_path: Path, rules: dict[str, Any]
) -> None:
    """Here a slave is in sync only while it has the whole log; the minimum holds for admitted
    messages, too.
    """
    async with (
        open_store(quick_config(tmp_path)) as store,
        serving_master(
            store, awaited=True, min_in_sync_replicas=2, in_sync_gap_bytes=1, **rules
        ) as (master, port),
        peer_of(store, master, port) as stream,
        impatient(store, master) as hasty,
    ):
        waiting = ReplicatedDurability(store, master, timeout_seconds=3_600)
        results: list[object] = []
        assert not waiting.refusal()
        end = fill(store)
        assert waiting.refusal()
        assert not waiting.durable_now(end)
        waiting.when_durable(end, results.append)
        assert await wait_durable(hasty, end) is DurabilityResult.FLUSH_SLAVE_TIMEOUT
        await store.flusher.flush()
        assert results == []
        await stream.send_all(REPORT.pack(end))
        await wait_until(lambda: results)
        assert results == [DurabilityResult.DURABLE]
        assert waiting.durable_now(end)
        assert not waiting.refusal()


@pytest.mark.parametrize("slave_first", [False, True])
async def test_a_slave_s_report_hides_no_time_out_of_this_broker_s_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slave_first: bool
) -> None:
    """The slave has the message, but this broker's disk was too slow: that is the answer, with and
    without a task.
    """
    slow = DurabilityResult.FLUSH_DISK_TIMEOUT

    def when_durable(flusher: Flusher, log_end: int, on_durable: Any) -> None:
        on_durable(slow)

    async with (
        open_store(quick_config(tmp_path)) as store,
        serving_master(store, awaited=True) as (master, port),
    ):
        waiting = ReplicatedDurability(store, master, timeout_seconds=3_600)
        async with peer_of(store, master, port) as stream, trio.open_nursery() as nursery:
            monkeypatch.setattr(Flusher, "when_durable", when_durable)
            monkeypatch.setattr(Flusher, "durable_now", lambda flusher, log_end: False)
            results: list[object] = []
            end = fill(store)
            if slave_first:
                await stream.send_all(REPORT.pack(end))
                await wait_until(lambda: master.connections[0].link.acknowledged == end)

            async def ask() -> None:
                results.append(await wait_durable(waiting, end))

            nursery.start_soon(ask)
            waiting.when_durable(end, results.append)
            if not slave_first:
                await trio.testing.wait_all_tasks_blocked(0.01)
                assert results == []
                await stream.send_all(REPORT.pack(end))
            await wait_until(lambda: len(results) == 2)
            assert results == [slow, slow]


async def test_callbacks_of_senders_wait_for_disk_and_slaves(tmp_path: Path) -> None:
    """SYNC_FLUSH: a callback runs when the slave has reported what this disk has. If an fsync
    fails, that is the result, whatever slaves have reported.
    """
    async with (
        open_pair(tmp_path, flush_mode=FlushMode.SYNC, slave={"flush_mode": FlushMode.SYNC}) as (
            store,
            slave_store,
        ),
        serving_master(store, awaited=True) as (master, port),
    ):
        waiting = ReplicatedDurability(store, master, timeout_seconds=3_600)
        results: list[object] = []
        async with following_slave(slave_store, port):
            await wait_until(lambda: master.replicas.replicas)
            for _ in range(3):
                end = fill(store)
                waiting.when_durable(end, results.append)
                assert results == []
                await wait_until(lambda: results)
                assert results == [DurabilityResult.DURABLE]
                assert min(store.flushed.value, slave_store.flushed.value) >= end
                results.clear()
            failure = FlushFailed(tmp_path, OSError(5, "Input/output error"))
            gate = store.flusher.limiter = trio.CapacityLimiter(1)
            await gate.acquire()
            waiting.when_durable(fill(store), results.append)
            for waiter in store.flusher._pending:
                waiter.on_durable(failure)
            store.flusher._pending.clear()
            assert results == [failure]
            gate.release()


# --- the link socket
# ------------------------------------------------------------------------------------------------


@pytest.fixture
def link_sockets() -> Iterator[tuple[LinkSocket, LinkSocket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        first = socket.create_connection(listener.getsockname())
        second, _ = listener.accept()
    for end in (first, second):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8_192)
        end.setblocking(False)
    yield LinkSocket(first), LinkSocket(second)
    first.close()
    second.close()


def test_a_socket_that_takes_no_option_is_taken() -> None:
    """Some systems refuse the option if the peer is gone."""
    first, second = socket.socketpair()  # no TCP, so TCP_NODELAY is refused
    with first, second:
        assert LinkSocket(first).post(b"sent")
        assert second.recv(10) == b"sent"


async def test_a_link_socket_that_broke_in_place_is_broken_for_the_task_too(
    link_sockets: tuple[LinkSocket, LinkSocket],
) -> None:
    """The error came up in a step that belongs to no task."""
    first, _ = link_sockets
    first.sock.close()
    with pytest.raises(trio.BrokenResourceError):
        first.post(b"lost")
    with pytest.raises(trio.BrokenResourceError):
        await first.drain()


async def test_posted_bytes_keep_their_order_whichever_task_drains(
    link_sockets: tuple[LinkSocket, LinkSocket],
) -> None:
    first, second = link_sockets
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
    assert got in (
        first_of_all + b"<1><2>",
        first_of_all + b"<2><1>",
    )  # which of the two tasks is first is Trio's choice
    assert not first.is_full


async def test_pieces_posted_together_keep_their_order(
    link_sockets: tuple[LinkSocket, LinkSocket],
) -> None:
    """More pieces than one call takes, behind bytes that wait, and before later ones; some are
    empty.
    """
    first, second = link_sockets
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


async def test_a_broken_link_socket_raises_for_every_task(
    link_sockets: tuple[LinkSocket, LinkSocket],
) -> None:
    first, second = link_sockets
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
