"""The groups of all gRPC clients of a proxy, as brokers shall know them. PURE.

Brokers know the proxy as one client. Its heartbeat has each group once, with the subscriptions of
all members. Two members of a group that subscribe a topic differently are a mistake of theirs; the
newer subscription wins, as at a broker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import attrs

from triomq.remoting.errors import LocalProtocolError
from triomq.remoting.protocol.bodies.heartbeat import (
    CONSUME_ACTIVELY,
    CONSUME_PASSIVELY,
    TAG,
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)
from triomq.remoting.protocol.tag_expressions import subscription


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
    """The groups, with the clients of each. ``version`` grows when a heartbeat would change."""

    version: int = attrs.field(default=0, init=False)
    _entries: dict[str, frozenset[Entry]] = attrs.field(factory=dict, init=False)
    """By client id."""
    _counts: Counter[Entry] = attrs.field(factory=Counter, init=False)
    _since_ms: dict[Entry, int] = attrs.field(factory=dict, init=False)
    _producers: dict[str, list[str]] = attrs.field(factory=dict, init=False)
    _consumers: dict[str, list[str]] = attrs.field(factory=dict, init=False)

    def put(self, data: HeartbeatData, now_ms: int) -> bool:
        """Note all groups of a client; return whether the heartbeat of the proxy changes."""
        return self._replace(data.client_id, frozenset(_entries(data)), now_ms)

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

    def groups(self) -> tuple[set[str], set[str]]:
        """Return the names of the producer groups and of the consumer groups."""
        return set(self._producers), set(self._consumers)

    def topics(self) -> set[str]:
        """Return the topics whose brokers shall know the groups."""
        topics = set(self._producers)
        topics |= {entry.topic for entry in self._counts if isinstance(entry, JoinedSubscription)}
        return topics - {""}

    def __len__(self) -> int:
        return len(self._entries)

    def heartbeat(self, client_id: str) -> HeartbeatData:
        """Return the heartbeat of the proxy, under its own client id."""
        return HeartbeatData(
            client_id=client_id,
            producers=[ProducerData(group) for group in self._producers],
            consumers=list(self._consumer_data()),
        )

    def _consumer_data(self) -> Iterator[ConsumerData]:
        passive: set[str] = set()
        newest: dict[str, dict[str, JoinedSubscription]] = {group: {} for group in self._consumers}
        for entry in sorted(
            (entry for entry in self._counts if isinstance(entry, JoinedSubscription)),
            key=lambda entry: (self._since_ms[entry], entry),
        ):
            if entry.consume_type != CONSUME_ACTIVELY:
                passive.add(entry.group)
            if entry.topic:
                newest[entry.group][entry.topic] = entry
        for group, topics in newest.items():
            yield ConsumerData(
                group=group,
                consume_type=CONSUME_PASSIVELY if group in passive else CONSUME_ACTIVELY,
                subscriptions=[
                    _subscription(entry, self._since_ms[entry]) for entry in topics.values()
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
        for entry in before - after:
            self._counts[entry] -= 1
            if not self._counts[entry]:
                del self._counts[entry], self._since_ms[entry]
                changed = True
        for entry in after - before:
            if not self._counts[entry]:
                self._since_ms[entry] = now_ms
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
