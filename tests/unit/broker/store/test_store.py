"""MessageStore as its users see it: append, get with every status, query, time search, topics,
start and stop.
"""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from stored_records import decode_record
from stores import (
    NO_FEATURES,
    NOW_MS,
    FaultyDisk,
    SteppingClock,
    draft,
    find_bodies,
    read_all,
    snapshot,
    tiny_config,
)

from triomq.broker.store.core.errors import IllegalMessage, StoreUnavailable
from triomq.broker.store.core.results import GetResult, GetStatus
from triomq.broker.store.indexing.indexer import DEFERRED_BYTES_MAX, DEFERRED_MESSAGES_MAX
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.opening import open_store
from triomq.broker.store.store import MessageStore
from triomq.remoting.protocol.record_reader import decode_records

ALL = {"messages_max": 32, "bytes_max": 1 << 20}
DISKS = pytest.mark.parametrize("disk", [Disk(), Disk(NO_FEATURES)], ids=["all calls", "fallbacks"])


async def get(
    store: MessageStore, offset: int, *, topic: str = "T", queue_id: int = 0, **changes: Any
) -> GetResult:
    result = store.get(topic, queue_id, offset, **{**ALL, **changes})
    if result is None:
        result = await store.get_cold(topic, queue_id, offset, **{**ALL, **changes})
    return result


def bodies(result: GetResult) -> list[bytes]:
    found = [message.body for message in decode_records(b"".join(result.chunks), check_crc=True)]
    assert len(found) == result.count
    assert result.size_bytes == sum(map(len, result.chunks))
    return found


@pytest.mark.feature("32b", "41a")
async def test_what_is_appended_is_read_at_once_in_order(tmp_path: Path) -> None:
    async with open_store(tiny_config(tmp_path), SteppingClock()) as store:
        places = store.append(
            [draft(f"m{number}", ("A", "B", "C")[number % 3], number % 2) for number in range(30)]
        )
        assert [place.log_offset for place in places[1:]] != []
        for topic in ("A", "B", "C"):
            for queue_id in (0, 1):
                messages = await read_all(store, topic, queue_id)
                assert [message.queue_offset for message in messages] == list(range(5))
                assert [message.body for message in messages] == [
                    f"m{number}".encode()
                    for number in range(30)
                    if ("A", "B", "C")[number % 3] == topic and number % 2 == queue_id
                ]
        assert store.append([]) == []


@pytest.mark.parametrize(
    ("offset", "status", "next_offset"),
    [
        (3, GetStatus.FOUND, 10),
        (10, GetStatus.OFFSET_OVERFLOW_ONE, 10),
        (11, GetStatus.OFFSET_OVERFLOW_BADLY, 10),
        (0, GetStatus.OFFSET_TOO_SMALL, 3),
        (-1, GetStatus.OFFSET_TOO_SMALL, 3),
    ],
)
async def test_status_and_next_offset(
    tmp_path: Path, offset: int, status: GetStatus, next_offset: int
) -> None:
    async with open_store(tiny_config(tmp_path)) as store:
        store.append([draft(str(number)) for number in range(10)])
        store.queue_table.queues["T", 0].min_offset = 3
        result = await get(store, offset)
        assert (result.status, result.next_offset, result.min_offset, result.max_offset) == (
            status,
            next_offset,
            3,
            10,
        )
        assert bodies(result) == (
            [b"3", b"4", b"5", b"6", b"7", b"8", b"9"] if status is GetStatus.FOUND else []
        )


async def test_queues_that_do_not_exist_or_are_empty(tmp_path: Path) -> None:
    async with open_store(tiny_config(tmp_path)) as store:
        result = await get(store, 5)
        assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_LOGIC_QUEUE, 0)
        store.append([draft(sys_flag=4)])
        result = await get(store, 5)
        assert (result.status, result.next_offset) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0)
        assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (0, 0)
        assert (store.min_offset("none", 0), store.max_offset("none", 0)) == (0, 0)


@DISKS
async def test_filter_by_tag(tmp_path: Path, disk: Disk) -> None:
    async with open_store(tiny_config(tmp_path, filter_bytes_max=200), disk=disk) as store:
        store.append([draft(str(number), tags="AB"[number % 2]) for number in range(50)])
        result = await get(store, 0, tag_codes=frozenset([65]))
        assert bodies(result) == [b"%d" % number for number in range(0, 32, 2)]
        assert result.next_offset == 32
        result = await get(store, 0, tag_codes=frozenset([65]), messages_max=2)
        assert (bodies(result), result.next_offset) == ([b"0", b"2"], 4)
        result = await get(store, 0, tag_codes=frozenset([1]), messages_max=1)
        assert (result.status, result.next_offset, result.count) == (
            GetStatus.NO_MATCHED_MESSAGE,
            10,
            0,
        )


