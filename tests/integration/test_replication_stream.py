"""Master and slave stores over a real HA connection: start rules, growth, reconnect, many slaves, and peers that do as Java's do."""

from __future__ import annotations

import errno
import itertools
import os
import struct
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from cancelling import cancel_everywhere
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
from stores import draft, read_all

from triomq.broker.replication import wire as wire_module
from triomq.broker.replication.transfer import MasterHello, frame_head, hello_frame
from triomq.broker.replication.waiting import ReplicatedDurability
from triomq.broker.replication.wire import Wire
from triomq.broker.store import copy_ahead, indexer, log_copy, write_behind
from triomq.broker.store.config import FlushMode
from triomq.broker.store.disk import Disk
from triomq.broker.store.draft import Batch
from triomq.broker.store.durability import DurabilityResult
from triomq.broker.store.errors import DiskFull, StoreIoError
from triomq.broker.store.key_index import KeyIndex
from triomq.broker.store.log_copy import LogCopy
from triomq.broker.store.store import MessageStore, open_store
from triomq.remoting.busy_poll import busy_poll
from triomq.remoting.protocol.record import decode_records

REPORT = struct.Struct(">q")


def fill(store: MessageStore, count: int, size: int = 500) -> None:
    for number in range(count):
        store.append([draft(bytes([number % 256]) * size, "T", number % 3, unique_key=f"u{store.append_count}")])


