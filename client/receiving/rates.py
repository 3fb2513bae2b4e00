"""The rates at which a consumer pulls and handles each topic.

Hot paths add to totals; rates are made of samples of the totals. They are the rates that the
official client reports (``mqadmin group status``): over the last minute, sampled every ten
seconds, and the failures of the last hour.

Source: client/…/stat/ConsumerStatsManager.java, common/…/stats/StatsItem.java.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import attrs
import trio

SAMPLE_SECONDS = 10.0
_SAMPLES_IN_A_MINUTE = 7
_SAMPLES_IN_AN_HOUR = 361


@attrs.define(eq=False)
class TopicCounts:
    """Totals of one topic since the start; times in seconds."""

    pulls: int = 0
    pulled: int = 0
    pull_seconds: float = 0.0
    done: int = 0
    """number of acknowledged messages"""
    done_seconds: float = 0.0
    """time from handing messages out until they were settled, failures included"""
    failed: int = 0
    """number of messages that were sent back or became dead letters"""

    def note_pull(self, messages: int, seconds: float) -> None:
        self.pulls += 1
        self.pulled += messages
        self.pull_seconds += seconds


@attrs.frozen(kw_only=True)
class TopicRates:
    """The rates of one topic in the last minute."""

    pulled_per_second: float = 0.0
    done_per_second: float = 0.0
    failed_per_second: float = 0.0
    pull_seconds: float = 0.0
    """mean duration of a pull that found messages, the wait at the broker included"""
    handling_seconds: float = 0.0
    """mean time from handing a message out until it is settled"""
    failed_in_the_last_hour: int = 0
    done: int = 0
    """since the start"""
    failed: int = 0
    """since the start"""


@attrs.define(eq=False)
class ConsumerCounts:
    """The counts of all topics of a consumer, and their samples."""

    topics: dict[str, TopicCounts] = attrs.field(factory=dict)
    _samples: deque[tuple[float, dict[str, TopicCounts]]] = attrs.field(
        factory=lambda: deque(maxlen=_SAMPLES_IN_AN_HOUR), init=False
    )

    def of(self, topic: str) -> TopicCounts:
        """Return the counts of a topic, for adding to them."""
        counts = self.topics.get(topic)
        if counts is None:
            counts = self.topics[topic] = TopicCounts()
        return counts

    def sample(self, now: float) -> None:
        """Keep the current totals as a sample."""
        self._samples.append(
            (now, {topic: attrs.evolve(counts) for topic, counts in self.topics.items()})
        )

    async def take_samples(self) -> None:
        """Take a sample every ten seconds; runs for ever."""
        while True:
            self.sample(trio.current_time())
            await trio.sleep(SAMPLE_SECONDS)

    def rates(self, now: float) -> Mapping[str, TopicRates]:
        """Return the rates of each topic, from the oldest sample of the last minute until now."""
        if not self._samples:
            return {topic: TopicRates() for topic in self.topics}
        minute_ago, before = self._samples[-min(len(self._samples), _SAMPLES_IN_A_MINUTE)]
        _, hour_ago = self._samples[0]
        seconds = max(now - minute_ago, 1.0)
        nothing = TopicCounts()
        return {
            topic: _rates(counts, before.get(topic, nothing), hour_ago.get(topic, nothing), seconds)
            for topic, counts in self.topics.items()
        }


def _rates(
    now: TopicCounts, before: TopicCounts, hour_ago: TopicCounts, seconds: float
) -> TopicRates:
    done, failed = now.done - before.done, now.failed - before.failed
    return TopicRates(
        pulled_per_second=(now.pulled - before.pulled) / seconds,
        done_per_second=done / seconds,
        failed_per_second=failed / seconds,
        pull_seconds=(now.pull_seconds - before.pull_seconds) / max(now.pulls - before.pulls, 1),
        handling_seconds=(now.done_seconds - before.done_seconds) / max(done + failed, 1),
        failed_in_the_last_hour=now.failed - hour_ago.failed,
        done=now.done,
        failed=now.failed,
    )