async def test_limits_of_one_get(tmp_path: Path) -> None:
    config = tiny_config(
        tmp_path,
        segment_size_bytes=1 << 20,
        queue_file_size_bytes=2_000,
        transfer_bytes_memory_max=1_000,
    )
    async with open_store(config) as store:
        size = store.append([draft(b"x" * 100) for _ in range(50)])[0].size
        assert (await get(store, 0)).count == 1_000 // size
        assert (await get(store, 0, messages_max=3)).count == 3
        assert (await get(store, 0, bytes_max=2 * size)).count == 2
        assert (await get(store, 0, bytes_max=0)).count == 1  # the first one always
        store.append([draft(b"y" * 5_000, queue_id=1), draft(b"z", queue_id=1)])
        assert bodies(await get(store, 0, queue_id=1)) == [b"y" * 5_000]
    async with open_store(attrs.evolve(config, transfer_bytes_memory_max=1 << 20)) as store:
        assert (await get(store, 0, messages_max=50)).count == 32


async def test_old_messages_count_as_on_disk(tmp_path: Path) -> None:
    async with open_store(tiny_config(tmp_path)) as store:
        store.append([draft(str(number)) for number in range(20)])
        assert not (await get(store, 0)).far_behind
        store.reader.memory_bytes_max = 0
        result = await get(store, 0)
        assert result.count == 8
        assert result.far_behind


async def test_removed_records_are_skipped(tmp_path: Path) -> None:
    """Queue entries may point below the oldest segment until the cleaner has moved the minimum."""
    async with open_store(tiny_config(tmp_path)) as store:
        store.append([draft(b"x" * 1_000) for _ in range(9)])
        first = store.log.segments.items.pop(0)
        first.close()
        result = await get(store, 0)
        assert (result.status, result.next_offset, result.count) == (GetStatus.FOUND, 9, 6)
        result = await get(store, 0, messages_max=2)
        assert (result.status, result.next_offset) == (GetStatus.MESSAGE_WAS_REMOVING, 2)
        assert await store.read_record(0) is None
        assert await store.store_time_at("T", 0, 0) == -1
        store.log.segments.items.insert(0, first)


@DISKS
@pytest.mark.feature("36b")
async def test_hot_and_cold_reads_agree(tmp_path: Path, disk: Disk) -> None:
    config = tiny_config(tmp_path)
    async with open_store(config, SteppingClock(), disk=disk) as store:
        store.append([draft(b"%d" % number * 100, queue_id=number % 3) for number in range(90)])
        hot = [await read_all(store, "T", queue_id) for queue_id in range(3)]
    async with open_store(config, disk=disk) as store:
        cold = [await read_all(store, "T", queue_id, messages_max=5) for queue_id in range(3)]
        if not disk.nowait:
            assert store.get("T", 0, 0, **ALL) is None
    texts = [[(message.log_offset, message.body) for message in queue] for queue in hot]
    assert texts == [[(message.log_offset, message.body) for message in queue] for queue in cold]
    assert [len(queue) for queue in texts] == [30] * 3


@DISKS
async def test_query_by_key(tmp_path: Path, disk: Disk) -> None:
    async with open_store(
        tiny_config(tmp_path, query_count_max=6, query_unique_count_max=4),
        SteppingClock(),
        disk=disk,
    ) as store:
        store.append(
            [
                draft(f"m{number}", unique_key=f"U{number}", keys=f"a k{number % 2}", tags="T1")
                for number in range(20)
            ]
        )
        assert await find_bodies(store, "T", "U7") == [b"m7"]
        assert await find_bodies(store, "T", "k1") == [
            b"m9",
            b"m11",
            b"m13",
            b"m15",
            b"m17",
            b"m19",
        ]  # the newest six, oldest first
        assert await find_bodies(store, "T", "a", max_count=2) == [b"m18", b"m19"]
        assert await find_bodies(store, "T", "a", max_count=99, unique=True) == [
            b"m16",
            b"m17",
            b"m18",
            b"m19",
        ]
        assert await find_bodies(store, "T", "T#T1", max_count=1) == [b"m19"]
        assert await find_bodies(store, "T", "none") == []
        assert await find_bodies(store, "other", "U7") == []
        result = await store.query("T", "none", max_count=1, begin_ms=0, end_ms=1 << 60)
        assert (result.last_update_ms, result.last_update_offset) == (
            store.log.last_timestamp,
            store.key_index.last_offset,
        )


