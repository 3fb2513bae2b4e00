"""What came in and went out, by topic, type and group, under Java's names.

There may be 50,000 topics, and as many groups for each: samples are made one by one, while the page
is written. Source: broker/metrics/BrokerMetricsConstant.java.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import attrs

from triomq.broker.services.put_types import SIZE_EDGES, PutCounts
from triomq.broker.services.statistics import Item, Statistics
from triomq.broker.services.topics import Topics
from triomq.remoting.monitor.metrics import Family, Histogram, Sample, family
from triomq.remoting.protocol.names import RETRY_PREFIX


@attrs.define(eq=False)
class MessageFigures:
    """Reads the statistics."""

    statistics: Statistics
    topics: Topics

    def figures(self, series_max: int) -> Iterator[Family]:
        """Yield the families."""
        types = self.statistics.types
        size = len(self.statistics.by_name.get("TOPIC_PUT_NUMS", ())) + sum(
            [len(kinds) for kinds in types.typed.values()]
        )
        yield family(
            "rocketmq_messages_in_total",
            (Sample(counts.messages, labels) for labels, counts in self._puts(series_max)),
            size=size,
        )
        yield family(
            "rocketmq_throughput_in_total",
            (Sample(counts.size_bytes, labels) for labels, counts in self._puts(series_max)),
            size=size,
        )
        yield family(
            "rocketmq_message_size",
            (
                Histogram(labels, SIZE_EDGES, counts.sizes(), counts.size_bytes)
                for labels, counts in self._puts(series_max)
            ),
            size=size,
        )
        for name, item, labels_of in (
            ("rocketmq_messages_out_total", "GROUP_GET_NUMS", self._group_labels),
            ("rocketmq_throughput_out_total", "GROUP_GET_SIZE", self._group_labels),
            ("rocketmq_send_to_dlq_messages_total", "DLQ_PUT_NUMS", self._dead_letter_labels),
        ):
            yield self._items(name, item, labels_of, series_max)

    def _puts(self, most: int) -> Iterator[tuple[dict[str, str], PutCounts]]:
        by_name = self.statistics.by_name
        sizes = by_name.get("TOPIC_PUT_SIZE", {})
        for topic, item in _snapshot(by_name.get("TOPIC_PUT_NUMS", {}), most):
            size = sizes.get(topic)
            kinds = self.statistics.types.of_topic(
                topic, item.value, size.value if size is not None else 0
            )
            for kind, counts in kinds:
                labels = {
                    "topic": topic,
                    "message_type": kind,
                    "is_system": _truth(self.topics.is_system_topic(topic)),
                }
                yield labels, counts

    def _items(
        self, name: str, item_name: str, labels_of: Callable[[str], dict[str, str]], most: int
    ) -> Family:
        items = self.statistics.by_name.get(item_name, {})
        samples = (Sample(item.value, labels_of(key)) for key, item in _snapshot(items, most))
        return family(name, samples, size=len(items))

    def _group_labels(self, key: str) -> dict[str, str]:
        return {**self._dead_letter_labels(key), "is_retry": _truth(key.startswith(RETRY_PREFIX))}

    def _dead_letter_labels(self, key: str) -> dict[str, str]:
        topic, _, group = key.partition("@")
        return {
            "topic": topic,
            "consumer_group": group,
            "is_system": _truth(self.topics.is_system_topic(topic)),
        }


def _snapshot(items: dict[str, Item], most: int) -> Iterable[tuple[str, Item]]:
    """Return entries that may be read while the table changes."""
    return list(islice(items.items(), most))


def _truth(value: bool) -> str:
    return "true" if value else "false"
