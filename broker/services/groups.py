"""Connected clients: groups, their members and subscriptions, learned from heartbeats.

``GroupTable`` is SANS-IO: its methods get ``now`` (seconds of one monotonic clock) and return the
names of the consumer groups whose members must be told of a change. ``ClientGroups`` sends these
notices and looks for silent clients. A member is one connection; a client sends heartbeats over one
connection to each broker. Source: broker/client/ConsumerManager.java, ConsumerGroupInfo.java,
ProducerManager.java, ClientHousekeepingService.java.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Generic, TypeVar

import attrs
import trio

from triomq.broker.services.subscription_check import Wants, mismatch_text, wants_of
from triomq.broker.services.table_limits import broker_limits
from triomq.remoting.access.users import AccessUser
from triomq.remoting.protocol.bodies.heartbeat import BROADCASTING, ConsumerData, SubscriptionData
from triomq.remoting.protocol.limits import Limits
from triomq.remoting.protocol.names import TOOLS_GROUP
from triomq.remoting.server.turns import ROWS_AT_ONCE, in_turns

EXPIRY_SECONDS = 120.0
PULL_EXPIRY_SECONDS = 600.0
C = TypeVar("C", bound=Hashable)


@attrs.define(eq=False)
class Member(Generic[C]):
    """One client in one group, over one connection."""

    connection: C
    client_id: str
    language: int
    version: int
    last_seen: float
    wants: Wants | None = None
    """Its subscriptions; None if not known (a producer, or a heartbeat of the second form without
    subscriptions).
    """
    user: AccessUser | None = None
    """The user that signed its heartbeat; None where signatures are not checked."""


@attrs.define(eq=False)
class ConsumerGroup(Generic[C]):
    """What the broker knows of a group while at least one member is connected."""

    name: str
    consume_type: str
    message_model: str
    consume_from_where: str
    fingerprint: int = 0
    members: dict[C, Member[C]] = attrs.field(factory=dict)
    subscriptions: dict[str, SubscriptionData] = attrs.field(factory=dict)
    sources: dict[str, str] = attrs.field(factory=dict)
    """Topic -> the client whose subscription is in force."""
    mismatch: str | None = None
    """The differences, while members do not subscribe the same."""
    mismatch_since: float = 0.0

    def compare_members(self, now: float) -> bool:
        """Compare the subscriptions of all members; return whether the result has changed."""
        text = mismatch_text(
            {
                member.client_id: member.wants
                for member in self.members.values()
                if member.wants is not None
            }
        )
        if text == self.mismatch:
            return False
        if self.mismatch is None:
            self.mismatch_since = now
        self.mismatch = text
        return True

    @property
    def client_ids(self) -> list[str]:
        return list(dict.fromkeys(member.client_id for member in self.members.values()))


@attrs.frozen
class HeartbeatOutcome:
    """What a heartbeat has changed.

    ``members_changed``: a member joined. ``subscriptions_changed``: a topic or an expression has
    changed. ``fingerprint_changed``: the client must send all subscriptions again.
    """

    members_changed: bool
    subscriptions_changed: bool
    fingerprint_changed: bool
    agreement_changed: bool = False
    """Whether members began or ceased to subscribe the same."""

    @property
    def notice_due(self) -> bool:
        return self.members_changed or self.subscriptions_changed


@attrs.define(eq=False)
class Memberships:
    """The groups that one connection is a member of, in the order in which it joined them."""

    consumer_groups: dict[str, None] = attrs.field(factory=dict)
    producer_groups: dict[str, None] = attrs.field(factory=dict)
    producer_id: str | None = None
    """The client id of its last heartbeat as a producer."""


@attrs.define(eq=False)
class GroupTable(Generic[C]):
    """The tables of groups. Checkpoint: never, in any method."""

    consumers: dict[str, ConsumerGroup[C]] = attrs.field(factory=dict)
    producers: dict[str, dict[C, Member[C]]] = attrs.field(factory=dict)
    pulled: dict[tuple[str, str], float] = attrs.field(factory=dict)
    """(group, topic) -> time of the last pull with an expression of its own: such groups need not
    send heartbeats.
    """
    limits: Limits = attrs.field(factory=broker_limits)
    connections: dict[C, Memberships] = attrs.field(factory=dict, init=False)
    """The same by connection, so that a connection that ends leaves its groups without a scan."""
    _by_producer_id: dict[str, dict[C, None]] = attrs.field(factory=dict, init=False)
    """Client id -> its connections as a producer; the one that came last is the last entry."""

    def require_room(
        self, connection: C, consumers: Sequence[ConsumerData], producers: Iterable[str]
    ) -> None:
        """Refuse a heartbeat as a whole if it names more groups or topics than the limits allow.

        Raises: LimitReached.
        """
        known = self.connections.get(connection) or Memberships()
        names = set(producers)
        count = len(known.consumer_groups.keys() | {data.group for data in consumers}) + len(
            known.producer_groups.keys() | names
        )
        self.limits.require(
            "groups_per_connection_max",
            count,
            f"the heartbeat would make its connection a member of {count} groups",
        )
        for data in consumers:
            count = len(data.subscriptions)
            self.limits.require(
                "subscriptions_per_group_max",
                count,
                f"the heartbeat subscribes {count} topics for group {data.group[:255]}",
            )
        new = len(names - self.producers.keys())
        if new:
            self.limits.require(
                "groups_max",
                len(self.producers) + new,
                f"the heartbeat brings {new} more producer groups",
            )

    def consumer_heartbeat(
        self,
        member: Member[C],
        data: ConsumerData,
        *,
        fingerprint: int = 0,
        without_subscriptions: bool = False,
    ) -> HeartbeatOutcome:
        """Record that a client is alive in one consumer group."""
        group = self.consumers.get(data.group)
        if group is None:
            group = self.consumers[data.group] = ConsumerGroup(
                data.group, data.consume_type, data.message_model, data.consume_from_where
            )
        mine = self.connections.setdefault(member.connection, Memberships())
        mine.consumer_groups[data.group] = None
        known = group.members.get(member.connection)
        joined = known is None or known.client_id != member.client_id
        group.members[member.connection] = member
        group.consume_type, group.message_model = data.consume_type, data.message_model
        group.consume_from_where = data.consume_from_where
        fingerprint_changed = fingerprint == 0 or fingerprint != group.fingerprint
        if fingerprint != 0 and without_subscriptions:
            member.wants = known.wants if known is not None and not joined else None
            return HeartbeatOutcome(joined, False, fingerprint_changed)
        if fingerprint != 0:
            group.fingerprint = fingerprint
        member.wants = wants_of(data.subscriptions)
        agreement_changed = (
            joined or known is None or known.wants != member.wants
        ) and group.compare_members(member.last_seen)
        return HeartbeatOutcome(
            joined,
            self._subscribe(group, member.client_id, data.subscriptions),
            fingerprint_changed,
            agreement_changed,
        )

    def _subscribe(
        self, group: ConsumerGroup[C], client_id: str, subscriptions: Iterable[SubscriptionData]
    ) -> bool:
        """Take over newer subscriptions and forget topics that are no longer named.

        A version is the wall clock of its client, so versions order what two members say only
        while both are there: a client's own word replaces what it said before.

        Returns: whether the set of topics or an expression has changed.
        """
        changed = False
        named = set()
        for subscription in subscriptions:
            named.add(subscription.topic)
            known = group.subscriptions.get(subscription.topic)
            if known == subscription:
                continue
            if (
                known is None
                or known.sub_version < subscription.sub_version
                or (source := group.sources[subscription.topic]) == client_id
                or source not in group.client_ids
            ):
                changed = changed or known is None or known.sub_string != subscription.sub_string
                group.subscriptions[subscription.topic] = subscription
                group.sources[subscription.topic] = client_id
        for topic in [topic for topic in group.subscriptions if topic not in named]:
            del group.subscriptions[topic], group.sources[topic]
            changed = True
        return changed

    def producer_heartbeat(self, member: Member[C], group: str) -> None:
        mine = self.connections.setdefault(member.connection, Memberships())
        mine.producer_groups[group] = None
        self.producers.setdefault(group, {})[member.connection] = member
        if mine.producer_id != member.client_id:
            self._forget_producer_id(member.connection, mine)
            mine.producer_id = member.client_id
            self._by_producer_id.setdefault(member.client_id, {})[member.connection] = None

    def producer_connection(self, client_id: str) -> C | None:
        """Return the newest connection of a producer, None if it has none here.

        Source: broker/client/ProducerManager.java#findChannel.
        """
        connections = self._by_producer_id.get(client_id)
        return next(reversed(connections)) if connections else None

    def _forget_producer_id(self, connection: C, mine: Memberships) -> None:
        if mine.producer_id is None:
            return
        connections = self._by_producer_id[mine.producer_id]
        del connections[connection]
        if not connections:
            del self._by_producer_id[mine.producer_id]
        mine.producer_id = None

    def leave(
        self, connection: C, *, consumer_group: str | None, producer_group: str | None
    ) -> list[str]:
        """Remove a client that unregisters from a group; return the consumer groups to tell."""
        if producer_group is not None:
            self._remove_producer(connection, producer_group)
        if consumer_group is not None and self._remove_consumer(connection, consumer_group):
            return [consumer_group]
        return []

    def forget_connection(self, connection: C) -> list[str]:
        """Remove a closed connection from every group; return the consumer groups to tell."""
        mine = self.connections.get(connection) or Memberships()
        for group in list(mine.producer_groups):
            self._remove_producer(connection, group)
        return [
            group
            for group in list(mine.consumer_groups)
            if self._remove_consumer(connection, group)
        ]

    def is_silent(self, connection: C, now: float, expiry_seconds: float) -> bool:
        """Return whether a member on this connection has been silent for too long.

        The caller closes the connection, which removes the member.
        """
        mine = self.connections.get(connection) or Memberships()
        members = [self.consumers[name].members[connection] for name in mine.consumer_groups]
        members += [self.producers[name][connection] for name in mine.producer_groups]
        return any(now - member.last_seen > expiry_seconds for member in members)

    def groups_subscribing(self, topic: str) -> list[str]:
        """Return the groups that subscribe the topic by heartbeat, or have recently pulled it.

        Leaves out the group under which tools print messages: they look, and consume nothing.
        """
        found = [group.name for group in self.consumers.values() if topic in group.subscriptions]
        return found + [
            group
            for group, pulled in self.pulled
            if pulled == topic and group not in found and group != TOOLS_GROUP
        ]

    def consumes_now(self, group: str, topic: str) -> bool:
        """Return whether the group has members, or has recently pulled this topic."""
        return group in self.consumers or (group, topic) in self.pulled

    def note_pull(self, group: str, topic: str, now: float) -> None:
        self.pulled[group, topic] = now

    def forget_topic(self, topic: str) -> None:
        for key in [key for key in self.pulled if key[1] == topic]:
            del self.pulled[key]

    def forget_pulls(self, before: float) -> None:
        for key in [key for key, when in self.pulled.items() if when < before]:
            del self.pulled[key]

    def _remove_consumer(self, connection: C, name: str) -> bool:
        group = self.consumers.get(name)
        if group is None or group.members.pop(connection, None) is None:
            return False
        self.connections[connection].consumer_groups.pop(name, None)
        self._forget_if_in_no_group(connection)
        if not group.members:
            del self.consumers[name]
        elif group.mismatch is not None:
            group.compare_members(group.mismatch_since)
        return True

    def _remove_producer(self, connection: C, name: str) -> None:
        members = self.producers.get(name, {})
        if members.pop(connection, None) is None:
            return
        mine = self.connections[connection]
        mine.producer_groups.pop(name, None)
        if not mine.producer_groups:
            self._forget_producer_id(connection, mine)
        self._forget_if_in_no_group(connection)
        if not members:
            self.producers.pop(name, None)

    def _forget_if_in_no_group(self, connection: C) -> None:
        mine = self.connections[connection]
        if not mine.consumer_groups and not mine.producer_groups:
            del self.connections[connection]


@attrs.define(eq=False)
class ClientGroups(Generic[C]):
    """The table, the notices to members, and the scan for silent clients.

    ``notify(connection, group)`` sends NOTIFY_CONSUMER_IDS_CHANGED without waiting;
    ``close(connection, reason)`` closes; ``wants_notice(group)`` returns whether the group's
    settings allow notices.
    """

    notify: Callable[[C, str], None]
    close: Callable[[C, str], None]
    wants_notice: Callable[[str], bool]
    expiry_seconds: float = EXPIRY_SECONDS
    pull_expiry_seconds: float = PULL_EXPIRY_SECONDS
    table: GroupTable[C] = attrs.field(factory=GroupTable)
    _due: dict[str, None] = attrs.field(factory=dict, init=False)
    """Large groups whose members must be told of a change."""
    _wake: trio.Event = attrs.field(factory=trio.Event, init=False)

    def announce_change(self, groups: Iterable[str]) -> None:
        """Tell every member of each group, so that members divide the queues again.

        Broadcasting groups have nothing to divide.
        """
        for name in groups:
            group = self.table.consumers.get(name)
            if group is None or group.message_model == BROADCASTING or not self.wants_notice(name):
                continue
            if len(group.members) > ROWS_AT_ONCE:
                self._due[name] = None
                self._wake.set()
                continue
            for connection in list(group.members):
                self.notify(connection, name)

    async def run_notices(self) -> None:
        """Run the task "groups-notices": tell the members of large groups, once for all changes
        that come meanwhile.
        """
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            while self._due:
                name, _ = self._due.popitem()
                group = self.table.consumers.get(name)
                async for connection in in_turns(list(group.members) if group is not None else ()):
                    if group is not None and connection in group.members:
                        self.notify(connection, name)

    def connection_closed(self, connection: C) -> None:
        self.announce_change(self.table.forget_connection(connection))

    async def expire(self) -> None:
        """Forget old pulls, and close connections without heartbeats."""
        now = trio.current_time()
        self.table.forget_pulls(now - self.pull_expiry_seconds)
        for connection in list(self.table.connections):
            if self.table.is_silent(connection, now, self.expiry_seconds):
                self.close(connection, f"no heartbeat for {self.expiry_seconds:g} s")
            await trio.lowlevel.checkpoint()  # one connection can be a member of 1,000 groups
