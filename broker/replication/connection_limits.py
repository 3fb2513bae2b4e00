"""Decide whether the HA port takes a connection: by address and by number. SANS-IO.

RocketMQ's HA protocol has no login. Any peer that speaks it gets the whole log and counts as a
replica of a SYNC_MASTER, so name the addresses of the slaves (``haSlaveAddresses``) or keep the
port inside a trusted network.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import attrs

from triomq.remoting.core.networks import AddressRange, is_listed


@attrs.define(eq=False)
class HaConnectionLimits:
    """The limits of the HA port, and a count of the connections that were turned away."""

    connections_max: int = 256
    address_connections_max: int = 32
    """So that one address cannot take all places. Enough for slaves on one machine, or behind one
    translated address.
    """
    networks: Sequence[AddressRange] = ()
    """Where slaves may connect from; empty: anywhere."""
    refused: Counter[str] = attrs.field(factory=Counter, init=False)
    """Name of the setting -> connections that were turned away."""

    def refusal(self, host: str, connected: Iterable[str]) -> str:
        """Return why a peer at ``host`` is turned away, and count it; an empty string lets it in.

        ``connected``: the hosts of the present connections. Checkpoint: never.
        """
        hosts = list(connected)
        if self.networks and not is_listed(host, self.networks):
            self.refused["haSlaveAddresses"] += 1
            return "it is none of haSlaveAddresses"
        if len(hosts) >= self.connections_max:
            self.refused["haConnectionsMax"] += 1
            return f"the HA port has {self.connections_max} connections already (haConnectionsMax)"
        if hosts.count(host) >= self.address_connections_max:
            self.refused["haConnectionsPerAddressMax"] += 1
            return (
                f"the HA port has {self.address_connections_max} connections of that address"
                " already (haConnectionsPerAddressMax)"
            )
        return ""
