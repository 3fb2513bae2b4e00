"""Lists of addresses and networks, as settings name them. PURE."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias

from triomq.remoting.core.settings import Kind

AddressRange: TypeAlias = IPv4Network | IPv6Network
"""One address, or all of a network."""


def _read_networks(text: str) -> tuple[AddressRange, ...]:
    try:
        return tuple(
            ip_network(word.strip(), strict=False) for word in text.split(",") if word.strip()
        )
    except ValueError as error:
        raise ValueError(
            f"{error}; write addresses or networks such as 10.0.0.7, 10.0.1.0/24"
        ) from None


NETWORKS: Kind[tuple[AddressRange, ...]] = Kind(
    "addresses and networks, separated by commas; may be empty",
    _read_networks,
    lambda networks: ",".join(map(str, networks)),
)


def is_listed(host: str, networks: Iterable[AddressRange]) -> bool:
    """Return whether a peer's address is one of these; IPv4 in IPv6's form is IPv4."""
    try:
        address: IPv4Address | IPv6Address = ip_address(host.partition("%")[0].strip("[]"))
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address in network for network in networks)
