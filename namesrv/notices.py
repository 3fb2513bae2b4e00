"""Tells brokers that another one has the smallest id of their group now (905), if ``notifyMinBrokerIdChanged`` says so; they ask by themselves, too."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import attrs
import trio

from triomq.namesrv.smallest_ids import SmallestId
from triomq.remoting.client.config import ConnectorConfig
from triomq.remoting.client.connector import Connector
from triomq.remoting.errors import RemotingError
from triomq.remoting.tls.client import Tls

_log = logging.getLogger(__name__)

TELL_SECONDS = 3.0
PENDING_MAX = 1000


@attrs.define(eq=False)
class SmallestIdNotices:
    """What is to be told, and the task that does, over connections of its own: brokers do not take requests on the one that they registered on."""

    tls: Tls | None = None
    _pending: list[SmallestId] = attrs.field(factory=list, init=False)
    _wake: trio.Event = attrs.field(factory=trio.Event, init=False)

    def tell(self, changes: Iterable[SmallestId]) -> None:
        """atomic: no checkpoint."""
        self._pending = [*self._pending, *changes][-PENDING_MAX:]
        if self._pending:
            self._wake.set()

    async def run(self) -> None:
        """The task "smallest-id-notices"."""
        async with Connector(ConnectorConfig(tls=self.tls, busy_poll=False)) as connector:
            while True:
                await self._wake.wait()
                self._wake, pending, self._pending = trio.Event(), self._pending, []
                async with trio.open_nursery() as nursery:
                    for change in pending:
                        for address in change.tell:
                            nursery.start_soon(_tell, connector, address, change)


async def _tell(connector: Connector, address: str, change: SmallestId) -> None:
    try:
        await connector.oneway(address, change.notice(), timeout=TELL_SECONDS)
    except (RemotingError, ValueError) as error:
        _log.info("cannot tell %s that broker id %d is the smallest of its group now (%s); it asks by itself", address, change.broker_id, error)