@pytest.mark.parametrize(("awaited", "look"), [(True, True), (True, False), (False, True)])
async def test_both_sides_may_look_for_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, awaited: bool, look: bool) -> None:
    """If somebody waits for them."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0, 1})
    async with open_pair(tmp_path) as (master_store, slave_store):
        for _ in range(2):  # the second time after both have closed their sockets
            async with serving_master(master_store, awaited=awaited, look=look) as (_, port), following_slave(slave_store, port, look=look):
                fill(master_store, 1)
                await wait_equal(master_store, slave_store)
                assert busy_poll().watched == (2 if awaited and look else 0)
            assert busy_poll().watched == 0


@pytest.mark.feature(56)
async def test_a_slave_becomes_and_stays_a_copy(tmp_path: Path) -> None:
    """From an empty start over several segments; also while messages come; queues and keys are there, offsets as on the master."""
    async with open_pair(tmp_path) as (master_store, slave_store):
        fill(master_store, 40)
        async with serving_master(master_store) as (_, port), following_slave(slave_store, port):
            await wait_equal(master_store, slave_store)
            for _ in range(30):
                fill(master_store, 1, size=1_200)
                await trio.lowlevel.checkpoint()
            await wait_equal(master_store, slave_store)
        assert log_of(slave_store) == log_of(master_store)
        assert master_store.statistics().segment_count == slave_store.statistics().segment_count > 10
        for queue_id in range(3):
            assert slave_store.max_offset("T", queue_id) == master_store.max_offset("T", queue_id)
            assert [m.body for m in await read_all(slave_store, "T", queue_id)] == [m.body for m in await read_all(master_store, "T", queue_id)]
        assert len((await slave_store.query("T", "u55", max_count=9, begin_ms=0, end_ms=1 << 60, unique=True)).chunks) == 1


@pytest.mark.feature(56)
@pytest.mark.parametrize("flush_mode", FlushMode)
async def test_a_slave_that_is_far_behind_writes_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush_mode: FlushMode) -> None:
    """And reports what is in the file, when it is there; then it goes on as usual."""
    monkeypatch.setattr(log_copy, "BULK_BYTES", 4_000)
    threads: set[int] = set()

    def noting(write: Callable[..., None]) -> Callable[..., None]:
        def noted(disk: Disk, fd: int, data: Any, offset: int, path: Path) -> None:
            if path.parent.parent.name == "slave" and path.parent.name == "commitlog":
                threads.add(threading.get_ident())
            write(disk, fd, data, offset, path)

        return noted

    for name in ("write_at", "write_all_at"):
        monkeypatch.setattr(Disk, name, noting(getattr(Disk, name)))
    gathered: list[int] = []
    pwritev = os.pwritev

    def gathering(fd: int, pieces: Sequence[Any], offset: int) -> int:
        gathered.append(len(pieces))
        return pwritev(fd, pieces, offset)

    monkeypatch.setattr(os, "pwritev", gathering)
    async with open_pair(tmp_path, slave={"flush_mode": flush_mode}) as (master_store, slave_store):
        fill(master_store, 1_000)
        rules = quick_rules(master_store, heartbeat_seconds=60.0)
        async with serving_master(master_store, rules=rules) as (master, port), following_slave(slave_store, port, rules=rules):
            await wait_equal(master_store, slave_store)
            with trio.fail_after(5):  # long before the next sign of life
                await master.wait_copied()
            assert threads - {threading.get_ident()}
            assert gathered
            threads.clear()
            for _ in range(5):
                fill(master_store, 1)
                await wait_equal(master_store, slave_store)
            assert threads == {threading.get_ident()}
        assert log_of(slave_store) == log_of(master_store)
        for queue_id in range(3):
            assert [m.body for m in await read_all(slave_store, "T", queue_id)] == [m.body for m in await read_all(master_store, "T", queue_id)]


@pytest.mark.feature(56)
@pytest.mark.parametrize("flush_mode", FlushMode)
@pytest.mark.parametrize("breaks", [False, True])
async def test_a_slave_that_is_far_behind_copies_before_it_indexes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush_mode: FlushMode, breaks: bool) -> None:
    """And reports that; its queues follow, whether the master is still there or not, in stretches if it is much."""
    monkeypatch.setattr(log_copy, "BULK_BYTES", 4_000)
    monkeypatch.setattr(copy_ahead, "BYTES_MIN", 20_000)
    monkeypatch.setattr(wire_module, "RECEIVE_BYTES", 8_192)
    most, spent = 0, 0
    async with open_pair(tmp_path, slave={"flush_mode": flush_mode}) as (master_store, slave_store):
        fill(master_store, 1_000)
        end = master_store.appended.value
        assert end > 10 * copy_ahead.BYTES_MIN

        def note() -> None:
            nonlocal most
            most = max(most, slave_store.appended.value - slave_store.indexed.value)

        wait_indexed = LogCopy.wait_indexed

        async def noted(self: LogCopy) -> None:
            nonlocal spent
            spent += 1
            await wait_indexed(self)

        monkeypatch.setattr(LogCopy, "wait_indexed", noted)
        slave_store.appended.followers.append(note)
        rules = quick_rules(master_store, heartbeat_seconds=60.0)
        async with serving_master(master_store, rules=rules) as (master, port):
            async with following_slave(slave_store, port, rules=rules) as slave:
                slave.copy.ahead.bytes_max = 3 * copy_ahead.BYTES_MIN
                if breaks:
                    await slave_store.appended.wait_reached(end // 2)
                else:
                    with trio.fail_after(5):  # long before the next sign of life
                        await master.wait_copied()
                    fill(master_store, 100)
                    await wait_equal(master_store, slave_store)
            with trio.fail_after(5):
                await slave_store.indexed.wait_reached(slave_store.appended.value)
            assert most >= copy_ahead.BYTES_MIN, "it has indexed what it copied at once"
            assert spent > 1 or breaks
            if breaks:
                async with following_slave(slave_store, port, rules=rules):
                    await wait_equal(master_store, slave_store)
        assert log_of(slave_store) == log_of(master_store)
        for queue_id in range(3):
            assert [m.body for m in await read_all(slave_store, "T", queue_id)] == [m.body for m in await read_all(master_store, "T", queue_id)]


@pytest.mark.feature(56)
async def test_a_slave_that_cannot_index_what_it_has_copied_says_so_and_goes_on_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """It does not stop listening meanwhile."""
    monkeypatch.setattr(copy_ahead, "BYTES_MIN", 20_000)
    monkeypatch.setattr(wire_module, "RECEIVE_BYTES", 8_192)
    monkeypatch.setattr(indexer, "RETRY_SECONDS", 0.05)
    full, apply = True, KeyIndex.apply

    def refuse(index: KeyIndex, batch: Batch) -> None:
        if full and index.directory.parent.name == "slave":
            raise DiskFull(index.directory)
        apply(index, batch)

    monkeypatch.setattr(KeyIndex, "apply", refuse)
    async with open_pair(tmp_path) as (master_store, slave_store):
        fill(master_store, 1_000)
        async with serving_master(master_store) as (_, port), following_slave(slave_store, port) as slave:
            slave.copy.ahead.bytes_max = 3 * copy_ahead.BYTES_MIN
            await wait_until(lambda: "the key index cannot grow" in caplog.text and f"not following master 127.0.0.1:{port}" in caplog.text)
            assert slave_store.appended.value < master_store.appended.value
            full = False
            await wait_equal(master_store, slave_store)
        assert log_of(slave_store) == log_of(master_store)
        for queue_id in range(3):
            assert [m.body for m in await read_all(slave_store, "T", queue_id)] == [m.body for m in await read_all(master_store, "T", queue_id)]


@pytest.mark.feature(56)
@pytest.mark.parametrize("damaged", [False, True])
async def test_what_has_come_whole_is_kept_when_its_master_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, damaged: bool) -> None:
    """It may be gone for good. Nor is it lost when what comes behind it is damaged."""
    monkeypatch.setattr(log_copy, "BULK_BYTES", 2_000)
    async with open_pair(tmp_path) as (source, slave_store):
        fill(source, 300)
        data = log_of(source)
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        async with following_slave(slave_store, listeners[0].socket.getsockname()[1]):
            async with await listeners[0].accept() as stream:
                assert await read_exactly(stream, 16) == REPORT.pack(-1) + REPORT.pack(0)
                more = bytes(100) if damaged else b""
                await stream.send_all(struct.pack(">qi", 0, len(data) + len(more)) + data + more)
            with trio.fail_after(5):
                await slave_store.indexed.wait_reached(len(data))
            await wait_until(lambda: ("is no message" if damaged else "closed the connection") in caplog.text)
        await listeners[0].aclose()
        assert log_of(slave_store) == data


@pytest.mark.feature(56)
async def test_a_slave_whose_disk_is_slower_than_its_master_keeps_little_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """It reads on when there is room, however long that takes: its master is not to blame."""
    monkeypatch.setattr(log_copy, "BULK_BYTES", 2_000)
    monkeypatch.setattr(write_behind, "WAITING_BYTES_MAX", 20_000)
    monkeypatch.setattr(write_behind, "TURN_BYTES_MAX", 4_000)
    monkeypatch.setattr(wire_module, "RECEIVE_BYTES", 8_192)
    seconds, most = 0.2, 0

    class SlowDisk(Disk):
        def write_at(self, fd: int, data: bytes | bytearray | memoryview, offset: int, path: Path) -> None:
            if path.parent.name == "commitlog":
                time.sleep(seconds)
            super().write_at(fd, data, offset, path)

    async with open_store(quick_config(tmp_path / "master")) as master_store, open_store(quick_config(tmp_path / "slave"), disk=SlowDisk()) as slave_store:
        fill(master_store, 200)
        rules = quick_rules(master_store, heartbeat_seconds=0.05, silence_seconds=0.1)
        async with serving_master(master_store) as (_, port), following_slave(slave_store, port, rules=rules) as slave:
            with trio.move_on_after(2):
                while True:
                    most = max(most, slave.copy.writer._bytes)
                    await trio.sleep(0.005)
            assert 20_000 < most < 20_000 + 3 * 8_192
            seconds = 0.0
            await wait_equal(master_store, slave_store)
        assert log_of(slave_store) == log_of(master_store)
    assert "it has sent nothing" not in caplog.text


@pytest.mark.feature(56)
async def test_where_a_new_slave_begins(tmp_path: Path) -> None:
    """One of ours at the beginning of the log, wherever that is; by Java's rule at the last segment."""
    async with open_store(quick_config(tmp_path / "master")) as master_store, serving_master(master_store) as (_, port):
        fill(master_store, 40)
        oldest = master_store.log.segments.take_oldest()
        oldest.path.unlink()
        last = master_store.log.segments.items[-1].base
        for last_only, begin in ((False, 4096), (True, last)):
            async with open_store(quick_config(tmp_path / f"slave-{last_only}")) as slave_store, following_slave(slave_store, port, last_segment_only=last_only):
                await wait_equal(master_store, slave_store)
                assert slave_store.first_offset == begin
                assert log_of(slave_store) == log_of(master_store, begin)
                for queue_id in range(3):
                    low = slave_store.min_offset("T", queue_id)
                    assert [m.queue_offset for m in await read_all(slave_store, "T", queue_id)] == list(range(low, master_store.max_offset("T", queue_id)))


