"""Master and slave stores over a real HA connection: start rules, growth, reconnects, many slaves,
and peers that behave like Java's.
"""

from __future__ import annotations

import contextlib
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
import trio.testing
from cancelling import cancel_everywhere
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
from stores import draft, read_all, wait_durable

from triomq.broker.replication import link_socket as link_socket_module
from triomq.broker.replication.epoch_file import EpochFile
from triomq.broker.replication.epoch_frames import epochs_frame, report_frame
from triomq.broker.replication.epoch_slave_link import EpochSlaveLink
from triomq.broker.replication.epochs import EpochHistory
from triomq.broker.replication.link_socket import LinkSocket
from triomq.broker.replication.master import NEVER_NEEDED, TABLES_GATHER_SECONDS
from triomq.broker.replication.replicated_durability import ReplicatedDurability
from triomq.broker.replication.transfer import (
    MasterHello,
    frame_head,
    hello_frame,
    tables_changed_frame,
)
from triomq.broker.store.core.config import FlushMode
from triomq.broker.store.core.errors import DiskFull, StoreIoError
from triomq.broker.store.follow import deferred_indexing, log_copy, write_behind
from triomq.broker.store.follow.log_copy import LogCopy
from triomq.broker.store.indexing import indexer
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.keys.index import KeyIndex
from triomq.broker.store.log.durability import DurabilityResult
from triomq.broker.store.opening import open_store
from triomq.broker.store.queues.batch import Batch
from triomq.broker.store.store import MessageStore
from triomq.remoting.core.busy_poll import busy_poll
from triomq.remoting.protocol.record_reader import decode_records

REPORT = struct.Struct(">q")


def fill(store: MessageStore, count: int, size: int = 500) -> None:
    before = sum(queue.next_offset for queue in store.queue_table.queues.values())
    for number in range(count):
        body = bytes([number % 256]) * size
        store.append([draft(body, "T", number % 3, unique_key=f"u{before + number}")])


