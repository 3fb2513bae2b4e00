"""How full the disk of a broker is, which topics fill it, and when a threshold is reached.

All figures are the broker's own: its runtime counters (28), settings (26), and the bytes that each
topic stored in the last hour and day (315, ``TOPIC_PUT_SIZE``). Brokers of RocketMQ have them, too,
but tell them topic by topic.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from triomq.client.admin.answers import all_of, read_body
from triomq.client.admin.broker_rates import day_of
from triomq.client.admin.server_settings import read_settings
from triomq.client.core.errors import BrokerError, ProtocolBroken
from triomq.remoting.protocol.bodies.offsets import BrokerStats, LargestStats, TopicStats
from triomq.remoting.protocol.bodies.topics import TopicTable
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.admin import BrokerStatsHeader
from triomq.remoting.protocol.headers.topic import TopicHeader

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin

HOUR, DAY = 3600.0, 86400.0
THRESHOLDS = {
    "diskMaxUsedSpaceRatio": ("expired files go at any hour", 0.75),
    "diskSpaceCleanForciblyRatio": ("the oldest files go whatever their age", 0.85),
    "diskSpaceWarningLevelRatio": ("sends are refused", 0.90),
}
"""setting → what happens above it, and its value where the broker does not tell (RocketMQ's)"""
CAPACITY = re.compile(r"Total : ([\d.]+) (B|KiB|MiB|GiB|TiB|PiB)\b")
UNITS = {unit: 1024**power for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB", "PiB"))}


@attrs.frozen
class TopicUse:
    """Bytes of a topic in the log. ``held``: estimated, None without a message of the last day."""

    topic: str
    hour: int
    day: int
    held: int | None


@attrs.frozen
class Threshold:
    """``hours``: until it is reached if nothing is deleted; 0 above it, None if never."""

    setting: str
    effect: str
    ratio: float
    hours_at_hour_rate: float | None
    hours_at_day_rate: float | None


@attrs.frozen(kw_only=True)
class DiskUse:
    """The disk of a broker's log. Sizes are in bytes."""

    used_ratio: float
    """by all programs, of what users may use"""
    total: int
    log: int
    hour: int
    day: int
    kept_hours: int
    """``fileReservedTime``"""
    thresholds: tuple[Threshold, ...]
    topics: tuple[TopicUse, ...]
    """those that stored most within a day"""
    topic_count: int
    """number of topics that stored something since the broker's start"""

    @property
    def needed(self) -> int:
        """The log's size if the rate of the last day goes on: files are deleted once a day."""
        return int(self.day * (self.kept_hours / 24 + 1))


async def disk_use(admin: Admin, address: str, top: int) -> DiskUse:
    """Ask a broker. Raises: TrioMQError."""
    status = await admin.broker_status(address)
    code = RequestCode.GET_BROKER_CONFIG
    settings = (await read_settings(admin, [address], code)).some()[address]
    sizes = await largest_stats(admin, address, "TOPIC_PUT_SIZE", top)
    largest = list(sizes.largest)[:top]
    # The mean size of a message is that of samples of the same moments.
    bytes_of = await all_stats(admin, address, "TOPIC_PUT_SIZE", largest)
    counts = await all_stats(admin, address, "TOPIC_PUT_NUMS", largest)
    held = await admin.for_each(largest, lambda topic: held_messages(admin, address, topic))
    uses = []
    for topic in largest:
        hour, day = sizes.largest[topic]
        sent = day_of(counts[topic]) if topic in counts else 0
        messages = held.values.get(topic)
        stored = day_of(bytes_of[topic]) if topic in bytes_of else 0
        estimate = messages * stored // sent if sent and messages is not None else None
        uses.append(TopicUse(topic, hour, day, estimate))
    try:
        return figures(
            status,
            settings,
            hour=sizes.hour,
            day=sizes.day,
            topics=tuple(uses),
            topic_count=sizes.count,
        )
    except (KeyError, ValueError) as error:
        raise ProtocolBroken(f"{address} lacks a figure of its disk ({error})") from None


def figures(
    status: Mapping[str, str],
    settings: Mapping[str, str],
    *,
    hour: int,
    day: int,
    topics: tuple[TopicUse, ...] = (),
    topic_count: int = 0,
) -> DiskUse:
    """Return the use of a disk from a broker's counters and settings.

    Raises: KeyError, ValueError for figures that are missing or wrong.
    """
    capacity = CAPACITY.search(status["commitLogDirCapacity"])
    if capacity is None:
        raise ValueError("commitLogDirCapacity")
    total = int(float(capacity[1]) * UNITS[capacity[2]])
    used = float(status["commitLogDiskRatio"])
    up = max(uptime_seconds(status["runtime"]), 60.0)

    def hours(ratio: float, stored: int, seconds: float) -> float | None:
        free = (ratio - used) * total
        rate = stored / min(seconds, up)
        return 0.0 if free <= 0 else free / rate / HOUR if rate else None

    thresholds = []
    for name, (effect, usual) in THRESHOLDS.items():
        ratio = share(settings[name]) if name in settings else usual
        at_hour, at_day = hours(ratio, hour, HOUR), hours(ratio, day, DAY)
        thresholds.append(Threshold(name, effect, ratio, at_hour, at_day))
    return DiskUse(
        used_ratio=used,
        total=total,
        log=int(status["commitLogMaxOffset"]) - int(status["commitLogMinOffset"]),
        hour=hour,
        day=int(day * DAY / min(DAY, up)),
        kept_hours=int(settings.get("fileReservedTime", "72")),
        thresholds=tuple(thresholds),
        topics=topics,
        topic_count=topic_count,
    )


def share(text: str) -> float:
    """Return a ratio: Java writes one threshold in percent and two as fractions."""
    value = float(text)
    return value / 100 if value > 1 else value


def uptime_seconds(text: str) -> float:
    """Return the seconds of ``[ 1 days, 2 hours, 3 minutes, 4 seconds ]``. Raises: ValueError."""
    numbers = [int(number) for number in re.findall(r"\d+", text)]
    if len(numbers) != 4:
        raise ValueError("runtime")
    days, hours, minutes, seconds = numbers
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def hour_of(stats: BrokerStats) -> int:
    """Return the count of the hour; soon after a broker's start, of the minute."""
    return stats.hour.sum or stats.minute.sum


async def largest_stats(admin: Admin, address: str, name: str, top: int) -> LargestStats:
    """Return a counter of the topics of a broker. Raises: TrioMQError.

    RocketMQ's brokers tell it topic by topic: one request for each of their topics.
    """
    try:
        answer = await admin.ask(
            address, RequestCode.VIEW_BROKER_STATS_DATA, BrokerStatsHeader(name, "*")
        )
        found = read_body(LargestStats, answer)
        if len(found.largest) >= min(top, found.count):
            return found
    except BrokerError:
        pass  # it has no topic of that name
    table = await admin.ask(address, RequestCode.GET_ALL_TOPIC_CONFIG)
    topics = list(read_body(TopicTable, table).topic_config_table)
    stats = await all_stats(admin, address, name, topics)
    sums = {topic: [hour_of(one), day_of(one)] for topic, one in stats.items()}
    largest = sorted(sums, key=lambda topic: (sums[topic][1], topic), reverse=True)
    return LargestStats(
        hour=sum(hour for hour, _ in sums.values()),
        day=sum(day for _, day in sums.values()),
        count=len(sums),
        largest={topic: sums[topic] for topic in largest},
    )


async def all_stats(
    admin: Admin, address: str, name: str, topics: Sequence[str]
) -> dict[str, BrokerStats]:
    """Return a counter of each topic that has it. Raises: TrioMQError."""

    async def ask(topic: str) -> BrokerStats | None:
        header = BrokerStatsHeader(name, topic)
        try:
            answer = await admin.ask(address, RequestCode.VIEW_BROKER_STATS_DATA, header)
        except BrokerError:
            return None  # nothing was sent to the topic since the broker's start
        return read_body(BrokerStats, answer)

    answers = all_of(await admin.for_each(topics, ask))
    return {topic: stats for topic, stats in answers.items() if stats is not None}


async def held_messages(admin: Admin, address: str, topic: str) -> int:
    """Return how many messages the queues of a topic have. Raises: TrioMQError."""
    header = TopicHeader(topic=topic)
    answer = await admin.ask(address, RequestCode.GET_TOPIC_STATS_INFO, header)
    return read_body(TopicStats, answer).message_count