@pytest.mark.feature(56)
async def test_a_slave_goes_on_where_it_was(tmp_path: Path) -> None:
    """Master away and back, slave stopped and back: no byte twice, none missing."""
    async with open_store(quick_config(tmp_path / "master")) as master_store:
        fill(master_store, 5)
        async with open_store(quick_config(tmp_path / "slave")) as slave_store:
            async with following_slave(slave_store, 1) as slave:  # nobody listens there
                async with serving_master(master_store) as (_, port):
                    slave.master.update(f"127.0.0.1:{port}", None)
                    await wait_equal(master_store, slave_store)
                fill(master_store, 9)
                async with serving_master(master_store, port=port) as (master, _):
                    await wait_equal(master_store, slave_store)
                    assert master.connections[0].link.started_at > 0
            fill(master_store, 9)
        async with open_store(quick_config(tmp_path / "slave")) as slave_store, serving_master(master_store) as (_, port), following_slave(slave_store, port):
            await wait_equal(master_store, slave_store)
            assert log_of(slave_store) == log_of(master_store)


@pytest.mark.feature(56)
async def test_many_slaves_and_one_that_is_slow(tmp_path: Path) -> None:
    """Four slaves; a fifth that reads nothing does not hold them up, and is given up when it stays silent."""
    async with open_store(quick_config(tmp_path / "master", segment_size_bytes=1 << 20)) as master_store, serving_master(master_store, rules=quick_rules(master_store, silence_seconds=1.5)) as (master, port):
        async with trio.open_nursery() as nursery:
            stores: list[MessageStore] = []

            async def run_slave(number: int) -> None:
                async with open_store(quick_config(tmp_path / f"slave-{number}", segment_size_bytes=1 << 20)) as store, following_slave(store, port):
                    stores.append(store)
                    await trio.sleep_forever()

            for number in range(4):
                nursery.start_soon(run_slave, number)
            await wait_until(lambda: len(stores) == 4)
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            await stream.send_all(REPORT.pack(0))
            await wait_until(lambda: len(master.replicas.replicas) == 5)
            for _ in range(80):
                fill(master_store, 1, size=200_000)
                await trio.lowlevel.checkpoint()
            for store in stores:
                await wait_equal(master_store, store)
                assert log_of(store) == log_of(master_store)
            await wait_until(lambda: len(master.replicas.replicas) == 4)  # silent for too long
            await stream.aclose()
            nursery.cancel_scope.cancel()