@pytest.mark.parametrize(("awaited", "polls"), [(True, True), (True, False), (False, True)])
async def test_both_sides_may_busy_poll_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, awaited: bool, polls: bool
) -> None:
    """If senders wait for them."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0, 1})
    async with open_pair(tmp_path) as (master_store, slave_store):
        for _ in range(2):  # the second time after both have closed their sockets
            async with (
                serving_master(master_store, awaited=awaited, busy_poll=polls) as (_, port),
                following_slave(slave_store, port, busy_poll=polls),
            ):
                fill(master_store, 1)
                await wait_equal(master_store, slave_store)
                assert busy_poll().watched == (2 if awaited and polls else 0)
            assert busy_poll().watched == 0


@pytest.mark.feature("56a", "56b")
async def test_a_slave_becomes_and_stays_a_copy(tmp_path: Path) -> None:
    """From an empty log over several segments, also while messages come; queues and keys are there,
    offsets as on the master.
    """
    async with open_pair(tmp_path) as (master_store, slave_store):
        fill(master_store, 40)
        async with serving_master(master_store) as (_, port), following_slave(slave_store, port):
            await wait_equal(master_store, slave_store)
            for _ in range(30):
                fill(master_store, 1, size=1_200)
                await trio.lowlevel.checkpoint()
            await wait_equal(master_store, slave_store)
        assert log_of(slave_store) == log_of(master_store)
        assert len(master_store.log.segments.items) == len(slave_store.log.segments.items) > 10
        for queue_id in range(3):
            assert slave_store.max_offset("T", queue_id) == master_store.max_offset("T", queue_id)
            assert [m.body for m in await read_all(slave_store, "T", queue_id)] == [
                m.body for m in await read_all(master_store, "T", queue_id)
            ]
        assert (
            len(
                (
                    await slave_store.query(
                        "T", "u55", max_count=9, begin_ms=0, end_ms=1 << 60, unique=True
                    )
                ).chunks
            )
            == 1
        )


@pytest.mark.parametrize("greets", [False, True])
async def test_a_slave_in_controller_mode_sleeps_until_its_log_is_known_to_be_the_masters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, greets: bool
) -> None:
    """It has something to report, and may not say it before the master has sent its epochs, and,
    for a log of classic mode, the bytes to compare.
    """
    asked = 0
    take_report = EpochSlaveLink.take_report

    def counted(link: EpochSlaveLink, position: int, now: float) -> bytes:
        nonlocal asked
        asked += 1
        return take_report(link, position, now)

    monkeypatch.setattr(EpochSlaveLink, "take_report", counted)
    async with open_store(quick_config(tmp_path, flush_mode=FlushMode.SYNC)) as store:
        store.append([draft(b"x")])
        await store.flusher.flush()
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        async with listener, following_slave(store, listener.socket.getsockname()[1]) as slave:
            slave.broker_id, slave.epochs = 2, EpochFile(tmp_path / "epochs", store.disk)
            async with await listener.accept() as stream:
                assert len(await read_exactly(stream, 16)) == 16
                if greets:
                    end = store.appended.value
                    await stream.send_all(epochs_frame(EpochHistory.of([(1, end)]), end))
                    asks_for_all = report_frame(0)
                    assert await read_exactly(stream, len(asks_for_all)) == asks_for_all
                before = asked
                for _ in range(100):
                    await trio.lowlevel.checkpoint()
                assert asked < before + 3


@pytest.mark.feature("56a", "56b")
@pytest.mark.parametrize("flush_mode", FlushMode)
async def test_a_slave_that_is_far_behind_writes_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush_mode: FlushMode
) -> None:
    """It reports bytes when the file has them; afterwards it goes on as usual."""
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
        async with (
            serving_master(master_store, rules=rules) as (master, port),
            following_slave(slave_store, port, rules=rules),
        ):
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
            assert [m.body for m in await read_all(slave_store, "T", queue_id)] == [
                m.body for m in await read_all(master_store, "T", queue_id)
            ]


@pytest.mark.feature("56a", "56b")
@pytest.mark.parametrize("flush_mode", FlushMode)
@pytest.mark.parametrize("breaks", [False, True])
async def test_a_slave_that_is_far_behind_copies_before_it_indexes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush_mode: FlushMode, breaks: bool
) -> None:
    """It reports what it has copied. Its queues follow, with or without the master, in several
    steps if there is much.
    """
    monkeypatch.setattr(log_copy, "BULK_BYTES", 4_000)
    monkeypatch.setattr(deferred_indexing, "BYTES_MIN", 20_000)
    monkeypatch.setattr(link_socket_module, "RECEIVE_BYTES", 8_192)
    most, spent = 0, 0
    async with open_pair(tmp_path, slave={"flush_mode": flush_mode}) as (master_store, slave_store):
        fill(master_store, 1_000)
        end = master_store.appended.value
        assert end > 10 * deferred_indexing.BYTES_MIN

        def note() -> None:
            nonlocal most
            most = max(most, slave_store.appended.value - slave_store.indexed.value)

        wait_indexed = LogCopy.wait_indexed

        async def noted(self: LogCopy) -> None:
            nonlocal spent
            spent += 1
            await wait_indexed(self)

        monkeypatch.setattr(LogCopy, "wait_indexed", noted)
        slave_store.appended.callbacks.append(note)
        rules = quick_rules(master_store, heartbeat_seconds=60.0)
        async with serving_master(master_store, rules=rules) as (master, port):
            async with following_slave(slave_store, port, rules=rules) as slave:
                slave.copy.deferral.bytes_max = 3 * deferred_indexing.BYTES_MIN
                if breaks:
                    await slave_store.appended.wait_reached(end // 2)
                else:
                    with trio.fail_after(5):  # long before the next sign of life
                        await master.wait_copied()
                    fill(master_store, 100)
                    await wait_equal(master_store, slave_store)
            with trio.fail_after(5):
                await slave_store.indexed.wait_reached(slave_store.appended.value)
            assert most >= deferred_indexing.BYTES_MIN, "it has indexed what it copied at once"
            assert spent > 1 or breaks
            if breaks:
                async with following_slave(slave_store, port, rules=rules):
                    await wait_equal(master_store, slave_store)
        assert log_of(slave_store) == log_of(master_store)
        for queue_id in range(3):
            assert [m.body for m in await read_all(slave_store, "T", queue_id)] == [
                m.body for m in await read_all(master_store, "T", queue_id)
            ]


@pytest.mark.feature("56a", "56b")
async def test_a_slave_that_cannot_index_what_it_has_copied_logs_it_and_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It goes on reading meanwhile."""
    monkeypatch.setattr(deferred_indexing, "BYTES_MIN", 20_000)
    monkeypatch.setattr(link_socket_module, "RECEIVE_BYTES", 8_192)
    monkeypatch.setattr(indexer, "RETRY_SECONDS", 0.05)
    full, apply = True, KeyIndex.apply

    def refuse(index: KeyIndex, batch: Batch) -> None:
        if full and index.directory.parent.name == "slave":
            raise DiskFull(index.directory)
        apply(index, batch)

    monkeypatch.setattr(KeyIndex, "apply", refuse)
    async with open_pair(tmp_path) as (master_store, slave_store):
        fill(master_store, 1_000)
        async with (
            serving_master(master_store) as (_, port),
            following_slave(slave_store, port) as slave,
        ):
            slave.copy.deferral.bytes_max = 3 * deferred_indexing.BYTES_MIN
            await wait_until(
                lambda: (
                    "the key index cannot grow" in caplog.text
                    and f"not following master 127.0.0.1:{port}" in caplog.text
                )
            )
            assert slave_store.appended.value < master_store.appended.value
            full = False
            await wait_equal(master_store, slave_store)
        assert log_of(slave_store) == log_of(master_store)
        for queue_id in range(3):
            assert [m.body for m in await read_all(slave_store, "T", queue_id)] == [
                m.body for m in await read_all(master_store, "T", queue_id)
            ]


