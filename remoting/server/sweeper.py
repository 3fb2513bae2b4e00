"""The two janitors of a server: requests that lie too long in a pool, and connections on which nothing happens."""

import logging
from collections.abc import Callable, Iterable, Sequence

import attrs
import trio

from triomq.remoting.log_limit import LogLimit
from triomq.remoting.server.connection import Connection
from triomq.remoting.server.pool import Pool

_log = logging.getLogger(__name__)

SWEEP_SECONDS = 0.010
_IDLE_SCANS_PER_PERIOD = 4
_IDLE_SCAN_SECONDS_MAX = 30.0


@attrs.define(eq=False)
class Sweeper:
    """Looks through the pools every 10 ms while one of them has a queue; asleep otherwise (`wake` ends that)."""

    pools: Sequence[Pool] = ()
    _asleep: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    def wake(self) -> None:
        """A pool has queued something. No checkpoint."""
        if self._asleep:
            self._asleep.unpark_all()

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            if not any(map(len, self.pools)):
                await self._asleep.park()
            await trio.sleep(SWEEP_SECONDS)
            for pool in self.pools:
                pool.sweep()


@attrs.define(eq=False)
class IdleScan:
    """Closes connections without a read or write for `idle_seconds` (found up to a quarter of that later)."""

    connections: Callable[[], Iterable[Connection]]
    idle_seconds: float
    limit: LogLimit = attrs.field(factory=LogLimit)
    closed_count: int = attrs.field(default=0, init=False)

    async def run(self) -> None:
        """Scan until cancelled."""
        while True:
            await trio.sleep(min(self.idle_seconds / _IDLE_SCANS_PER_PERIOD, _IDLE_SCAN_SECONDS_MAX))
            self.scan(trio.current_time())

    def scan(self, now: float) -> None:
        """One look: the counters of an active connection have moved since the last one."""
        for connection in list(self.connections()):
            traffic = connection.read_count + connection.write_count
            if traffic != connection.idle_traffic:
                connection.idle_traffic = traffic
                connection.idle_since = now
            elif now - connection.idle_since >= self.idle_seconds:
                self.closed_count += 1
                self.limit.log(
                    _log,
                    logging.INFO,
                    "closing the connection from %s: idle for %.0f s",
                    connection.peer_text,
                    now - connection.idle_since,
                )
                connection.close("idle")
