"""Where topics live: pure tables that ``route_finder`` fills.

A topic's route gives two lists. Producers use the *publish list*: the brokers in the order of their
names that have a master and the write bit, each with queues 0 … writeQueueNums−1. Consumers use the
*subscribe set*: every broker with the read bit, with or without a master, with queues 0 …
readQueueNums−1. Broker addresses are merged from all routes; an address that no route names any
more is dropped.

Source for the rules: client/…/impl/factory/MQClientInstance.java (topicRouteData2TopicPublishInfo,
topicRouteData2TopicSubscribeInfo, findBrokerAddressInSubscribe).
"""

from __future__ import annotations

import attrs

from triomq.remoting.protocol.bodies.route import (
    MASTER_ID,
    PERM_READ,
    PERM_WRITE,
    MessageQueue,
    TopicRoute,
)


@attrs.frozen
class TopicQueues:
    """The queues of one route, in the two forms that clients need."""

    publish: tuple[MessageQueue, ...]
    subscribe: tuple[MessageQueue, ...]
    brokers: tuple[str, ...]
    """names of all brokers of the topic, sorted"""
    template: bool
    """whether this is the route of the creation template, stored for a topic that does not exist"""


def derive_queues(topic: str, route: TopicRoute, *, template: bool = False) -> TopicQueues:
    """Return the publish list and the subscribe set of a route."""
    masters = route.masters
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
    return TopicQueues(
        publish,
        subscribe,
        tuple(sorted(broker.broker_name for broker in route.broker_datas)),
        template,
    )


def _ordered_queues(topic: str, order_topic_conf: str | None) -> tuple[MessageQueue, ...]:
    """Return an ordered topic's queues from ``broker-a:8;broker-b:4``, even if one is down."""
    queues: list[MessageQueue] = []
    for part in (order_topic_conf or "").split(";"):
        broker, _, count = part.rpartition(":")
        if broker and count.isdigit():
            queues.extend(MessageQueue(topic, broker, queue_id) for queue_id in range(int(count)))
    return tuple(queues)


def as_template(route: TopicRoute, queues_max: int) -> TopicRoute:
    """Return the creation template's route with at most ``queues_max`` queues on each broker."""
    capped = [
        attrs.evolve(
            data,
            read_queue_count=min(data.read_queue_count, queues_max),
            write_queue_count=min(data.write_queue_count, queues_max),
        )
        for data in route.queue_datas
    ]
    return attrs.evolve(route, queue_datas=capped)


@attrs.define(eq=False)
class KnownRoutes:
    """The current routes of one client."""

    version: int = attrs.field(default=0, init=False)
    """increased by each change"""
    _routes: dict[str, TopicRoute] = attrs.field(factory=dict, init=False)
    _queues: dict[str, TopicQueues] = attrs.field(factory=dict, init=False)
    _addresses: dict[str, dict[int, str]] = attrs.field(factory=dict, init=False)
    seen: set[str] = attrs.field(factory=set, init=False)
    """names of all brokers that ever were in a route; one that is in none may be restarting"""

    def update(self, topic: str, route: TopicRoute, *, template: bool = False) -> bool:
        """Store a route; return whether anything changed."""
        # The newest route goes last: it wins where two routes name different addresses.
        known = self._routes.pop(topic, None)
        self._routes[topic] = route
        if (
            known == route
            and self._queues[topic].template == template
            and all(
                self._addresses[broker.broker_name] == broker.broker_addrs
                for broker in route.broker_datas
            )
        ):
            return False
        self.version += 1
        self._queues[topic] = derive_queues(topic, route, template=template)
        self._find_addresses()
        return True

    def forget(self, topic: str) -> bool:
        """Remove a route; return whether there was one."""
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
        self.seen |= addresses.keys()

    def topic(self, topic: str) -> TopicQueues | None:
        return self._queues.get(topic)

    def clusters(self, topic: str) -> set[str]:
        """Return the names of the clusters that have the topic."""
        route = self._routes.get(topic)
        return {broker.cluster for broker in route.broker_datas} if route is not None else set()

    def broker_names(self) -> list[str]:
        """Return the names of all brokers in the routes."""
        return list(self._addresses)

    def broker_at(self, address: str) -> str | None:
        """Return the name of the broker with this address, or None."""
        return next(
            (name for name, members in self._addresses.items() if address in members.values()), None
        )

    def publish(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the publish list; empty if the topic is unknown, or not writable anywhere."""
        queues = self._queues.get(topic)
        return queues.publish if queues is not None else ()

    def master(self, broker_name: str) -> str | None:
        """Return the address of a broker's master, or None."""
        return self._addresses.get(broker_name, {}).get(MASTER_ID)

    def any_address(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """Return the address of a member of a broker group, for reads and offsets.

        It is the member ``broker_id``; otherwise, for a slave's id, the next slave; otherwise any.
        """
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
