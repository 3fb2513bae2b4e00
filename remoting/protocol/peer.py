"""The requesting side of a connection, without I/O: opaque numbers, pending requests, replies.

The Trio connector and the blocking connection each drive a ``ClientPeer``: they feed it the bytes
that they read and send the bytes that it returns. Times are seconds of the caller's clock.
"""

from collections.abc import Iterable
from typing import Generic, TypeVar

import attrs

from triomq.remoting.protocol.command import (
    ONEWAY_FLAG,
    RESPONSE_FLAG,
    Command,
    Outgoing,
    decode_frame,
)
from triomq.remoting.protocol.framing import FRAME_BYTES_MAX, FrameBuffer
from triomq.remoting.protocol.structs import msgspec

T = TypeVar("T")

_WRAP = 1 << 32
_SIGN = 1 << 31


class Pending(msgspec.Struct, Generic[T], eq=False):
    """A request that waits for its reply; the caller wakes its own task by ``token``."""

    opaque: int
    token: T
    deadline: float


@attrs.define
class PeerStatistics:
    """Counters since the start of the connection."""

    pending: int = 0
    sent: int = 0
    replied: int = 0
    late_replies: int = 0
    """Replies to requests that were given up, answered before, or never sent."""
    peer_requests: int = 0


@attrs.define(eq=False)
class Received(Generic[T]):
    """The replies and requests of one piece of input, in order of arrival."""

    replies: list[tuple[Pending[T], Command]]
    requests: list[Command]


class ClientPeer(Generic[T]):
    """Numbers requests and finds the request of each reply.

    A number is not used while a request with the same number waits for its reply; it may wrap to
    negative. Requests from the other side have numbers of their own: only the response bit of the
    flag tells the two kinds apart.
    """

    def __init__(self, *, frame_max_bytes: int = FRAME_BYTES_MAX, first_opaque: int = 0) -> None:
        self._frames = FrameBuffer(frame_max_bytes)
        self._next = first_opaque % _WRAP
        self._pending: dict[int, Pending[T]] = {}
        self._counters = PeerStatistics()  # without the pending requests

    def __repr__(self) -> str:
        return f"<ClientPeer {len(self._pending)} pending, {self._counters.sent} sent>"

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    @property
    def next_opaque(self) -> int:
        """The number of the next request.

        A peer that replaces this one begins there, so that no late reply matches a new request.
        """
        return self._next

    def statistics(self) -> PeerStatistics:
        return attrs.evolve(self._counters, pending=len(self._pending))

    def send(self, command: Outgoing, token: T, deadline: float) -> tuple[Pending[T], bytes]:
        """Number a request, remember it until ``deadline``, and return its bytes for sending.

        Raises: LocalProtocolError if the request cannot be encoded; it is not remembered then.
        """
        opaque = self._next
        if opaque in self._pending or opaque >= _SIGN:
            opaque = self._free_opaque()
        else:
            self._next = opaque + 1
        command.opaque = opaque
        data = command.encode()
        pending = self._pending[opaque] = Pending(opaque, token, deadline)
        self._counters.sent += 1
        return pending, data

    def send_oneway(self, command: Outgoing) -> bytes:
        """Number a request that is never answered, set its flag, and return its bytes."""
        command.opaque = self._free_opaque()
        command.flag |= ONEWAY_FLAG
        data = command.encode()
        self._counters.sent += 1
        return data

    def receive(self, data: bytes) -> Received[T]:
        """Return the replies and requests in bytes from the peer.

        Raises: RemoteProtocolError if the bytes are damaged; the caller must close the connection.
        Replies before the damage in the same ``data`` are lost, as if the connection had closed a
        moment earlier.
        """
        return self.receive_frames(self._frames.feed(data))

    def room(self) -> memoryview | None:
        """Return where the rest of a large frame may be received; see ``FrameBuffer.room``."""
        return self._frames.room()

    def receive_in_room(self, count: int) -> Received[T]:
        """Return the reply that is complete after ``count`` more bytes in ``room``.

        Raises: RemoteProtocolError as ``receive`` does.
        """
        return self.receive_frames(self._frames.fill(count))

    def receive_frames(self, frames: Iterable[bytes | memoryview]) -> Received[T]:
        """Take frames that were already cut from the stream. Raises: RemoteProtocolError."""
        received: Received[T] = Received([], [])
        for frame in frames:
            command = decode_frame(frame)
            if not command.flag & RESPONSE_FLAG:
                self._counters.peer_requests += 1
                received.requests.append(command)
                continue
            pending = self._pending.pop(command.opaque, None)
            if pending is None:
                self._counters.late_replies += 1
            else:
                self._counters.replied += 1
                received.replies.append((pending, command))
        return received

    def give_up(self, opaque: int) -> Pending[T] | None:
        """Forget and return a request whose caller no longer waits; None if it is not pending.

        Its reply will count as late.
        """
        return self._pending.pop(opaque, None)

    def expire(self, now: float) -> list[Pending[T]]:
        """Forget and return the requests whose deadline has passed."""
        expired = [pending for pending in self._pending.values() if pending.deadline <= now]
        for pending in expired:
            del self._pending[pending.opaque]
        return expired

    def next_deadline(self) -> float | None:
        """Return the earliest deadline of the pending requests; None without any."""
        return min((pending.deadline for pending in self._pending.values()), default=None)

    def lose(self) -> list[Pending[T]]:
        """Forget and return all pending requests, as the connection is gone."""
        lost = list(self._pending.values())
        self._pending.clear()
        return lost

    def _free_opaque(self) -> int:
        while True:  # ends, since there are more numbers than pending requests
            number = self._next
            self._next = (number + 1) % _WRAP
            opaque = number - _WRAP if number & _SIGN else number
            if opaque not in self._pending:
                return opaque
