"""The copies of a compaction topic's queue: what is copied, what is read, what a pass removes."""

from __future__ import annotations

from pathlib import Path

import pytest
from copied_queue import CopiedQueue, keyed_record
from stored_records import stored_record

from triomq.broker.store.compaction.compaction_log import open_compaction_log
from triomq.broker.store.compaction.compaction_pass import CompactionPass
from triomq.broker.store.compaction.copy_file import CopySizes
from triomq.broker.store.compaction.newest_by_key import NewestByKey
from triomq.broker.store.core.errors import IllegalMessage, StoreDamaged
from triomq.broker.store.io.disk import Disk

NEVER_MS = -1


def filled(root: Path, *messages: tuple[str, bytes]) -> CopiedQueue:
    queue = CopiedQueue(root, Disk())
    queue.open()
    for offset, (key, body) in enumerate(messages):
        queue.records.append(keyed_record(offset, key, body, store_ms=offset))
    queue.copy()
    return queue


def compact(queue: CopiedQueue, *, tombstones_before_ms: int = NEVER_MS) -> CompactionPass:
    work = CompactionPass(queue.log, -1, 1000, tombstones_before_ms)
    while not work.done:
        work.step(1000)
    return work


def offsets(queue: CopiedQueue, start: int = 0) -> list[int]:
    return [copy.queue_offset for copy in queue.log.read(start, 1000, 1 << 30)]


def test_sizes_are_those_that_a_java_broker_makes_of_its_settings() -> None:
    """By hand from CompactionLog.java: whole entries, then whole multiples, at least five."""
    assert CopySizes.of(104_857_600, 10_485_760) == CopySizes(104_857_460, 10_485_746)
    assert CopySizes.of(1000, 460) == CopySizes(2300, 460)
    assert CopySizes.of(460 * 7, 460) == CopySizes(460 * 8, 460)
    assert CopySizes.of(460 * 7 + 300, 460) == CopySizes(460 * 8, 460)


def test_a_pass_keeps_the_newest_value_of_each_key_with_its_offset(tmp_path: Path) -> None:
    queue = filled(tmp_path, *[(key, bytes([turn]) * 150) for turn in range(10) for key in "abc"])
    last = queue.log.files[-1].first_offset
    work = compact(queue)
    kept = [offset for offset in offsets(queue) if offset < last]
    assert kept == [last - 3, last - 2, last - 1]
    assert (work.kept, work.removed) == (3, last - 3)
    assert offsets(queue, 5)[0] == last - 3, "a reader goes on at the next offset that exists"
    assert offsets(queue)[-1] == 29
    queue.check()


def test_a_pass_works_in_steps_of_a_bounded_size(tmp_path: Path) -> None:
    queue = filled(tmp_path, *[("a", bytes(150))] * 30)
    work = CompactionPass(queue.log, -1, 1000, NEVER_MS)
    sizes = []
    while not work.done:
        sizes.append(work.step(600))
    assert len(sizes) > 10
    assert max(sizes) < 600 + 2 * 300, "a step ends after the record that reaches its size"


def test_a_tombstone_goes_when_readers_have_seen_it(tmp_path: Path) -> None:
    queue = filled(tmp_path, ("a", b"1"), ("a", b""), ("b", b"2"), *[("c", bytes(300))] * 8)
    compact(queue)
    assert offsets(queue)[:2] == [1, 2]
    compact(queue, tombstones_before_ms=1)
    assert offsets(queue)[0] == 1, "stored at 1 ms, not before"
    compact(queue, tombstones_before_ms=2)
    assert offsets(queue)[0] == 2
    queue.check()


def test_a_pass_over_too_many_keys_handles_the_oldest_first(tmp_path: Path) -> None:
    queue = filled(tmp_path, *[(f"{n % 8}", bytes(150)) for n in range(40)])
    since = -1
    for _ in range(20):
        work = CompactionPass(queue.log, since, 3, NEVER_MS)
        while not work.done:
            work.step(1 << 20)
        assert work.reached > since or since >= queue.log.files[-1].first_offset - 1
        since = work.reached
    closed = queue.log.files[-1].first_offset
    assert len([offset for offset in offsets(queue) if offset < closed]) < 12
    queue.check()


