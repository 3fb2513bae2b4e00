"""Statistics of the broker: counters that grow once per batch, and rates from samples of them.

There are two grains. The totals of the whole broker are sampled every second, for rates over the
last 10 s, 60 s and 600 s. Single items (a topic, a topic and group) are sampled every 10 s for the
last minute, every 10 min for the hour and every hour for the day, as the names of a Java broker's
statistics promise. Source: store/StoreStatsService.java, common/stats/StatsItem.java,
store/stats/BrokerStatsManager.java.
"""

from __future__ import annotations

import datetime
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import attrs
import trio

from triomq.broker.services.put_types import DELIVERED, PutTypes, note_size
from triomq.broker.store.core.draft import Appended, Draft
from triomq.remoting.protocol.bodies.offsets import StatsItem

CONSUMED = "GROUP_CONSUMED_NUMS"
"""name of the items of what groups have done with; RocketMQ only has what they were handed"""
RATE_WINDOWS_SECONDS = (10, 60, 600)
ITEMS_PER_STEP = 1_000
SAMPLE_SECONDS = 10
# Upper bounds of the put-time histogram, in milliseconds, as the runtime information prints them.
PUT_TIME_BOUNDS_MS = (1, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10000)


@attrs.define(eq=False)
class Totals:
    """Counters since the start; one addition per batch."""

    puts: int = 0
    put_bytes: int = 0
    puts_failed: int = 0
    puts_too_few: int = 0
    """sends that got no SEND_OK since too few brokers have, or would have, the message"""
    gets_found: int = 0
    gets_missed: int = 0
    gets_messages: int = 0


@attrs.define(eq=False)
class Item:
    """One statistics item: a sum of values, and the number of additions."""

    value: int = 0
    times: int = 0
    minute: deque[tuple[float, int, int]] = attrs.field(factory=lambda: deque(maxlen=7))
    hour: deque[tuple[float, int, int]] = attrs.field(factory=lambda: deque(maxlen=7))
    day: deque[tuple[float, int, int]] = attrs.field(factory=lambda: deque(maxlen=25))


def summary(samples: deque[tuple[float, int, int]]) -> StatsItem:
    """Return the sum of the samples' period, per second, and per addition."""
    if len(samples) < 2:
        return StatsItem()
    (begin, value_begin, times_begin), (end, value_end, times_end) = samples[0], samples[-1]
    total, times = value_end - value_begin, times_end - times_begin
    return StatsItem(
        total, total / (end - begin) if end > begin else 0.0, total / times if times else 0.0
    )


