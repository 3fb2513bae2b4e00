"""A connection whose client is in this process: frames in memory instead of a socket, or objects.

The server's side is an ordinary ``Connection``: codec, hooks, pools, handlers and callbacks treat
its frames as those of any client. ``Server.open_local`` makes one. Requests that come in batches
(``request``) need no frames: their headers and responses are objects.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import cast

import attrs
import trio

from triomq.remoting.core.errors import ConnectionLost, RequestTimeout
from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.protocol.codes import PROTOCOL_VERSION, SerializeType
from triomq.remoting.protocol.command import Command, encode_command
from triomq.remoting.protocol.framing import FrameBuffer
from triomq.remoting.protocol.peer import ClientPeer
from triomq.remoting.server.codec import Codec
from triomq.remoting.server.connection import Connection, Outboxes
from triomq.remoting.server.poller import Poller
from triomq.remoting.server.requests import Request, Response


@attrs.define(eq=False)
class _AnswerSlot:
    """A task that waits for an answer."""

    done: trio.Event = attrs.field(factory=trio.Event)
    answer: Command | None = None


@attrs.define(eq=False)
class _ClientSide:
    """What the server's side uses as its socket: it takes everything at once."""

    take: Callable[[bytes], None]

    def fileno(self) -> int:
        return -1

    def recv_into(self, _buffer: bytearray) -> int:
        raise BlockingIOError

    def send(self, data: bytes | memoryview) -> int:
        size = len(data)
        if size:
            self.take(bytes(data))
        return size

    def sendmsg(self, pieces: Sequence[bytes | memoryview]) -> int:
        return self.send(b"".join(pieces))

    def setsockopt(self, *_arguments: object) -> None:
        pass

    def close(self) -> None:
        pass


@attrs.define(eq=False)
class LocalConnection:
    """The client's side. ``peer`` is the address that the server sees.

    ``on_request`` is called with every request of the server, deep in the stack of a handler: it
    must only note it.
    """

    peer: tuple[str, int]
    codec: Codec
    on_request: Callable[[Command], None]
    server_side: Connection = attrs.field(init=False)
    _requests: ClientPeer[_AnswerSlot] = attrs.field(factory=ClientPeer, init=False)

    @classmethod
    def open(
        cls,
        peer: tuple[str, int],
        codec: Codec,
        on_request: Callable[[Command], None],
        outboxes: Outboxes,
        poller: Poller,
        ended: Callable[[Connection], None],
        *,
        frame_max_bytes: int,
        limit: LogLimit,
    ) -> LocalConnection:
        """Make both sides. Checkpoint: never."""
        made = cls(peer, codec, on_request)
        sock = cast("socket.socket", _ClientSide(made._take))
        frames = FrameBuffer(frame_max_bytes)

        def server_side_ended(connection: Connection) -> None:
            made._lose()
            ended(connection)

        made.server_side = Connection(
            sock, 0, peer, outboxes, frames, poller, server_side_ended, limit, local=True
        )
        return made

    @property
    def closed(self) -> bool:
        return self.server_side.closed

    @property
    def pending(self) -> int:
        """Requests without an answer."""
        return self._requests.pending_count

    async def invoke(self, command: Command, timeout: float) -> Command:
        """Send a request and wait for its answer, up to *timeout* seconds.

        Cancelled, the late answer is dropped.

        Raises: RequestTimeout, ConnectionLost.
        Checkpoint: maybe; a handler that answers at once runs before.
        """
        if self.closed:
            raise ConnectionLost(self.server_side.peer_text, self.server_side.close_reason)
        waiting = _AnswerSlot()
        deadline = trio.current_time() + timeout
        pending, data = self._requests.send(command, waiting, deadline)
        try:
            await self._deliver(data)
            if not waiting.done.is_set():
                with trio.move_on_at(deadline):
                    await waiting.done.wait()
        finally:
            self._requests.give_up(pending.opaque)
        if waiting.answer is not None:
            return waiting.answer
        if self.closed:
            raise ConnectionLost(self.server_side.peer_text, self.server_side.close_reason)
        raise RequestTimeout(self.server_side.peer_text, int(command.code), timeout)

    def request(
        self,
        code: int,
        header: object,
        body: bytes,
        language: int,
        answered: Callable[[Response], None],
    ) -> Request:
        """Return a request for ``Codec.submit``, which is an object from here to its handler.

        No hook can read its fields as text. *answered* is also called when this connection is
        closed before the answer. Checkpoint: never.
        """
        self.server_side.traffic += 1
        return Request(
            self.server_side,
            code,
            0,
            False,
            PROTOCOL_VERSION,
            language,
            SerializeType.JSON,
            header,
            body,
            trio.current_time(),
            b"",
            answered=answered,
        )

    async def answer(self, response: Command) -> None:
        """Answer a request of the server; ``response_to`` makes the response."""
        if not self.closed:
            await self._deliver(encode_command(response))

    async def _deliver(self, data: bytes) -> None:
        """Hand bytes to the codec as a selector does: in place if it is idle."""
        self.server_side.traffic += 1
        mailbox = self.codec.mailbox
        batch = trio.current_time(), [(self.server_side, data)]
        if mailbox.idle:
            self.codec.step(batch)
        else:
            await mailbox.room()
            mailbox.put(batch)

    def close(self, reason: str = "closed by this side") -> None:
        """Close both sides; requests in flight raise ConnectionLost. Checkpoint: never."""
        self.server_side.close(reason)

    def _take(self, data: bytes) -> None:
        received = self._requests.receive(data)
        for pending, answer in received.replies:
            pending.token.answer = answer
            pending.token.done.set()
        for command in received.requests:
            self.on_request(command)

    def _lose(self) -> None:
        for pending in self._requests.lose():
            pending.token.done.set()
