"""More connections to brokers, for heartbeats with more groups than one connection may have."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs
import trio

from triomq.remoting.client.connector import Connector, ConnectorConfig, InstantHandler, PeerHandler
from triomq.remoting.protocol.command import Command


@attrs.define(eq=False)
class HeartbeatConnections:
    """Connectors by number, made when they are needed; each has one connection to an address.

    Brokers ask questions about a group over the connection that its heartbeats come by, so all have
    the same handlers. ``lost(address, number)``: a connection has ended.
    """

    config: ConnectorConfig
    handlers: Mapping[int, PeerHandler]
    instant_handlers: dict[int, InstantHandler]
    lost: Callable[[str, int], None]
    nursery: trio.Nursery
    _connectors: dict[int, Connector] = attrs.field(factory=dict, init=False)
    _opening: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    @property
    def open(self) -> int:
        """Connections that there are now."""
        return sum(one.statistics().open for one in self._connectors.values())

    async def call(self, number: int, address: str, command: Command, timeout: float) -> Command:
        """Send a request over a connection. Raises: RemotingError."""
        connector = self._connectors.get(number)
        if connector is None:
            async with self._opening:
                connector = self._connectors.get(number)
                if connector is None:
                    connector = await self.nursery.start(self._run_connector, number)
                    self._connectors[number] = connector
        return await connector.invoke(address, command, timeout=timeout)

    async def _run_connector(self, number: int, *, task_status: trio.TaskStatus[Connector]) -> None:
        def lost(address: str, reason: str) -> None:
            self.lost(address, number)

        async with Connector(self.config, handlers=self.handlers, on_lost=lost) as connector:
            connector.instant_handlers.update(self.instant_handlers)
            task_status.started(connector)
            await trio.sleep_forever()
