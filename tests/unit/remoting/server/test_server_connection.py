"""A connection over a socket pair, with a poller that only remembers its calls."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import attrs
import pytest

from triomq.remoting.protocol.framing import FrameBuffer
from triomq.remoting.server.connection import Connection, Outboxes
from triomq.remoting.server.poller import READABLE, WRITABLE


@attrs.define(eq=False)
class Remembering:
    calls: list[tuple[str, int]] = attrs.field(factory=list)

    def register(self, sock: socket.socket, events: int) -> None:
        self.calls.append(("register", events))

    def modify(self, sock: socket.socket, events: int) -> None:
        self.calls.append(("modify", events))

    def unregister(self, sock: socket.socket) -> None:
        self.calls.append(("unregister", 0))

    def poll(self) -> list[tuple[int, int]]:
        return []

    async def wait(self) -> None:
        return

    def close(self) -> None:
        return


@attrs.define(eq=False)
class Pair:
    connection: Connection
    poller: Remembering
    far: socket.socket
    ended: list[Connection]

    def drain(self) -> bytes:
        self.far.setblocking(False)
        pieces = []
        while True:
            try:
                data = self.far.recv(1 << 20)
            except BlockingIOError:
                return b"".join(pieces)
            if not data:
                return b"".join(pieces)
            pieces.append(data)


@pytest.fixture
def pair() -> Iterator[Pair]:
    near, far = socket.socketpair()
    near.setblocking(False)
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    poller, ended = Remembering(), []
    limits = Outboxes(high_bytes=100_000, hard_bytes=1_000_000)
    connection = Connection(near, 0, ("10.0.0.1", 5), limits, FrameBuffer(), poller, ended.append)
    connection.watch()
    yield Pair(connection, poller, far, ended)
    connection.close()
    far.close()


def test_pieces_arrive_in_order_whatever_their_sizes(pair: Pair) -> None:
    writes = [
        [b"a"],
        [b"b" * 10, memoryview(b"c" * 10)],
        [b"head", b"x" * 20_000, memoryview(b"y" * 20_000)],  # a vector: too big to be joined
        [b"z"] * 600,
        [b"w" * 9000] * 3,
        [b"tail"],
    ]
    expected = b"".join(bytes(piece) for pieces in writes for piece in pieces)
    received = b""
    for pieces in writes:
        pair.connection.write(pieces)
    while pair.connection.outbox_bytes:
        received += pair.drain()
        pair.connection.flush()
    received += pair.drain()
    assert received == expected
    assert pair.connection.sent_bytes == len(expected)
    assert pair.poller.calls[0] == ("register", READABLE)
    assert pair.poller.calls[1] == ("modify", READABLE | WRITABLE)
    assert pair.poller.calls[-1] == ("modify", READABLE)


def test_the_outbox_keeps_copies(pair: Pair) -> None:
    """A piece may be a view of a file that will be unmapped."""
    file = bytearray(b"x" * 90_000)
    with memoryview(file) as view:
        pair.connection.write([view])
    file.clear()  # raises BufferError if a view is still held
    assert 0 < pair.connection.outbox_bytes < 90_000


def test_marks(pair: Pair) -> None:
    connection = pair.connection
    connection.write([b"x" * 150_000])
    assert not connection.reading
    assert pair.poller.calls[-1] == ("modify", WRITABLE)
    pair.drain()
    while connection.outbox_bytes > 50_000:
        assert not connection.reading
        connection.flush()
        pair.drain()
    assert connection.reading
    assert pair.poller.calls[-1][1] & READABLE
    connection.write([b"x" * 500_000])
    connection.write([b"x" * 600_000])
    assert connection.closed
    assert connection.close_reason == "the outbox is above its hard mark"
    assert pair.ended == [connection]


def test_the_total_of_all_outboxes_follows_every_partial_send(pair: Pair) -> None:
    connection, account = pair.connection, pair.connection.outboxes
    account.add(7)  # of other connections
    for _ in range(2):
        connection.write([b"x" * 150_000])
        connection.write([b"y" * 10_000])
        sizes = [connection.outbox_bytes]
        while connection.outbox_bytes:
            assert account.total_bytes == 7 + connection.outbox_bytes
            pair.drain()
            connection.flush()
            sizes.append(connection.outbox_bytes)
        assert len(sizes) > 3, "not enough was left for a partial send"
        assert account.total_bytes == 7
    connection.write([b"x" * 150_000])
    assert account.total_bytes == 7 + connection.outbox_bytes > 7
    connection.close()
    connection.close()
    assert account.total_bytes == 7


def test_a_peer_that_stopped_reading_twice_is_read_again_twice(pair: Pair) -> None:
    connection = pair.connection
    for _ in range(2):
        connection.write([b"x" * 150_000])
        assert not connection.reading
        assert pair.poller.calls[-1] == ("modify", WRITABLE)
        while connection.outbox_bytes:
            pair.drain()
            connection.flush()
        assert connection.reading
        assert pair.poller.calls[-1] == ("modify", READABLE)


def test_every_write_and_every_flush_is_traffic(pair: Pair) -> None:
    """The idle scan reads these counts: a connection on which only the server sends is not idle."""
    connection = pair.connection
    for count in (1, 2):
        connection.write([b"x"])
        assert connection.traffic == count
    connection.write([b"x" * 150_000])
    connection.write([b"behind"])
    assert connection.traffic == 4
    pair.drain()
    connection.flush()
    assert connection.traffic > 4


def test_a_stopped_connection_reads_no_more_but_writes(pair: Pair) -> None:
    pair.connection.stop_reading()
    assert pair.poller.calls[-1] == ("modify", 0)
    pair.connection.write([b"x" * 50_000])
    assert pair.poller.calls[-1] == ("modify", WRITABLE)
    received = b""
    while pair.connection.outbox_bytes:
        received += pair.drain()
        pair.connection.flush()
    assert len(received + pair.drain()) == 50_000
    assert pair.poller.calls[-1] == ("modify", 0)


def test_a_finished_connection_leaves_the_poller_for_good(pair: Pair) -> None:
    pair.connection.finish("the peer closed the connection")
    pair.connection.write([b"x" * 50_000])
    assert pair.poller.calls == [("register", READABLE), ("unregister", 0)]
    pair.connection.close("later")
    assert pair.connection.close_reason == "the peer closed the connection"
    pair.connection.close("again")
    pair.connection.write([b"nothing happens"])
    pair.connection.watch()
    assert pair.ended == [pair.connection]


@pytest.mark.parametrize("size", [1, 200_000])
def test_a_peer_that_has_closed(pair: Pair, size: int) -> None:
    if size > 1:
        pair.connection.write([b"x" * size])
    pair.far.close()
    if size > 1:
        pair.connection.flush()
    else:
        pair.connection.write([b"x" * size])
    assert pair.connection.closed
    assert pair.connection.close_reason.startswith("sending failed: ")
    assert pair.connection.outbox_bytes == 0


def test_empty_writes_do_no_harm(pair: Pair) -> None:
    pair.connection.write([])
    pair.connection.write([b""])
    pair.connection.write([b"", b""])
    assert pair.connection.outbox_bytes == 0
    assert not pair.connection.closed
