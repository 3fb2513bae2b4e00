"""The commit log: record bytes, rolling, and appends that fail without a trace."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from stored_records import decode_record
from stores import BORN_HOST, BORN_HOST_V6, NO_FEATURES, NOW_MS, FaultyDisk, draft, tiny_config

from triomq.broker.store.core.draft import Appended, Draft
from triomq.broker.store.core.errors import DiskFull, IllegalMessage
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.io.open_files import OpenFiles
from triomq.broker.store.io.reads import Cold, Reads
from triomq.broker.store.io.segments import Segments
from triomq.broker.store.log.commit_log import CommitLog
from triomq.broker.store.log.scan import LogScan
from triomq.broker.store.queues.table import QueueTable
from triomq.remoting.protocol.record import encode_record

FACT_SHEET_RECORD = (
    "000000a8daa320a777d18982000000030000000000000000000000070000000000100000000000000000018bcfe5687b7f0000010000d431"
    "0000018bcfe569c87f00000100002a9f0000000000000000000000000000000548656c6c6f09546f70696354657374003f5441475301546167"
    "41024b455953016b31206b3202554e49515f4b455901374630303030303130443541334236413030303030303030303030303030303102"
)


class Log:
    """A commit log with its queues, without tasks."""

    def __init__(self, root: Path, disk: Disk | None = None, **changes: Any) -> None:
        self.disk = disk or Disk()
        self.config = tiny_config(root, **changes)
        self.log = CommitLog(
            self.config,
            self.disk,
            Segments(self.disk, self.config.commitlog, self.config.segment_size_bytes),
        )
        self.log.segments.load()
        self.queues = QueueTable(self.config, self.disk)

    def append(self, *drafts: Draft, now_ms: int = NOW_MS) -> list[Appended]:
        batch = self.log.append(drafts, self.queues, now_ms)
        self.log.appended.advance(batch.end)
        return batch.places

    def record(self, place: Appended) -> bytes:
        reads = Reads(self.disk, OpenFiles(self.disk, 4))
        return bytes(self.log.read([(place.log_offset, place.log_offset + place.size)], reads)[0])

    def scan(self) -> LogScan:
        scan = LogScan(self.disk, self.log.segments, 0, self.log.segments.end)
        while scan.next_batch() is not None:
            pass
        return scan


def test_record_of_the_fact_sheet(tmp_path: Path) -> None:
    log = Log(tmp_path, segment_size_bytes=1 << 21)
    log.log.segments.grow(0)
    log.log.start_at(1_048_576, 0)
    log.queues.open("TopicTest", 3).next_offset = 7
    item = draft(
        b"Hello",
        "TopicTest",
        3,
        tags="TagA",
        keys="k1 k2",
        unique_key="7F0000010D5A3B6A0000000000000001",
        born_timestamp=1_700_000_000_123,
    )
    item.properties = (
        b"TAGS\x01TagA\x02KEYS\x01k1 k2\x02UNIQ_KEY\x017F0000010D5A3B6A0000000000000001\x02"
    )
    (place,) = log.append(item, now_ms=1_700_000_000_456)
    assert (place.log_offset, place.size, place.queue_offset, place.store_timestamp) == (
        1_048_576,
        168,
        7,
        1_700_000_000_456,
    )
    assert log.record(place).hex() == FACT_SHEET_RECORD


@pytest.mark.parametrize("born", [BORN_HOST, BORN_HOST_V6])
@pytest.mark.parametrize("stored", [BORN_HOST, BORN_HOST_V6])
@pytest.mark.parametrize("topic", ["T", "中文", "%RETRY%" + "g" * 200])
def test_hosts_and_topics_of_every_kind(
    tmp_path: Path, born: bytes, stored: bytes, topic: str
) -> None:
    log = Log(tmp_path, store_host=stored)
    item = draft(
        b"body",
        topic,
        2,
        born_host=born,
        sys_flag=0x31,
        flag=-7,
        reconsume_times=3,
        prepared_transaction_offset=99,
        tags="A",
    )
    first, second = log.append(item, item)
    assert second.log_offset == first.log_offset + first.size
    for number, place in enumerate((first, second)):
        expected = encode_record(
            topic=topic,
            queue_id=2,
            queue_offset=number,
            log_offset=place.log_offset,
            body=b"body",
            properties=item.properties,
            born_timestamp=item.born_timestamp,
            born_host=born,
            store_timestamp=NOW_MS,
            store_host=stored,
            flag=-7,
            sys_flag=0x31,
            reconsume_times=3,
            prepared_transaction_offset=99,
        )
        assert log.record(place) == expected


def test_queue_offsets_are_dense_and_half_messages_use_none_up(tmp_path: Path) -> None:
    log = Log(tmp_path)
    places = log.append(
        draft(),
        draft(queue_id=1),
        draft(sys_flag=4),
        draft(sys_flag=12),
        draft(sys_flag=8),
        draft(),
    )
    assert [place.queue_offset for place in places] == [0, 0, 0, 0, 1, 2]


def test_store_time_never_decreases(tmp_path: Path) -> None:
    log = Log(tmp_path)
    times = [
        log.append(draft(), now_ms=NOW_MS + step)[0].store_timestamp - NOW_MS
        for step in (5, 3, 9, 8)
    ]
    assert times == [5, 5, 9, 9]


@pytest.mark.parametrize("left", [0, 7, 8, 9, 100])
def test_a_record_that_leaves_less_than_eight_bytes_begins_the_next_segment(
    tmp_path: Path, left: int
) -> None:
    log = Log(tmp_path)
    overhead = log.append(draft(b""))[0].size
    (place,) = log.append(draft(b"x" * (4096 - 2 * overhead - left)))
    if left >= 8:
        assert place.log_offset + place.size == 4096 - left
        (after,) = log.append(draft(b"y" * left))
        blank_at = 4096 - left
    else:
        after, blank_at = place, overhead
    assert after.log_offset == 4096
    data = (tmp_path / "commitlog/00000000000000000000").read_bytes()
    assert len(data) == 4096
    assert data[blank_at : blank_at + 8] == (4096 - blank_at).to_bytes(4, "big") + bytes.fromhex(
        "cbd43194"
    )
    assert log.scan().position == after.log_offset + after.size


def test_one_batch_over_several_segments(tmp_path: Path) -> None:
    log = Log(tmp_path)
    places = log.append(*[draft(b"x" * 900, unique_key=str(number)) for number in range(20)])
    assert [place.queue_offset for place in places] == list(range(20))
    assert [decode_record(log.record(place), check_crc=True).log_offset for place in places] == [
        place.log_offset for place in places
    ]
    assert log.scan().position == log.log.appended.value
    assert len(log.log.segments.items) == 5


def test_a_record_larger_than_a_segment_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.append(draft())
    end = log.log.appended.value
    with pytest.raises(IllegalMessage, match="segment of 4096"):
        log.append(draft(), draft(b"x" * 5_000))
    assert log.scan().position == end
    assert log.append(draft())[0].queue_offset == 1


def test_a_number_out_of_range_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    log = Log(tmp_path)
    with pytest.raises(IllegalMessage, match="out of range"):
        log.append(draft(), draft(flag=1 << 40))
    assert log.append(draft())[0].log_offset == 0
    assert log.queues.queues["T", 0].next_offset == 1


@pytest.mark.parametrize("features", [Disk().features, NO_FEATURES], ids=["all calls", "fallbacks"])
@pytest.mark.parametrize("torn", [0, 50, 150, 450, 1_000_000])
@pytest.mark.parametrize("count", [3, 20])
def test_a_full_disk_takes_all_or_nothing(
    tmp_path: Path, torn: int, count: int, features: Any
) -> None:
    """A part of the refused write may be in the file; later no byte of it may count as a
    message.
    """
    full = [False]
    log = Log(tmp_path, FaultyDisk(features, refuse_write=lambda path: full[0], torn_bytes=torn))
    log.append(draft(b"kept"))
    end = log.log.appended.value
    items = [draft(b"x" * 400, queue_id=number % 2) for number in range(count)]
    full[0] = True
    for _ in range(2):
        with pytest.raises(DiskFull):
            log.append(*items)
    assert [queue.next_offset for queue in log.queues.queues.values()] == [1, 0]
    full[0] = False
    (place,) = log.append(
        draft(b"y" * 400)
    )  # ends where the second record of the refused batch began
    assert (place.log_offset, place.queue_offset) == (end, 1)
    assert log.scan().position == log.log.appended.value
    places = log.append(*items)
    assert [place.queue_offset for place in places[:3]] == [2, 0, 3]
    assert log.scan().position == log.log.appended.value


def test_a_write_that_fails_halfway_is_erased_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(tmp_path)
    log.append(draft(b"kept"))
    end, real, calls = log.log.appended.value, os.pwrite, [0]

    def once(fd: int, data: bytes, offset: int) -> int:
        calls[0] += 1
        if calls[0] == 1:
            return real(fd, bytes(data)[:300], offset)
        if calls[0] == 2:
            raise OSError(28, "No space left on device")
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", once)
    with pytest.raises(DiskFull, match="00000000000000000000"):
        log.append(draft(b"one"), draft(b"two" * 100))
    data = (tmp_path / "commitlog/00000000000000000000").read_bytes()
    assert data[end:] == bytes(4096 - end)
    assert log.append(draft())[0].queue_offset == 1


def test_reads_of_older_bytes_use_the_files(tmp_path: Path) -> None:
    for features in (Disk().features, NO_FEATURES):
        log = Log(tmp_path / str(features.nowait), Disk(features), hot_bytes_max=0)
        places = log.append(
            *[draft(b"%d" % number * 300, queue_id=number % 3) for number in range(30)]
        )
        runs = [(place.log_offset, place.log_offset + place.size) for place in places[::3]]
        reads = Reads(log.disk, OpenFiles(log.disk, 4))
        if not log.disk.nowait:
            with pytest.raises(Cold) as caught:
                log.log.read(runs, reads)
            assert len(caught.value.ranges) < len(runs)  # records near each other are read together
            reads.fetched.update(
                {
                    (path, at, size): log.disk.read_path(path, size, at)
                    for path, at, size in caught.value.ranges
                }
            )
        chunks = log.log.read(runs, reads)
        assert [decode_record(bytes(chunk)).body for chunk in chunks] == [
            b"%d" % number * 300 for number in range(0, 30, 3)
        ]


def test_records_far_apart_are_read_separately(tmp_path: Path) -> None:
    log = Log(tmp_path, Disk(NO_FEATURES), hot_bytes_max=0, segment_size_bytes=1 << 20)
    places = log.append(draft(b"a"), draft(b"x" * 100_000), draft(b"b"))
    with pytest.raises(Cold) as caught:
        log.log.read(
            [(place.log_offset, place.log_offset + place.size) for place in (places[0], places[2])],
            Reads(log.disk, OpenFiles(log.disk, 4)),
        )
    assert [size for _, _, size in caught.value.ranges] == [places[0].size, places[2].size]