@attrs.define(eq=False)
class Statistics:
    """Processors add to it; the runtime information reads it."""

    clock_ms: Callable[[], int]
    cluster_name: str = ""
    """Key of the items of the whole broker (such as BROKER_PUT_NUMS)."""
    is_system_topic: Callable[[str], bool] = lambda topic: False
    totals: Totals = attrs.field(factory=Totals)
    items: dict[tuple[str, str], Item] = attrs.field(factory=dict)
    by_name: dict[str, dict[str, Item]] = attrs.field(factory=dict, init=False)
    """The same: name -> key -> item."""
    types: PutTypes = attrs.field(factory=PutTypes, init=False)
    _names: dict[str, set[tuple[str, str]]] = attrs.field(factory=dict, init=False)
    """Each part of a key (topic, group) -> the items with it: deleting one of 50,000 topics must
    not scan all items.
    """
    put_times: list[int] = attrs.field(factory=lambda: [0] * (len(PUT_TIME_BOUNDS_MS) + 1))
    put_seconds: float = 0.0
    put_time_max: float = 0.0
    get_time_max: float = 0.0
    boot_ms: int = 0
    _samples: deque[tuple[float, int, int, int, int]] = attrs.field(
        factory=lambda: deque(maxlen=RATE_WINDOWS_SECONDS[-1] + 1)
    )
    puts_at_midnights: tuple[int, int] = (0, 0)
    gets_at_midnights: tuple[int, int] = (0, 0)
    _day: datetime.date | None = None

    def __attrs_post_init__(self) -> None:
        self.boot_ms = self.clock_ms()

    def item(self, name: str, key: str) -> Item:
        """Return an item, made at first use; a caller on a hot path may keep it."""
        item = self.items.get((name, key))
        if item is None:
            item = self.items[name, key] = Item()
            self.by_name.setdefault(name, {})[key] = item
            for part in key.split("@"):
                self._names.setdefault(part, set()).add((name, key))
        return item

    def add(self, name: str, key: str, value: int) -> None:
        """Add to one item, as ``add("TOPIC_PUT_NUMS", topic, 64)``. Call it once per batch."""
        item = self.item(name, key)
        item.value += value
        item.times += 1

    def note_put(self, messages: int, size_bytes: int, seconds: float) -> None:
        totals = self.totals
        totals.puts += messages
        totals.put_bytes += size_bytes
        self.put_seconds += messages * seconds
        if seconds > self.put_time_max:
            self.put_time_max = seconds
        self.put_times[bisect_right(PUT_TIME_BOUNDS_MS, seconds * 1000)] += messages

    def note_delivered(self, drafts: Sequence[Draft], places: Sequence[Appended]) -> None:
        """Count messages that the broker has stored in their topics after they had waited.

        They were counted before, when they were sent.
        """
        for draft, place in zip(drafts, places, strict=True):
            self.add("TOPIC_PUT_NUMS", draft.topic, 1)
            self.add("TOPIC_PUT_SIZE", draft.topic, place.size)
            note_size(self.types.larger_of(draft.topic), place.size)
            self.types.note(draft.topic, DELIVERED, 1, place.size)
        self.note_put(len(places), sum(place.size for place in places), 0.0)

    def put_time_quantile(self, share: float) -> float:
        """Return an upper bound (ms) of the given share of all puts.

        It is the upper edge of the histogram's bucket.
        """
        wanted = share * sum(self.put_times)
        seen = 0
        for count, bound in zip(
            self.put_times, (*PUT_TIME_BOUNDS_MS, self.put_time_max * 1000), strict=True
        ):
            seen += count
            if count and seen >= wanted:
                return float(bound)
        return 0.0

    def note_consumed(self, group: str, topic: str, messages: int) -> None:
        """Count messages that a group has done with: committed, or acknowledged after a pop."""
        if messages:
            self.add(CONSUMED, f"{topic}@{group}", messages)

    def rate(self, name: str, key: str) -> float:
        """Return the sum of an item per second, in the last minute."""
        item = self.items.get((name, key))
        return summary(item.minute).tps if item is not None else 0.0

    def forget(self, topic: str) -> None:
        """Drop the items of a deleted topic."""
        self.types.forget(topic)
        for entry in list(self._names.get(topic, ())):
            self._drop(entry)

    def forget_group(self, group: str) -> None:
        """Drop the items of a deleted group; those of a topic of its name stay."""
        for entry in list(self._names.get(group, ())):
            if entry[1].partition("@")[2] == group:
                self._drop(entry)

    def _drop(self, entry: tuple[str, str]) -> None:
        del self.items[entry]
        del self.by_name[entry[0]][entry[1]]
        for part in set(entry[1].split("@")):
            others = self._names[part]
            others.discard(entry)
            if not others:
                del self._names[part]

    def sample_totals(self, now: float) -> None:
        totals = self.totals
        self._samples.append(
            (now, totals.puts, totals.gets_found, totals.gets_missed, totals.gets_messages)
        )
        today = datetime.datetime.fromtimestamp(self.clock_ms() / 1000).date()
        if today != self._day:
            if self._day is not None:
                self.puts_at_midnights = (self.puts_at_midnights[1], totals.puts)
                self.gets_at_midnights = (self.gets_at_midnights[1], totals.gets_messages)
            self._day = today

    def sample_items(self, now: float, tick: int) -> Iterator[None]:
        """Sample every item, in steps between which other tasks can run.

        Call it every 10 s; ``tick`` counts the calls.
        """
        self._sum_up()
        for number, item in enumerate(list(self.items.values()), 1):
            if number % ITEMS_PER_STEP == 0:
                yield
            for samples, ticks in ((item.minute, 1), (item.hour, 60), (item.day, 360)):
                if tick % ticks == 0:
                    if not samples:  # what came before the first sample counts, too
                        samples.append((now - ticks * SAMPLE_SECONDS, 0, 0))
                    samples.append((now, item.value, item.times))

    def _sum_up(self) -> None:
        """Sum up the items of the whole broker from the others.

        So they cost nothing per message.
        """
        if not self.cluster_name:
            return
        totals = self.totals
        sums = {
            "BROKER_PUT_NUMS": (totals.puts, totals.puts),
            "BROKER_GET_NUMS": (totals.gets_messages, totals.gets_found),
        }
        for kind, source in (("PUT", "TOPIC_PUT_NUMS"), ("GET", "GROUP_GET_NUMS")):
            items = [
                item
                for (name, key), item in self.items.items()
                if name == source and not self.is_system_topic(key.partition("@")[0])
            ]
            sums[f"BROKER_{kind}_NUMS_WITHOUT_SYSTEM_TOPIC"] = (
                sum(item.value for item in items),
                sum(item.times for item in items),
            )
        for name, (value, times) in sums.items():
            item = self.item(name, self.cluster_name)
            # A deleted topic takes its counts away; the sum does not shrink.
            item.value, item.times = max(item.value, value), max(item.times, times)

    def rates(self, column: int) -> tuple[float, float, float]:
        """Return the rates per second of one column of the samples over 10 s, 60 s and 600 s.

        Columns: 1 puts, 2 gets that found something, 3 gets that did not, 4 messages handed out.
        """
        if not self._samples:
            return (0.0, 0.0, 0.0)
        newest = self._samples[-1]
        result = []
        for window in RATE_WINDOWS_SECONDS:
            oldest = self._samples[max(0, len(self._samples) - 1 - window)]
            seconds = newest[0] - oldest[0]
            result.append((newest[column] - oldest[column]) / seconds if seconds > 0 else 0.0)
        return (result[0], result[1], result[2])

    async def take_samples(self) -> None:
        """Run the task "statistics"."""
        tick = 0
        while True:
            now = trio.current_time()
            self.sample_totals(now)
            if tick % 10 == 0:
                for _ in self.sample_items(now, tick // 10):
                    await trio.lowlevel.checkpoint()
            tick += 1
            await trio.sleep(1)
