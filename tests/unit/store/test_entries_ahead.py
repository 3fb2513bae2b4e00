"""EntriesAhead: the same entries as the files have, whoever asks in whatever order, with few calls for who goes on where he was."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from stores import draft, tiny_config

from triomq.broker.store import entries_ahead
from triomq.broker.store.consume_queue import ConsumeQueue
from triomq.broker.store.disk import Disk
from triomq.broker.store.draft import Appended, Batch
from triomq.broker.store.entries_ahead import ENTRIES, EntriesAhead
from triomq.broker.store.open_files import OpenFiles
from triomq.broker.store.queue_table import QueueTable
from triomq.broker.store.reads import Cold, Reads

SIZE = 100


class CountingDisk(Disk):
    """Counts the reads; above ``warm_bytes`` the page cache has nothing."""

    calls: int = 0
    warm_bytes: int = 1 << 30

    def read_nowait(self, fd: int, size: int, offset: int) -> bytearray | None:
        self.calls += 1
        return super().read_nowait(fd, size, offset) if size <= self.warm_bytes else None


class Queue:
    """One queue, all of whose entries are in its files, and a reader."""

    def __init__(self, root: Path, entries_a_file: int = 4096) -> None:
        self.disk = CountingDisk()
        self.table = QueueTable(tiny_config(root, queue_file_size_bytes=20 * entries_a_file), self.disk)
        self.reads = Reads(self.disk, OpenFiles(self.disk, 8))
        self.ahead = EntriesAhead()
        self.count = 0

    @property
    def queue(self) -> ConsumeQueue:
        return self.table.queues["T", 0]

    def grow(self, count: int) -> None:
        places = [Appended(SIZE * number, SIZE, number, 1_000) for number in range(self.count, self.count + count)]
        self.table.apply(Batch([draft() for _ in places], places, SIZE * self.count, SIZE * (self.count + count)))
        assert len(list(self.table.write_out()))
        self.count += count

    def read(self, offset: int, count: int) -> bytes:
        return bytes(self.ahead.read(self.queue, offset, count, self.reads))

    def in_file(self, offset: int, count: int) -> bytes:
        path, position, size = self.queue.place(offset, count)
        return self.disk.read_path(path, size, position)


@pytest.mark.parametrize("seed", range(8))
def test_what_is_read_is_what_the_files_have(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    made = Queue(tmp_path, entries_a_file=700)
    made.grow(900)
    position = 0
    for _ in range(600):
        if chance.random() < 0.05:
            made.grow(chance.randrange(1, 60))
        if chance.random() < 0.1 or position >= made.count:
            position = chance.randrange(made.count)
        count = chance.choice([1, 3, 32, 32, 32, 32, 500, ENTRIES, ENTRIES + 100, 3 * ENTRIES])
        found = made.read(position, min(count, made.count - position))
        wanted = made.in_file(position, min(count, made.count - position))
        assert found, "at least one entry"
        assert wanted.startswith(found), "cut only where what was read at once ends"
        assert found == wanted or len(wanted) > len(found) >= 20
        position += len(found) // 20


def test_who_goes_on_where_he_was_asks_the_files_seldom(tmp_path: Path) -> None:
    made = Queue(tmp_path)
    made.grow(2048)
    made.disk.calls = 0
    assert b"".join(made.read(offset, 32) for offset in range(0, 2048, 32)) == made.in_file(0, 2048)
    assert made.disk.calls <= 2 + 2048 // ENTRIES


def test_groups_at_several_places_of_a_queue_do_not_disturb_each_other(tmp_path: Path) -> None:
    made = Queue(tmp_path)
    made.grow(4096)
    made.disk.calls = 0
    for offset in range(0, 2048, 32):
        for start in (0, 16, 2048):  # two go together
            assert made.read(start + offset, 32) == made.in_file(start + offset, 32)
    assert made.disk.calls <= 2 + 4096 // ENTRIES + 1


def test_who_jumps_reads_no_more_than_he_asked_for(tmp_path: Path) -> None:
    made = Queue(tmp_path)
    made.grow(2048)
    made.disk.calls = 0
    for offset in (32, 1056, 640, 1800):
        assert made.read(offset, 32) == made.in_file(offset, 32)
    assert made.disk.calls == 4
    assert not made.ahead._blocks


def test_without_the_page_cache_only_what_was_asked_for_is_fetched(tmp_path: Path) -> None:
    made = Queue(tmp_path)
    made.grow(2048)
    assert made.read(0, 32) == made.in_file(0, 32)
    made.disk.warm_bytes = 32 * 20
    assert made.read(32, 32) == made.in_file(32, 32), "many are cold, these are not"
    made.disk.warm_bytes = 0
    with pytest.raises(Cold) as caught:
        made.read(64, 32)
    assert caught.value.ranges == [made.queue.place(64, 32)]
    path, position, size = caught.value.ranges[0]
    made.reads.fetched[path, position, size] = made.disk.read_path(path, size, position)
    assert made.read(64, 32) == made.in_file(64, 32)


def test_what_it_keeps_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries_ahead, "BLOCKS_MAX", 8)
    made = Queue(tmp_path, entries_a_file=ENTRIES * 18)
    made.grow(ENTRIES * 18)
    for offset in range(0, made.count, ENTRIES // 2):
        made.read(offset, 1)
    assert len(made.ahead._blocks) == 8
    assert all(len(block) == ENTRIES * 20 for block in made.ahead._blocks.values())
    assert (made.queue, 17) in made.ahead._blocks, "the oldest went"
    places = [Appended(SIZE * number, SIZE, 0, 1_000) for number in range(made.count, made.count + 28)]
    made.table.apply(Batch([draft(queue_id=number) for number in range(1, len(places) + 1)], places, SIZE * made.count, SIZE * (made.count + len(places))))
    assert len(list(made.table.write_out()))
    for number in range(1, len(places) + 1):
        made.ahead.read(made.table.queues["T", number], 0, 1, made.reads)
    assert len(made.ahead._asked) == 8
