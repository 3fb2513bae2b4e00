"""The largest topics of a broker in one answer: what ``broker disk`` asks for."""

from __future__ import annotations

from typing import Any, cast

import attrs

from triomq.broker.processors.runtime import ALL_KEYS, KEYS_OF_A_STEP, LARGEST_MAX, RuntimeFigures
from triomq.broker.services.statistics import Statistics
from triomq.remoting.protocol.bodies.offsets import LargestStats
from triomq.remoting.protocol.headers.admin import BrokerStatsHeader


@attrs.define
class Asked:
    """A request of which only the header is read."""

    header: BrokerStatsHeader


async def largest_of(statistics: Statistics, name: str = "TOPIC_PUT_SIZE") -> LargestStats:
    nothing = cast("Any", None)
    figures = RuntimeFigures(nothing, nothing, statistics, nothing, nothing, nothing, nothing)
    answer = await figures.item(cast("Any", Asked(BrokerStatsHeader(name, ALL_KEYS))))
    return LargestStats.decode(bytes(cast("Any", answer.body)))


async def test_the_largest_of_many_topics_come_first() -> None:
    statistics = Statistics(lambda: 0)
    topics = 2 * KEYS_OF_A_STEP + 7
    for number in range(topics):
        statistics.add("TOPIC_PUT_SIZE", f"T{number}", number)
    statistics.add("TOPIC_PUT_NUMS", "T1", 1_000_000)
    list(statistics.sample_items(10.0, 0))
    statistics.add("TOPIC_PUT_SIZE", "T5", 10_000)
    list(statistics.sample_items(20.0, 1))
    found = await largest_of(statistics)
    assert (found.count, len(found.largest)) == (topics, LARGEST_MAX)
    assert found.day == sum(range(topics)) + 10_000, "up to now, whenever the last sample was"
    assert list(found.largest)[:2] == ["T5", f"T{topics - 1}"]
    assert found.largest["T5"] == [10_005, 10_005]


async def test_what_is_older_than_an_hour_is_left_out_of_the_hour() -> None:
    statistics = Statistics(lambda: 0)
    for tick in range(0, 600, 60):  # every ten minutes, and 100 bytes since each of them
        list(statistics.sample_items(tick * 10.0, tick))
        statistics.add("TOPIC_PUT_SIZE", "T", 100)
    assert (await largest_of(statistics)).largest == {"T": [700, 1000]}


async def test_soon_after_a_start_shorter_periods_stand_for_the_day() -> None:
    statistics = Statistics(lambda: 0)
    assert await largest_of(statistics) == LargestStats()
    statistics.add("TOPIC_PUT_SIZE", "T", 100)
    list(statistics.sample_items(10.0, 1))
    assert await largest_of(statistics) == LargestStats(
        hour=100, day=100, count=1, largest={"T": [100, 100]}
    )