@pytest.mark.parametrize("damaged", [False, True])
async def test_whole_records_are_kept_when_the_master_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, damaged: bool
) -> None:
    """The master may never come back. Nor are whole records lost if damaged bytes follow."""
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
            await wait_until(
                lambda: ("are not a message" if damaged else "closed the connection") in caplog.text
            )
        await listeners[0].aclose()
        assert log_of(slave_store) == data


async def test_a_slave_with_a_slow_disk_keeps_little_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It reads on when there is room, however long that takes: the master is not silent."""
    monkeypatch.setattr(log_copy, "BULK_BYTES", 2_000)
    monkeypatch.setattr(write_behind, "WAITING_BYTES_MAX", 20_000)
    monkeypatch.setattr(write_behind, "TURN_BYTES_MAX", 4_000)
    monkeypatch.setattr(link_socket_module, "RECEIVE_BYTES", 8_192)
    seconds, most = 0.2, 0

    class SlowDisk(Disk):
        def write_at(
            self, fd: int, data: bytes | bytearray | memoryview, offset: int, path: Path
        ) -> None:
            if path.parent.name == "commitlog":
                time.sleep(seconds)
            super().write_at(fd, data, offset, path)

    async with (
        open_store(quick_config(tmp_path / "master")) as master_store,
        open_store(quick_config(tmp_path / "slave"), disk=SlowDisk()) as slave_store,
    ):
        fill(master_store, 200)
        rules = quick_rules(master_store, heartbeat_seconds=0.05, silence_seconds=0.1)
        async with (
            serving_master(master_store) as (_, port),
            following_slave(slave_store, port, rules=rules) as slave,
        ):
            with trio.move_on_after(2):
                while True:
                    most = max(most, slave.copy.writer._bytes)
                    await trio.sleep(0.005)
            assert 20_000 < most < 20_000 + 3 * 8_192
            seconds = 0.0
            await wait_equal(master_store, slave_store)
        assert log_of(slave_store) == log_of(master_store)
    assert "it has sent nothing" not in caplog.text


@pytest.mark.feature("56a")
async def test_where_a_new_slave_begins(tmp_path: Path) -> None:
    """A slave of TrioMQ at the beginning of the log, wherever it is; Java's at the last segment."""
    async with (
        open_store(quick_config(tmp_path / "master")) as master_store,
        serving_master(master_store) as (_, port),
    ):
        fill(master_store, 40)
        oldest = master_store.log.segments.take_oldest()
        oldest.path.unlink()
        last = master_store.log.segments.items[-1].base
        for last_only, begin in ((False, 4096), (True, last)):
            async with (
                open_store(quick_config(tmp_path / f"slave-{last_only}")) as slave_store,
                following_slave(slave_store, port, last_segment_only=last_only),
            ):
                await wait_equal(master_store, slave_store)
                assert slave_store.first_offset == begin
                assert log_of(slave_store) == log_of(master_store, begin)
                for queue_id in range(3):
                    low = slave_store.min_offset("T", queue_id)
                    assert [
                        m.queue_offset for m in await read_all(slave_store, "T", queue_id)
                    ] == list(range(low, master_store.max_offset("T", queue_id)))


