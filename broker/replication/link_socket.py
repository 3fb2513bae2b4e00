"""The socket of one HA connection, without a task switch unless one is needed.

Senders wait for what is written here at both ends. ``post`` sends at once if the socket takes the
bytes, and otherwise keeps them, in order, until a task calls ``drain``. So several tasks, and
callbacks that belong to no task, can send, and their bytes do not mix.
"""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from collections.abc import Iterable
from itertools import islice

import attrs
import trio

from triomq.broker.store.io.reads import Buffer
from triomq.remoting.core.busy_poll import BusyPoll, busy_poll
from triomq.remoting.core.socket_options import set_stream_options

RECEIVE_BYTES = 256 * 1024
PIECES_MAX = 512
"""Pieces in one call; systems take at most 1,024."""


@attrs.define(eq=False)
class LinkSocket:
    """Takes over a non-blocking socket."""

    sock: socket.socket
    _unsent: deque[memoryview] = attrs.field(factory=deque, init=False)
    _draining: trio.StrictFIFOLock = attrs.field(factory=trio.StrictFIFOLock, init=False)
    _broken: bool = attrs.field(default=False, init=False)
    # One buffer for all reads: a new object of this size for each costs more than copying the data.
    _buffer: memoryview = attrs.field(
        factory=lambda: memoryview(bytearray(RECEIVE_BYTES)), init=False
    )
    _filled: bool = attrs.field(default=False, init=False)
    """Whether the last read filled the buffer."""
    _polled: BusyPoll | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        # Some systems refuse this if the peer is gone: the first send or receive reports that.
        with contextlib.suppress(OSError):
            set_stream_options(self.sock)

    def busy_poll(self, nursery: trio.Nursery) -> None:
        """Busy poll for input from now on, if the machine can: senders wait for it.

        *nursery*: see ``BusyPoll.watch``. Checkpoint: never.
        """
        poll = busy_poll()
        if poll.watch(self.sock.fileno(), lambda: True, nursery):
            self._polled = poll

    @property
    def is_full(self) -> bool:
        """Whether bytes wait for ``drain``."""
        return bool(self._unsent)

    def post(self, data: bytes) -> bool:
        """Send after all that was posted before; return False if some of it waits for ``drain``.

        Raises: trio.BrokenResourceError.
        Checkpoint: never.
        """
        sent = 0
        if not (self._unsent or self._broken):
            try:
                sent = self.sock.send(data)
            except BlockingIOError:
                pass
            except OSError as error:
                self._broken = True
                raise trio.BrokenResourceError(str(error)) from error
            if sent == len(data):
                return True
        self._unsent.append(memoryview(data)[sent:])
        return False

    def post_all(self, pieces: Iterable[Buffer]) -> bool:
        """Post one piece after the other.

        What the socket does not take at once is copied: pieces of a map could leave memory while
        they wait.

        Raises: trio.BrokenResourceError.
        Checkpoint: never.
        """
        unsent = self._unsent
        if unsent or self._broken:
            unsent.append(memoryview(b"".join(pieces)))
            return False
        unsent += map(memoryview, pieces)
        self._send_some()
        if not unsent:
            return True
        rest = b"".join(unsent)
        unsent.clear()
        unsent.append(memoryview(rest))
        return False

    def _send_some(self) -> None:
        """Send the waiting bytes that the socket takes. Raises: trio.BrokenResourceError."""
        unsent = self._unsent
        try:
            sent = self.sock.sendmsg(islice(unsent, PIECES_MAX))
        except BlockingIOError:
            return
        except OSError as error:
            self._broken = True
            raise trio.BrokenResourceError(str(error)) from error
        while unsent and sent >= len(unsent[0]):
            sent -= len(unsent.popleft())
        if sent:
            unsent[0] = unsent[0][sent:]

    async def drain(self) -> None:
        """Wait until the socket has taken everything.

        Raises: trio.BrokenResourceError.
        Checkpoint: maybe, if bytes wait.
        """
        if self._broken:
            raise trio.BrokenResourceError("the connection broke")
        if not self._unsent:
            return
        async with self._draining:
            while self._unsent:
                await trio.lowlevel.wait_writable(self.sock)
                self._send_some()

    async def send(self, data: bytes) -> None:
        """Post and drain. Raises: trio.BrokenResourceError. Checkpoint: maybe, if bytes wait."""
        self.post(data)
        await self.drain()

    async def receive(self) -> memoryview:
        """Wait for data and return it; nothing at the end. The view is valid until the next call.

        Raises: trio.BrokenResourceError.
        Checkpoint: always.
        """
        while True:
            await trio.lowlevel.wait_readable(self.sock)
            data = self._receive_now()
            if data is not None:
                return data

    def receive_more(self) -> memoryview | None:
        """Return more data, if the last read filled the buffer and there is more; otherwise None.

        Raises: trio.BrokenResourceError.
        Checkpoint: never.
        """
        return self._receive_now() if self._filled else None

    def _receive_now(self) -> memoryview | None:
        try:
            size = self.sock.recv_into(self._buffer)
        except BlockingIOError:
            return None
        except OSError as error:
            raise trio.BrokenResourceError(str(error)) from error
        self._filled = size == len(self._buffer)
        return self._buffer[:size]

    def why_broken(self) -> str:
        """Return why the connection broke, as far as this end knows. Checkpoint: never."""
        return "the connection broke"

    def close(self) -> None:
        """Close, after the tasks that use it have ended. Checkpoint: never."""
        if self._polled is not None:
            self._polled.unwatch(self.sock.fileno())
            self._polled = None
        self.sock.close()
