"""Where topics live: pure tables that the session fills, and the choice of a name server.

From a topic's route two lists are made.  Producers use the *publish list*: brokers in the order of their names that have a master and the
write bit, with queues 0 … writeQueueNums−1 each.  Consumers use the *subscribe set*: every broker with the read bit, queues 0 …
readQueueNums−1, master or not.  Broker addresses are merged from all routes; an address that no route names any more is gone.

Source for the rules: client/…/impl/factory/MQClientInstance.java (topicRouteData2TopicPublishInfo, topicRouteData2TopicSubscribeInfo,
findBrokerAddressInSubscribe).
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from triomq.remoting.protocol.bodies.route import MASTER_ID, PERM_READ, PERM_WRITE, MessageQueue, QueueData, TopicRoute


@attrs.frozen
class TopicQueues:
    """What one route says, in the two forms that clients need."""

    publish: tuple[MessageQueue, ...]
    subscribe: tuple[MessageQueue, ...]
    brokers: tuple[str, ...]
    """names of all brokers of the topic, sorted"""
    template: bool
    """whether this is the route of the creation template, kept under the name of a topic that does not exist yet"""


def derive_queues(topic: str, route: TopicRoute, *, template: bool = False) -> TopicQueues:
    """Make the publish list and the subscribe set of a route."""
    masters = {broker.broker_name for broker in route.broker_datas if MASTER_ID in broker.broker_addrs}
    by_name = sorted(route.queue_datas, key=lambda data: data.broker_name)
    publish = _ordered_queues(topic, route.order_topic_conf) or tuple(
        MessageQueue(topic, data.broker_name, queue_id)
        for data in by_name
        if data.perm & PERM_WRITE and data.broker_name in masters
        for queue_id in range(data.write_queue_count)
    )
    subscribe = tuple(
        MessageQueue(topic, data.broker_name, queue_id)
        for data in by_name
        if data.perm & PERM_READ
        for queue_id in range(data.read_queue_count)
    )
    return TopicQueues(publish, subscribe, tuple(sorted(broker.broker_name for broker in route.broker_datas)), template)


def _ordered_queues(topic: str, order_topic_conf: str | None) -> tuple[MessageQueue, ...]:
    """Read `broker-a:8;broker-b:4`: the fixed queues of an ordered topic, which stay where they are when a broker is down."""
    queues: list[MessageQueue] = []
    for part in (order_topic_conf or "").split(";"):
        broker, _, count = part.rpartition(":")
        if broker and count.isdigit():
            queues.extend(MessageQueue(topic, broker, queue_id) for queue_id in range(int(count)))
    return tuple(queues)


def as_template(route: TopicRoute, queues_max: int) -> TopicRoute:
    """Return the creation template's route with at most `queues_max` queues on each broker, as a new topic will get them."""
    return attrs.evolve(route, queue_datas=[_capped(data, queues_max) for data in route.queue_datas])


def _capped(data: QueueData, queues_max: int) -> QueueData:
    return attrs.evolve(
        data,
        read_queue_count=min(data.read_queue_count, queues_max),
        write_queue_count=min(data.write_queue_count, queues_max),
    )


@attrs.define(eq=False)
class RouteTable:
    """The routes that one client knows."""

    version: int = attrs.field(default=0, init=False)
    """another number after each change"""
    _routes: dict[str, TopicRoute] = attrs.field(factory=dict, init=False)
    _queues: dict[str, TopicQueues] = attrs.field(factory=dict, init=False)
    _addresses: dict[str, dict[int, str]] = attrs.field(factory=dict, init=False)

    def update(self, topic: str, route: TopicRoute, *, template: bool = False) -> bool:
        """Take over a route; returns whether anything changed."""
        if self._routes.get(topic) == route and self._queues[topic].template == template:
            return False
        self.version += 1
        self._routes.pop(topic, None)  # the newest goes last and wins where two routes name different addresses
        self._routes[topic] = route
        self._queues[topic] = derive_queues(topic, route, template=template)
        self._find_addresses()
        return True

    def forget(self, topic: str) -> bool:
        """Drop a route; returns whether there was one."""
        if self._routes.pop(topic, None) is None:
            return False
        self.version += 1
        del self._queues[topic]
        self._find_addresses()
        return True

    def _find_addresses(self) -> None:
        addresses: dict[str, dict[int, str]] = {}
        for known in self._routes.values():
            for broker in known.broker_datas:
                addresses[broker.broker_name] = dict(broker.broker_addrs)
        self._addresses = addresses

    def topic(self, topic: str) -> TopicQueues | None:
        return self._queues.get(topic)

    def publish(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the publish list, empty if the topic is unknown or nowhere writable."""
        queues = self._queues.get(topic)
        return queues.publish if queues is not None else ()

    def master(self, broker_name: str) -> str | None:
        """Return the address of a broker's master."""
        return self._addresses.get(broker_name, {}).get(MASTER_ID)

    def any_address(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """Return the address of that member, else the next slave for a slave's id, else any member: for reads and offsets."""
        members = self._addresses.get(broker_name)
        if not members:
            return None
        address = members.get(broker_id)
        if address is None and broker_id != MASTER_ID:
            address = members.get(broker_id + 1)
        return address if address is not None else members[min(members)]

    def addresses(self, *, masters_only: bool) -> list[str]:
        """Return all broker addresses, for heartbeats."""
        return [
            address
            for members in self._addresses.values()
            for broker_id, address in members.items()
            if broker_id == MASTER_ID or not masters_only
        ]


@attrs.define(eq=False)
class NameServers:
    """The sticky choice of one name server: it is used while it answers; others are asked only when it does not."""

    addresses: Sequence[str]
    _current: int
    """index of the first one to ask; a random start spreads the clients"""

    def order(self) -> list[str]:
        """Return all addresses, the present one first."""
        start = self._current % len(self.addresses)
        return [*self.addresses[start:], *self.addresses[:start]]

    def answered(self, address: str) -> None:
        """Stick to this one from now on."""
        if address in self.addresses:  # it may have left the list while it was asked
            self._current = self.addresses.index(address)

    def replace(self, addresses: Sequence[str]) -> list[str]:
        """Take a new list; the present server stays the present one if it is in it.  Return those that are gone."""
        gone = [address for address in self.addresses if address not in addresses]
        present = self.current
        self.addresses = list(addresses)
        self._current = (
            self.addresses.index(present) if present in self.addresses else self._current % len(self.addresses)
        )
        return gone

    @property
    def current(self) -> str:
        return self.addresses[self._current % len(self.addresses)]