async def test_a_slave_as_java_s_gets_java_s_bytes_and_nothing_else(tmp_path: Path) -> None:
    """Reports only, no hello: the last segment in frames of 32 KiB, heartbeats, no frame with a negative size even when tables change."""
    config = quick_config(tmp_path, segment_size_bytes=100_000)
    async with open_store(config) as store, serving_master(store) as (master, port):
        fill(store, 180, size=900)
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        async with stream:
            await stream.send_all(REPORT.pack(0))
            log, frames = b"", []
            while 100_000 + len(log) < store.appended.value:
                start, data = await read_frame(stream)
                assert start == 100_000 + len(log)
                frames.append(len(data))
                log += data
                await stream.send_all(REPORT.pack(start + len(data)))
            assert frames[:2] == [32_768, 32_768]
            assert log == log_of(store, 100_000)
            master.tables_changed()
            await wait_until(lambda: master.connections[0].link.acknowledged == store.appended.value)
            assert await read_frame(stream) == (store.appended.value, b"")
            assert master.needed_from() == store.appended.value


async def test_a_master_as_java_s_that_never_says_hello(tmp_path: Path) -> None:
    """It reads the last eight bytes of what came, as Java does: the hello before them is nothing to it."""
    async with open_pair(tmp_path) as (source, slave_store):
        fill(source, 30)
        data = log_of(source)
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        async with following_slave(slave_store, listeners[0].socket.getsockname()[1]) as slave:
            async with await listeners[0].accept() as stream:
                assert await read_exactly(stream, 16) == REPORT.pack(-1) + REPORT.pack(0)
                await stream.send_all(struct.pack(">qi", 0, 0))
                for at in range(0, len(data), 3_000):
                    piece = data[at : at + 3_000]
                    await stream.send_all(struct.pack(">qi", at, len(piece)) + piece)
                await wait_until(lambda: slave_store.appended.value == len(data))
                reports = [value for (value,) in REPORT.iter_unpack(await read_exactly(stream, 8))]
                while reports[-1] < len(data):
                    reports += [value for (value,) in REPORT.iter_unpack(await read_exactly(stream, 8))]
                assert reports == sorted(reports)
                assert slave.link is not None
                assert slave.link.master is None
                assert await read_exactly(stream, 8) == REPORT.pack(len(data))  # a sign of life
                await stream.send_all(struct.pack(">qi", len(data) + 4, 0))  # elsewhere: the slave leaves
                assert await stream.receive_some(1) == b""
            async with await listeners[0].accept() as stream:
                assert await read_exactly(stream, 16) == REPORT.pack(-1) + REPORT.pack(len(data))
        await listeners[0].aclose()
        assert log_of(slave_store) == data