async def test_query_skips_deleted_records(tmp_path: Path) -> None:
    """If all records that the index finds are deleted, older entries are tried, at most three
    times.
    """
    async with open_store(tiny_config(tmp_path), SteppingClock(step_ms=5_000)) as store:
        for number in range(4):
            store.append([draft(f"m{number}" * 300, keys="k")])
        place = store.append([draft(b"last", keys="k")])[0]
        segment = store.log.segments.find(place.log_offset)
        assert segment is not None
        os.pwrite(segment.fd, b"\xff\xff\xff\xff", place.log_offset - segment.base + 4)
        assert (
            await find_bodies(store, "T", "k", max_count=1) == []
        )  # its store time is deleted, too
        assert len(await find_bodies(store, "T", "k", max_count=5)) == 4


async def test_a_store_without_index(tmp_path: Path) -> None:
    async with open_store(tiny_config(tmp_path, index_enabled=False)) as store:
        store.append([draft(unique_key="U")])
        assert await find_bodies(store, "T", "U") == []
        assert not store.key_index.files
    assert not (tmp_path / "index").exists()


@DISKS
async def test_single_records_by_log_offset(tmp_path: Path, disk: Disk) -> None:
    async with open_store(tiny_config(tmp_path), disk=disk) as store:
        places = store.append([draft(b"x" * 500) for _ in range(10)])
        for place in places:
            record = await store.read_record(place.log_offset)
            assert record is not None
            assert decode_record(record).queue_offset == place.queue_offset
        for offset in (-1, 1, places[1].log_offset - 1, 4_090, store.appended.value, 1 << 60):
            assert await store.read_record(offset) is None


@DISKS
async def test_search_by_time_as_in_the_fact_sheet(tmp_path: Path, disk: Disk) -> None:
    clock = SteppingClock(step_ms=0)
    async with open_store(tiny_config(tmp_path), clock, disk=disk) as store:
        store.queue_table.open("T", 0).next_offset = 7
        for time in (0, 1_000, 1_000, 3_000, 5_000):
            clock.now_ms = NOW_MS + time
            store.append([draft()])
        for question in (-1, 0, 500, 1_000, 2_000, 3_000, 9_000):
            answers = [
                await store.offset_by_time("T", 0, NOW_MS + question, upper=upper)
                for upper in (False, True)
            ]
            assert (
                answers
                == {
                    -1: [7, 7],
                    0: [7, 7],
                    500: [8, 7],
                    1_000: [8, 9],
                    2_000: [10, 9],
                    3_000: [10, 10],
                    9_000: [12, 11],
                }[question]
            )
        assert await store.offset_by_time("none", 0, NOW_MS) == 0
        assert await store.store_time_at("T", 0, 7) == NOW_MS
        assert await store.store_time_at("T", 0, 11) == NOW_MS + 5_000
        assert [await store.store_time_at("T", 0, offset) for offset in (6, 12)] == [-1, -1]
        assert await store.store_time_at("none", 0, 0) == -1


async def test_what_is_not_in_memory_is_read_in_a_thread(tmp_path: Path) -> None:
    config = tiny_config(tmp_path)
    async with open_store(config, SteppingClock(step_ms=0)) as store:
        store.append([draft()])
    async with open_store(config, disk=Disk(NO_FEATURES)) as store:
        assert store.get("T", 0, 0, **ALL) is None
        assert await store.offset_by_time("T", 0, 0) == 0
        assert await store.store_time_at("T", 0, 0) == NOW_MS


async def test_arrivals_are_reported_at_once(tmp_path: Path) -> None:
    async with open_store(tiny_config(tmp_path)) as store:
        seen: list[tuple[str, int, int, int]] = []
        found: list[GetStatus] = []

        def arrived(arrivals: list[tuple[str, int, int, int]]) -> None:
            seen.extend(arrivals)
            for topic, queue_id, end, _ in arrivals:
                result = store.get(topic, queue_id, end - 1, **ALL)
                found.append(result.status if result is not None else GetStatus.OFFSET_FOUND_NULL)
            if len(seen) == 1:
                store.append([draft(topic="answer")])  # the callback may append

        store.indexer.on_arrival.append(arrived)
        store.append([draft(tags="A")])
        with trio.fail_after(5):
            await store.indexed.wait_reached(store.appended.value)
        assert seen == [("T", 0, 1, 65), ("answer", 0, 1, 0)]
        assert found == [GetStatus.FOUND] * 2


