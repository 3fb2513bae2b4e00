"""Watch the frames of a connection before HTTP/2's state machine sees them. Pure.

A client's GOAWAY is kept from it: h2 takes it for the end of the connection, but Node's client
sends it as soon as it is closed and still waits for the trailers of open calls. Frames that cost a
server more than their sender are budgeted: resets, settings, pings and all others without data.

Source: RFC 9113, sections 3.4, 4.1, 6 and 10.5.
"""

from __future__ import annotations

import attrs

from triomq.remoting.errors import RemoteProtocolError
from triomq.remoting.limits import Limits

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES = 9
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY = range(8)
CONTINUATION = 9
END_HEADERS = 0x4
CONTINUATIONS_MAX = 32
BURST_SECONDS = 10
"""a budget that was not used for this time is full"""
_CONTROLS_PER_DATA = 4
"""WINDOW_UPDATEs and the like that a client may send for each frame with data"""


class SessionRefused(RemoteProtocolError):
    """The connection must end: *reason* and *fix*; *code* is HTTP/2's error code."""

    def __init__(self, reason: str, fix: str, code: int) -> None:
        super().__init__(reason, fix)
        self.code = code


PROTOCOL_ERROR, FRAME_SIZE_ERROR, ENHANCE_YOUR_CALM = 0x1, 0x6, 0xB


@attrs.define(eq=False)
class FrameBudget:
    """Frames of one kind: ``rate`` a second, and ``BURST_SECONDS`` times as many at once."""

    rate: float
    left: float = attrs.field(init=False)
    _filled: float = attrs.field(default=-1.0, init=False)
    """when ``left`` was last brought up to date; negative before the first frame"""

    def __attrs_post_init__(self) -> None:
        self.left = self.rate * BURST_SECONDS

    def spend(self, now: float) -> bool:
        """Take one frame out; return whether the budget had it."""
        self.left -= 1
        if self._filled < 0:
            self._filled = now
        if self.left < 0:
            most = self.rate * BURST_SECONDS
            self.left = min(most, self.left + self.rate * max(0.0, now - self._filled))
            self._filled = now
        return self.left >= 0

    def earn(self, count: int) -> None:
        """Add frames that other frames justify."""
        self.left = min(self.left + count, self.rate * BURST_SECONDS)


@attrs.define(eq=False)
class FrameWatch:
    """Passes the bytes of one connection on, except those of GOAWAY frames."""

    limits: Limits
    frame_bytes_max: int
    header_block_bytes_max: int
    peer_leaves: bool = attrs.field(default=False, init=False)
    """whether a GOAWAY has come"""
    began: bool = attrs.field(default=False, init=False)
    """whether the preface and a frame's head have come"""
    _preface: bytes = attrs.field(default=PREFACE, init=False)
    _head: bytes = attrs.field(default=b"", init=False)
    _left: int = attrs.field(default=0, init=False)
    _skips: bool = attrs.field(default=False, init=False)
    _block_bytes: int = attrs.field(default=0, init=False)
    _continuations: int = attrs.field(default=0, init=False)
    _resets: FrameBudget = attrs.field(init=False)
    _settings: FrameBudget = attrs.field(init=False)
    _pings: FrameBudget = attrs.field(init=False)
    _controls: FrameBudget = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        most = self.limits.most
        self._resets = FrameBudget(most("resets_per_second"))
        self._settings = FrameBudget(most("settings_per_second"))
        self._pings = FrameBudget(most("pings_per_second"))
        self._controls = FrameBudget(most("controls_per_second"))

    def sent_data(self) -> None:
        """Note a frame with data of this side: it justifies a window update and a ping."""
        self._pings.earn(1)
        self._controls.earn(_CONTROLS_PER_DATA)

    def was_reset(self, now: float) -> None:
        """Note a call that this side had to reset because of the peer's mistake.

        Raises: SessionRefused.
        """
        self._spend(self._resets, "resets_per_second", "calls that end in a reset", now)

    def feed(self, data: bytes, now: float) -> bytes:
        """Return what HTTP/2 gets of *data*, in whole frame heads. *now*: seconds, monotonic.

        Raises: SessionRefused.
        """
        if self._preface:
            return self._feed_preface(data, now)
        if self._head:
            data = self._head + data
        size, begin = len(data), 0
        at = min(self._left, size)
        self._left -= at
        if self._skips:
            begin, self._skips = at, self._left > 0
        passed = b""
        while size - at >= HEAD_BYTES:
            length = data[at] << 16 | data[at + 1] << 8 | data[at + 2]
            kind, flags = data[at + 3], data[at + 4]
            self._note(kind, flags, length, now)
            end = at + HEAD_BYTES + length
            if kind == GOAWAY:
                self.peer_leaves = True
                passed += data[begin:at]
                begin = min(end, size)
                self._skips = end > size
            if end > size:
                self._left = end - size
                at = size
            else:
                at = end
        self._head = data[at:]
        if begin == 0 and at == size:
            return data
        return passed + data[begin:at]

    def _feed_preface(self, data: bytes, now: float) -> bytes:
        wanted = self._preface
        count = min(len(wanted), len(data))
        if data[:count] != wanted[:count]:
            raise SessionRefused(
                "the client does not speak HTTP/2",
                "connect with a gRPC client, and other programs to their own port",
                PROTOCOL_ERROR,
            )
        self._preface = wanted[count:]
        return data[:count] + (self.feed(data[count:], now) if len(data) > count else b"")

    def _note(self, kind: int, flags: int, length: int, now: float) -> None:
        self.began = True
        if length > self.frame_bytes_max:
            raise SessionRefused(
                f"a frame has {length} bytes, and the server announced {self.frame_bytes_max}",
                "send smaller frames",
                FRAME_SIZE_ERROR,
            )
        if kind == DATA and length:
            self._pings.earn(1)
            self._controls.earn(_CONTROLS_PER_DATA)
        elif kind == HEADERS:
            self._block_bytes = length
            self._continuations = 0
            self._require_block()
            if flags & END_HEADERS:
                self._controls.earn(_CONTROLS_PER_DATA)
        elif kind == CONTINUATION:
            self._block_bytes += length
            self._continuations += 1
            self._require_block()
        elif kind == RST_STREAM:
            self._spend(self._resets, "resets_per_second", "cancelled calls", now)
        elif kind == SETTINGS:
            self._spend(self._settings, "settings_per_second", "SETTINGS frames", now)
        elif kind == PING:
            self._spend(self._pings, "pings_per_second", "PING frames", now)
        else:
            self._spend(self._controls, "controls_per_second", "frames without data", now)

    def _require_block(self) -> None:
        if (
            self._block_bytes > self.header_block_bytes_max
            or self._continuations > CONTINUATIONS_MAX
        ):
            self.limits.note("header_bytes_max")
            raise SessionRefused(
                f"the headers of a call have {self._block_bytes} bytes in"
                f" {self._continuations + 1} frames",
                f"send less metadata, or raise {self.limits.name('header_bytes_max')}",
                ENHANCE_YOUR_CALM,
            )

    def _spend(self, budget: FrameBudget, limit: str, what: str, now: float) -> None:
        if not budget.spend(now):
            self.limits.note(limit)
            raise SessionRefused(
                f"more than {self.limits.most(limit)} {what} a second",
                f"send fewer, or raise {self.limits.name(limit)}",
                ENHANCE_YOUR_CALM,
            )