@pytest.mark.feature("56a")
async def test_a_slave_goes_on_where_it_was(tmp_path: Path) -> None:
    """The master goes and comes back, the slave stops and starts: no byte twice, none missing."""
    async with open_store(quick_config(tmp_path / "master")) as master_store:
        fill(master_store, 5)
        async with open_store(quick_config(tmp_path / "slave")) as slave_store:
            async with following_slave(slave_store, 1) as slave:  # a closed port
                async with serving_master(master_store) as (_, port):
                    slave.master.update(f"127.0.0.1:{port}", None)
                    await wait_equal(master_store, slave_store)
                fill(master_store, 9)
                async with serving_master(master_store, port=port) as (master, _):
                    await wait_equal(master_store, slave_store)
                    assert master.connections[0].link.started_at > 0
            fill(master_store, 9)
        async with (
            open_store(quick_config(tmp_path / "slave")) as slave_store,
            serving_master(master_store) as (_, port),
            following_slave(slave_store, port),
        ):
            await wait_equal(master_store, slave_store)
            assert log_of(slave_store) == log_of(master_store)


@pytest.mark.feature("56a")
async def test_many_slaves_and_one_that_is_slow(tmp_path: Path) -> None:
    """A fifth slave that reads nothing does not delay four others, and is given up when it stays
    silent.
    """
    async with (
        open_store(quick_config(tmp_path / "master", segment_size_bytes=1 << 20)) as master_store,
        serving_master(master_store, rules=quick_rules(master_store, silence_seconds=1.5)) as (
            master,
            port,
        ),
    ):
        async with trio.open_nursery() as nursery:
            stores: list[MessageStore] = []

            async def run_slave(number: int) -> None:
                async with (
                    open_store(
                        quick_config(tmp_path / f"slave-{number}", segment_size_bytes=1 << 20)
                    ) as store,
                    following_slave(store, port),
                ):
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


async def test_a_java_slave_gets_java_s_bytes_and_no_others(tmp_path: Path) -> None:
    """With reports only, without a hello: the last segment in frames of 32 KiB, heartbeats, and no
    frame of negative size even if tables change.
    """
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
            await wait_until(
                lambda: master.connections[0].link.acknowledged == store.appended.value
            )
            assert await read_frame(stream) == (store.appended.value, b"")
            assert master.needed_from() == store.appended.value


async def test_a_java_master_never_sends_a_hello(tmp_path: Path) -> None:
    """It reads the last eight bytes of what came, as Java does, and so ignores the hello before
    them.
    """
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
                    reports += [
                        value for (value,) in REPORT.iter_unpack(await read_exactly(stream, 8))
                    ]
                assert reports == sorted(reports)
                assert slave.link is not None
                assert slave.link.master is None
                assert await read_exactly(stream, 8) == REPORT.pack(len(data))  # a sign of life
                await stream.send_all(
                    struct.pack(">qi", len(data) + 4, 0)
                )  # a wrong offset: the slave leaves
                assert await stream.receive_some(1) == b""
            async with await listeners[0].accept() as stream:
                assert await read_exactly(stream, 16) == REPORT.pack(-1) + REPORT.pack(len(data))
        await listeners[0].aclose()
        assert log_of(slave_store) == data


async def test_a_hello_that_comes_together_with_log_bytes(tmp_path: Path) -> None:
    """Under load they often arrive together: the slave compares its log as it was before these
    bytes.
    """
    async with open_pair(tmp_path) as (source, slave_store):
        fill(source, 2)
        async with serving_master(source) as (_, port), following_slave(slave_store, port):
            await wait_equal(source, slave_store)
        end = source.appended.value
        fill(source, 3)
        data = log_of(source)
        hello = hello_frame(end, MasterHello(0, len(data), 0, zlib.crc32(data[:end])))
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        async with (
            following_slave(slave_store, listeners[0].socket.getsockname()[1]),
            await listeners[0].accept() as stream,
        ):
            assert await read_exactly(stream, 16) == REPORT.pack(-1) + REPORT.pack(end)
            await stream.send_all(hello + frame_head(end, len(data) - end) + data[end:])
            await wait_equal(source, slave_store)
        await listeners[0].aclose()
        assert log_of(slave_store) == data


