"""DeferredIndexing: records that a log missed are copied first and indexed afterwards, with the
same result.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest
import trio
from replicating import log_of
from stores import SteppingClock, draft, read_all, take, tiny_config

from triomq.broker.store.core.config import FlushMode
from triomq.broker.store.core.errors import CopyRefused
from triomq.broker.store.follow import deferred_indexing, log_copy
from triomq.broker.store.follow.log_copy import LogCopy
from triomq.broker.store.indexing import indexer
from triomq.broker.store.log.flusher import Flusher
from triomq.broker.store.opening import open_store
from triomq.broker.store.queues.batch_queue import BatchQueue
from triomq.broker.store.store import MessageStore

COUNT = 120
FAR = 6_000
RECORD_BYTES_MAX = 3 * COUNT + 200
"""Nor is any BLANK longer."""


@pytest.fixture(autouse=True)
def _far_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred_indexing, "BYTES_MIN", FAR)


async def write_original(root: Path) -> bytes:
    """The bytes of a log: several segments of messages of three topics; one topic has batch consume
    queues.
    """
    async with open_store(tiny_config(root), SteppingClock(), batch_topics=lambda: {"C"}) as store:
        for number in range(COUNT):
            store.append(
                [draft(b"x" * (number * 3), "ABC"[number % 3], tags="t", unique_key=f"u{number}")]
            )
        assert len(store.log.segments.items) > 8
        return log_of(store)


async def assert_all_found(store: MessageStore, data: bytes) -> None:
    with trio.fail_after(5):
        await store.indexed.wait_reached(len(data))
    assert log_of(store) == data
    for topic, first in (("A", 0), ("B", 1), ("C", 2)):
        messages = await read_all(store, topic, 0)
        assert [(len(message.body), message.queue_offset) for message in messages] == [
            (number * 3, number // 3) for number in range(first, COUNT, 3)
        ]
    assert isinstance(store.queue_table.queues["C", 0], BatchQueue)
    for number in range(COUNT):
        found = await store.query(
            "ABC"[number % 3], f"u{number}", max_count=9, begin_ms=0, end_ms=1 << 60, unique=True
        )
        assert len(found.chunks) == 1, number


def take_until(copy: LogCopy, data: bytes, end: int, dice: random.Random) -> None:
    while copy.received < end:
        stop = min(end, copy.received + dice.choice((1, 7, 90, 700, 3_000, 9_000)))
        take(copy, copy.received, data[copy.received : stop])


@pytest.mark.parametrize("flush_mode", FlushMode)
@pytest.mark.parametrize("bulk_bytes", [1, 1 << 20], ids=["thread", "loop"])
@pytest.mark.parametrize("seed", range(3))
async def test_deferred_records_are_found_afterwards(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flush_mode: FlushMode,
    bulk_bytes: int,
    seed: int,
) -> None:
    """And so are the records behind them, at once or later; after a restart, too."""
    monkeypatch.setattr(log_copy, "BULK_BYTES", bulk_bytes)
    data, dice = await write_original(tmp_path / "master"), random.Random(seed)
    goal, config = (
        len(data) * 2 // 3,
        tiny_config(tmp_path / "slave", flush_mode=flush_mode, flush_interval_ms=1),
    )
    async with open_store(config, SteppingClock()) as store:
        copy = store.follow()
        copy.deferral.aim(goal)
        with copy.writer.using():
            take_until(copy, data, goal - FAR // 2, dice)
            await copy.writer.finish(copy.index_taken)
            await trio.testing.wait_all_tasks_blocked()
            assert store.appended.value > goal - FAR
            assert store.indexed.value == 0, "indexed before everything was copied"
            take_until(copy, data, len(data), dice)
            await copy.writer.finish(copy.index_taken)
        await assert_all_found(store, data)
    async with open_store(config, SteppingClock(), batch_topics=lambda: {"C"}) as store:
        assert store.recovered.trusted
        await assert_all_found(store, data)


@pytest.mark.parametrize("slow", ["", "l", "fl", "f", "mm"], ids=lambda slow: slow or "none")
async def test_the_store_time_of_the_last_record_is_known(tmp_path: Path, slow: str) -> None:
    """Also if the first, the last or some in the middle take the slow path."""
    places = {"f": 0, "m": COUNT // 2, "l": COUNT - 1}
    looked_at = {places[kind] for kind in slow} | ({COUNT // 2 + 7} if slow == "mm" else set())
    async with open_store(tiny_config(tmp_path / "master"), SteppingClock()) as store:
        for number in range(COUNT):
            store.append([draft(b"x" * 200, "T" * 130 if number in looked_at else "A", tags="t")])
        data, last = log_of(store), store.log.last_timestamp
    async with open_store(tiny_config(tmp_path / "slave"), SteppingClock()) as store:
        copy = store.follow()
        copy.deferral.aim(len(data))
        take(copy, 0, data[:-1])
        assert store.log.last_timestamp == last - 1
        take(copy, len(data) - 1, data[-1:])
        assert store.appended.value == len(data)
        assert store.log.last_timestamp == last
        await trio.testing.wait_all_tasks_blocked()


async def test_short_distances_are_indexed_at_once(tmp_path: Path) -> None:
    data = await write_original(tmp_path / "master")
    async with open_store(tiny_config(tmp_path / "slave"), SteppingClock()) as store:
        copy = store.follow()
        for start, end in itertools.pairwise(range(0, len(data), FAR // 2)):
            copy.deferral.aim(end)
            take(copy, copy.received, data[start:end])
            assert store.indexed.value == store.appended.value
        take(copy, copy.received, data[copy.received :])
        await assert_all_found(store, data)


async def test_the_indexes_are_never_farther_behind_than_a_stretch(tmp_path: Path) -> None:
    data = await write_original(tmp_path / "master")
    piece, stretches = 500, 0
    async with open_store(tiny_config(tmp_path / "slave"), SteppingClock()) as store:
        copy = store.follow()
        copy.deferral.bytes_max = 2 * FAR
        copy.deferral.aim(len(data))
        while copy.received < len(data):
            take(copy, copy.received, data[copy.received : copy.received + piece])
            assert (
                store.appended.value - store.indexed.value <= 2 * FAR + piece + 2 * RECORD_BYTES_MAX
            )
            if copy.is_spent:
                stretches += 1
                with trio.fail_after(5):
                    await copy.wait_indexed()
                assert not copy.is_spent
        assert stretches > 1
        await assert_all_found(store, data)


async def test_no_stretch_fills_the_disk(tmp_path: Path) -> None:
    """Records that are not indexed cannot be deleted."""
    data = await write_original(tmp_path / "master")
    for number, (free, ahead) in enumerate(((8 * FAR, True), (8 * FAR - 4, False), (0, False))):
        async with open_store(tiny_config(tmp_path / str(number)), SteppingClock()) as store:
            copy = store.follow()
            copy.deferral.free_bytes = lambda free=free: free  # type: ignore[misc]
            copy.deferral.aim(len(data))
            for start in range(0, len(data), 2_000):
                take(copy, start, data[start : start + 2_000])
                if ahead:
                    assert start or store.indexed.value == 0 < store.appended.value
                else:
                    assert store.indexed.value == store.appended.value
                    assert not copy.is_spent
            await assert_all_found(store, data)


async def test_a_new_connection_goes_on_where_there_is_room(tmp_path: Path) -> None:
    data = await write_original(tmp_path / "master")
    async with open_store(tiny_config(tmp_path / "slave"), SteppingClock()) as store:
        copy = store.follow()
        copy.deferral.aim(len(data))
        take(copy, 0, data[:7_000])
        copy.deferral.stop()
        copy.deferral.aim(len(data))
        assert store.indexed.value == 0
        assert not copy.is_spent
        take(copy, 7_000, data[7_000:])
        await assert_all_found(store, data)


async def test_nothing_is_shown_before_the_disk_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor deferred records, while the records behind them wait for the same fsync."""
    data = await write_original(tmp_path / "master")
    on_disk, force_out = trio.Event(), Flusher._force_out

    async def late(self: Flusher, *arguments: Any) -> None:
        if store.appended.value > 6_000:
            await on_disk.wait()
        await force_out(self, *arguments)

    monkeypatch.setattr(Flusher, "_force_out", late)
    async with open_store(
        tiny_config(tmp_path / "slave", flush_mode=FlushMode.SYNC), SteppingClock()
    ) as store:
        copy = store.follow()
        copy.deferral.aim(20_000)
        take(copy, 0, data[:5_000])
        with trio.fail_after(5):
            await store.flushed.wait_reached(store.appended.value)
        take(copy, 5_000, data[5_000:21_000])
        take(copy, 21_000, data[21_000:25_000])
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert 0 < store.indexed.value <= store.confirmed.value < 6_000
        on_disk.set()
        take(copy, 25_000, data[25_000:])
        await assert_all_found(store, data)


