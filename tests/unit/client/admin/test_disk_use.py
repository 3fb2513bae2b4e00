"""Figures of a disk from a broker's counters."""

from __future__ import annotations

from typing import Any, cast

import pytest

from triomq.client.admin.answers import Answers
from triomq.client.admin.disk_use import TopicUse, disk_use, figures, uptime_seconds
from triomq.client.core.errors import BrokerError
from triomq.remoting.protocol.bodies.offsets import (
    BrokerStats,
    LargestStats,
    StatsItem,
    TopicOffset,
    TopicStats,
)
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.bodies.topics import TopicConfig, TopicTable
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import Command

STATUS = {
    "commitLogDirCapacity": "Total : 100.0 GiB, Free : 40.0 GiB.",
    "commitLogDiskRatio": "0.6000",
    "commitLogMinOffset": str(10 << 30),
    "commitLogMaxOffset": str(40 << 30),
    "runtime": "[ 2 days, 0 hours, 0 minutes, 0 seconds ]",
}


def test_thresholds_are_reached_at_the_rates_of_hour_and_day() -> None:
    settings = {"diskMaxUsedSpaceRatio": "55", "fileReservedTime": "48"}
    use = figures(STATUS, settings, hour=5 << 30, day=24 << 30)
    assert (use.total, use.log, use.used_ratio) == (100 << 30, 30 << 30, 0.6)
    assert use.needed == 72 << 30, "two days and the one on which files are deleted"
    assert [(each.setting, each.ratio) for each in use.thresholds] == [
        ("diskMaxUsedSpaceRatio", 0.55),
        ("diskSpaceCleanForciblyRatio", 0.85),
        ("diskSpaceWarningLevelRatio", 0.9),
    ]
    assert [each.hours_at_hour_rate for each in use.thresholds] == pytest.approx([0, 5, 6])
    assert [each.hours_at_day_rate for each in use.thresholds] == pytest.approx([0, 25, 30])


def test_a_broker_that_started_just_now_has_a_rate_of_its_time() -> None:
    status = {**STATUS, "runtime": "[ 0 days, 0 hours, 30 minutes, 0 seconds ]"}
    use = figures(status, {}, hour=1 << 30, day=1 << 30)
    assert use.day == 48 << 30
    assert use.thresholds[0].hours_at_hour_rate == use.thresholds[0].hours_at_day_rate
    assert use.thresholds[0].hours_at_hour_rate == pytest.approx(7.5)


def test_a_topic_without_traffic_never_fills_a_disk() -> None:
    use = figures(STATUS, {}, hour=0, day=0)
    assert {each.hours_at_hour_rate for each in use.thresholds} == {None}


def test_figures_that_are_missing_are_an_error() -> None:
    assert uptime_seconds("[ 1 days, 2 hours, 3 minutes, 4 seconds ]") == 93784
    for status in ({**STATUS, "runtime": "soon"}, {**STATUS, "commitLogDirCapacity": "much"}):
        with pytest.raises(ValueError, match=r"runtime|commitLogDirCapacity"):
            figures(status, {}, hour=0, day=0)


class Broker:
    """An admin that knows one broker. ``day``: topic → bytes and messages of its last day;
    ``largest``: what it answers to the key ``*``, None if it is one of RocketMQ.
    """

    def __init__(
        self, day: dict[str, tuple[int, int]], largest: LargestStats | None = None
    ) -> None:
        self.day, self.largest, self.asked_all = day, largest, False

    async def broker_status(self, _: str) -> dict[str, str]:
        return STATUS

    async def for_each(self, names: Any, call: Any) -> Answers[Any]:
        return Answers({name: await call(name) for name in names}, {})

    async def ask(self, address: str, code: RequestCode, header: Any = None) -> Command:
        body: Any
        match code:
            case RequestCode.GET_BROKER_CONFIG:
                return Command(code=0, body=b"fileReservedTime=48\n")
            case RequestCode.GET_ALL_TOPIC_CONFIG:
                self.asked_all = True
                body = TopicTable({n: TopicConfig(topic_name=n) for n in [*self.day, "idle"]})
            case RequestCode.GET_TOPIC_STATS_INFO:
                offsets = TopicOffset(10, 30)
                body = TopicStats({MessageQueue(header.topic, "b", 0): offsets})
            case _ if header.stats_key == "*" and self.largest:
                body = self.largest
            case _ if header.stats_key not in self.day:
                raise BrokerError(1, "no such counter", address, "VIEW_BROKER_STATS_DATA")
            case _:
                size, messages = self.day[header.stats_key]
                total = size if header.stats_name == "TOPIC_PUT_SIZE" else messages
                body = BrokerStats(hour=StatsItem(total // 10), day=StatsItem(total))
        return Command(code=0, body=body.encode())


async def test_the_topics_that_store_most_come_first() -> None:
    broker = Broker({"small": (1_000, 10), "large": (90_000, 30), "none": (0, 0)})
    use = await disk_use(cast("Any", broker), "b:1", top=2)
    assert use.topics == (
        TopicUse("large", 9_000, 90_000, held=60_000),
        TopicUse("small", 100, 1_000, held=2_000),
    )
    assert (use.hour, use.day, use.topic_count, use.kept_hours) == (9_100, 91_000, 3, 48)


async def test_a_broker_of_triomq_tells_its_largest_topics_in_one_answer() -> None:
    told = LargestStats(hour=700, day=9_000, count=2000, largest={"b": [500, 6_000], "a": [9, 90]})
    broker = Broker({"b": (6_000, 10), "a": (90, 1)}, told)
    use = await disk_use(cast("Any", broker), "b:1", top=1)
    assert use.topics == (TopicUse("b", 500, 6_000, held=12_000),)
    assert (use.hour, use.day, use.topic_count) == (700, 9_000, 2000)
    assert not broker.asked_all


async def test_more_topics_than_one_answer_has_are_asked_one_by_one() -> None:
    told = LargestStats(hour=1, day=2, count=3, largest={"b": [1, 2]})
    broker = Broker({"b": (2, 1), "a": (90, 1)}, told)
    use = await disk_use(cast("Any", broker), "b:1", top=2)
    assert [one.topic for one in use.topics] == ["a", "b"]