async def test_a_slave_with_sync_flush_reports_what_its_disk_has(tmp_path: Path) -> None:
    """No report is ahead of fsync; a slave with ASYNC_FLUSH reports what it has in memory."""
    for mode, held in ((FlushMode.SYNC, True), (FlushMode.ASYNC, False)):
        async with open_pair(
            tmp_path / mode.name, slave={"flush_mode": mode, "flush_interval_ms": 3_600_000}
        ) as (master_store, slave_store):
            gate = trio.CapacityLimiter(1)
            await gate.acquire()
            slave_store.flusher.limiter = gate  # fsync waits for this
            async with (
                serving_master(master_store) as (master, port),
                following_slave(slave_store, port),
            ):
                fill(master_store, 3)
                end = master_store.appended.value
                await slave_store.appended.wait_reached(end)
                if held:
                    await trio.sleep(0.3)
                    assert master.connections[0].link.acknowledged == 0
                    gate.release()
                await wait_until(
                    lambda: master.connections[0].link.acknowledged == master_store.appended.value
                )
            if not held:
                gate.release()


async def test_logs_that_parted_are_never_joined(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A slave with other messages of the same length, and a slave that is ahead: both are refused,
    and nothing is written.
    """
    async with open_pair(tmp_path) as (master_store, slave_store):
        fill(master_store, 3)
        slave_store.append([draft(b"\7" * 500, "T", 0, unique_key="u0")])
        async with serving_master(master_store) as (_, port), following_slave(slave_store, port):
            before = slave_store.appended.value
            await wait_until(lambda: "the logs have parted" in caplog.text)
            assert slave_store.appended.value == before
    note = tmp_path / "slave" / "config" / "logsParted"
    assert "the logs have parted" in note.read_text()
    async with (
        open_store(quick_config(tmp_path / "ahead")) as slave_store,
        open_store(quick_config(tmp_path / "short")) as master_store,
    ):
        fill(slave_store, 9)
        fill(master_store, 1)
        async with serving_master(master_store) as (_, port), following_slave(slave_store, port):
            await wait_until(lambda: "it has messages that this master has not" in caplog.text)
            note = tmp_path / "ahead" / "config" / "logsParted"
            await wait_until(note.exists)
            ends = slave_store.appended.value, master_store.appended.value
            assert "our log ends at {}, the master's at {}".format(*ends) in note.read_text()


async def test_a_slave_that_is_ahead_of_a_java_master_follows_no_more(tmp_path: Path) -> None:
    """Such a master says nothing until its log is longer, and goes on in the middle: with messages
    of equal sizes the bytes fit.
    """
    async with open_pair(tmp_path) as (source, slave_store):
        fill(source, 3)
        fill(slave_store, 3)
        before = slave_store.appended.value
        fill(source, 1)
        more = log_of(source)[before:]

        async def end_of_master() -> int:
            return before - 100

        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        async with following_slave(slave_store, listeners[0].socket.getsockname()[1]) as slave:
            async with await listeners[0].accept() as stream:
                await stream.send_all(struct.pack(">qi", before, 0))
                await wait_until(lambda: slave.following)
                await slave.compare_ends(before - 100, end_of_master)
                assert not slave.parted.known()
                await slave.compare_ends(before, end_of_master)
                assert f"the master's at {before - 100}" in slave.parted.reason
                await stream.send_all(struct.pack(">qi", before, len(more)) + more)
                with contextlib.suppress(trio.BrokenResourceError):
                    while await stream.receive_some(1):
                        pass
            assert slave_store.appended.value == before
        await listeners[0].aclose()


async def test_garbage_on_the_ha_port_harms_no_slave(tmp_path: Path) -> None:
    async with (
        open_pair(tmp_path) as (master_store, slave_store),
        serving_master(master_store) as (_, port),
    ):
        for junk in (
            b"GET / HTTP/1.1\r\n\r\n" * 9,
            REPORT.pack(-5),
            b"\xff" * 3,
            REPORT.pack(0) + REPORT.pack(1 << 60),
        ):
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
        master.connection_limits.connections_max = 2
        async with (
            await trio.open_tcp_stream("127.0.0.1", port),
            await trio.open_tcp_stream("127.0.0.1", port),
        ):
            await wait_until(lambda: len(master.connections) == 2)
            async with await trio.open_tcp_stream("127.0.0.1", port) as third:
                assert await third.receive_some(1) == b""
        await wait_until(lambda: not master.connections)
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(REPORT.pack(0))
            await wait_until(lambda: len(master.replicas.replicas) == 1)


async def test_a_change_of_tables_reaches_a_slave_of_triomq_at_once(tmp_path: Path) -> None:
    async with (
        open_pair(tmp_path) as (master_store, slave_store),
        serving_master(master_store) as (master, port),
        following_slave(slave_store, port) as slave,
    ):
        with trio.fail_after(30):
            # Once when it has connected: it may have missed a change.
            await slave.tables_changed.wait_beyond(0)
        await wait_until(lambda: slave.link is not None and slave.link.master is not None)
        seen = slave.tables_changed.value
        master.tables_changed()
        with trio.fail_after(30):
            await slave.tables_changed.wait_beyond(seen)


async def test_each_change_of_tables_is_announced_once(tmp_path: Path) -> None:
    """One frame announces changes that come together, another a later change; then there is
    silence.
    """
    async with open_store(quick_config(tmp_path)) as store:
        rules = quick_rules(store, heartbeat_seconds=3_600, silence_seconds=3_600)
        async with (
            serving_master(store, rules=rules) as (master, port),
            await trio.open_tcp_stream("127.0.0.1", port) as stream,
        ):
            await stream.send_all(REPORT.pack(-1) + REPORT.pack(0))
            await read_exactly(stream, len(hello_frame(0, MasterHello(0, 0, 0, 0))))
            for _ in range(2):
                await trio.testing.wait_all_tasks_blocked(0.01)
                master.tables_changed()
                master.tables_changed()
                assert await read_exactly(stream, 12) == tables_changed_frame(0)
            await trio.sleep(5 * TABLES_GATHER_SECONDS)
            fill(store, 1)
            assert await read_exactly(stream, 12) == frame_head(0, store.appended.value)


async def test_a_slave_that_lost_its_master_no_longer_follows_and_logs_each_loss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Slaves decide by this whether to act for the master. The same reason is logged again if the
    slave followed in between.
    """
    async with open_store(quick_config(tmp_path)) as store:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        async with following_slave(
            store,
            listeners[0].socket.getsockname()[1],
            rules=quick_rules(store, heartbeat_seconds=3_600),
        ) as slave:
            for count in (1, 2):
                with trio.fail_after(20):
                    stream = await listeners[0].accept()
                async with stream:
                    await read_exactly(stream, 16)
                    await stream.send_all(frame_head(0, 0))
                    await wait_until(lambda: slave.following)
                    await stream.send_eof()
                    await wait_until(lambda: not slave.following)
                assert caplog.text.count("the master closed the connection") == count
        await listeners[0].aclose()


async def test_one_slave_never_counts_twice(tmp_path: Path) -> None:
    """A second connection of the same slave replaces the first, whose end is not noticed yet."""
    async with (
        open_pair(tmp_path) as (master_store, slave_store),
        serving_master(master_store, rules=quick_rules(master_store, silence_seconds=3_600)) as (
            master,
            port,
        ),
    ):
        async with (
            await trio.open_tcp_stream("127.0.0.1", port) as stream,
            following_slave(slave_store, port) as slave,
        ):
            await wait_until(
                lambda: any(
                    connection.link.name == slave._name for connection in master.connections
                )
            )
            first = next(
                connection
                for connection in master.connections
                if connection.link.name == slave._name
            )
            await stream.send_all(REPORT.pack(-1) + REPORT.pack(0) + REPORT.pack(slave._name))
            await wait_until(lambda: first not in master.connections)
            assert len(master.replicas.replicas) <= 1


async def test_reports_count_once_the_logs_are_known_to_be_the_same(tmp_path: Path) -> None:
    """A slave of TrioMQ that has not named itself may have a log that has parted, or an older
    connection: it does not count as a copy.
    """
    async with (
        open_store(quick_config(tmp_path)) as store,
        serving_master(store) as (master, port),
        impatient(store, master) as durability,
    ):
        fill(store, 3)
        end = store.appended.value
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(REPORT.pack(-1) + REPORT.pack(end))
            hello_size = 12 + 28
            await read_exactly(stream, hello_size)
            assert not durability.durable_now(end)
            assert await wait_durable(durability, end) is DurabilityResult.SLAVE_NOT_AVAILABLE
            await stream.send_all(REPORT.pack(-77))
            await wait_until(lambda: master.replicas.replicas)
            assert await wait_durable(durability, end) is DurabilityResult.FLUSH_SLAVE_TIMEOUT, (
                "now it is waited for"
            )
            fill(store, 1)
            grown = store.appended.value
            await wait_until(lambda: master.connections[0].link.next_offset == grown)
            await stream.send_all(REPORT.pack(grown))
            await wait_until(lambda: durability.durable_now(grown))
            assert await wait_durable(durability, end) is DurabilityResult.DURABLE


async def test_a_report_after_the_replacement_counts_for_no_slave(tmp_path: Path) -> None:
    """Reports in flight on the old connection do not count; at no moment does the slave count
    twice.
    """
    async with open_store(quick_config(tmp_path)) as store, serving_master(store) as (master, port):
        counted: list[int] = []
        master.on_acknowledged.append(lambda: counted.append(len(master.replicas.replicas)))
        fill(store, 3)
        end = store.appended.value
        # Trio chooses by chance which of two tasks runs first: the task of the new connection must
        # come before that of the old connection now and then.
        for _ in range(12):
            async with (
                await trio.open_tcp_stream("127.0.0.1", port) as old,
                await trio.open_tcp_stream("127.0.0.1", port) as new,
            ):
                for stream in (old, new):
                    await stream.send_all(REPORT.pack(-1) + REPORT.pack(0))
                    await read_exactly(stream, 12 + 28)
                await old.send_all(REPORT.pack(-77))
                await wait_until(lambda: len(master.replicas.replicas) == 1)
                os.write(old.socket.fileno(), REPORT.pack(end))
                os.write(
                    new.socket.fileno(), REPORT.pack(-77)
                )  # both are there when the master reads
                await wait_until(lambda: len(master.connections) == 1)
                await new.send_all(REPORT.pack(end))
                await wait_until(
                    lambda: [one.acknowledged for one in master.replicas.replicas.values()] == [end]
                )
            await wait_until(lambda: not master.connections)
        assert set(counted) == {1}


async def test_a_slave_that_cannot_be_helped_keeps_nothing_from_being_deleted(
    tmp_path: Path,
) -> None:
    """What the slave needs is deleted; if the master kept the rest for it, the disk would fill for
    nothing.
    """
    async with open_store(quick_config(tmp_path)) as store, serving_master(store) as (master, port):
        fill(store, 30)
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(REPORT.pack(10))
            await wait_until(lambda: master.replicas.replicas)
            assert master.needed_from() == 10
        await wait_until(lambda: not master.connections)
        assert master.needed_from() == NEVER_NEEDED
        await store.cleaner._delete_segment(store.log.segments.first_offset, "a test")
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(REPORT.pack(10))
            await wait_until(lambda: master.replicas.replicas)
            assert master.needed_from() == NEVER_NEEDED


async def test_a_slave_with_sync_flush_reconnects_when_its_disk_has_its_whole_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A connection ends while fsync is slow. The next one must not begin before bytes that the
    slave already has, which would look like logs that have parted.
    """
    async with open_pair(
        tmp_path, slave={"flush_mode": FlushMode.SYNC, "flush_interval_ms": 3_600_000}
    ) as (master_store, slave_store):
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


async def test_a_slave_whose_disk_fails_tries_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An error of the disk on an append ends the connection, not the broker."""
    broken = True

    class FailingDisk(Disk):
        def write_at(
            self, fd: int, data: bytes | bytearray | memoryview, offset: int, path: Path
        ) -> None:
            if broken and path.parent.name == "commitlog":
                raise StoreIoError(path, OSError(errno.EIO, "Input/output error"))
            super().write_at(fd, data, offset, path)

    async with (
        open_store(quick_config(tmp_path / "master")) as master_store,
        open_store(quick_config(tmp_path / "slave"), disk=FailingDisk()) as slave_store,
    ):
        fill(master_store, 3)
        async with serving_master(master_store) as (_, port), following_slave(slave_store, port):
            await wait_until(lambda: "Input/output error" in caplog.text)
            broken = False
            await wait_equal(master_store, slave_store)
        assert log_of(slave_store) == log_of(master_store)


@pytest.mark.parametrize("hello", [False, True])
async def test_a_slave_leaves_a_master_that_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, hello: bool
) -> None:
    """With full kernel buffers, the task that receives waits to send."""
    stuck = True
    post, drain = LinkSocket.post, LinkSocket.drain

    def post_into_full_buffers(link_socket: LinkSocket, data: bytes) -> bool:
        if not stuck or data.startswith(REPORT.pack(-1)):  # the opening has gone out
            return post(link_socket, data)
        link_socket._unsent.append(memoryview(data))
        return False

    async def drain_full_buffers(link_socket: LinkSocket) -> None:
        if stuck and link_socket.is_full:
            await trio.sleep_forever()
        await drain(link_socket)

    monkeypatch.setattr(LinkSocket, "post", post_into_full_buffers)
    monkeypatch.setattr(LinkSocket, "drain", drain_full_buffers)
    async with open_pair(tmp_path) as (source, slave_store):
        fill(source, 3)
        data = log_of(source)
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        async with following_slave(
            slave_store,
            listeners[0].socket.getsockname()[1],
            rules=quick_rules(slave_store, silence_seconds=1.0),
        ):
            with trio.fail_after(30):
                async with await listeners[0].accept() as stream:
                    await read_exactly(stream, 16)
                    await stream.send_all(
                        (hello_frame(0, MasterHello(0, len(data), 0, 0)) if hello else b"")
                        + frame_head(0, len(data))
                        + data
                    )
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
    """The bytes of a tenth of a second at once, then the rate: never more than both together."""
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
                    assert (
                        slave_store.appended.value
                        <= rate * (trio.current_time() - begin) + rate / 10 + 32_768
                    )
        assert log_of(slave_store) == log_of(master_store)


