"""Send NOTIFY_MIN_BROKER_ID_CHANGE (905) to the brokers of a group.

Only if ``notifyMinBrokerIdChanged`` is set; brokers also ask every second.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import attrs
import trio

from triomq.namesrv.min_broker_id import MinBrokerIdChange
from triomq.remoting.client.connector import Connector, ConnectorConfig
from triomq.remoting.core.errors import RemotingError

_log = logging.getLogger(__name__)

NOTIFY_SECONDS = 3.0
PENDING_MAX = 1000


@attrs.define(eq=False)
class MinBrokerIdNotices:
    """Pending notices, and the task that sends them.

    The task has connections of its own: brokers take no requests on the connection that they
    registered on.
    """

    connecting: ConnectorConfig
    _pending: list[MinBrokerIdChange] = attrs.field(factory=list, init=False)
    _wake: trio.Event = attrs.field(factory=trio.Event, init=False)

    def send(self, changes: Iterable[MinBrokerIdChange]) -> None:
        """Queue notices for the task; above ``PENDING_MAX`` the oldest are dropped.

        Checkpoint: never.
        """
        self._pending = [*self._pending, *changes][-PENDING_MAX:]
        if self._pending:
            self._wake.set()

    async def send_notices(self) -> None:
        """Send notices until cancelled: the task "min-broker-id-notices"."""
        async with Connector(self.connecting) as connector:
            while True:
                await self._wake.wait()
                self._wake, pending, self._pending = trio.Event(), self._pending, []
                async with trio.open_nursery() as nursery:
                    for change in pending:
                        for address in change.addressees:
                            nursery.start_soon(_notify, connector, address, change)


async def _notify(connector: Connector, address: str, change: MinBrokerIdChange) -> None:
    try:
        await connector.oneway(address, change.notice(), timeout=NOTIFY_SECONDS)
    except (RemotingError, ValueError) as error:
        _log.info(
            "cannot notify %s that broker id %d is the smallest of its group now (%s); it asks by"
            " itself",
            address,
            change.broker_id,
            error,
        )
