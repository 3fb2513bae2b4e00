"""The broker with the smallest id of its group, and the notice when another broker has it. Pure.

In groups with ``enableSlaveActingMaster`` that broker is the master, or acts for it.
Source: namesrv/…/routeinfo/RouteInfoManager.java#notifyMinBrokerIdChanged.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import Command, request
from triomq.remoting.protocol.headers.registration import MinBrokerIdChangeHeader


@attrs.frozen(kw_only=True)
class MinBrokerIdChange:
    """The new smallest id of a group; ``left``: the address of its former holder, if that left."""

    broker_id: int
    address: str
    ha_address: str | None = None
    left: str | None = None
    addressees: tuple[str, ...] = ()
    """brokers that are notified"""

    def notice(self) -> Command:
        """Return the request NOTIFY_MIN_BROKER_ID_CHANGE (905)."""
        return request(
            RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE,
            MinBrokerIdChangeHeader(
                min_broker_id=self.broker_id,
                min_broker_addr=self.address,
                offline_broker_addr=self.left,
                ha_broker_addr=self.ha_address,
            ),
        )


def min_id_change(
    addresses: Mapping[int, str],
    before: int | None,
    *,
    ha_address: str | None = None,
    left: str | None = None,
) -> list[MinBrokerIdChange]:
    """Return the change of the smallest id after a change of a group's ``addresses``.

    ``before``: the smallest id until now; None if the group was empty.

    Returns: one, or none if the id is the same, or the group was or is empty.
    """
    now = min(addresses, default=None)
    if now is None or before is None or now == before:
        return []
    others = tuple(
        address
        for broker_id, address in sorted(addresses.items())
        if left is not None or broker_id != now
    )
    change = MinBrokerIdChange(
        broker_id=now, address=addresses[now], ha_address=ha_address, left=left, addressees=others
    )
    return [change]
