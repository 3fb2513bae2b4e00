"""LogCopy: a log copied byte for byte, cut at any places, is a log like any other, and takes
nothing else.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import struct
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from stores import FaultyDisk, SteppingClock, draft, read_all, take, tiny_config

from triomq.broker.store.core.config import FlushMode
from triomq.broker.store.core.errors import CopyRefused, DiskFull, StoreUnavailable
from triomq.broker.store.follow import log_copy, write_behind
from triomq.broker.store.follow.log_copy import LogCopy
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.opening import open_store
from triomq.broker.store.queues.batch_queue import BatchQueue
from triomq.broker.store.store import MessageStore
from triomq.remoting.protocol.record import MAGIC_BLANK, MAGIC_V1

COUNT = 60


async def write_original(root: Path) -> bytes:
    """The bytes of a log: several segments of messages of two topics."""
    async with open_store(tiny_config(root), SteppingClock()) as store:
        for number in range(COUNT):
            store.append(
                [draft(b"x" * (number * 7), "AB"[number % 2], tags="t", unique_key=f"u{number}")]
            )
        assert len(store.log.segments.items) > 3
        return log_of(store)


def log_of(store: MessageStore) -> bytes:
    data = b"".join(segment.path.read_bytes() for segment in store.log.segments.items)
    return data[: store.appended.value - store.first_offset]


def cuts(data: bytes, start: int, seed: int) -> list[tuple[int, bytes]]:
    """Pieces with their offsets, of any length from one byte to more than a segment."""
    dice, pieces, at = random.Random(seed), [], 0
    while at < len(data):
        size = dice.choice((1, 7, 90, 700, 3000, 9000))
        pieces.append((start + at, data[at : at + size]))
        at += size
    return pieces


@pytest.mark.parametrize("seed", range(5))
async def test_a_copy_cut_at_any_place_is_the_same_log(tmp_path: Path, seed: int) -> None:
    data = await write_original(tmp_path / "master")
    async with open_store(tiny_config(tmp_path / "slave"), SteppingClock()) as store:
        copy = store.follow()
        for start, piece in cuts(data, 0, seed):
            take(copy, start, piece)
            assert copy.received == start + len(piece)
        assert log_of(store) == data
        for topic, odd in (("A", 0), ("B", 1)):
            messages = await read_all(store, topic, 0)
            assert [len(message.body) for message in messages] == [
                number * 7 for number in range(COUNT) if number % 2 == odd
            ]
        assert (
            len(
                (
                    await store.query(
                        "A", "u8", max_count=9, begin_ms=0, end_ms=1 << 60, unique=True
                    )
                ).chunks
            )
            == 1
        )
        with pytest.raises(StoreUnavailable, match="slave"):
            store.append([draft()])
    async with open_store(
        tiny_config(tmp_path / "slave"), SteppingClock()
    ) as store:  # and it is a store like any other afterwards
        assert store.recovered.trusted
        assert store.append([draft(topic="A")])[0].queue_offset == COUNT // 2


async def test_a_copy_goes_on_after_a_full_disk_though_what_it_has_is_not_confirmed(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Controller mode: the master confirms what the set has, and so waits for this copy."""
    data, full = await write_original(tmp_path / "master"), [False]
    pieces = cuts(data, 0, seed=0)
    half, last = len(pieces) // 2, len(pieces) - 1
    disk = FaultyDisk(refuse_write=lambda path: full[0] and path.parent.name == "index")
    config = tiny_config(tmp_path / "slave", index_write_interval_ms=500)
    async with open_store(config, SteppingClock(), disk=disk, holds_tail=True) as store:
        assert store.confirmations is not None
        copy = store.follow()
        for number, (start, piece) in enumerate(pieces[:last]):
            take(copy, start, piece)
            if number == half:
                full[0] = True
                store.confirmations.confirm(store.appended.value)
        assert store.confirmed.value < store.appended.value
        round_seconds = config.index_write_interval_ms / 1000 + 0.1
        await trio.sleep(round_seconds)
        with pytest.raises(DiskFull):
            take(copy, *pieces[last])
        full[0] = False
        await trio.sleep(round_seconds)
        take(copy, copy.received, data[copy.received :])
        store.confirmations.confirm(len(data))
        await trio.sleep(1)
        assert (log_of(store), store.indexed.value) == (data, len(data))