# --- waiting
# ------------------------------------------------------------------------------------------------


@pytest.mark.feature("58a", "64b")
async def test_what_a_send_waits_for(tmp_path: Path) -> None:
    """Without a slave: SLAVE_NOT_AVAILABLE at once. With a slave: after its report. With a silent
    slave: FLUSH_SLAVE_TIMEOUT.
    """
    async with (
        open_store(quick_config(tmp_path)) as store,
        serving_master(store, awaited=True, rules=quick_rules(store, silence_seconds=3_600)) as (
            master,
            port,
        ),
        impatient(store, master) as waiting,
    ):
        fill(store, 1)
        end = store.appended.value
        assert not waiting.durable_now(end)
        assert await wait_durable(waiting, end) is DurabilityResult.SLAVE_NOT_AVAILABLE
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        async with stream:
            await stream.send_all(REPORT.pack(0))
            await wait_until(lambda: master.replicas.replicas)
            assert await wait_durable(waiting, end) is DurabilityResult.FLUSH_SLAVE_TIMEOUT
            patient = ReplicatedDurability(store, master, timeout_seconds=60)
            async with trio.open_nursery() as nursery:
                answers: list[DurabilityResult] = []

                async def send() -> None:
                    answers.append(await wait_durable(patient, end))

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
        assert (
            await wait_durable(waiting, store.appended.value)
            is DurabilityResult.SLAVE_NOT_AVAILABLE
        )


