"""Decide whether the HA port takes a connection: by address and by number. SANS-IO.

RocketMQ's HA protocol has no login. Any peer that speaks it gets the whole log and counts as a
replica of a SYNC_MASTER, so name the addresses of the slaves (``haSlaveAddresses``) or keep the
port inside a trusted network.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

import attrs

from triomq.remoting.core.settings import Kind

Network = IPv4Network | IPv6Network


def _read_networks(text: str) -> tuple[Network, ...]:
    try:
        return tuple(
            ip_network(word.strip(), strict=False) for word in text.split(",") if word.strip()
        )
    except ValueError as error:
        raise ValueError(
            f"{error}; write addresses or networks such as 10.0.0.7, 10.0.1.0/24"
        ) from None


NETWORKS: Kind[tuple[Network, ...]] = Kind(
    "addresses and networks, separated by commas; may be empty",
    _read_networks,
    lambda networks: ",".join(map(str, networks)),
)


@attrs.define(eq=False)
class HaConnectionLimits:
    """The limits of the HA port, and a count of the connections that were turned away."""

    connections_max: int = 256
    address_connections_max: int = 32
    """So that one address cannot take all places. Enough for slaves on one machine, or behind one
    translated address.
    """
    networks: Sequence[Network] = ()
    """Where slaves may connect from; empty: anywhere."""
    refused: Counter[str] = attrs.field(factory=Counter, init=False)
    """Name of the setting -> connections that were turned away."""

    def refusal(self, host: str, connected: Iterable[str]) -> str:
        """Return why a peer at ``host`` is turned away, and count it; an empty string lets it in.

        ``connected``: the hosts of the present connections. Checkpoint: never.
        """
        hosts = list(connected)
        if self.networks and not self._listed(host):
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

    def _listed(self, host: str) -> bool:
        try:
            address: IPv4Address | IPv6Address = ip_address(host.partition("%")[0].strip("[]"))
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self.networks)