class SlowDisk(Disk):
    """Writes into the log take a moment, in any thread, or fail."""

    threads: set[int]
    failing: bool

    def __init__(self) -> None:
        super().__init__()
        self.threads, self.failing = set(), False

    def write_at(
        self, fd: int, data: bytes | bytearray | memoryview, offset: int, path: Path
    ) -> None:
        if path.parent.name == "commitlog":
            self.threads.add(threading.get_ident())
            time.sleep(0.001)
            if self.failing:
                os.pwrite(fd, data[: len(data) // 2], offset)
                raise DiskFull(path)
        super().write_at(fd, data, offset, path)


@asynccontextmanager
async def written_behind(copy: LogCopy) -> AsyncIterator[None]:
    async def write() -> None:
        while True:
            await copy.writer.write_some()

    async def commit() -> None:
        while True:
            await copy.writer.commit_some(copy.index_taken)

    with copy.writer.using():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            nursery.start_soon(commit)
            yield
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("flush_mode", FlushMode)
@pytest.mark.parametrize("seed", range(5))
async def test_a_log_written_by_a_thread_is_the_same_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, flush_mode: FlushMode
) -> None:
    """A thread writes large pieces, and all later ones until these are written. The connection ends
    now and then: unwritten bytes come again.
    """
    monkeypatch.setattr(log_copy, "BULK_BYTES", 2_500)
    monkeypatch.setattr(write_behind, "TURN_BYTES_MAX", 6_000)
    monkeypatch.setattr(write_behind, "STEP_MESSAGES", 8)
    monkeypatch.setattr(write_behind, "WAITING_BYTES_MAX", 9_000)
    data = await write_original(tmp_path / "master")
    dice, again, behind = random.Random(seed), 0, 0
    disk = SlowDisk()
    async with open_store(
        tiny_config(tmp_path / "slave", flush_mode=flush_mode, flush_interval_ms=1),
        SteppingClock(),
        disk=disk,
    ) as store:
        copy = store.follow()
        while store.appended.value < len(data):
            async with written_behind(copy):
                for _ in range(dice.randrange(1, 12)):
                    end = min(len(data), copy.received + dice.choice((1, 7, 90, 700, 3_000, 9_000)))
                    take(copy, copy.received, data[copy.received : end])
                    assert copy.received == end
                    behind += not copy.writer.is_empty
                    await copy.writer.wait_room()
                    assert not copy.writer.is_full
                    if dice.random() < 0.3:
                        await trio.sleep(0.002)
                if copy.received == len(data):
                    with trio.fail_after(5):
                        await store.appended.wait_reached(len(data))
            again += copy.received > store.appended.value
            copy.drop_rest()
            assert copy.received == store.appended.value
            assert log_of(store) == data[: store.appended.value]
        with trio.fail_after(5):
            await store.indexed.wait_reached(len(data))
        assert log_of(store) == data
        for topic, odd in (("A", 0), ("B", 1)):
            messages = await read_all(store, topic, 0)
            assert [(len(message.body), message.queue_offset) for message in messages] == [
                (number * 7, number // 2) for number in range(COUNT) if number % 2 == odd
            ]
    assert behind
    assert again or len(disk.threads) > 1


async def test_bytes_behind_a_blank_that_are_written_ahead_while_a_thread_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And bytes that an ended connection has left there are erased."""
    monkeypatch.setattr(log_copy, "BULK_BYTES", 1_000)
    data = bytearray(await write_original(tmp_path / "master"))
    (blank, _), (next_blank, _), *_ = blanks_of(data)
    soiled = data.copy()
    for place in (blank, next_blank):
        end = place + 4_096 - place % 4_096
        soiled[place + 8 : end] = b"g" * (end - place - 8)
    for number, (log, until, written) in enumerate(
        itertools.product(
            (data, soiled), (blank + 12, 4_096, 5_200, next_blank + 12), (False, True)
        )
    ):
        async with open_store(
            tiny_config(tmp_path / str(number)), SteppingClock(), disk=SlowDisk()
        ) as store:
            copy = store.follow()
            with copy.writer.using():
                for start, end in itertools.pairwise(
                    (
                        0,
                        2_000,
                        blank + 10,
                        *(
                            place
                            for place in (blank + 12, 4_096, 5_200, next_blank + 12)
                            if place <= until
                        ),
                    )
                ):
                    take(copy, start, soiled[start:end])
                assert not copy.writer.is_empty
                if written:
                    await copy.writer.finish(copy.index_taken)
            copy.drop_rest()
            begin = store.appended.value
            assert (begin >= blank) == written
            async with written_behind(copy):
                for start in range(begin, len(log), 20):
                    take(copy, start, log[start : start + 20])
                    await copy.writer.wait_room()
                with trio.fail_after(5):
                    await store.appended.wait_reached(len(log))
            assert log_of(store) == soiled[:begin] + log[begin:]


def blanks_of(log: bytes | bytearray) -> list[tuple[int, int]]:
    """(place, end of its segment) of each BLANK."""
    found, at = [], 0
    while at < len(log):
        size, magic = struct.unpack_from(">iI", log, at)
        if magic == MAGIC_BLANK & 0xFFFFFFFF:
            found.append((at, at + size))
        at += size
    return found


async def test_a_disk_that_is_full_while_a_thread_writes_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_copy, "BULK_BYTES", 1)
    data = await write_original(tmp_path / "master")
    disk = SlowDisk()
    async with open_store(tiny_config(tmp_path / "slave"), SteppingClock(), disk=disk) as store:
        copy = store.follow()
        with copy.writer.using():
            take(copy, 0, data[:2_000])
            await copy.writer.write_some()
            assert store.appended.value == 0
            await copy.writer.commit_some(copy.index_taken)
            had = store.appended.value
            assert 0 < had < 2_000
            take(copy, 2_000, data[2_000:3_000])
            await copy.writer.write_some()
            disk.failing = True
            take(copy, 3_000, data[3_000:6_000])
            with pytest.raises(DiskFull):
                await copy.writer.write_some()
            assert copy.writer.is_empty, "written bytes that are not committed come again, too"
            assert store.appended.value == had
        copy.drop_rest()
        assert copy.received == store.appended.value == had
        disk.failing = False
        with copy.writer.using():
            take(copy, had, data[had:3_000])
            await copy.writer.finish(copy.index_taken)
            end = store.appended.value
            assert store.log.segments.items[0].path.read_bytes()[end:] == bytes(4_096 - end), (
                "the bytes of the failed write are erased"
            )
            take(copy, copy.received, data[copy.received :])
            await copy.writer.finish(copy.index_taken)
        assert log_of(store) == data


async def test_nothing_is_part_of_the_log_before_it_is_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_copy, "BULK_BYTES", 1)
    data = await write_original(tmp_path / "master")
    begun, released = threading.Event(), threading.Event()
    released.set()

    class HeldDisk(Disk):
        def write_at(
            self, fd: int, data: bytes | bytearray | memoryview, offset: int, path: Path
        ) -> None:
            begun.set()
            released.wait(10)
            super().write_at(fd, data, offset, path)

    async with open_store(
        tiny_config(tmp_path / "slave"), SteppingClock(), disk=HeldDisk()
    ) as store:
        copy = store.follow()
        async with written_behind(copy):
            take(copy, 0, data[:1_000])
            await trio.testing.wait_all_tasks_blocked()
            with trio.fail_after(5):
                await store.appended.wait_reached(1)
            had = store.appended.value
            released.clear()
            begun.clear()
            take(copy, 1_000, data[1_000:2_000])
            await trio.to_thread.run_sync(begun.wait)
            assert store.appended.value == had, "it shows bytes that are not in the file"
            released.set()
            with trio.fail_after(5):
                await store.appended.wait_reached(copy.writer.end)
        assert log_of(store) == data[: store.appended.value]


async def test_a_failed_write_behind_a_blank_is_erased_whatever_is_committed_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A BLANK before it waits to be committed with the bytes behind it."""
    monkeypatch.setattr(log_copy, "BULK_BYTES", 1_000)
    data = bytearray(await write_original(tmp_path / "master"))
    (blank, blank_end), (next_blank, next_end), *_ = blanks_of(data)
    soiled = data.copy()
    for place, stop in ((blank, blank_end), (next_blank, next_end)):
        soiled[place + 8 : stop] = b"g" * (stop - place - 8)

    class FailingDisk(Disk):
        failing = False

        def write_at(
            self, fd: int, data: bytes | bytearray | memoryview, offset: int, path: Path
        ) -> None:
            if (
                self.failing
                and path.parent.name == "commitlog"
                and threading.current_thread() is threading.main_thread()
            ):
                os.pwrite(fd, data[: len(data) // 2], offset)
                raise DiskFull(path)
            super().write_at(fd, data, offset, path)

    disk = FailingDisk()
    async with open_store(tiny_config(tmp_path / "slave"), SteppingClock(), disk=disk) as store:
        copy = store.follow()
        with copy.writer.using():
            for start, stop in itertools.pairwise(
                (0, 2_000, blank + 10, blank_end, 5_200, next_blank + 8)
            ):
                take(copy, start, soiled[start:stop])
            assert not copy.writer.is_empty
            disk.failing = True
            with pytest.raises(DiskFull):
                take(copy, next_blank + 8, soiled[next_blank + 8 : next_blank + 48])
            disk.failing = False
            await copy.writer.finish(copy.index_taken)
        copy.drop_rest()
        begin = store.appended.value
        assert begin == next_blank
        for start in range(begin, len(data), 20):
            take(copy, start, data[start : start + 20])  # another master, with zeros there
        assert log_of(store) == soiled[:begin] + data[begin:]


async def test_pieces_written_by_a_thread_are_committed_when_the_connection_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And they are not written again."""
    monkeypatch.setattr(log_copy, "BULK_BYTES", 1)
    data = await write_original(tmp_path / "master")
    disk = SlowDisk()
    async with open_store(tiny_config(tmp_path / "slave"), SteppingClock(), disk=disk) as store:
        copy = store.follow()
        with copy.writer.using():
            take(copy, 0, data[:2_000])
            await copy.writer.write_some()
            disk.failing = True
            await copy.writer.finish(copy.index_taken)
            assert copy.writer.is_empty
            assert 0 < store.appended.value <= 2_000
        disk.failing = False
        assert log_of(store) == data[: store.appended.value]
        take(copy, copy.received, data[copy.received :])
        assert log_of(store) == data


async def test_taken_records_are_shown_by_index_taken(tmp_path: Path) -> None:
    """They are in the log at once, and can be reported."""
    data = await write_original(tmp_path / "master")
    async with open_store(tiny_config(tmp_path / "slave"), SteppingClock()) as store:
        copy = store.follow()
        copy.take_unindexed(0, data[:1500])
        assert copy.received == 1500
        assert store.appended.value > store.indexed.value == 0 == store.max_offset("A", 0)
        copy.index_taken()
        assert store.indexed.value == store.appended.value
        assert store.max_offset("A", 0) > 0
        copy.take_unindexed(1500, data[1500:])  # over several segments
        copy.index_taken()
        assert store.indexed.value == store.appended.value == len(data)
        assert store.max_offset("A", 0) == COUNT // 2


async def test_a_copy_may_begin_at_a_later_segment(tmp_path: Path) -> None:
    data = await write_original(tmp_path / "master")
    begin = len(data) - len(data) % 4096
    async with open_store(tiny_config(tmp_path / "slave"), SteppingClock()) as store:
        copy = store.follow()
        assert copy.is_empty
        take(copy, begin, data[begin:])
        assert (store.first_offset, log_of(store)) == (begin, data[begin:])
        assert store.flushed.value == begin
        messages = await read_all(store, "A", 0)
        assert store.min_offset("A", 0) == messages[0].queue_offset > 0
        assert (messages[-1].queue_offset, store.max_offset("A", 0)) == (COUNT // 2 - 1, COUNT // 2)
    async with open_store(tiny_config(tmp_path / "slave"), SteppingClock()) as store:
        assert (store.first_offset, store.max_offset("A", 0)) == (begin, COUNT // 2)
        assert store.min_offset("A", 0) == messages[0].queue_offset


async def test_bytes_that_do_not_fit_are_refused_and_whole_records_stay(tmp_path: Path) -> None:
    data = await write_original(tmp_path / "master")
    async with open_store(tiny_config(tmp_path / "slave"), SteppingClock()) as store:
        copy = store.follow()
        with pytest.raises(CopyRefused, match="no multiple of mappedFileSizeCommitLog=4096"):
            take(copy, 5, data[5:10])
        take(copy, 0, data[:500])
        end = store.appended.value
        assert 0 < end < 500 == copy.received
        with pytest.raises(CopyRefused, match="goes on at 500"):
            take(copy, 600, data[600:700])
        copy.drop_rest()
        assert copy.received == end
        damaged = bytearray(data[end:1500])
        damaged[90] ^= 1
        with pytest.raises(CopyRefused, match="CRC"):
            take(copy, end, bytes(damaged))
        assert copy.received == store.appended.value == end
        assert log_of(store) == data[: copy.received]
        with pytest.raises(CopyRefused, match="are not a message: size"):
            take(copy, copy.received, b"nonsense" * 20)
        take(copy, copy.received, data[copy.received :])
        assert log_of(store) == data


@pytest.mark.parametrize(("ours", "theirs"), [(8192, 4096), (4096, 8192)])
async def test_files_of_another_size_are_noticed(tmp_path: Path, ours: int, theirs: int) -> None:
    async with open_store(
        tiny_config(tmp_path / "master", segment_size_bytes=theirs), SteppingClock()
    ) as store:
        for number in range(COUNT):
            store.append([draft(b"x" * (number * 7))])
        data = log_of(store)
    async with open_store(
        tiny_config(tmp_path / "slave", segment_size_bytes=ours), SteppingClock()
    ) as store:
        copy = store.follow()
        with pytest.raises(
            CopyRefused,
            match=f"files have another size than ours; set mappedFileSizeCommitLog={ours} to its",
        ):
            take(copy, 0, data)
        assert log_of(store) == data[: store.appended.value] != b""


async def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = await write_original(tmp_path / "master")
    async with open_store(tiny_config(tmp_path / "slave"), SteppingClock()) as store:
        copy: LogCopy = store.follow()
        take(copy, 0, data[:6000])
        write_at, end = store.disk.write_at, copy.received

        def torn(disk: object, fd: int, data: bytes, offset: int, path: Path) -> None:
            write_at(fd, data[:9], offset, path)
            raise DiskFull(path)

        with monkeypatch.context() as patched:
            patched.setattr(type(store.disk), "write_at", torn)
            with pytest.raises(DiskFull):
                take(copy, end, data[end:])
        end = copy.received
        assert end == store.appended.value
        take(copy, end, data[end:])
        assert log_of(store) == data


async def test_a_record_says_itself_which_kind_of_queue_it_is_for(tmp_path: Path) -> None:
    """A slave may get messages of a topic before the table of topics, which says that it has batch
    consume queues.
    """
    async with open_store(
        tiny_config(tmp_path / "master"), SteppingClock(), batch_topics=lambda: {"B"}
    ) as master:
        for number in range(3):
            master.append([draft(b"%d" % number, "B")])
        async with open_store(tiny_config(tmp_path / "slave"), SteppingClock()) as store:
            take(store.follow(), 0, log_of(master))
            assert isinstance(store.queue_table.queues["B", 0], BatchQueue)
            assert store.max_offset("B", 0) == master.max_offset("B", 0) == 3


async def test_a_queue_that_was_deleted_and_created_again(tmp_path: Path) -> None:
    """The log has the messages of both queues. Queues built from it have those of the second, from
    one batch or several, and after a restart, too.
    """
    async with open_store(tiny_config(tmp_path / "master")) as master:
        for number in range(7):
            master.append([draft(f"old{number}"), draft("other", "Other")])
        master.delete_topic("T")
        ends = [master.appended.value]
        for number in range(3):
            master.append([draft(f"new{number}"), draft("other", "Other")])
            ends.append(master.appended.value)
        log = bytes(master.log_bytes(0, master.appended.value) or b"")
    wanted = [b"new0", b"new1", b"new2"]
    for name, cuts in (("at once", ends[-1:]), ("bit by bit", ends)):
        async with open_store(tiny_config(tmp_path / name)) as slave:
            copy, begin = slave.follow(), 0
            for end in cuts:
                take(copy, begin, log[begin:end])
                begin = end
                await slave.index_syncer.save()
            assert [message.body for message in await read_all(slave, "T", 0)] == wanted
            assert slave.max_offset("Other", 0) == 10
        async with open_store(tiny_config(tmp_path / name)) as store:
            assert [message.body for message in await read_all(store, "T", 0)] == wanted
            assert store.append([draft("next")])[0].queue_offset == 3
    shutil.rmtree(tmp_path / "master" / "consumequeue")
    (tmp_path / "master" / "checkpoint").unlink()
    async with open_store(tiny_config(tmp_path / "master")) as store:
        assert [message.body for message in await read_all(store, "T", 0)] == wanted
        assert store.append([draft("next")])[0].queue_offset == 3


async def test_a_large_record_in_small_pieces_is_not_checked_after_each_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"segment_size_bytes": 1 << 20}
    async with open_store(tiny_config(tmp_path / "master", **config)) as master:
        for _ in range(3):
            master.append([draft(bytes(300_000))])
        log = b"".join(
            [
                bytes(
                    await master.log_bytes_cold(start, min(start + 65_536, master.appended.value))
                )
                for start in range(0, master.appended.value, 65_536)
            ]
        )
    calls = []
    next_record = LogCopy._next

    def counted(copy: LogCopy, *arguments: object) -> object:
        calls.append(1)
        return next_record(copy, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(LogCopy, "_next", counted)
    async with open_store(tiny_config(tmp_path / "slave", **config)) as store:
        copy = store.follow()
        for start in range(0, len(log), 100):
            take(copy, start, log[start : start + 100])
        assert log_of(store) == log
        take(copy, len(log), log[:7])
        copy.drop_rest()
        with pytest.raises(CopyRefused):
            take(copy, len(log), log[:100])
    assert len(calls) <= 12


async def test_bytes_behind_a_blank_do_not_wait_in_memory(tmp_path: Path) -> None:
    """Zeros, or bytes of Java's pooled buffers, cut at any places. After the connection or the
    process ends among them, other bytes may come.
    """
    config = {"segment_size_bytes": 1 << 20}
    async with open_store(tiny_config(tmp_path / "master", **config)) as master:
        places = [master.append([draft(bytes(300_000))])[0] for _ in range(4)]
        (_, second) = master.log.segments.items
        blank = places[2].log_offset + places[2].size
        log = log_of(master)
    assert second.base - blank > 100_000
    assert not any(log[blank + 8 : second.base])
    garbage = random.Random(1).randbytes(second.base - blank - 8 - 50_000)
    soiled = log[: blank + 8] + bytes(20_000) + garbage + log[second.base - 30_000 :]
    elsewhere = log[: second.base - 30_000] + garbage[:30_000] + log[second.base :]

    def feed(copy: LogCopy, log: bytes, end: int, step: int) -> int:
        """Return the most bytes that waited while the end of the segment came."""
        most = 0
        while copy.received < end:
            take(copy, copy.received, log[copy.received : min(copy.received + step, end)])
            if blank + 8 <= copy.received < second.base:
                assert copy.log.appended.value == blank
                most = max(most, len(copy._rest))
        return most

    for name, first, then in (
        ("zeros", log, log),
        ("garbage", soiled, soiled),
        ("zeros at last", soiled, log),
        ("garbage elsewhere", soiled, elsewhere),
    ):
        root = tmp_path / name
        for how, step in (("connection", 4097), ("process", 333)):
            async with open_store(tiny_config(root / how, **config)) as store:
                copy = store.follow()
                assert feed(copy, first, blank + 60_000, step) == 8
                assert copy.received == blank + 60_000
                if how == "connection":
                    copy.drop_rest()
                    assert feed(copy, then, len(log), step) == 8
                    assert log_of(store) == then
            async with open_store(tiny_config(root / how, **config)) as store:
                feed(store.follow(), then, len(log), step)
                assert log_of(store) == then
                assert len(await read_all(store, "T", 0)) == 4


async def test_a_record_that_would_fill_the_memory_is_refused_at_once(tmp_path: Path) -> None:
    async with open_store(tiny_config(tmp_path, segment_size_bytes=1 << 30)) as store:
        with pytest.raises(CopyRefused, match="size 536870912"):
            take(
                store.follow(),
                0,
                (1 << 29).to_bytes(4) + (MAGIC_V1 & 0xFFFFFFFF).to_bytes(4) + bytes(92),
            )


async def test_a_number_below_the_end_of_its_queue_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log of a master that lost its queues once and assigned numbers twice: the second messages
    are in the log, but in no queue.
    """
    async with open_store(tiny_config(tmp_path / "one")) as store:
        store.append([draft(f"one{number}") for number in range(4)])
        first = log_of(store)
    async with open_store(tiny_config(tmp_path / "slave")) as slave:
        copy = slave.follow()
        take(copy, 0, first)
        for number in (2, 3):
            record = bytearray(first[: len(first) // 4])
            record[20:28] = number.to_bytes(8)
            record[28:36] = slave.appended.value.to_bytes(8)
            take(copy, slave.appended.value, record)
        assert slave.max_offset("T", 0) == 4
    assert [
        line.getMessage() for line in caplog.records if "it is in no queue" in line.getMessage()
    ] == [
        (
            f"T-0: the message at log offset {len(first)} has the number 2, but the queue goes"
            " on at 4: it is in no queue (mqadmin message show finds it)"
        )
    ]
