"""The three janitors of a server: requests that lie too long in a pool, silent connections, and connections that keep too much memory."""

import logging
from collections.abc import Callable, Iterable, Sequence

import attrs
import trio

from triomq.remoting.log_limit import LogLimit
from triomq.remoting.server.connection import TOO_MUCH, Connection, Outboxes
from triomq.remoting.server.pool import Pool

_log = logging.getLogger(__name__)

SWEEP_SECONDS = 0.010
_IDLE_SCANS_PER_PERIOD = 4
_IDLE_SCAN_SECONDS_MAX = 30.0
BUFFER_SCAN_SECONDS = 1.0
CLOSED_AT_ONCE_MAX = 16
"""connections that the guard closes in one turn; then others get theirs"""


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


@attrs.define(eq=False)
class BufferGuard:
    """Keeps what all connections together hold in memory below `limit_bytes`: frames that are half here, answers that are not taken.

    Each connection has its own limits, but thousands may come near theirs at once. The greediest ones are closed, a few in a turn, as soon as the outboxes together
    pass the limit; what half frames hold is added up once a second.
    """

    connections: Callable[[], Iterable[Connection]]
    outboxes: Outboxes
    limit_bytes: int
    limit: LogLimit = attrs.field(factory=LogLimit)

    async def run(self) -> None:
        """Guard until cancelled."""
        while True:
            with trio.move_on_after(BUFFER_SCAN_SECONDS):
                await self.outboxes.full.wait()
            self.outboxes.full = trio.Event()
            for number, (size, connection) in enumerate(self.greediest()):
                if not connection.closed:
                    self._close(connection, size)
                if number % CLOSED_AT_ONCE_MAX == CLOSED_AT_ONCE_MAX - 1:
                    await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()

    def greediest(self) -> list[tuple[int, Connection]]:
        """Return what must go, with its bytes, so that the rest is below the limit; nothing if it is already.  Checkpoint: never."""
        total = sum([connection.frames.pending_bytes + connection.outbox_bytes for connection in self.connections()])
        if total <= self.limit_bytes:
            return []
        held = [(connection.frames.pending_bytes + connection.outbox_bytes, connection) for connection in self.connections()]
        held.sort(key=lambda entry: entry[0], reverse=True)
        for count, (size, _) in enumerate(held, 1):
            total -= size
            if total <= self.limit_bytes:
                return held[:count]
        return held

    def _close(self, connection: Connection, size: int) -> None:
        self.outboxes.closed_count += 1
        self.limit.log(_log, logging.WARNING, TOO_MUCH, connection.peer_text, self.limit_bytes, size)
        connection.close("too many bytes kept in memory")