async def test_a_hello_that_comes_together_with_log_bytes(tmp_path: Path) -> None:
    """Under load they often arrive at once: what is compared is our log as it was before them."""
    async with open_pair(tmp_path) as (source, slave_store):
        fill(source, 2)
        async with serving_master(source) as (_, port), following_slave(slave_store, port):
            await wait_equal(source, slave_store)
        end = source.appended.value
        fill(source, 3)
        data = log_of(source)
        hello = hello_frame(end, MasterHello(0, len(data), 0, zlib.crc32(data[:end])))
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        async with following_slave(slave_store, listeners[0].socket.getsockname()[1]), await listeners[0].accept() as stream:
            assert await read_exactly(stream, 16) == REPORT.pack(-1) + REPORT.pack(end)
            await stream.send_all(hello + frame_head(end, len(data) - end) + data[end:])
            await wait_equal(source, slave_store)
        await listeners[0].aclose()
        assert log_of(slave_store) == data


async def test_a_slave_with_sync_flush_reports_what_its_disk_has(tmp_path: Path) -> None:
    """No report runs ahead of fsync; one with ASYNC_FLUSH reports what it has in memory."""
    for mode, held in (("SYNC_FLUSH", True), ("ASYNC_FLUSH", False)):
        async with open_pair(tmp_path / mode, slave={"flush_mode": mode, "flush_interval_ms": 3_600_000}) as (master_store, slave_store):
            gate = trio.CapacityLimiter(1)
            await gate.acquire()
            slave_store.flusher.limiter = gate  # fsync waits for this
            async with serving_master(master_store) as (master, port), following_slave(slave_store, port):
                fill(master_store, 3)
                end = master_store.appended.value
                await slave_store.appended.wait_reached(end)
                if held:
                    await trio.sleep(0.3)
                    assert master.connections[0].link.acknowledged == 0
                    gate.release()
                await wait_until(lambda: master.connections[0].link.acknowledged == master_store.appended.value)
            if not held:
                gate.release()


