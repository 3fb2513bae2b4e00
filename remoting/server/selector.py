"""The selector: one poller over many sockets.

A turn asks the poller which sockets are ready, lets blocked writers go on, reads *all* readable
sockets (at most 128 KiB each, otherwise the first sockets would starve the rest) and hands the
bytes to its codec in batches. If the codec is idle, the first batch of a turn is decoded in place;
further batches go through the mailbox, and a full mailbox stops the reading, so that TCP slows the
peers.
"""

import socket
from collections.abc import Callable, Iterator

import attrs
import trio

from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.protocol.framing import FrameBuffer
from triomq.remoting.server.codec import Codec
from triomq.remoting.server.connection import BytesFilter, Connection, Outboxes
from triomq.remoting.server.poller import READABLE, WRITABLE, Poller

READ_BYTES = 128 * 1024
BATCH_SOCKETS_MAX = 256
BATCH_BYTES_MAX = 256 * 1024


@attrs.define(eq=False)
class Selector:
    """Owns its connections for life; ``closed`` is called once for each closed connection."""

    poller: Poller
    codec: Codec
    outboxes: Outboxes
    frame_max_bytes: int
    filter_factory: Callable[[Connection], BytesFilter | None] | None
    closed: Callable[[Connection], None]
    limit: LogLimit = attrs.field(factory=LogLimit)
    connections: dict[int, Connection] = attrs.field(factory=dict, init=False)
    received_bytes: int = attrs.field(default=0, init=False)
    # One buffer for all connections: a new buffer for every read would cost more than the copy.
    _buffer: bytearray = attrs.field(factory=lambda: bytearray(READ_BYTES), init=False)
    _view: memoryview = attrs.field(
        default=attrs.Factory(lambda self: memoryview(self._buffer), takes_self=True), init=False
    )

    def add(self, number: int, sock: socket.socket, peer: tuple[str, int]) -> Connection:
        """Take over a non-blocking socket. Checkpoint: never."""
        frames = FrameBuffer(self.frame_max_bytes)
        connection = Connection(
            sock, number, peer, self.outboxes, frames, self.poller, self._forget, self.limit
        )
        if self.filter_factory is not None:
            connection.filter = self.filter_factory(connection)
        self.connections[connection.fd] = connection
        connection.watch()
        return connection

    def _forget(self, connection: Connection) -> None:
        del self.connections[connection.fd]
        self.closed(connection)

    async def run(self) -> None:
        """Serve until cancelled."""
        mailbox = self.codec.mailbox
        while True:
            if mailbox:
                # Otherwise each turn would add a small batch while the codec takes one, for ever:
                # input that comes until then is read together.
                await mailbox.emptied()
            await self.poller.wait()
            ready = iter(self.poller.poll())
            in_place = True
            while not self._read(ready, in_place):
                in_place = False
                await self.codec.mailbox.room()

    def _read(self, ready: Iterator[tuple[int, int]], in_place: bool) -> bool:
        """Go on with a turn. Returns: True at its end, False when the codec's mailbox is full."""
        connections, buffer, view = self.connections, self._buffer, self._view
        reads: list[tuple[Connection, bytes]] = []
        size = 0
        for fd, events in ready:
            connection = connections.get(fd)
            if connection is None:
                continue  # closed since the poll, by an answer to another request
            if events != READABLE:
                if events & WRITABLE:
                    connection.flush()
                if events == WRITABLE or connection.closed:
                    continue
            try:
                data = bytes(view[: connection.receive_into(buffer)])
            except BlockingIOError:
                continue
            except OSError as error:
                connection.finish(f"the connection broke: {error.strerror or error}")
                data = b""
            if data:
                connection.traffic += 1
                size += len(data)
            else:
                connection.finish("the peer closed the connection")
            reads.append((connection, data))
            if size >= BATCH_BYTES_MAX or len(reads) == BATCH_SOCKETS_MAX:
                self._hand_over(reads, size, in_place)
                if self.codec.mailbox.full:
                    return False
                reads, size, in_place = [], 0, False
        if reads:
            self._hand_over(reads, size, in_place)
        return True

    def _hand_over(self, reads: list[tuple[Connection, bytes]], size: int, in_place: bool) -> None:
        """Hand a batch to the codec: run its step here if it is idle and *in_place* is true."""
        self.received_bytes += size
        codec = self.codec
        if in_place and codec.mailbox.idle:
            codec.step((trio.current_time(), reads))
        else:
            codec.mailbox.put((trio.current_time(), reads))

    def stop_reading(self) -> None:
        """Read no more requests; answers are still sent."""
        for connection in list(self.connections.values()):
            connection.stop_reading()
