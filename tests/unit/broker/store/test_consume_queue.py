"""Consume queues: entries in the place that belongs to their number, files named by bytes, and what
a crash may leave of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from stores import draft, tiny_config

from triomq.broker.store.core.draft import Appended, Draft
from triomq.broker.store.core.errors import StoreDamaged
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.queues.batch import Batch
from triomq.broker.store.queues.consume_queue import ENTRY, FILLER, ConsumeQueue
from triomq.broker.store.queues.table import QueueTable

SIZE = 100


def make_table(root: Path, **changes: object) -> QueueTable:
    return QueueTable(tiny_config(root, **changes), Disk())


def batch_of(*items: tuple[Draft, int], first: int = 0) -> Batch:
    """(draft, queue offset) pairs; records of 100 bytes, one behind the other, from log offset
    100·first on.
    """
    places = [
        Appended(SIZE * (first + number), SIZE, offset, 1_000 + number)
        for number, (_, offset) in enumerate(items)
    ]
    return Batch([draft for draft, _ in items], places, SIZE * first, SIZE * (first + len(items)))


def fill(table: QueueTable, count: int, topic: str = "T", first: int = 0, start: int = 0) -> None:
    table.apply(
        batch_of(*[(draft(topic=topic), start + number) for number in range(count)], first=first)
    )


def write_out(table: QueueTable) -> int:
    return len(list(table.write_out()))


def reload(table: QueueTable) -> QueueTable:
    table.close()
    fresh = make_table(table.config.root)
    fresh.load()
    return fresh


def starts(queue: ConsumeQueue) -> list[int]:
    return [queue.entry(offset)[0] for offset in range(queue.min_offset, queue.end_offset)]


def test_entry_of_the_fact_sheet(tmp_path: Path) -> None:
    table = make_table(tmp_path, queue_file_size_bytes=6_000_000)
    place = Appended(1_048_576, 168, 7, 0)
    table.apply(Batch([draft(topic="TopicTest", queue_id=3, tags="TagA")], [place], 0, 0))
    write_out(table)
    path = tmp_path / "consumequeue/TopicTest/3/00000000000000000000"
    data = path.read_bytes()
    assert len(data) == 6_000_000
    assert data[140:160] == bytes.fromhex("0000000000100000 000000a8 000000000027a807")
    assert data[:140] == FILLER * 7  # the first entry ever was number 7
    assert bytes.fromhex("0000000000000000 7fffffff 0000000000000000") == FILLER
    assert table.queues["TopicTest", 3].min_offset == 7
    table.close()


def test_a_queue_whose_first_entry_lies_in_a_later_file(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    table.apply(batch_of((draft(), 12)))
    queue = table.queues["T", 0]
    write_out(table)
    assert [path.name for path in sorted(queue.directory.iterdir())] == ["00000000000000000200"]
    assert (queue.min_offset, queue.end_offset) == (12, 13)
    again = reload(table)
    again.truncate(10_000)
    queue = again.queues["T", 0]
    queue.find_min(0)
    assert (queue.min_offset, queue.end_offset, queue.next_offset) == (12, 13, 13)
    again.close()


def test_entries_in_memory_and_on_disk_read_alike(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    fill(table, 25)
    queue = table.queues["T", 0]
    before = starts(queue)
    assert queue.in_memory(3, 2) is not None
    assert write_out(table) == 1
    assert queue.in_memory(3, 2) is None
    assert starts(queue) == before == [SIZE * number for number in range(25)]
    assert queue.bases == [0, 200, 400]
    assert [path.stat().st_size for path in queue.directory.iterdir()] == [200] * 3
    fill(table, 7, first=25, start=25)
    assert starts(queue) == [SIZE * number for number in range(32)]
    assert queue.place(8, 10) == (queue.path(0), 160, 40)  # cut at the end of the file
    assert queue.place(24, 10) == (queue.path(400), 80, 20)  # cut at what is written out
    table.close()


def test_applying_again_changes_nothing(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    fill(table, 5)
    table.take_arrivals()
    fill(table, 5)
    assert table.queues["T", 0].end_offset == 5
    assert table.take_arrivals() == []
    fill(table, 6)
    assert table.take_arrivals() == [("T", 0, 6, 0)]
    table.close()


def test_a_gap_becomes_fillers_so_that_numbers_stay_places(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = make_table(tmp_path)
    fill(table, 2)
    fill(table, 1, first=9, start=5)
    queue = table.queues["T", 0]
    assert queue.end_offset == 6
    assert queue.entry(5)[0] == 900
    assert [queue.entry(offset)[1] for offset in (2, 3, 4)] == [0x7FFFFFFF] * 3
    assert "entries 2 to 4 are missing" in caplog.text
    table.close()


@pytest.mark.parametrize("number", [2_000_000, 1 << 54, 1 << 60])
def test_an_absurdly_large_number_takes_no_memory(tmp_path: Path, number: int) -> None:
    table = make_table(tmp_path)
    fill(table, 2)
    fill(table, 1, first=9, start=number)
    assert table.queues["T", 0].end_offset == 2
    fill(table, 1, first=10, start=2)
    assert table.queues["T", 0].end_offset == 3
    fill(table, 1, topic="new", first=20, start=1 << 60)
    assert table.queues["new", 0].end_offset == 0
    table.close()


def test_half_messages_have_no_entry(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    table.apply(
        batch_of(
            (draft(sys_flag=4), 0), (draft(sys_flag=12), 0), (draft(sys_flag=8), 0), (draft(), 1)
        )
    )
    assert table.queues["T", 0].end_offset == 2
    assert starts(table.queues["T", 0]) == [200, 300]
    table.close()


def test_arrivals_name_every_queue_and_tag_once(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    table.apply(
        batch_of(
            (draft(tags="A"), 0), (draft(tags="B"), 1), (draft(tags="A"), 2), (draft(queue_id=1), 0)
        )
    )
    assert sorted(table.take_arrivals()) == [("T", 0, 2, 66), ("T", 0, 3, 65), ("T", 1, 1, 0)]
    assert table.take_arrivals() == []
    table.close()


@pytest.mark.parametrize(
    ("level", "delay"),
    [("3", 10_000), ("1", 1_000), ("99", 7_200_000), ("0", None), ("x", None), (None, None)],
)
def test_the_schedule_topic_keeps_the_time_of_delivery(
    tmp_path: Path, level: str | None, delay: int | None
) -> None:
    table = make_table(tmp_path)
    extra = {"DELAY": level} if level else {}
    table.apply(batch_of((draft(topic="SCHEDULE_TOPIC_XXXX", tags="TagA", extra=extra), 0)))
    code = table.queues["SCHEDULE_TOPIC_XXXX", 0].entry(0)[2]
    assert code == (1_000 + delay if delay is not None else 2_598_919)
    table.close()


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 20, 25, 30])
def test_the_end_is_found_again(tmp_path: Path, count: int) -> None:
    table = make_table(tmp_path)
    fill(table, 1, topic="other", first=50)
    if count:
        fill(table, count)
    write_out(table)
    for by_scan in (True, False):
        table = reload(table)
        for queue in table.queues.values():
            if by_scan:
                queue.find_end_by_scan()
            else:
                queue.truncate(1 << 60)
        assert table.open("T", 0).end_offset == count
        assert table.open("T", 0).log_end == (count * SIZE if count else -1)
        assert table.log_end == 51 * SIZE
    table.close()


@pytest.mark.parametrize("keep", [0, 1, 9, 10, 11, 24, 25])
def test_truncation_forgets_records_at_and_behind_an_offset(tmp_path: Path, keep: int) -> None:
    table = make_table(tmp_path)
    fill(table, 25)
    write_out(table)
    table = reload(table)
    table.truncate(keep * SIZE)
    queue = table.queues["T", 0]
    assert (queue.end_offset, queue.next_offset) == (keep, keep)
    assert starts(queue) == [SIZE * number for number in range(keep)]
    on_disk = b"".join(path.read_bytes() for path in sorted(queue.directory.iterdir()))
    assert on_disk.rstrip(b"\0").rjust(0) == b"".join(
        ENTRY.pack(SIZE * n, SIZE, 0) for n in range(keep)
    ).rstrip(b"\0")
    fill(table, 30 - keep, first=keep, start=keep)
    write_out(table)
    assert starts(queue) == [SIZE * number for number in range(30)]
    table.close()


def test_truncation_in_the_middle_of_a_record_keeps_its_entry_as_java_does(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    fill(table, 3)
    write_out(table)
    table = reload(table)
    table.truncate(2 * SIZE + 1)
    assert table.queues["T", 0].end_offset == 3
    table.close()


def test_the_minimum_skips_fillers_and_deleted_records(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    table.apply(batch_of(*[(draft(), 3 + number) for number in range(10)]))
    queue = table.queues["T", 0]
    for log_min, expected in ((0, 3), (1, 4), (500, 8), (99_999, 13)):
        queue.find_min(log_min)
        assert queue.min_offset == expected
    table.close()


def test_files_closed_for_others_are_opened_again(tmp_path: Path) -> None:
    table = make_table(tmp_path, open_files_max=2)
    for round_number in range(3):
        for number in range(5):
            fill(table, 1, topic=f"T{number}", first=round_number, start=round_number)
        assert write_out(table) == 5
        assert len(table.open_files) == 2
    assert [starts(table.queues[f"T{number}", 0]) for number in range(5)] == [[0, 100, 200]] * 5
    table.close()


def test_what_must_be_forced_to_the_disk(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    fill(table, 11)
    assert table.take_unsynced() == ([], [])
    write_out(table)
    files, directories = table.take_unsynced()
    queue = table.queues["T", 0]
    assert sorted(files) == [queue.path(0), queue.path(200)]
    assert directories == [
        queue.directory,
        tmp_path / "consumequeue/T",
        tmp_path / "consumequeue",
        tmp_path,
    ]
    fill(table, 1, first=11, start=11)
    write_out(table)
    assert table.take_unsynced() == ([queue.path(200)], [])
    table.close()


def test_deleting_a_topic(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    fill(table, 25)
    write_out(table)
    fill(table, 2, topic="other")
    table.delete_topic("T")
    assert list(table.queues) == [("other", 0)]
    assert not (tmp_path / "consumequeue/T").exists()
    assert write_out(table) == 1
    assert [str(path) for path in table.take_unsynced()[0]] == [
        str(tmp_path / "consumequeue/other/0/00000000000000000000")
    ]
    fill(table, 1, first=30)
    assert table.queues["T", 0].end_offset == 1
    table.delete_all()
    assert table.queues == {}
    table.close()


@pytest.mark.parametrize(
    ("name", "size", "words"),
    [
        ("00000000000000000000", 140, "mappedFileSizeConsumeQueue=140"),
        ("swap.tmp", 200, "move it away"),
        ("00000000000000000400", 200, "a file before it is missing"),
    ],
)
def test_damaged_queue_folders_are_refused(
    tmp_path: Path, name: str, size: int, words: str
) -> None:
    directory = tmp_path / "consumequeue/T/0"
    directory.mkdir(parents=True)
    if size == 200:
        (directory / "00000000000000000000").write_bytes(bytes(200))
    (directory / name).write_bytes(bytes(size))
    with pytest.raises(StoreDamaged, match=words):
        make_table(tmp_path).load()


def test_foreign_folders_and_files_beside_queues_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "consumequeue/T/backup").mkdir(parents=True)
    (tmp_path / "consumequeue/readme").write_text("x")
    table = make_table(tmp_path)
    table.load()
    assert table.queues == {}
