"""Which peers may connect to the HA port."""

from __future__ import annotations

import pytest

from triomq.broker.replication.connection_limits import HaConnectionLimits
from triomq.remoting.core.networks import NETWORKS


def test_limits_of_all_connections_and_of_one_address() -> None:
    limits = HaConnectionLimits(connections_max=3, address_connections_max=2)
    assert limits.refusal("10.0.0.1", ["10.0.0.1"]) == ""
    assert "2 connections of that address already (haConnectionsPerAddressMax)" in limits.refusal(
        "10.0.0.1", ["10.0.0.1"] * 2
    )
    assert limits.refusal("10.0.0.2", ["10.0.0.1"] * 2) == ""
    assert "3 connections already (haConnectionsMax)" in limits.refusal(
        "10.0.0.2", ["10.0.0.1"] * 3
    )
    assert limits.refused == {"haConnectionsPerAddressMax": 1, "haConnectionsMax": 1}


def test_only_listed_addresses_may_connect() -> None:
    limits = HaConnectionLimits(networks=NETWORKS.read("10.0.0.7, 10.1.0.5/16,fd00::/8"))
    for host in ("10.0.0.7", "10.1.200.3", "::ffff:10.0.0.7", "fd00::1", "fd00::1%eth0"):
        assert limits.refusal(host, []) == "", host
    for host in ("10.0.0.8", "10.2.0.1", "::1", "somebody"):
        assert limits.refusal(host, []) == "it is none of haSlaveAddresses"
    assert limits.refused == {"haSlaveAddresses": 4}
    assert NETWORKS.write(NETWORKS.read("10.1.0.5/16,fd00::/8")) == "10.1.0.0/16,fd00::/8"
    assert NETWORKS.read("") == ()
    with pytest.raises(
        ValueError, match=r"write addresses or networks such as 10.0.0.7, 10.0.1.0/24"
    ):
        NETWORKS.read("slave-1")
