"""The queues of every topic, by broker name. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import attrs

from triomq.remoting.protocol.bodies.route import PERM_WRITE, QUEUES_MAX, QueueData
from triomq.remoting.protocol.bodies.topics import TopicConfig

STEP_TOPICS = 2_000
"""topics between two turns of other tasks: storing a topic takes up to 4 µs"""
UNIT_FLAG = 1
UNIT_SUBSCRIPTION_FLAG = 2


@attrs.define(eq=False)
class RoutedQueues:
    """Queues and static topics' mappings, and the encoded routes that were made of them."""

    by_topic: dict[str, dict[str, QueueData]] = attrs.field(factory=dict, init=False)
    """topic -> broker name -> queues; changed by the methods only"""
    encoded: dict[str, dict[tuple[bool, str | None], bytes]] = attrs.field(factory=dict, init=False)
    """topic -> (standard JSON?, order configuration) -> body of the answer; dropped when the topic
    changes
    """
    mappings: dict[str, dict[str, object]] = attrs.field(factory=dict, init=False)
    """static topics: topic -> broker name -> mapping"""

    changes: int = attrs.field(default=0, init=False)
    """grows with each change of what routes show"""

    def _forget(self, topic: str) -> None:
        self.changes += 1
        self.encoded.pop(topic, None)

    def forget_all(self) -> None:
        """Drop all encoded routes."""
        self.changes += 1
        self.encoded.clear()

    def steps(self, topics: Iterable[str] | None = None) -> Iterator[list[str]]:
        """Yield these topics, or all, as many at a time as one step takes."""
        rest = iter(list(self.by_topic if topics is None else topics))
        while step := list(islice(rest, STEP_TOPICS)):
            yield step

    def of_broker(self, broker_name: str) -> list[str]:
        """Return the topics that a broker name has."""
        return [topic for topic, queues in self.by_topic.items() if broker_name in queues]

    def flagged(self, topics: Iterable[str], present: int, absent: int = 0) -> list[str]:
        """Return those whose first broker set the bits ``present`` and not ``absent``."""
        return [
            topic
            for topic in topics
            for queues in (self.by_topic.get(topic),)
            if queues and next(iter(queues.values())).topic_sys_flag & (present | absent) == present
        ]

    def set_queues(self, topic: str, data: QueueData, *, keep_permission: bool = False) -> None:
        """Store what a broker says. ``keep_permission``: of what is known; mqadmin may have changed
        it here.
        """
        queues = self.by_topic.setdefault(topic, {})
        known = queues.get(data.broker_name)
        if keep_permission and known is not None and known.perm != data.perm:
            data = attrs.evolve(data, perm=known.perm)
        if known != data:
            queues[data.broker_name] = data
            self._forget(topic)

    def set_mapping(self, topic: str, broker_name: str, mapping: object) -> None:
        """Store the mapping of a static topic.

        A mapping without its topic is dropped: no client could read it, and no deletion remove it.
        """
        if topic in self.by_topic:
            self.mappings.setdefault(topic, {})[broker_name] = mapping
            self._forget(topic)

    def delete(self, topic: str) -> None:
        """Remove a topic from all brokers."""
        self.by_topic.pop(topic, None)
        self.mappings.pop(topic, None)
        self._forget(topic)

    def remove(self, topics: Iterable[str], broker_names: Iterable[str]) -> None:
        """Remove the queues of these topics on these brokers, and topics left without queues."""
        names = frozenset(broker_names)
        for topic in topics:
            queues = self.by_topic.get(topic, {})
            for name in queues.keys() & names:
                del queues[name]
                self._forget(topic)
            if topic in self.by_topic and not queues:
                del self.by_topic[topic]
                self.mappings.pop(topic, None)

    def wipe(self, topics: Iterable[str], broker_name: str) -> int:
        """Take the write permission of these topics of a broker; return how many it has."""
        return self.change_permissions(topics, broker_name, lambda perm: perm & ~PERM_WRITE)

    def change_permissions(
        self, topics: Iterable[str], broker_name: str, change: Callable[[int], int]
    ) -> int:
        """Change the permission of these topics of a broker; return how many it has."""
        count = 0
        for topic in topics:
            data = self.by_topic.get(topic, {}).get(broker_name)
            if data is not None:
                count += 1
                self.set_queues(topic, attrs.evolve(data, perm=change(data.perm)))
        return count


def queue_data(broker_name: str, config: TopicConfig, *, readonly: bool) -> QueueData:
    """Return the queues of a topic as routes show them."""
    perm = config.perm & ~PERM_WRITE if readonly else config.perm
    # Cap instead of refuse: the broker's other topics must stay in the routes.
    counts = (min(config.read_queue_count, QUEUES_MAX), min(config.write_queue_count, QUEUES_MAX))
    return QueueData(broker_name, *counts, perm, config.topic_sys_flag)