async def test_logs_that_parted_are_never_joined(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A slave with other messages of the same length, and one that is ahead: both are told, nothing is written."""
    async with open_pair(tmp_path) as (master_store, slave_store):
        fill(master_store, 3)
        slave_store.append([draft(b"\7" * 500, "T", 0, unique_key="u0")])
        async with serving_master(master_store) as (_, port), following_slave(slave_store, port):
            before = slave_store.appended.value
            await wait_until(lambda: "the logs have parted" in caplog.text)
            assert slave_store.appended.value == before
    async with open_store(quick_config(tmp_path / "ahead")) as slave_store, open_store(quick_config(tmp_path / "short")) as master_store:
        fill(slave_store, 9)
        fill(master_store, 1)
        async with serving_master(master_store) as (_, port), following_slave(slave_store, port):
            await wait_until(lambda: "it has messages that this master has not" in caplog.text)
            await wait_until(lambda: "the master closed the connection" in caplog.text)


async def test_garbage_on_the_ha_port_hurts_nobody(tmp_path: Path) -> None:
    async with open_pair(tmp_path) as (master_store, slave_store), serving_master(master_store) as (_, port):
        for junk in (b"GET / HTTP/1.1\r\n\r\n" * 9, REPORT.pack(-5), b"\xff" * 3, REPORT.pack(0) + REPORT.pack(1 << 60)):
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            async with stream:
                await stream.send_all(junk)
                if len(junk) > 7:
                    while await stream.receive_some(100):
                        pass
        async with following_slave(slave_store, port):
            fill(master_store, 3)
            await wait_equal(master_store, slave_store)


async def test_too_many_connections_are_turned_away(tmp_path: Path) -> None:
    async with open_store(quick_config(tmp_path)) as store, serving_master(store) as (master, port):
        master.admission.connections_max = 2
        async with await trio.open_tcp_stream("127.0.0.1", port), await trio.open_tcp_stream("127.0.0.1", port):
            await wait_until(lambda: len(master.connections) == 2)
            async with await trio.open_tcp_stream("127.0.0.1", port) as third:
                assert await third.receive_some(1) == b""
        await wait_until(lambda: not master.connections)
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(REPORT.pack(0))
            await wait_until(lambda: len(master.replicas.replicas) == 1)


async def test_tables_changed_reaches_a_slave_of_ours_at_once(tmp_path: Path) -> None:
    async with open_pair(tmp_path) as (master_store, slave_store), serving_master(master_store) as (master, port), following_slave(slave_store, port) as slave:
        with trio.fail_after(30):
            await slave.tables_changed.wait()  # once when it has connected: who knows what it has missed
        await wait_until(lambda: slave.link is not None and slave.link.master is not None)
        slave.tables_changed = trio.Event()
        master.tables_changed()
        with trio.fail_after(30):
            await slave.tables_changed.wait()


async def test_one_slave_never_counts_twice(tmp_path: Path) -> None:
    """A second connection of the same slave replaces the first, whose end nobody has noticed."""
    async with open_pair(tmp_path) as (master_store, slave_store), serving_master(master_store, rules=quick_rules(master_store, silence_seconds=3_600)) as (master, port):
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream, following_slave(slave_store, port) as slave:
            await wait_until(lambda: any(connection.link.name == slave._name for connection in master.connections))
            first = next(connection for connection in master.connections if connection.link.name == slave._name)
            await stream.send_all(REPORT.pack(-1) + REPORT.pack(0) + REPORT.pack(slave._name))
            await wait_until(lambda: first not in master.connections)
            assert len(master.replicas.replicas) <= 1


async def test_reports_count_once_the_logs_are_known_to_be_the_same(tmp_path: Path) -> None:
    """A slave of ours that has not named itself may have a log that parted, or be there already over an older connection: no send is told that it has a copy."""
    async with open_store(quick_config(tmp_path)) as store, serving_master(store) as (master, port):
        fill(store, 3)
        end = store.appended.value
        durability = ReplicatedDurability(store, master, timeout_seconds=0.05)
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(REPORT.pack(-1) + REPORT.pack(end))
            hello_size = 12 + 28
            await read_exactly(stream, hello_size)
            assert not durability.durable_now(end)
            assert await durability.wait_durable(end) is DurabilityResult.SLAVE_NOT_AVAILABLE
            await stream.send_all(REPORT.pack(-77))
            await wait_until(lambda: durability.durable_now(end))
            assert await durability.wait_durable(end) is DurabilityResult.DURABLE


async def test_a_report_that_comes_after_the_replacement_is_nobody_s(tmp_path: Path) -> None:
    """What the old connection still had on its way counts no more, and harms nobody; at no moment does the slave count twice."""
    async with open_store(quick_config(tmp_path)) as store, serving_master(store) as (master, port):
        counted: list[int] = []
        master.on_acknowledged.append(lambda: counted.append(len(master.replicas.replicas)))
        fill(store, 3)
        end = store.appended.value
        async with await trio.open_tcp_stream("127.0.0.1", port) as old, await trio.open_tcp_stream("127.0.0.1", port) as new:
            for stream in (old, new):
                await stream.send_all(REPORT.pack(-1) + REPORT.pack(0))
                await read_exactly(stream, 12 + 28)
            await old.send_all(REPORT.pack(-77))
            await wait_until(lambda: len(master.replicas.replicas) == 1)
            await old.send_all(REPORT.pack(end))
            await new.send_all(REPORT.pack(-77))  # both are there when the master looks
            await wait_until(lambda: len(master.connections) == 1)
            await new.send_all(REPORT.pack(end))
            await wait_until(lambda: [one.acknowledged for one in master.replicas.replicas.values()] == [end])
        assert set(counted) == {1}


async def test_a_slave_with_sync_flush_comes_back_when_its_disk_has_what_it_has(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A connection that ends while fsync is slow: the next one must not begin before the bytes that are here already, which would look like logs that parted."""
    async with open_pair(tmp_path, slave={"flush_mode": "SYNC_FLUSH", "flush_interval_ms": 3_600_000}) as (master_store, slave_store):
        gate = trio.CapacityLimiter(1)
        await gate.acquire()
        slave_store.flusher.limiter = gate  # fsync waits for this
        async with serving_master(master_store) as (_, port):
            async with following_slave(slave_store, port):
                fill(master_store, 3)
                await slave_store.appended.wait_reached(master_store.appended.value)
            async with following_slave(slave_store, port) as slave:
                await trio.sleep(0.3)
                assert not slave.following
                assert "parted" not in caplog.text
                gate.release()
                fill(master_store, 3)
                await wait_equal(master_store, slave_store)
        assert log_of(slave_store) == log_of(master_store)
        assert "parted" not in caplog.text
        assert "we go on at" not in caplog.text, "it asked for what it has already"


async def test_a_slave_whose_disk_fails_tries_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An error of the disk on an append ends the connection, not the broker."""
    broken = True

    class FailingDisk(Disk):
        def write_at(self, fd: int, data: bytes | bytearray | memoryview, offset: int, path: Path) -> None:
            if broken and path.parent.name == "commitlog":
                raise StoreIoError(path, OSError(errno.EIO, "Input/output error"))
            super().write_at(fd, data, offset, path)

    async with open_store(quick_config(tmp_path / "master")) as master_store, open_store(quick_config(tmp_path / "slave"), disk=FailingDisk()) as slave_store:
        fill(master_store, 3)
        async with serving_master(master_store) as (_, port), following_slave(slave_store, port):
            await wait_until(lambda: "Input/output error" in caplog.text)
            broken = False
            await wait_equal(master_store, slave_store)
        assert log_of(slave_store) == log_of(master_store)


@pytest.mark.parametrize("hello", [False, True])
async def test_a_master_that_takes_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, hello: bool) -> None:
    """The kernel's buffers are full, as it seems: the task that receives waits to send."""
    stuck = True
    post, drain = Wire.post, Wire.drain

    def post_into_full_buffers(wire: Wire, data: bytes) -> bool:
        if not stuck or data.startswith(REPORT.pack(-1)):  # the opening has gone out
            return post(wire, data)
        wire._unsent.append(memoryview(data))
        return False

    async def drain_full_buffers(wire: Wire) -> None:
        if stuck and wire.is_full:
            await trio.sleep_forever()
        await drain(wire)

    monkeypatch.setattr(Wire, "post", post_into_full_buffers)
    monkeypatch.setattr(Wire, "drain", drain_full_buffers)
    async with open_pair(tmp_path) as (source, slave_store):
        fill(source, 3)
        data = log_of(source)
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        async with following_slave(slave_store, listeners[0].socket.getsockname()[1], rules=quick_rules(slave_store, silence_seconds=1.0)):
            with trio.fail_after(30):
                async with await listeners[0].accept() as stream:
                    await read_exactly(stream, 16)
                    await stream.send_all((hello_frame(0, MasterHello(0, len(data), 0, 0)) if hello else b"") + frame_head(0, len(data)) + data)
                    assert await stream.receive_some(1) == b""
                stuck = False
                async with await listeners[0].accept() as stream:
                    end = slave_store.appended.value
                    assert await read_exactly(stream, 16) == REPORT.pack(-1) + REPORT.pack(end)
                    await stream.send_all(frame_head(end, len(data) - end) + data[end:])
                    await wait_equal(source, slave_store)
        await listeners[0].aclose()
        assert "it has taken nothing for 1 s (haHousekeepingInterval)" in caplog.text


async def test_the_bandwidth_limit_is_kept(tmp_path: Path) -> None:
    """A tenth of a second's worth at once, and then at the rate: never more than both together."""
    config = {"segment_size_bytes": 1 << 20}
    async with open_pair(tmp_path, slave=config, **config) as (master_store, slave_store):
        fill(master_store, 300, size=1_000)
        total = master_store.appended.value
        rate = 1_000_000
        async with serving_master(master_store, bytes_per_second=rate) as (_, port):
            begin = trio.current_time()
            async with following_slave(slave_store, port):
                while slave_store.appended.value < total:
                    await trio.sleep(0.01)
                    assert slave_store.appended.value <= rate * (trio.current_time() - begin) + rate / 10 + 32_768
        assert log_of(slave_store) == log_of(master_store)


# --- waiting ---------------------------------------------------------------------------------------------------------------


@pytest.mark.feature(58, 64)
async def test_what_a_send_waits_for(tmp_path: Path) -> None:
    """No slave: SLAVE_NOT_AVAILABLE at once. A slave: after its report. One that says nothing: FLUSH_SLAVE_TIMEOUT."""
    async with open_store(quick_config(tmp_path)) as store, serving_master(store, rules=quick_rules(store, silence_seconds=3_600)) as (master, port):
        waiting = ReplicatedDurability(store, master, timeout_seconds=0.05)
        fill(store, 1)
        end = store.appended.value
        assert not waiting.durable_now(end)
        assert await waiting.wait_durable(end) is DurabilityResult.SLAVE_NOT_AVAILABLE
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        async with stream:
            await stream.send_all(REPORT.pack(0))
            await wait_until(lambda: master.replicas.replicas)
            assert await waiting.wait_durable(end) is DurabilityResult.FLUSH_SLAVE_TIMEOUT
            patient = ReplicatedDurability(store, master, timeout_seconds=60)
            async with trio.open_nursery() as nursery:
                answers: list[DurabilityResult] = []

                async def send() -> None:
                    answers.append(await patient.wait_durable(end))

                nursery.start_soon(send)
                start, data = await read_frame(stream)
                while start + len(data) < end:
                    start, data = await read_frame(stream)
                assert decode_records(log_of(store))
                await stream.send_all(REPORT.pack(end - 1))
                await trio.sleep(0.05)
                assert answers == []
                await stream.send_all(REPORT.pack(end))
            assert answers == [DurabilityResult.DURABLE]
            assert patient.durable_now(end)
        await wait_until(lambda: not master.replicas.replicas)
        fill(store, 1)
        assert await waiting.wait_durable(store.appended.value) is DurabilityResult.SLAVE_NOT_AVAILABLE


async def test_refused_before_it_is_stored(tmp_path: Path) -> None:
    async with open_store(quick_config(tmp_path)) as store, serving_master(store, min_in_sync_replicas=2) as (master, port):
        waiting = ReplicatedDurability(store, master)
        assert "minInSyncReplicas=2" in waiting.refusal()
        async with open_store(quick_config(tmp_path / "slave")) as slave_store, following_slave(slave_store, port):
            await wait_until(lambda: not waiting.refusal())


async def test_java_s_meaning_of_one_replica_waits_for_nobody(tmp_path: Path) -> None:
    async with open_store(quick_config(tmp_path)) as store, serving_master(store, in_sync_replicas=1) as (master, _):
        fill(store, 1)
        assert ReplicatedDurability(store, master).durable_now(store.appended.value)


def test_master_and_slave_cancelled_at_every_step(tmp_path: Path) -> None:
    """From the first byte to a copy of some messages, and a send that waits for it: no task and no socket stays behind."""
    numbers = itertools.count()

    async def scenario(begin: Callable[[trio.CancelScope], None]) -> None:
        async with open_pair(tmp_path / str(next(numbers))) as (master_store, slave_store):
            fill(master_store, 2)
            with trio.CancelScope() as scope:
                begin(scope)
                async with serving_master(master_store) as (master, port), following_slave(slave_store, port):
                    waiting = ReplicatedDurability(master_store, master)
                    await slave_store.appended.wait_reached(master_store.appended.value)
                    fill(master_store, 1)
                    master.tables_changed()
                    await waiting.wait_durable(master_store.appended.value)

    assert cancel_everywhere(scenario, stride=5, jump=False) > 10
