"""How a route is shown to some clients: only their zone, or with an acting master. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from triomq.remoting.protocol.bodies.route import (
    MASTER_ID,
    PERM_WRITE,
    BrokerData,
    QueueData,
    TopicRoute,
)


def in_zone(route: TopicRoute, zone: str) -> TopicRoute:
    """Return the route without the masters of other zones and their queues."""
    brokers = [
        data
        for data in route.broker_datas
        if MASTER_ID not in data.broker_addrs or (data.zone_name or "").lower() == zone.lower()
    ]
    names = {data.broker_name for data in brokers}
    addresses = {address for data in brokers for address in data.broker_addrs.values()}
    return attrs.evolve(
        route,
        broker_datas=brokers,
        queue_datas=[data for data in route.queue_datas if data.broker_name in names],
        filter_server_table={
            address: servers
            for address, servers in route.filter_server_table.items()
            if address in addresses
        },
    )


def with_acting_master(data: BrokerData, queues: QueueData) -> BrokerData:
    """Return the group with its smallest id as master, otherwise unchanged.

    Only a group without a master changes, if it allows an acting master and its queues take no
    writes.
    """
    addresses: Mapping[int, str] = data.broker_addrs
    if (
        not data.enable_acting_master
        or not addresses
        or MASTER_ID in addresses
        or queues.perm & PERM_WRITE
    ):
        return data
    smallest = min(addresses)
    others = {
        broker_id: address for broker_id, address in addresses.items() if broker_id != smallest
    }
    return attrs.evolve(data, broker_addrs={MASTER_ID: addresses[smallest], **others})
