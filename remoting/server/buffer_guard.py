"""Close the connections that keep the most bytes when all together keep too many."""

from collections.abc import Callable, Iterable

import attrs
import trio

from triomq.remoting.server.connection import Connection, Outboxes

BUFFER_SCAN_SECONDS = 1.0
CLOSED_AT_ONCE_MAX = 16
"""connections that the guard closes before other tasks get their turn"""


@attrs.define(eq=False)
class BufferGuard:
    """Keeps incomplete frames and unread answers of all connections below the limit of outboxes.

    Each connection has its own limits, but thousands may come near theirs at once. The greediest
    are closed, a few in each turn, as soon as all outboxes together pass the limit; incomplete
    frames are added up once a second.
    """

    connections: Callable[[], Iterable[Connection]]
    outboxes: Outboxes

    async def guard_buffers(self) -> None:
        """Guard until cancelled."""
        while True:
            with trio.move_on_after(BUFFER_SCAN_SECONDS):
                await self.outboxes.full.wait()
            self.outboxes.full = trio.Event()
            for number, (size, connection) in enumerate(self.greediest()):
                if not connection.closed:
                    connection.close_greedy(size)
                if number % CLOSED_AT_ONCE_MAX == CLOSED_AT_ONCE_MAX - 1:
                    await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()

    def greediest(self) -> list[tuple[int, Connection]]:
        """Return (bytes, connection) of those to close, so that the rest is below the limit."""
        held = [
            (connection.frames.pending_bytes + connection.outbox_bytes, connection)
            for connection in self.connections()
        ]
        total, most = sum([size for size, _ in held]), self.outboxes.total_bytes_max
        if total > most:
            held.sort(key=lambda entry: entry[0], reverse=True)
        count = 0
        while total > most:
            total -= held[count][0]
            count += 1
        return held[:count]