@pytest.mark.parametrize("damaged", [False, True])
async def test_deferred_records_are_indexed_when_nothing_more_comes(
    tmp_path: Path, damaged: bool
) -> None:
    """The connection has ended, or bytes were not a message. The next master does not send its end:
    its records are indexed at once.
    """
    data = await write_original(tmp_path / "master")
    async with open_store(tiny_config(tmp_path / "slave"), SteppingClock()) as store:
        copy = store.follow()
        copy.deferral.aim(len(data))
        take(copy, 0, data[:7_000])
        if damaged:
            with pytest.raises(CopyRefused):
                take(copy, 7_000, bytes(500))
        assert 0 == store.indexed.value < store.appended.value
        copy.drop_rest()
        copy.deferral.stop()
        with trio.fail_after(5):
            await store.indexed.wait_reached(store.appended.value)
        take(copy, copy.received, data[copy.received : copy.received + 900])
        assert store.indexed.value == store.appended.value
        take(copy, copy.received, data[copy.received :])
        assert not copy.is_spent
        await assert_all_found(store, data)


async def test_a_connection_that_breaks_again_and_again(tmp_path: Path) -> None:
    data, dice = await write_original(tmp_path / "master"), random.Random(5)
    async with open_store(tiny_config(tmp_path / "slave"), SteppingClock()) as store:
        copy = store.follow()
        copy.deferral.bytes_max = 2 * FAR
        while copy.received < len(data):
            copy.deferral.aim(len(data))
            take_until(copy, data, min(len(data), copy.received + dice.randrange(4_000)), dice)
            if dice.random() < 0.5:
                await trio.sleep(0.001)
            copy.drop_rest()
            copy.deferral.stop()
        await assert_all_found(store, data)


@pytest.mark.parametrize("much", [False, True])
async def test_a_store_that_is_closed_before_it_has_indexed_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, much: bool
) -> None:
    """Closing indexes the rest; if that would take long, the next start does it."""
    if much:
        monkeypatch.setattr(indexer, "FINISH_BYTES_MAX", FAR)
    data = await write_original(tmp_path / "master")
    async with open_store(tiny_config(tmp_path / "slave"), SteppingClock()) as store:
        copy = store.follow()
        take(copy, 0, data[:3_000])
        indexed = store.indexed.value
        copy.deferral.aim(len(data))
        take(copy, 3_000, data[3_000:-1])
        end = store.appended.value
        assert store.indexed.value == indexed
    assert (store.indexed.value == indexed) == much
    assert (tmp_path / "slave" / "abort").exists() == much
    async with open_store(tiny_config(tmp_path / "slave"), SteppingClock()) as store:
        assert (store.recovered.scanned_from == end) != much
        copy = store.follow()
        take(copy, end, data[end:])
        await assert_all_found(store, data)
