"""Counters and the rates read from them."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

import pytest

from triomq.broker.services.statistics import Statistics, summary


class Clock:
    def __init__(self) -> None:
        self.now = datetime.datetime(2026, 3, 1, 23, 59, 0)

    def __call__(self) -> int:
        return int(self.now.timestamp() * 1000)


def test_rates_over_three_windows() -> None:
    statistics = Statistics(Clock())
    assert statistics.rates(1) == (0.0, 0.0, 0.0)
    for second in range(701):
        statistics.sample_totals(float(second))
        statistics.totals.puts += 100 if second < 690 else 1000
    assert statistics.rates(1) == pytest.approx(
        (1000, (50 * 100 + 10 * 1000) / 60, (590 * 100 + 10 * 1000) / 600)
    )


def test_rates_of_a_new_broker_are_over_its_own_life() -> None:
    statistics = Statistics(Clock())
    statistics.sample_totals(0.0)
    statistics.totals.gets_messages = 30
    statistics.sample_totals(3.0)
    assert statistics.rates(4) == (10.0, 10.0, 10.0)


def test_items_over_minute_hour_and_day() -> None:
    statistics = Statistics(Clock())
    item = statistics.item("TOPIC_PUT_NUMS", "T")
    for tick in range(6 * 60 * 25):
        list(statistics.sample_items(tick * 10.0, tick))
        statistics.add("TOPIC_PUT_NUMS", "T", 20)
    minute, hour, day = summary(item.minute), summary(item.hour), summary(item.day)
    assert (minute.sum, minute.tps, minute.avgpt) == (120, 2.0, 20.0)
    assert (hour.sum, hour.tps) == (7200, 2.0)
    assert (day.sum, day.tps) == (2 * 86400, 2.0)
    assert statistics.rate("TOPIC_PUT_NUMS", "T") == 2.0
    assert statistics.rate("TOPIC_PUT_NUMS", "unknown") == 0.0
    assert statistics.rate("GROUP_GET_NUMS", "T@G") == 0.0


def test_what_came_before_the_first_sample_counts() -> None:
    """A topic that got all its messages at once would show none for ever."""
    statistics = Statistics(Clock())
    statistics.add("TOPIC_PUT_NUMS", "T", 40)
    for tick in range(360, 363):
        list(statistics.sample_items(tick * 10.0, tick))
    item = statistics.items["TOPIC_PUT_NUMS", "T"]
    assert (summary(item.minute).sum, summary(item.hour).sum, summary(item.day).sum) == (40, 40, 40)
    assert summary(item.hour).tps == 40 / 600


def test_forgetting_a_group_drops_its_items_only() -> None:
    statistics = Statistics(Clock())
    for name, key in (
        ("GROUP_GET_NUMS", "T@G"),
        ("GROUP_CONSUMED_NUMS", "U@G"),
        ("TOPIC_PUT_NUMS", "G"),
        ("GROUP_GET_NUMS", "G@H"),
        ("GROUP_GET_NUMS", "G@G"),
    ):
        statistics.add(name, key, 1)
    statistics.forget_group("G")
    assert sorted(statistics.items) == [("GROUP_GET_NUMS", "G@H"), ("TOPIC_PUT_NUMS", "G")]
    statistics.forget("G")
    assert not statistics.items, "nothing was lost from the table of names"


def test_forgetting_a_topic_drops_its_items_only() -> None:
    statistics = Statistics(Clock())
    for name, key in (
        ("TOPIC_PUT_NUMS", "T"),
        ("GROUP_GET_NUMS", "T@G"),
        ("TOPIC_PUT_NUMS", "T2"),
        ("GROUP_GET_NUMS", "U@T2"),
    ):
        statistics.add(name, key, 1)
    statistics.forget("T")
    assert sorted(statistics.items) == [("GROUP_GET_NUMS", "U@T2"), ("TOPIC_PUT_NUMS", "T2")]


def test_put_times_make_a_histogram() -> None:
    statistics = Statistics(Clock())
    assert statistics.put_time_quantile(0.99) == 0.0
    statistics.note_put(98, 1000, 0.0004)
    statistics.note_put(1, 10, 0.07)
    statistics.note_put(1, 10, 60.0)
    assert statistics.totals.puts == 100
    assert statistics.totals.put_bytes == 1020
    assert statistics.put_times[0] == 98
    assert statistics.put_times[-1] == 1
    assert statistics.put_time_quantile(0.5) == 1.0
    assert statistics.put_time_quantile(0.99) == 100.0
    assert statistics.put_time_quantile(0.999) == 60_000.0
    assert statistics.put_time_max == 60.0
    statistics.note_put(1, 10, 0.010)
    assert statistics.put_times[1:3] == [0, 1], "10 ms is not below 10 ms"


def test_totals_at_midnight() -> None:
    clock = Clock()
    statistics = Statistics(clock)
    statistics.sample_totals(0.0)
    statistics.totals.puts, statistics.totals.gets_messages = 10, 5
    clock.now += datetime.timedelta(minutes=2)
    statistics.sample_totals(120.0)
    assert statistics.puts_at_midnights == (0, 10)
    statistics.totals.puts = 25
    statistics.sample_totals(130.0)
    assert statistics.puts_at_midnights == (0, 10)
    clock.now += datetime.timedelta(days=1)
    statistics.sample_totals(140.0)
    assert statistics.puts_at_midnights == (10, 25)
    assert statistics.gets_at_midnights == (5, 5)


def test_items_of_the_whole_broker_are_sums_of_the_others() -> None:
    statistics = Statistics(Clock(), "C", lambda topic: topic == "SYSTEM")
    list(statistics.sample_items(0.0, 0))
    for topic in ("T", "SYSTEM"):
        statistics.add("TOPIC_PUT_NUMS", topic, 5)
        statistics.add("GROUP_GET_NUMS", f"{topic}@G", 2)
        statistics.note_put(5, 100, 0.0)
    statistics.totals.gets_messages += 4
    list(statistics.sample_items(10.0, 1))

    def minute(name: str) -> int:
        return summary(statistics.items[name, "C"].minute).sum

    assert (minute("BROKER_PUT_NUMS"), minute("BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC")) == (10, 5)
    assert (minute("BROKER_GET_NUMS"), minute("BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC")) == (4, 2)
    statistics.forget("T")
    list(statistics.sample_items(20.0, 2))
    assert minute("BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC") == 5, "what was counted stays counted"


def test_a_topic_is_forgotten_without_a_scan_of_all_others() -> None:
    class Unscannable(dict):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[object]:
            raise AssertionError("a scan of all items")

    statistics = Statistics(Clock())
    for topic in ("A", "B", "C"):
        statistics.add("TOPIC_PUT_NUMS", topic, 1)
        statistics.add("GROUP_GET_NUMS", f"{topic}@G", 1)
    statistics.items = Unscannable(statistics.items)
    statistics.forget("B")
    statistics.forget("never seen")
    assert list(statistics.items.keys()) == [
        ("TOPIC_PUT_NUMS", "A"),
        ("GROUP_GET_NUMS", "A@G"),
        ("TOPIC_PUT_NUMS", "C"),
        ("GROUP_GET_NUMS", "C@G"),
    ]
    statistics.forget("G")
    assert list(statistics.items.keys()) == [("TOPIC_PUT_NUMS", "A"), ("TOPIC_PUT_NUMS", "C")]
    statistics.add("GROUP_GET_NUMS", "A@G", 1)
    statistics.forget("A")
    assert list(statistics.items.keys()) == [("TOPIC_PUT_NUMS", "C")]
