"""The selector: one poller over many sockets.

A turn asks the poller what is ready, lets blocked writers go on, reads *all* readable sockets (at most 128 KiB each, or the
first ones would starve the rest) and hands the bytes to its codec in batches. If the codec is idle, the first batch of a turn
is decoded in place; more than that goes through the mailbox, and a full mailbox stops the reading, so that TCP slows the peers.
"""

import socket
from collections.abc import Callable, Iterator

import attrs
import trio

from triomq.remoting.log_limit import LogLimit
from triomq.remoting.protocol.framing import FrameBuffer
from triomq.remoting.server.codec import Codec
from triomq.remoting.server.connection import BytesFilter, Connection, Outboxes
from triomq.remoting.server.poller import READABLE, WRITABLE, Poller
from triomq.remoting.server.statistics import StageStatistics

READ_BYTES = 128 * 1024
BATCH_SOCKETS_MAX = 256
BATCH_BYTES_MAX = 256 * 1024


@attrs.define(eq=False)
class Selector:
    """Owns its connections for life. `closed` is called once for each of them, after it is closed."""

    poller: Poller
    codec: Codec
    outboxes: Outboxes
    frame_max_bytes: int
    filter_factory: Callable[[Connection], BytesFilter | None] | None
    closed: Callable[[Connection], None]
    limit: LogLimit = attrs.field(factory=LogLimit)
    connections: dict[int, Connection] = attrs.field(factory=dict, init=False)
    turns: int = attrs.field(default=0, init=False)
    batches_in_place: int = attrs.field(default=0, init=False)
    batches_queued: int = attrs.field(default=0, init=False)
    received_bytes: int = attrs.field(default=0, init=False)
    # One for all connections: a fresh object of that size for every read would cost more than copying what has come.
    _buffer: bytearray = attrs.field(factory=lambda: bytearray(READ_BYTES), init=False)
    _view: memoryview = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._view = memoryview(self._buffer)

    def add(self, number: int, sock: socket.socket, peer: tuple[str, int]) -> Connection:
        """Take over a non-blocking socket. No checkpoint."""
        frames = FrameBuffer(self.frame_max_bytes)
        connection = Connection(sock, number, peer, self.outboxes, frames, self.poller, self._forget, self.limit)
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
                # Or each turn would add a small batch while the codec takes one, for ever: what comes meanwhile is read together.
                await mailbox.emptied()
            await self.poller.wait()
            self.turns += 1
            ready = iter(self.poller.poll())
            in_place = True
            while not self._read(ready, in_place):
                in_place = False
                await self.codec.mailbox.room()

    def _read(self, ready: Iterator[tuple[int, int]], in_place: bool) -> bool:
        """Go on with a turn: True at its end, False when the codec's mailbox is full. No checkpoint."""
        connections, buffer, view = self.connections, self._buffer, self._view
        reads: list[tuple[Connection, bytes]] = []
        size = 0
        for fd, events in ready:
            connection = connections.get(fd)
            if connection is None:
                continue  # closed since then, by an answer to somebody else
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
                connection.read_count += 1
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
        """Give a batch to the codec: run its step here if it is idle and this turn has not yet done so. No checkpoint."""
        self.received_bytes += size
        codec = self.codec
        if in_place and codec.mailbox.idle:
            self.batches_in_place += 1
            codec.step((trio.current_time(), reads))
        else:
            self.batches_queued += 1
            codec.mailbox.put((trio.current_time(), reads))

    def stop_reading(self) -> None:
        """Take no more requests; answers still go out."""
        for connection in list(self.connections.values()):
            connection.stop_reading()

    def statistics(self) -> StageStatistics:
        return StageStatistics(
            turns=self.turns, batches_in_place=self.batches_in_place, batches_queued=self.batches_queued
        )
