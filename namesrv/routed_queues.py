"""The queues of every topic, by broker name. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import attrs

from triomq.remoting.protocol.bodies.route import PERM_WRITE, QUEUES_MAX, QueueData
from triomq.remoting.protocol.bodies.topics import TopicConfig

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
    mappings: dict[str, dict[str, Any]] = attrs.field(factory=dict, init=False)
    """static topics: topic -> broker name -> mapping"""

    def of_broker(self, broker_name: str) -> list[str]:
        """Return the topics that a broker name has."""
        return [topic for topic, queues in self.by_topic.items() if broker_name in queues]

    def flagged(self, present: int, absent: int = 0) -> list[str]:
        """Return the topics whose first broker set the bits ``present`` and not ``absent``."""
        flags = {
            topic: next(iter(queues.values())).topic_sys_flag
            for topic, queues in self.by_topic.items()
        }
        return [topic for topic, flag in flags.items() if flag & (present | absent) == present]

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
            self.encoded.pop(topic, None)

    def set_mapping(self, topic: str, broker_name: str, mapping: Any) -> None:
        """Store the mapping of a static topic.

        A mapping without its topic is dropped: no client could read it, and no deletion remove it.
        """
        if topic in self.by_topic:
            self.mappings.setdefault(topic, {})[broker_name] = mapping
            self.encoded.pop(topic, None)

    def delete(self, topic: str) -> None:
        """Remove a topic from all brokers."""
        self.by_topic.pop(topic, None)
        self.mappings.pop(topic, None)
        self.encoded.pop(topic, None)

    def remove(self, topics: Iterable[str], broker_names: Iterable[str]) -> None:
        """Remove the queues of these topics on these brokers, and topics left without queues."""
        names = frozenset(broker_names)
        for topic in topics:
            queues = self.by_topic.get(topic, {})
            for name in queues.keys() & names:
                del queues[name]
                self.encoded.pop(topic, None)
            if topic in self.by_topic and not queues:
                del self.by_topic[topic]
                self.mappings.pop(topic, None)

    def change_permissions(self, broker_name: str, change: Callable[[int], int]) -> int:
        """Change the permission of every topic of a broker; return the number of its topics."""
        topics = self.of_broker(broker_name)
        for topic in topics:
            data = self.by_topic[topic][broker_name]
            self.set_queues(topic, attrs.evolve(data, perm=change(data.perm)))
        return len(topics)


def queue_data(broker_name: str, config: TopicConfig, *, readonly: bool) -> QueueData:
    """Return the queues of a topic as routes show them."""
    perm = config.perm & ~PERM_WRITE if readonly else config.perm
    # Cap instead of refuse: the broker's other topics must stay in the routes.
    counts = (min(config.read_queue_count, QUEUES_MAX), min(config.write_queue_count, QUEUES_MAX))
    return QueueData(broker_name, *counts, perm, config.topic_sys_flag)
