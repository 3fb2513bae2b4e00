"""Store times whose clock was wrong for a while: they go back, and searches by time are right."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from batch_stores import TOPIC, batch_config, inner_batch
from store_times import check_found_by_key, check_offset_by_time, first_from
from stores import NOW_MS, SteppingClock, draft, read_all, take, tiny_config

from triomq.broker.store.core.config import StoreConfig
from triomq.broker.store.core.stored_times import AHEAD_MS_MAX, steps_back
from triomq.broker.store.opening import open_store
from triomq.broker.store.store import MessageStore

MINUTE, DAY = 60_000, 86_400_000
COUNT = 8
"""Messages from each jump to the next one."""


@asynccontextmanager
async def jumping(config: StoreConfig, *jumps_ms: int) -> AsyncIterator[MessageStore]:
    """A store whose clock has jumped several times; after each jump messages came."""
    clock = SteppingClock(step_ms=2_000)
    async with open_store(config, clock, batch_topics=lambda: [TOPIC]) as store:
        for jump in (0, *jumps_ms):
            clock.now_ms += jump
            append(store, 1)
            if store.log.ahead_ms > AHEAD_MS_MAX and config.index_enabled:
                before = store.index_syncer.steps_back
                with trio.fail_after(30):
                    while store.index_syncer.steps_back == before:
                        await trio.sleep(0.001)
            append(store, COUNT - 1)
        yield store


def append(store: MessageStore, count: int) -> None:
    for _ in range(count):
        key = f"U{store.appended.value}"
        store.append([draft(key, unique_key=key), inner_batch(2, unique_key=f"B{key}")])


def quick_config(root: Path, **changes: Any) -> StoreConfig:
    return batch_config(root, index_write_interval_ms=1, **changes)


async def check(store: MessageStore) -> list[int]:
    """Compare all searches by time with the rule, and return the store times of the messages."""
    messages = await read_all(store, "T", 0)
    times = [message.store_timestamp for message in messages]
    await check_offset_by_time(store, "T", 0, times)
    for message in messages:
        text = message.body.decode()
        await check_found_by_key(store, "T", text, message.store_timestamp, message.body)
    batches = await read_all(store, TOPIC, 0)
    stored = [batch.store_timestamp for batch in batches]
    for asked in {time + more for time in stored for more in (0, 1)}:
        number = first_from(stored, asked, store.log.last_timestamp)
        assert await store.offset_by_time(TOPIC, 0, asked) == 2 * number
    return times


@pytest.mark.parametrize(
    "jumps_ms",
    [(40 * DAY, -40 * DAY), (-40 * DAY, 40 * DAY), (40 * DAY, DAY, -41 * DAY, -DAY, DAY)],
    ids=["ahead", "behind", "often"],
)
async def test_searches_are_right_after_a_restart_and_on_a_slave(
    tmp_path: Path, jumps_ms: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    config = quick_config(tmp_path / "store")
    back = sum(jump < 0 for jump in jumps_ms)
    async with jumping(config, *jumps_ms) as store:
        times = await check(store)
        assert store.index_syncer.steps_back == back
        assert len(store.key_index.steps_back()) == back
        data = b"".join(segment.path.read_bytes() for segment in store.log.segments.items)
        data = data[: store.appended.value]
    assert caplog.text.count("hours ahead of the clock") == back
    restarted = open_store(config, SteppingClock(times[-1]), batch_topics=lambda: [TOPIC])
    async with restarted as store:
        assert await check(store) == times
        assert store.append([draft()])[0].store_timestamp < times[-1] + MINUTE
    async with open_store(quick_config(tmp_path / "slave"), SteppingClock()) as store:
        take(store.follow(), 0, data)
        assert await check(store) == times
        assert store.log.last_timestamp == times[-1]


async def test_what_came_after_the_clock_was_set_right_is_found_by_its_own_time(
    tmp_path: Path,
) -> None:
    """What came while it was ahead counts as old as the next message."""
    async with jumping(quick_config(tmp_path), 40 * DAY, -40 * DAY) as store:
        times = await check(store)
        last, ahead = times[-1], COUNT
        after = 2 * COUNT + 1  # one message came before the store went back
        assert max(times[:ahead]) < times[after] < last < NOW_MS + DAY < min(times[ahead:after])
        assert await store.offset_by_time("T", 0, last) == len(times) - 1
        assert await store.offset_by_time("T", 0, times[after]) == ahead
        assert await store.offset_by_time("T", 0, times[after] + 1) == after + 1
        assert await store.offset_by_time("T", 0, NOW_MS + DAY) == ahead


@pytest.mark.parametrize(
    ("ahead_ms", "changes"),
    [(AHEAD_MS_MAX - MINUTE, {}), (40 * DAY, {"index_enabled": False})],
    ids=["a little", "no key index"],
)
async def test_times_that_do_not_go_back(
    tmp_path: Path, ahead_ms: int, changes: dict[str, bool]
) -> None:
    """A little does no harm; without a key index searches would not know where they go back."""
    async with jumping(quick_config(tmp_path, **changes), ahead_ms, -ahead_ms) as store:
        await trio.sleep(0.01)  # some intervals of the index syncer
        times = [message.store_timestamp for message in await read_all(store, "T", 0)]
        assert times == sorted(times)
        assert store.index_syncer.steps_back == 0


async def test_a_key_index_of_times_that_go_back_inside_a_batch(tmp_path: Path) -> None:
    """Recovery and slaves apply many records at once."""
    async with jumping(quick_config(tmp_path / "a"), 40 * DAY, -40 * DAY, -DAY, DAY) as store:
        data = b"".join(segment.path.read_bytes() for segment in store.log.segments.items)
        data = data[: store.appended.value]
        await store.index_syncer.save()
        steps = store.key_index.steps_back()
        assert len(steps) == 2
    async with open_store(tiny_config(tmp_path / "b"), SteppingClock()) as store:
        take(store.follow(), 0, data)
        await store.index_syncer.save()
        assert store.key_index.steps_back() == steps
        assert 0 <= store.key_index.full_timestamp <= store.key_index.files[-1].begin_timestamp


@pytest.mark.parametrize(
    ("times", "before", "found"),
    [
        ([5, 6], 0, []),
        ([5, 6], AHEAD_MS_MAX + 5, []),
        ([5, 6], AHEAD_MS_MAX + 6, [0]),
        ([DAY, 5, 6, DAY, 7], 0, [1, 4]),
        ([5, DAY], 0, []),
    ],
)
def test_steps_back(times: list[int], before: int, found: list[int]) -> None:
    assert steps_back(times, before) == found
