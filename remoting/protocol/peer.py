"""The requesting side of one connection, without the connection: opaque numbers, pending requests, matching replies.

Both the Trio connector and the blocking connection drive a ``ClientPeer``: they give it what they read and send what it
returns. Times are plain numbers of the caller's clock, in seconds.
"""

from typing import Generic, TypeVar

import attrs
import msgspec

from triomq.remoting.protocol.command import ONEWAY_FLAG, RESPONSE_FLAG, Command, Outgoing, decode_frame
from triomq.remoting.protocol.framing import FRAME_BYTES_MAX, FrameBuffer

T = TypeVar("T")

_WRAP = 1 << 32
_SIGN = 1 << 31


class Pending(msgspec.Struct, Generic[T], eq=False):
    """A request that waits for its reply. *token* is whatever the caller needs to wake the one who waits."""

    opaque: int
    token: T
    deadline: float


@attrs.frozen
class PeerStatistics:
    """Counters since the start of the connection."""

    pending: int
    sent: int
    replied: int
    late_replies: int
    """Replies to requests that were given up, or answered before, or never sent."""
    peer_requests: int


@attrs.define(eq=False)
class Received(Generic[T]):
    """What one piece of input contained, in order of arrival."""

    replies: list[tuple[Pending[T], Command]]
    requests: list[Command]


class ClientPeer(Generic[T]):
    """Numbers requests, remembers them, and finds the request that a reply belongs to.

    An opaque number is never used while a request with the same number waits for its reply; it may wrap to negative.
    Requests from the other side have numbers of their own: only the response bit of the flag tells them apart.
    """

    def __init__(self, *, frame_max_bytes: int = FRAME_BYTES_MAX, first_opaque: int = 0) -> None:
        self._frames = FrameBuffer(frame_max_bytes)
        self._next = first_opaque % _WRAP
        self._pending: dict[int, Pending[T]] = {}
        self._sent = 0
        self._replied = 0
        self._late_replies = 0
        self._peer_requests = 0

    def __repr__(self) -> str:
        return f"<ClientPeer {len(self._pending)} pending, {self._sent} sent>"

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    @property
    def next_opaque(self) -> int:
        """The number of the next request, for a peer that goes on where this one ends: late answers of both stay apart."""
        return self._next

    def statistics(self) -> PeerStatistics:
        return PeerStatistics(
            pending=len(self._pending),
            sent=self._sent,
            replied=self._replied,
            late_replies=self._late_replies,
            peer_requests=self._peer_requests,
        )

    def send(self, command: Outgoing, token: T, deadline: float) -> tuple[Pending[T], bytes]:
        """Number a request, remember it until *deadline*, and encode it; the caller writes the bytes.

        LocalProtocolError if it cannot be encoded; nothing is remembered then.
        """
        opaque = self._next
        if opaque in self._pending or opaque >= _SIGN:
            opaque = self._free_opaque()
        else:
            self._next = opaque + 1
        command.opaque = opaque
        data = command.encode()
        pending = self._pending[opaque] = Pending(opaque, token, deadline)
        self._sent += 1
        return pending, data

    def send_oneway(self, command: Outgoing) -> bytes:
        """Number a request that is never answered, set its flag, and encode it."""
        command.opaque = self._free_opaque()
        command.flag |= ONEWAY_FLAG
        data = command.encode()
        self._sent += 1
        return data

    def receive(self, data: bytes) -> Received[T]:
        """Take what was read from the peer: replies with their requests, and requests of the peer.

        RemoteProtocolError if the bytes cannot be followed; the connection must then be closed. What came before the
        damage in the same *data* is lost with it, as it would be had the connection closed a moment earlier.
        """
        received: Received[T] = Received([], [])
        for frame in self._frames.feed(data):
            command = decode_frame(frame)
            if not command.flag & RESPONSE_FLAG:
                self._peer_requests += 1
                received.requests.append(command)
                continue
            pending = self._pending.pop(command.opaque, None)
            if pending is None:
                self._late_replies += 1
            else:
                self._replied += 1
                received.replies.append((pending, command))
        return received

    def give_up(self, opaque: int) -> Pending[T] | None:
        """Forget a request whose caller no longer waits; its reply will count as late. None if it is not pending."""
        return self._pending.pop(opaque, None)

    def expire(self, now: float) -> list[Pending[T]]:
        """Forget and return the requests whose deadline has passed."""
        expired = [pending for pending in self._pending.values() if pending.deadline <= now]
        for pending in expired:
            del self._pending[pending.opaque]
        return expired

    def next_deadline(self) -> float | None:
        """When ``expire`` will next have something to do; None if nothing is pending."""
        return min((pending.deadline for pending in self._pending.values()), default=None)

    def lose(self) -> list[Pending[T]]:
        """The connection is gone: forget and return all pending requests."""
        lost = list(self._pending.values())
        self._pending.clear()
        return lost

    def _free_opaque(self) -> int:
        while True:  # ends: far fewer requests can be pending than there are numbers
            number = self._next
            self._next = (number + 1) % _WRAP
            opaque = number - _WRAP if number & _SIGN else number
            if opaque not in self._pending:
                return opaque