async def test_deleting_a_topic_and_creating_it_again(tmp_path: Path) -> None:
    config = tiny_config(tmp_path)
    async with open_store(config) as store:
        store.append([draft(str(number), queue_id=number % 2) for number in range(50)])
        store.append([draft(topic="other")])
        await store.index_syncer.save()
        assert (tmp_path / "consumequeue/T/0").is_dir()
        store.delete_topic("T")
        assert store.queues() == {"other": [0]}
        assert not (tmp_path / "consumequeue/T").exists()
        assert store.append([draft("again")])[0].queue_offset == 0
        assert [message.body for message in await read_all(store, "T", 0)] == [b"again"]
    async with open_store(config) as store:
        assert store.queues() == {"T": [0], "other": [0]}
        assert [message.body for message in await read_all(store, "T", 0)] == [b"again"]


async def test_a_store_whose_last_topic_was_deleted_stays_empty(tmp_path: Path) -> None:
    config = tiny_config(tmp_path)
    async with open_store(config) as store:
        store.append([draft()])
        await store.index_syncer.save()
        store.delete_topic("T")
    async with open_store(config) as store:
        assert store.recovered.trusted
        assert store.queues() == {}


@pytest.mark.parametrize("soon", [False, True], ids=["at once", "a little later"])
async def test_a_crash_after_the_last_topic_was_deleted_does_not_bring_it_back(
    tmp_path: Path, soon: bool
) -> None:
    """At once: the checkpoint no longer says that there are queues. A little later: it covers all
    records of the topic.
    """
    living, killed = tiny_config(tmp_path / "living"), tiny_config(tmp_path / "killed")
    async with open_store(living, SteppingClock()) as store:
        store.append([draft(str(number)) for number in range(3)])
        await store.index_syncer.save()
        if soon:
            store.append([draft("unsaved")])
        store.delete_topic("T")
        if soon:
            with trio.fail_after(10):
                while (
                    store.index_syncer.current.mark is None
                    or store.index_syncer.current.mark.record_end < store.appended.value
                ):
                    await trio.sleep(0.001)
        # A thread removes what lies in that folder meanwhile.
        left_out = shutil.ignore_patterns("deleted")
        shutil.copytree(living.root, killed.root, ignore=left_out)
    async with open_store(killed, SteppingClock()) as store:
        assert store.recovered.trusted
        assert store.queues() == {}
        assert store.append([draft("again")])[0].queue_offset == 0
        assert [message.body for message in await read_all(store, "T", 0)] == [b"again"]


async def test_queues_created_after_the_last_one_was_deleted_are_missed_when_their_folder_is_gone(
    tmp_path: Path,
) -> None:
    """A checkpoint without queues is followed by one with queues; and queues rebuilt from the log
    do not count as durable.
    """
    config = tiny_config(tmp_path)
    async with open_store(config, SteppingClock()) as store:
        store.append([draft("old")])
        await store.index_syncer.save()
        store.delete_topic("T")
        await store.index_syncer.save()
        store.append([draft("new")])
    shutil.rmtree(tmp_path / "consumequeue")
    forced: list[Path] = []

    def note(path: Path) -> bool:
        forced.append(path)
        return False

    async with open_store(config, SteppingClock(), disk=FaultyDisk(refuse_sync=note)) as store:
        assert not store.recovered.trusted
        assert [message.body for message in await read_all(store, "T", 0)] == [b"new"]
        forced.clear()
        await store.index_syncer.save()
        assert forced.index(store.queue_table.queues["T", 0].path(0)) < forced.index(
            tmp_path / "checkpoint"
        )


