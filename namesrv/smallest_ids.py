"""The smallest id of a group of brokers, and who is told when another broker has it (905).  Pure.

In groups with ``enableSlaveActingMaster`` the broker with the smallest id is the master, or acts for it.
Source: namesrv/…/routeinfo/RouteInfoManager.java#notifyMinBrokerIdChanged.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import Command, request
from triomq.remoting.protocol.headers.route import MinBrokerIdChangeHeader


@attrs.frozen(kw_only=True)
class SmallestId:
    """Who has the smallest id of a group now; ``left`` is the address of the broker that had it and is gone."""

    broker_id: int
    address: str
    ha_address: str | None = None
    left: str | None = None
    tell: tuple[str, ...] = ()
    """Addresses of those who should know."""

    def notice(self) -> Command:
        return request(
            RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE,
            MinBrokerIdChangeHeader(min_broker_id=self.broker_id, min_broker_addr=self.address, offline_broker_addr=self.left, ha_broker_addr=self.ha_address),
        )


def smallest_of(addresses: Mapping[int, str], before: int | None, *, ha_address: str | None = None, left: str | None = None) -> SmallestId | None:
    """What to tell after a change of a group's `addresses`, where the smallest id was `before`; None if it still is, or if nobody was or is there."""
    now = min(addresses, default=None)
    if now is None or before is None or now == before:
        return None
    others = tuple(address for broker_id, address in sorted(addresses.items()) if left is not None or broker_id != now)
    return SmallestId(broker_id=now, address=addresses[now], ha_address=ha_address, left=left, tell=others)
