"""Where the brokers of a cluster are, from the table of a name server. Pure."""

from __future__ import annotations

import attrs

from triomq.remoting.protocol.bodies.cluster import ClusterTable
from triomq.remoting.protocol.bodies.route import MASTER_ID


@attrs.frozen(order=True)
class BrokerAddress:
    """One broker process: ``id`` 0 is the master of its name."""

    cluster: str
    name: str
    id: int
    address: str


def registered(
    table: ClusterTable, cluster: str | None = None, *, masters_only: bool = False
) -> list[BrokerAddress]:
    """Return the registered brokers of one cluster or of all, sorted."""
    found = [
        BrokerAddress(owner, name, broker_id, address)
        for owner, names in table.cluster_addr_table.items()
        if cluster in (None, owner)
        for name in names
        if name in table.broker_addr_table
        for broker_id, address in table.broker_addr_table[name].broker_addrs.items()
        if broker_id == MASTER_ID or not masters_only
    ]
    return sorted(found)