@pytest.mark.feature("34a", "48a", "48b")
async def test_files_of_a_running_and_of_a_stopped_store(tmp_path: Path) -> None:
    config = tiny_config(tmp_path / "deep" / "store")
    root = config.root
    async with open_store(config) as store:
        assert (root / "abort").read_text() == str(os.getpid())
        store.append([draft(unique_key="U")])
        await store.index_syncer.save()
        names = {
            str(path.relative_to(root)): path.stat().st_size
            for path in snapshot(root)
            if path.is_file()
        }
        index = f"index/{store.key_index.files[0].path.name}"
    assert names == {
        "abort": len(str(os.getpid())),
        "checkpoint": 4_096,
        "commitlog/00000000000000000000": 4_096,
        "consumequeue/T/0/00000000000000000000": 200,
        index: 584,
        "lock": 4,
    }
    assert not (root / "abort").exists()


async def test_a_clean_stop_needs_no_work_at_the_next_start(tmp_path: Path) -> None:
    config = tiny_config(tmp_path)
    async with open_store(config) as store:
        store.append([draft(str(number), unique_key=f"U{number}") for number in range(50)])
    before = snapshot(tmp_path / "index") | snapshot(tmp_path / "consumequeue")
    async with open_store(config) as store:
        assert store.recovered.trusted
        assert store.recovered.records == 0
        assert store.recovered.scanned_from == store.appended.value
    assert snapshot(tmp_path / "index") | snapshot(tmp_path / "consumequeue") == before


async def test_a_closed_store_takes_no_messages(tmp_path: Path) -> None:
    async with open_store(tiny_config(tmp_path)) as store:
        store.append([draft()])
    with pytest.raises(StoreUnavailable, match="closing"):
        store.append([draft()])


async def test_watermarks(tmp_path: Path) -> None:
    async with open_store(tiny_config(tmp_path), SteppingClock()) as store:
        store.append([draft(b"x" * 1_000, unique_key=str(number)) for number in range(10)])
        end = store.appended.value
        assert end == store.confirmed.value == store.indexed.value > 10_000
        assert store.append_max_seconds > 0
        assert store.health.writable
        assert store.flushed.value == store.first_offset == 0
        await store.flusher.flush()
        assert store.flushed.value == end


async def test_tasks_have_names(tmp_path: Path) -> None:
    async with open_store(tiny_config(tmp_path)):
        await trio.lowlevel.checkpoint()
        root = trio.lowlevel.current_root_task()
        names, tasks = set(), [root]
        while tasks:
            task = tasks.pop()
            assert task is not None
            names.add(task.name)
            tasks += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
        assert {"store-flusher", "store-indexer", "store-index-syncer"} <= names


async def test_the_key_index_takes_single_messages_together_invisibly(tmp_path: Path) -> None:
    async with open_store(
        tiny_config(tmp_path, index_write_interval_ms=60_000, checkpoint_interval_ms=60_000),
        SteppingClock(),
    ) as store:
        store.append([draft("one", unique_key="U1")])
        assert store.indexer.has_deferred
        assert store.key_index.last_offset == -1
        assert await find_bodies(store, "T", "U1") == [b"one"]
        assert not store.indexer.has_deferred
        for number in range(DEFERRED_MESSAGES_MAX + 1):
            store.append([draft(f"more {number}", unique_key=f"M{number}")])
        assert store.indexer.has_deferred
        assert store.key_index.last_offset > 0, "they are not collected without bound"
        large = [draft("x" * 1000, unique_key=f"L{number}") for number in range(20)]
        begun = len(large) * 1000
        while begun < DEFERRED_BYTES_MAX:
            store.append(large)
            begun += len(large) * 1000
        assert (
            sum(batch.end - batch.start for batch in store.indexer._deferred) <= DEFERRED_BYTES_MAX
        )
    async with open_store(tiny_config(tmp_path)) as store:
        assert await find_bodies(store, "T", f"M{DEFERRED_MESSAGES_MAX}") == [
            f"more {DEFERRED_MESSAGES_MAX}".encode()
        ]


async def test_a_message_has_a_thousand_keys_at_most(tmp_path: Path) -> None:
    async with open_store(tiny_config(tmp_path)) as store:
        store.check_draft(draft(keys=" ".join("k" * 1000)))
        with pytest.raises(
            IllegalMessage,
            match=(
                "the message has 1001 keys, at most 1000 are allowed, since each takes a place in"
                " the key index"
            ),
        ):
            store.check_draft(draft(keys=" ".join("k" * 1001)))


