"""Close silent connections."""

import logging
from collections.abc import Callable, Iterable

import attrs
import trio

from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.core.periodic import every
from triomq.remoting.server.connection import Connection

_log = logging.getLogger(__name__)


@attrs.define(eq=False)
class IdleScan:
    """Closes connections that were silent for ``idle_seconds``, up to a quarter of that later."""

    connections: Callable[[], Iterable[Connection]]
    idle_seconds: float
    limit: LogLimit = attrs.field(factory=LogLimit)
    closed_count: int = attrs.field(default=0, init=False)

    async def scan_in_rounds(self) -> None:
        """Scan until cancelled."""
        await every(min(self.idle_seconds / 4, 30.0), self._scan)

    def _scan(self) -> None:
        """Scan once: the counter of an active connection has moved since the last scan."""
        now = trio.current_time()
        for connection in list(self.connections()):
            if connection.traffic != connection.idle_traffic:
                connection.idle_traffic = connection.traffic
                connection.idle_since = now
            elif now - connection.idle_since >= self.idle_seconds:
                self.closed_count += 1
                self.limit.info(
                    _log,
                    "closing the connection from %s: idle for %.0f s",
                    connection.peer_text,
                    now - connection.idle_since,
                )
                connection.close("idle")
