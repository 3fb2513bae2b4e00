"""HTTP/2's frames: kinds, flags and error codes; bytes are cut into frames. Pure.

Source: RFC 9113, sections 3.4, 4.1, 6 and 7.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator

import attrs

from triomq.remoting.core.errors import RemoteProtocolError

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES = 9
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE = range(9)
CONTINUATION = 9
END_STREAM, ACK, END_HEADERS, PADDED, WITH_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
NUMBER_MAX = 2**31 - 1
"""of streams and of windows"""
_HEAD = struct.Struct(">BHBBI")

Frame = tuple[int, int, int, memoryview]
"""kind, flags, stream, payload"""


class ErrorCode(enum.IntEnum):
    """Why a stream or a connection ends."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    FLOW_CONTROL_ERROR = 0x3
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    ENHANCE_YOUR_CALM = 0xB


class SessionRefused(RemoteProtocolError):
    """The connection must end: *reason* and *fix*; *code* is HTTP/2's error code."""

    def __init__(self, reason: str, fix: str, code: ErrorCode) -> None:
        super().__init__(reason, fix)
        self.code = code


def violation(what: str, code: ErrorCode = ErrorCode.PROTOCOL_ERROR) -> SessionRefused:
    """Return the error for a client that does what HTTP/2 forbids."""
    return SessionRefused(
        f"the client violates HTTP/2: {what}",
        "check the client, and proxies between the two sides",
        code,
    )


def frame_head(size: int, kind: int, flags: int, stream: int) -> bytes:
    """Return the nine bytes before a payload of *size* bytes."""
    return _HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a whole frame."""
    return frame_head(len(payload), kind, flags, stream) + payload


@attrs.define(eq=False)
class FrameReader:
    """Cuts the bytes of one connection, which begin with the preface, into frames."""

    frame_bytes_max: int
    began: bool = attrs.field(default=False, init=False)
    """whether the preface and a frame's head have come"""
    _preface: bytes = attrs.field(default=PREFACE, init=False)
    """what is missing of it"""
    _rest: bytearray = attrs.field(factory=bytearray, init=False)
    """a frame that is not complete"""
    _needed: int = attrs.field(default=HEAD_BYTES, init=False)
    """bytes of ``_rest`` with which there is more to read"""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Return the frames that *data* completes. Take all of them before the next call.

        Raises: SessionRefused.
        """
        if self._preface:
            data = self._without_preface(data)
        if self._rest:
            self._rest += data
            if len(self._rest) < self._needed:
                return
            data = bytes(self._rest)
            self._rest.clear()
        view, size, at = memoryview(data), len(data), 0
        self._needed = HEAD_BYTES
        while size - at >= HEAD_BYTES:
            high, low, kind, flags, stream = _HEAD.unpack_from(data, at)
            length = high << 16 | low
            self.began = True
            if length > self.frame_bytes_max:
                raise SessionRefused(
                    f"a frame has {length} bytes, and the server announced {self.frame_bytes_max}",
                    "send smaller frames",
                    ErrorCode.FRAME_SIZE_ERROR,
                )
            begin = at + HEAD_BYTES
            if begin + length > size:
                self._needed = HEAD_BYTES + length
                break
            at = begin + length
            yield kind, flags, stream & NUMBER_MAX, view[begin:at]
        self._rest += view[at:]

    def _without_preface(self, data: bytes) -> bytes:
        wanted = self._preface
        count = min(len(wanted), len(data))
        if data[:count] != wanted[:count]:
            raise SessionRefused(
                "the client does not speak HTTP/2",
                "connect with a gRPC client, and other programs to their own port",
                ErrorCode.PROTOCOL_ERROR,
            )
        self._preface = wanted[count:]
        return data[count:]