@pytest.mark.feature(26, 31)
async def test_messages_of_all_topics_lie_in_one_log_in_the_order_of_arrival(
    tmp_path: Path,
) -> None:
    """Their store times never decrease, even if the clock is set back meanwhile."""
    times = [NOW_MS + (number if number < 15 else number - 10) for number in range(30)]
    now = NOW_MS
    async with open_store(tiny_config(tmp_path, segment_size_bytes=1 << 16), lambda: now) as store:
        places = []
        for number in range(30):
            now = times[number]
            places += store.append([draft(f"m{number}", ("A", "B", "C")[number % 3], number % 2)])
    (file,) = (tmp_path / "commitlog").iterdir()
    messages = decode_records(
        file.read_bytes()[: places[-1].log_offset + places[-1].size], check_crc=True
    )
    assert [(message.topic, message.body) for message in messages] == [
        (("A", "B", "C")[number % 3], b"m%d" % number) for number in range(30)
    ]
    assert [message.log_offset for message in messages] == [place.log_offset for place in places]
    stored = [message.store_timestamp for message in messages]
    assert stored == sorted(stored)
    assert stored[0] == NOW_MS
    assert stored[-1] == max(times)


@attrs.define(eq=False)
class ReadingDisk(Disk):
    """Notes each read: (``consumequeue`` or ``commitlog``, offset, size)."""

    paths: dict[int, Path] = attrs.field(factory=dict)
    reads: list[tuple[str, int, int]] = attrs.field(factory=list)

    def open(self, path: Path, *, writable: bool = True) -> int:
        fd = super().open(path, writable=writable)
        self.paths[fd] = path
        return fd

    def read_nowait(self, fd: int, size: int, offset: int) -> bytearray | None:
        data = super().read_nowait(fd, size, offset)
        if data is not None:
            self._note(self.paths[fd], offset, size)
        return data

    def read_path(self, path: Path, size: int, offset: int) -> bytes:
        self._note(path, offset, size)
        return super().read_path(path, size, offset)

    def _note(self, path: Path, offset: int, size: int) -> None:
        self.reads.append(
            ("consumequeue" if "consumequeue" in path.parts else path.parent.name, offset, size)
        )


@pytest.mark.feature("41a", "41b", "41c")
@DISKS
async def test_offset_100_is_one_entry_and_one_record_also_after_a_restart(
    tmp_path: Path, disk: Disk
) -> None:
    """Of the log only the record is read: two bytes to see whether its pages are in memory, or the
    record itself.
    """
    config = tiny_config(
        tmp_path, segment_size_bytes=1 << 16, queue_file_size_bytes=6_000, hot_bytes_max=0
    )
    noting = ReadingDisk(disk.features)
    async with open_store(config, SteppingClock(), disk=noting) as store:
        place = store.append([draft(f"m{number}") for number in range(150)])[100]
        await store.index_syncer.save()
    for _ in range(2):
        async with open_store(config, SteppingClock(), disk=noting) as store:
            noting.reads.clear()
            assert bodies(await get(store, 100, messages_max=1)) == [b"m100"]
            reads = noting.reads.copy()
        assert [read for read in reads if read[0] == "consumequeue"] == [
            ("consumequeue", 100 * 20, 20)
        ]
        log = [(offset, size) for name, offset, size in reads if name == "commitlog"]
        assert log == [(place.log_offset, place.size)] or log == [
            (place.log_offset, 1),
            (place.log_offset + place.size - 1, 1),
        ]


@pytest.mark.feature("36a")
async def test_a_consumer_at_the_tail_reads_nothing_from_the_disk(tmp_path: Path) -> None:
    disk = ReadingDisk()
    async with open_store(tiny_config(tmp_path), SteppingClock(), disk=disk) as store:
        disk.reads.clear()
        for number in range(60):
            store.append([draft(f"m{number}")])
            result = store.get("T", 0, number, **ALL)
            assert result is not None
            assert bodies(result) == [b"m%d" % number]
        assert disk.reads == []


@pytest.mark.feature("47a")
async def test_the_checkpoint_file_holds_the_times_of_log_queues_and_index(tmp_path: Path) -> None:
    """As in Java the time of the index is that of the last message in a full file."""
    config = tiny_config(tmp_path, segment_size_bytes=1 << 16)
    async with open_store(config, SteppingClock()) as store:
        times = [
            store.append([draft(unique_key=f"U{number}")])[0].store_timestamp
            for number in range(40)
        ]
        await store.index_syncer.save()
    assert struct.unpack(">3q", (tmp_path / "checkpoint").read_bytes()[:24]) == (
        times[-1],
        times[-1],
        times[config.index_entry_count - 2],
    )