async def test_refused_before_it_is_stored(tmp_path: Path) -> None:
    async with (
        open_store(quick_config(tmp_path)) as store,
        serving_master(store, awaited=True, min_in_sync_replicas=2) as (master, port),
    ):
        waiting = ReplicatedDurability(store, master)
        assert "minInSyncReplicas=2" in waiting.refusal()
        async with (
            open_store(quick_config(tmp_path / "slave")) as slave_store,
            following_slave(slave_store, port),
        ):
            await wait_until(lambda: not waiting.refusal())


async def test_with_one_replica_a_send_waits_for_no_slave_as_in_java(tmp_path: Path) -> None:
    async with (
        open_store(quick_config(tmp_path)) as store,
        serving_master(store, awaited=True, in_sync_replicas=1) as (master, _),
    ):
        fill(store, 1)
        assert ReplicatedDurability(store, master).durable_now(store.appended.value)


def test_master_and_slave_cancelled_at_every_step(tmp_path: Path) -> None:
    """From the first byte to a copy of some messages, and a send that waits for the copy: no task
    and no socket is left.
    """
    numbers = itertools.count()

    async def scenario(begin: Callable[[trio.CancelScope], None]) -> None:
        async with open_pair(tmp_path / str(next(numbers))) as (master_store, slave_store):
            fill(master_store, 2)
            with trio.CancelScope() as scope:
                begin(scope)
                async with (
                    serving_master(master_store, awaited=True) as (master, port),
                    following_slave(slave_store, port),
                ):
                    waiting = ReplicatedDurability(master_store, master)
                    await slave_store.appended.wait_reached(master_store.appended.value)
                    fill(master_store, 1)
                    master.tables_changed()
                    await wait_durable(waiting, master_store.appended.value)

    assert cancel_everywhere(scenario, stride=5, jump=False) > 10
