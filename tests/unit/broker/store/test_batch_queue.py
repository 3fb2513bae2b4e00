"""Topics with batch consume queues: one record for many messages, found by any of their offsets."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from batch_stores import TOPIC, batch_config, inner_batch, single
from hypothesis import given, settings
from hypothesis import strategies as st
from stores import FaultyDisk, SteppingClock, draft, take

from triomq.broker.store.core.errors import DiskFull
from triomq.broker.store.core.results import GetResult, GetStatus
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.opening import open_store
from triomq.broker.store.queues.batch_queue import BATCH_ENTRY, BatchEntry, BatchQueue
from triomq.broker.store.store import MessageStore
from triomq.remoting.protocol.record import StoredMessage
from triomq.remoting.protocol.record_reader import decode_records
from triomq.remoting.protocol.sys_flags import INNER_BATCH, NEED_UNWRAP


def open_batches(root: Path, **changes: Any) -> Any:
    return open_store(batch_config(root, **changes), SteppingClock(), batch_topics=lambda: {TOPIC})


def get(store: MessageStore, offset: int, messages_max: int = 32, **changes: Any) -> GetResult:
    found = store.get(TOPIC, 0, offset, messages_max=messages_max, bytes_max=1 << 20, **changes)
    assert found is not None
    return found


def records(found: GetResult) -> list[StoredMessage]:
    return decode_records(b"".join(found.chunks), check_crc=True)


def bases(messages: Sequence[StoredMessage]) -> list[tuple[int, int]]:
    """(first queue offset, count) of each record, as its properties say."""
    return [
        (int(message.properties["INNER_BASE"]), int(message.properties["INNER_NUM"]))
        for message in messages
    ]


def queue_of(store: MessageStore) -> BatchQueue:
    queue = store.queue_table.queues[TOPIC, 0]
    assert isinstance(queue, BatchQueue)
    return queue


def entries(store: MessageStore) -> list[BatchEntry]:
    queue = queue_of(store)
    return [
        queue.batch(number)
        for number in range(queue.entries.first_offset, queue.entries.end_offset)
    ]


async def test_a_record_takes_as_many_numbers_as_it_has_messages(tmp_path: Path) -> None:
    async with open_batches(tmp_path) as store:
        places = store.append([inner_batch(3), single(), inner_batch(4, tags="TagA")])
        assert [place.queue_offset for place in places] == [0, 3, 4]
        assert (store.min_offset(TOPIC, 0), store.max_offset(TOPIC, 0)) == (0, 8)
        await store.index_syncer.save()
        path = tmp_path / "batchconsumequeue" / TOPIC / "0" / ("0" * 20)
        data = path.read_bytes()
        assert len(data) == 460
        first, last = places[0], places[2]
        assert data[:46] == (
            first.log_offset.to_bytes(8)
            + first.size.to_bytes(4)
            + bytes(8)
            + first.store_timestamp.to_bytes(8)
            + bytes(8)
            + (3).to_bytes(2)
            + b"\xff\xff\xff\xff"
            + bytes(4)
        )
        assert BATCH_ENTRY.unpack_from(data, 92) == (
            last.log_offset,
            last.size,
            2598919,
            last.store_timestamp,
            4,
            4,
            -1,
            0,
        )
        assert not any(data[138:])
        assert not (tmp_path / "consumequeue" / TOPIC).exists()
        found = records(get(store, 0))
        assert bases(found) == [(0, 3), (3, 1), (4, 4)]
        assert [message.queue_offset for message in found] == [0, 3, 4]
        assert [message.sys_flag & (INNER_BATCH | NEED_UNWRAP) for message in found] == [
            0xC0,
            0,
            0xC0,
        ]


@pytest.mark.parametrize("written", [True, False], ids=["on disk", "in memory"])
async def test_an_offset_inside_of_a_record_finds_it(tmp_path: Path, written: bool) -> None:
    sizes = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9]
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    async with open_batches(tmp_path, segment_size_bytes=1 << 20) as store:
        store.append([inner_batch(size) for size in sizes])
        if written:
            await store.index_syncer.save()
            assert len(queue_of(store).bases) == 2
        for offset in range(sum(sizes)):
            found = get(store, offset, messages_max=1)
            number = max(n for n, start in enumerate(starts) if start <= offset)
            assert bases(records(found)) == [(starts[number], sizes[number])]
            assert (found.count, found.next_offset) == (
                sizes[number],
                starts[number] + sizes[number],
            )
        end = get(store, sum(sizes))
        assert (end.status, end.next_offset) == (GetStatus.OFFSET_OVERFLOW_ONE, sum(sizes))


async def test_limits_of_an_answer_count_messages_not_records(tmp_path: Path) -> None:
    async with open_batches(tmp_path, segment_size_bytes=1 << 20) as store:
        store.append([inner_batch(3) for _ in range(6)])
        assert bases(records(get(store, 4, messages_max=9))) == [(3, 3), (6, 3), (9, 3)]
        assert bases(records(get(store, 4, messages_max=8))) == [(3, 3), (6, 3)]
        size = store.queue_table.queues[TOPIC, 0].log_end // 6
        small = store.get(TOPIC, 0, 0, messages_max=32, bytes_max=2 * size + 10)
        assert small is not None
        assert small.count == 6
        tiny = store.get(TOPIC, 0, 0, messages_max=32, bytes_max=1)
        assert tiny is not None
        assert (tiny.count, tiny.next_offset) == (3, 3)


async def test_filtering_by_the_tag_of_the_record(tmp_path: Path) -> None:
    async with open_batches(tmp_path, segment_size_bytes=1 << 20) as store:
        store.append([inner_batch(2), inner_batch(2, tags="TagA"), inner_batch(2)])
        found = get(store, 0, tag_codes=frozenset({2598919}))
        assert bases(records(found)) == [(2, 2)]
        assert found.next_offset == 6
        nothing = get(store, 0, tag_codes=frozenset({1}))
        assert (nothing.status, nothing.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 6)


@pytest.mark.parametrize("how", ["stopped", "crashed", "queues lost", "half of the entries"])
async def test_recovery(tmp_path: Path, how: str) -> None:
    root = tmp_path / "store"
    async with open_batches(root) as store:
        for number in range(20):
            store.append([inner_batch(2, f"{number}:"), single(f"s{number}"), draft("other")])
        before = entries(store)
        ordinary = store.max_offset("T", 0)
    folder = root / "batchconsumequeue" / TOPIC / "0"
    assert len(list(folder.iterdir())) == 4
    if how != "stopped":
        (root / "abort").touch()
    if how == "queues lost":
        for path in folder.iterdir():
            path.unlink()
        (root / "checkpoint").unlink()
    if how == "half of the entries":
        for path in sorted(folder.iterdir())[2:]:
            path.unlink()
        (root / "checkpoint").unlink()
    async with open_batches(root) as store:
        assert entries(store) == before
        assert store.max_offset("T", 0) == ordinary
        assert store.append([single("next")])[0].queue_offset == 60
        assert [bases(records(get(store, offset)))[0] for offset in (59, 60)] == [(59, 1), (60, 1)]


@pytest.mark.parametrize("single_first", [False, True])
async def test_recovery_without_the_table_of_topics(tmp_path: Path, single_first: bool) -> None:
    """The records of a batch queue are marked, so the queue is rebuilt even without the topic."""
    root = tmp_path / "store"
    async with open_batches(root) as store:
        store.append([single(), inner_batch(5)] if single_first else [inner_batch(5), single()])
        before = entries(store)
    for name in ("checkpoint", f"batchconsumequeue/{TOPIC}/0/{0:020d}"):
        (root / name).unlink()
    (root / "batchconsumequeue" / TOPIC / "0").rmdir()
    (root / "abort").touch()
    async with open_store(batch_config(root), SteppingClock()) as store:
        assert entries(store) == before


async def test_a_slave_makes_the_same_entries(tmp_path: Path) -> None:
    """A slave copies only the log, and may not have the topic yet."""
    async with (
        open_batches(tmp_path / "master") as master,
        open_store(batch_config(tmp_path / "slave"), SteppingClock()) as slave,
    ):
        for number in range(10):
            master.append([single(f"s{number}"), inner_batch(3, f"{number}:"), draft("other")])
        copy = slave.follow()
        end = master.appended.value
        start = 0
        while start < end:  # in pieces that end in the middle of records, and where a segment ends
            stop = min(start + 1000, end, (start // 4096 + 1) * 4096)
            take(copy, start, await master.log_bytes_cold(start, stop))
            start = stop
        assert entries(slave) == entries(master)
        assert slave.max_offset("T", 0) == 10


async def test_a_topic_that_was_deleted_and_created_again(tmp_path: Path) -> None:
    """The log has the records of both topics; queues built from it only those of the second."""
    root = tmp_path / "store"
    async with open_batches(root) as store:
        store.append([inner_batch(3), inner_batch(4)])
        store.delete_topic(TOPIC)
        store.append([inner_batch(2, "new"), single("newer")])
        log = bytes(store.log_bytes(0, store.appended.value) or b"")
        wanted = bases(records(get(store, 0)))
        assert wanted == [(0, 2), (2, 1)]
    shutil.rmtree(root / "batchconsumequeue")
    (root / "checkpoint").unlink()
    async with open_batches(root) as store:
        assert bases(records(get(store, 0))) == wanted
        assert store.append([single("next")])[0].queue_offset == 3
    async with open_store(batch_config(tmp_path / "slave"), SteppingClock()) as slave:
        take(slave.follow(), 0, log)
        assert bases(records(get(slave, 0))) == wanted


@pytest.mark.parametrize("kept", range(7))
async def test_truncation(tmp_path: Path, kept: int) -> None:
    root = tmp_path / "store"
    async with open_batches(root, segment_size_bytes=1 << 20) as store:
        places = store.append([inner_batch(3, str(number)) for number in range(6)])
        before = entries(store)
    cut = places[kept].log_offset if kept < 6 else places[5].log_offset + places[5].size
    with (root / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(cut)
        file.write(bytes(8))
    (root / "abort").touch()
    (root / "checkpoint").unlink()
    async with open_batches(root, segment_size_bytes=1 << 20) as store:
        assert store.max_offset(TOPIC, 0) == 3 * kept
        assert (entries(store) if kept else []) == before[:kept]
        assert store.append([inner_batch(2)])[0].queue_offset == 3 * kept


async def test_expiry(tmp_path: Path) -> None:
    """The smallest offset follows the log; queue files except the last are deleted; queue offsets
    continue.
    """
    root = tmp_path / "store"
    async with open_batches(root) as store:
        while len(store.log.segments.items) < 6:
            store.append([inner_batch(3, "x" * 30)])
        end = store.max_offset(TOPIC, 0)
        await store.index_syncer.save()
        files = len(queue_of(store).bases)
        assert files > 2
        for _ in range(5):
            await store.cleaner._delete_segment(store.log.segments.first_offset, "a test")
            await store.cleaner.correct()
            first = next(
                entry for entry in entries(store) if entry.log_offset >= store.log.first_offset
            )
            assert store.min_offset(TOPIC, 0) == first.base
            assert get(store, first.base - 1).status is GetStatus.OFFSET_TOO_SMALL
            assert bases(records(get(store, first.base)))[0] == (first.base, 3)
        assert len(queue_of(store).bases) < files
        low = store.min_offset(TOPIC, 0)
    async with open_batches(root) as store:
        assert (store.min_offset(TOPIC, 0), store.max_offset(TOPIC, 0)) == (low, end)
        assert store.append([single()])[0].queue_offset == end


async def test_offset_by_time(tmp_path: Path) -> None:
    async with open_batches(tmp_path) as store:
        times = [store.append([inner_batch(3)])[0].store_timestamp for _ in range(4)]
        for number, time in enumerate(times):
            assert await store.offset_by_time(TOPIC, 0, time) == 3 * number
            assert await store.offset_by_time(TOPIC, 0, time, upper=True) == 3 * number
            assert await store.store_time_at(TOPIC, 0, 3 * number + 2) == time
        assert await store.offset_by_time(TOPIC, 0, times[-1] + 1) == 12
        assert await store.offset_by_time(TOPIC, 0, times[-1] + 1, upper=True) == 9
        assert await store.offset_by_time(TOPIC, 0, times[0] - 1) == 0
        assert await store.offset_by_time(TOPIC, 0, times[0] - 1, upper=True) == 0


async def test_a_failed_append_returns_its_queue_offsets(tmp_path: Path) -> None:
    disk = FaultyDisk()
    async with open_store(
        batch_config(tmp_path), SteppingClock(), disk=disk, batch_topics=lambda: {TOPIC}
    ) as store:
        store.append([inner_batch(3), draft("one")])
        drafts = [inner_batch(4), draft("two"), inner_batch(2), single()]
        disk.refuse_write = lambda path: path.parent.name == "commitlog"
        with pytest.raises(DiskFull):
            store.append(drafts)
        disk.refuse_write = lambda path: False
        assert [place.queue_offset for place in store.append(drafts)] == [3, 1, 7, 9]
        assert bases(records(get(store, 0))) == [(0, 3), (3, 4), (7, 2), (9, 1)]


async def test_deleting_a_batch_topic(tmp_path: Path) -> None:
    async with open_batches(tmp_path) as store:
        store.append([inner_batch(3)])
        await store.index_syncer.save()
        store.delete_topic(TOPIC)
        assert not (tmp_path / "batchconsumequeue" / TOPIC).exists()
        assert store.append([single()])[0].queue_offset == 0


async def test_entries_are_moved_to_files_as_of_other_queues(tmp_path: Path) -> None:
    async with open_batches(tmp_path) as store:
        store.append([inner_batch(2), inner_batch(2)])
        queue = queue_of(store)
        assert queue.unwritten_bytes == 92
        assert list(store.queue_table.write_out(93)) == []
        assert list(store.queue_table.write_out(92)) == [queue]
        assert (queue.unwritten_bytes, len(queue.bases)) == (0, 1)


class Model:
    """A queue as a list: first offset, count and log offset of each record."""

    def __init__(self) -> None:
        self.records: list[tuple[int, int]] = []

    @property
    def end(self) -> int:
        return sum(count for _, count in self.records)

    def get(self, offset: int, messages_max: int) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for base, count in self.records:
            if base + count <= offset:
                continue
            total = sum(size for _, size in found)
            if found and (total + count > messages_max or total >= 32):
                break
            found.append((base, count))
        return found


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_any_queue_answers_like_a_list(data: st.DataObject) -> None:
    """Appends, writes and restarts in any order; gets from any offset, also across two files."""

    async def run(root: Path) -> None:
        model = Model()
        for _ in range(data.draw(st.integers(1, 3))):
            async with open_batches(root, segment_size_bytes=1 << 20) as store:
                assert store.max_offset(TOPIC, 0) == model.end
                for count in data.draw(st.lists(st.integers(0, 40), max_size=12)):
                    if not count:
                        list(store.queue_table.write_out())
                        continue
                    model.records.append((model.end, count))
                    store.append([inner_batch(count) if count > 1 else single()])
                if not model.records:
                    continue
                offset = data.draw(st.integers(0, model.end - 1))
                messages_max = data.draw(st.integers(1, 100))
                found: list[tuple[int, int]] = []
                position, wanted = offset, model.get(offset, messages_max)
                while len(found) < len(wanted):
                    result = get(store, position, messages_max)
                    found += bases(records(result))
                    position = result.next_offset
                assert found[: len(wanted)] == wanted

    with tempfile.TemporaryDirectory() as folder:
        trio.run(run, Path(folder) / "store")


async def test_a_checkpoint_relies_on_a_new_file_and_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are synced before the checkpoint covers the messages; the next checkpoint syncs new
    entries only.
    """
    forced: list[Path] = []

    def noting(force: Callable[[Disk, Path], None]) -> Callable[[Disk, Path], None]:
        def note(disk: Disk, path: Path) -> None:
            forced.append(path)
            force(disk, path)

        return note

    for name in ("sync_path", "sync_directory"):
        monkeypatch.setattr(Disk, name, noting(getattr(Disk, name)))
    async with open_batches(tmp_path) as store:
        store.append([inner_batch(3)])
        await store.index_syncer.save()
        queue = queue_of(store)
        file, checkpoint = queue.path(0), store.index_syncer.file.path
        for path in (file, queue.directory, queue.directory.parent):
            assert forced.index(path) < forced.index(checkpoint), path
        assert forced.index(file) < forced.index(queue.directory)
        forced.clear()
        store.append([inner_batch(2)])
        await store.index_syncer.save()
        assert forced.index(file) < forced.index(checkpoint)
        assert queue.directory not in forced
