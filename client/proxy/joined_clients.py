"""The groups of all gRPC clients of a proxy, as brokers shall know them. PURE.

Brokers know the proxy as one client for each connection. Its heartbeats have each group once, with
the subscriptions of all members. Two members of a group that subscribe a topic differently are a
mistake of theirs; the newer subscription wins, as at a broker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import attrs

from triomq.remoting.core.errors import LocalProtocolError
from triomq.remoting.grpc.apache_rocketmq.definition_pb2 import Code
from triomq.remoting.messaging.status_codes import Refused
from triomq.remoting.protocol.bodies.heartbeat import (
    CONSUME_ACTIVELY,
    CONSUME_PASSIVELY,
    TAG,
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)
from triomq.remoting.protocol.consuming.tag_expressions import subscription


class GroupKey(NamedTuple):
    """A group: one of producers, or one of consumers."""

    consumers: bool
    name: str


class JoinedProducer(NamedTuple):
    """A producer group, which is the name of its topic: 5.x clients have no other."""

    group: str


class JoinedSubscription(NamedTuple):
    """One subscription of a consumer group; a group without any has an empty topic."""

    group: str
    consume_type: str
    topic: str
    expression: str
    expression_type: str


Entry = JoinedProducer | JoinedSubscription


@attrs.define(eq=False)
class JoinedClients:
    """The groups, with the clients of each. ``version`` grows when a heartbeat would change.

    ``groups_max``: most groups; a client that brings more is refused.
    """

    groups_max: int = 1_000_000
    refused: int = attrs.field(default=0, init=False)
    version: int = attrs.field(default=0, init=False)
    _entries: dict[str, frozenset[Entry]] = attrs.field(factory=dict, init=False)
    """By client id."""
    _counts: Counter[Entry] = attrs.field(factory=Counter, init=False)
    _since_ms: dict[Entry, int] = attrs.field(factory=dict, init=False)
    _newest_ms: int = attrs.field(default=0, init=False)
    """The greatest of them ever: a clock that goes back must not make a newer entry older."""
    _subscriptions: dict[str, set[JoinedSubscription]] = attrs.field(factory=dict, init=False)
    """By consumer group."""
    _topics: Counter[str] = attrs.field(factory=Counter, init=False)
    """Entries of each topic."""
    _changed: dict[GroupKey, None] = attrs.field(factory=dict, init=False)
    _producers: dict[str, list[str]] = attrs.field(factory=dict, init=False)
    _consumers: dict[str, list[str]] = attrs.field(factory=dict, init=False)

    def put(self, data: HeartbeatData, now_ms: int) -> bool:
        """Note all groups of a client; return whether the heartbeat of the proxy changes.

        Raises: Refused (TOO_MANY_REQUESTS).
        """
        entries = frozenset(_entries(data))
        new = {_key(entry) for entry in entries if _key(entry) not in self}
        count = len(self._producers) + len(self._consumers) + len(new)
        if new and count > self.groups_max:
            self.refused += 1
            raise Refused(
                Code.TOO_MANY_REQUESTS,
                f"the clients of this proxy would have {count} groups; the limit is"
                f" {self.groups_max}: raise heartbeatConnectionsMax, or start another proxy",
            )
        return self._replace(data.client_id, entries, now_ms)

    def leave(self, client_id: str, producers: Iterable[str], consumers: Iterable[str]) -> bool:
        """Take a client out of these groups; return whether the heartbeat changes."""
        left_producers, left_consumers = set(producers), set(consumers)
        kept = frozenset(
            entry
            for entry in self._entries.get(client_id, ())
            if entry.group
            not in (left_producers if isinstance(entry, JoinedProducer) else left_consumers)
        )
        return self._replace(client_id, kept, 0)

    def remove(self, client_id: str) -> bool:
        """Forget a client; return whether the heartbeat changes."""
        return self._replace(client_id, frozenset(), 0)

    def producers(self, group: str) -> Sequence[str]:
        """Return the ids of the clients of a producer group."""
        return self._producers.get(group, ())

    def consumers(self, group: str) -> Sequence[str]:
        """Return the ids of the clients of a consumer group."""
        return self._consumers.get(group, ())

    def __contains__(self, group: GroupKey) -> bool:
        return group.name in (self._consumers if group.consumers else self._producers)

    def groups(self) -> Iterator[GroupKey]:
        """Yield all groups."""
        for consumers, names in ((False, self._producers), (True, self._consumers)):
            yield from (GroupKey(consumers, name) for name in names)

    def take_changed(self) -> Iterable[GroupKey]:
        """Return the groups that are new, changed or gone since the last time."""
        changed, self._changed = self._changed, {}
        return changed

    def topics(self) -> set[str]:
        """Return the topics whose brokers shall know the groups."""
        return set(self._topics)

    def topics_of(self, groups: Iterable[GroupKey]) -> set[str]:
        """Return those of some groups."""
        topics: set[str] = set()
        for group in groups:
            if group.consumers:
                topics.update(entry.topic for entry in self._subscriptions.get(group.name, ()))
            else:
                topics.add(group.name)
        return topics & self._topics.keys()

    def __len__(self) -> int:
        return len(self._entries)

    def heartbeat(self, client_id: str, groups: Iterable[GroupKey]) -> HeartbeatData:
        """Return a heartbeat of the proxy, under its own client id, with those of these groups
        that there are.
        """
        there = [group for group in groups if group in self]
        return HeartbeatData(
            client_id=client_id,
            producers=[ProducerData(group.name) for group in there if not group.consumers],
            consumers=[self._consumer_data(group.name) for group in there if group.consumers],
        )

    def _consumer_data(self, group: str) -> ConsumerData:
        entries = sorted(
            self._subscriptions[group], key=lambda entry: (self._since_ms[entry], entry)
        )
        passive = any(entry.consume_type != CONSUME_ACTIVELY for entry in entries)
        newest = {entry.topic: entry for entry in entries if entry.topic}
        return ConsumerData(
            group=group,
            consume_type=CONSUME_PASSIVELY if passive else CONSUME_ACTIVELY,
            subscriptions=[
                _subscription(entry, self._since_ms[entry]) for entry in newest.values()
            ],
        )

    def _replace(self, client_id: str, after: frozenset[Entry], now_ms: int) -> bool:
        before = self._entries.get(client_id, frozenset())
        if before == after:
            return False
        if after:
            self._entries[client_id] = after
        else:
            del self._entries[client_id]
        changed = False
        since_ms = max(now_ms, self._newest_ms + 1)
        for entry in before - after:
            self._counts[entry] -= 1
            if not self._counts[entry]:
                del self._counts[entry], self._since_ms[entry]
                self._index(entry, -1)
                changed = True
        for entry in after - before:
            if not self._counts[entry]:
                self._since_ms[entry] = self._newest_ms = since_ms
                self._index(entry, 1)
                changed = True
            self._counts[entry] += 1
        for kind, table in (
            (JoinedProducer, self._producers),
            (JoinedSubscription, self._consumers),
        ):
            old = {entry.group for entry in before if type(entry) is kind}
            new = {entry.group for entry in after if type(entry) is kind}
            for group in old - new:
                table[group].remove(client_id)
                if not table[group]:
                    del table[group]
            for group in new - old:
                table.setdefault(group, []).append(client_id)
        self.version += changed
        return changed

    def _index(self, entry: Entry, change: int) -> None:
        """Note an entry that is new or gone."""
        self._changed[_key(entry)] = None
        if isinstance(entry, JoinedProducer):
            topic = entry.group
        else:
            topic = entry.topic
            of_group = self._subscriptions.setdefault(entry.group, set())
            (of_group.add if change > 0 else of_group.remove)(entry)
            if not of_group:
                del self._subscriptions[entry.group]
        if topic:
            self._topics[topic] += change
            if not self._topics[topic]:
                del self._topics[topic]


def _key(entry: Entry) -> GroupKey:
    return GroupKey(isinstance(entry, JoinedSubscription), entry.group)


def _entries(data: HeartbeatData) -> Iterator[Entry]:
    for producer in data.producers:
        yield JoinedProducer(producer.group)
    for consumer in data.consumers:
        kind = consumer.consume_type
        if not consumer.subscriptions:
            yield JoinedSubscription(consumer.group, kind, "", "", "")
        for one in consumer.subscriptions:
            yield JoinedSubscription(
                consumer.group, kind, one.topic, one.sub_string, one.expression_type
            )


def _subscription(entry: JoinedSubscription, since_ms: int) -> SubscriptionData:
    if entry.expression_type == TAG:
        try:
            return subscription(entry.topic, entry.expression, since_ms)
        except LocalProtocolError:  # names no tag: receives with it are refused
            pass
    return SubscriptionData(
        topic=entry.topic,
        sub_string=entry.expression,
        sub_version=since_ms,
        expression_type=entry.expression_type,
    )
