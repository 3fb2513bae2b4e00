"""One HA connection's socket, without a task switch where none is needed: senders wait for what is written here at both ends.

What is posted goes out at once if the socket takes it, else it is kept, in order, until some task has time to ``drain``; so several tasks, and callbacks that belong to none, may
send, and none cuts into another's bytes.
"""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from collections.abc import Iterable
from itertools import islice

import attrs
import trio

from triomq.broker.store.reads import Buffer
from triomq.remoting.busy_poll import BusyPoll, busy_poll

RECEIVE_BYTES = 256 * 1024
PIECES_MAX = 512
"""Systems take no more than 1,024 in one call."""


@attrs.define(eq=False)
class Wire:
    """Takes over a non-blocking socket."""

    sock: socket.socket
    _unsent: deque[memoryview] = attrs.field(factory=deque, init=False)
    _draining: trio.StrictFIFOLock = attrs.field(factory=trio.StrictFIFOLock, init=False)
    _broken: bool = attrs.field(default=False, init=False)
    # One for all reads: a fresh object of that size for each would cost more than copying what has come.
    _buffer: bytearray = attrs.field(factory=lambda: bytearray(RECEIVE_BYTES), init=False)
    _view: memoryview = attrs.field(init=False)
    _filled: bool = attrs.field(default=False, init=False)
    """Whether the last read took all that it could."""
    _looking: BusyPoll | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        with contextlib.suppress(OSError):  # some systems refuse it for a peer that is gone already: the first send or receive says so
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._view = memoryview(self._buffer)

    def look(self, nursery: trio.Nursery) -> None:
        """From now on the loop looks for what comes here before it sleeps, if the machine is made for that: senders wait for it. *nursery*: see ``BusyPoll.watch``. No checkpoint."""
        looking = busy_poll()
        if looking.watch(self.sock.fileno(), lambda: True, nursery):
            self._looking = looking

    @property
    def is_full(self) -> bool:
        """Whether something waits for ``drain``."""
        return bool(self._unsent)

    def post(self, data: bytes) -> bool:
        """Send behind all that was posted before; False: some of it waits for ``drain``. No checkpoint. Raises trio.BrokenResourceError."""
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
        """``post`` for one after another. What the socket takes at once is not copied; the rest is: of a map it might leave the memory while it waits."""
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
        """As much of what waits as the socket takes. Raises trio.BrokenResourceError."""
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
        """Wait until the socket has taken everything. Checkpoint: only if it has not yet. Raises trio.BrokenResourceError."""
        if self._broken:
            raise trio.BrokenResourceError("the connection broke")
        if not self._unsent:
            return
        async with self._draining:
            while self._unsent:
                await trio.lowlevel.wait_writable(self.sock)
                self._send_some()

    async def send(self, data: bytes) -> None:
        """Both of them."""
        self.post(data)
        await self.drain()

    async def receive(self) -> memoryview:
        """What has come, until the next call; nothing at the end. Checkpoint: always. Raises trio.BrokenResourceError."""
        while True:
            await trio.lowlevel.wait_readable(self.sock)
            data = self._receive_now()
            if data is not None:
                return data

    def receive_more(self) -> memoryview | None:
        """The same, if the last call has brought as much as it can, and more is there already; else None. No checkpoint."""
        return self._receive_now() if self._filled else None

    def _receive_now(self) -> memoryview | None:
        try:
            size = self.sock.recv_into(self._buffer)
        except BlockingIOError:
            return None
        except OSError as error:
            raise trio.BrokenResourceError(str(error)) from error
        self._filled = size == len(self._buffer)
        return self._view[:size]

    def close(self) -> None:
        """The tasks that use it have ended. No checkpoint."""
        if self._looking is not None:
            self._looking.unwatch(self.sock.fileno())
            self._looking = None
        self.sock.close()