def test_messages_may_be_copied_and_read_during_a_pass(tmp_path: Path) -> None:
    queue = filled(tmp_path, *[("a", bytes(150))] * 12)
    work = CompactionPass(queue.log, -1, 1000, NEVER_MS)
    while not work.done:
        work.step(1)
        queue.records.append(keyed_record(len(queue.records), "b", bytes(150)))
        queue.copy()
        assert offsets(queue)[-1] == len(queue.records) - 1
    queue.check()


def test_a_message_without_a_key_is_refused(tmp_path: Path) -> None:
    queue = filled(tmp_path)
    for key in (None, "", "  "):
        with pytest.raises(IllegalMessage, match="has no key: send it with the property KEYS"):
            queue.log.append(keyed_record(0, key, b"1"))
    with pytest.raises(IllegalMessage, match="expected"):
        queue.log.append(stored_record(b"1", topic="other", properties={"KEYS": "a"}))
    with pytest.raises(IllegalMessage, match="cannot be copied"):
        queue.log.append(b"no record")
    with pytest.raises(IllegalMessage, match="compactionMappedFileSize"):
        queue.log.append(keyed_record(0, "a", bytes(2000)))
    assert offsets(queue) == []


def test_a_message_is_copied_once(tmp_path: Path) -> None:
    queue = filled(tmp_path, ("a", b"1"), ("b", b"2"))
    assert not queue.log.append(queue.records[0])
    assert not queue.log.append(queue.records[1])
    assert (queue.log.min_offset, queue.log.end_offset) == (0, 2)
    assert queue.log.durable_end == 0, "nothing was forced out yet"
    queue.log.sync()
    assert queue.log.durable_end == 2


def test_reads_have_limits_and_the_first_copy_comes_in_any_case(tmp_path: Path) -> None:
    queue = filled(tmp_path, *[("a", bytes(100))] * 5)
    size = len(queue.records[0])
    assert len(queue.log.read(0, 3, 1 << 30)) == 3
    assert len(queue.log.read(0, 10, 1)) == 1
    assert len(queue.log.read(0, 10, 2 * size)) == 2
    assert queue.log.read(5, 10, 1 << 30) == []


def test_files_of_another_size_stop_the_start(tmp_path: Path) -> None:
    filled(tmp_path, ("a", b"1")).log.close()
    with pytest.raises(StoreDamaged, match="compactionMappedFileSize"):
        open_compaction_log(Disk(), tmp_path, "table", 2, CopySizes(2800, 46 * 9), 0)


def test_a_file_without_its_partner_stops_the_start_unless_it_is_the_newest(
    tmp_path: Path,
) -> None:
    queue = filled(tmp_path, *[("a", bytes(300))] * 12)
    queue.log.close()
    folder = tmp_path / "compaction" / "compactionCq" / "table" / "2"
    names = sorted(path.name for path in folder.iterdir())
    (folder / names[-1]).unlink()
    queue.open()
    queue.copy()
    queue.check()
    queue.log.close()
    (folder / names[0]).unlink()
    with pytest.raises(StoreDamaged, match="missing or empty"):
        queue.open()


def test_a_foreign_file_stops_the_start(tmp_path: Path) -> None:
    queue = filled(tmp_path, ("a", b"1"))
    queue.log.close()
    (tmp_path / "compaction" / "compactionLog" / "table" / "2" / "notes").write_text("x")
    with pytest.raises(StoreDamaged, match="move the file away"):
        queue.open()


def test_a_damaged_copy_ends_a_pass_and_stays_where_it_is(tmp_path: Path) -> None:
    queue = filled(tmp_path, *[("a", bytes(300))] * 12)
    path = queue.log.files[0].log_path
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreDamaged, match="no copy of queue offset 0"):
        compact(queue)
    assert path.read_bytes() == data
    assert offsets(queue) == list(range(12))


def test_the_table_of_keys_covers_what_it_has_room_for() -> None:
    newest = NewestByKey(2)
    assert newest.add("a", 0)
    assert newest.add("b", 3)
    assert newest.add("a", 4)
    assert not newest.add("c", 5)
    assert not newest.add("a", 6), "nothing is skipped: what follows is for the next pass"
    assert newest.reached == 4
    assert not newest.keeps("a", 0, deletes=False)
    assert newest.keeps("a", 4, deletes=False)
    assert not newest.keeps("a", 4, deletes=True)
    assert newest.keeps("c", 5, deletes=True)
    assert newest.keeps("unknown", 2, deletes=False)
