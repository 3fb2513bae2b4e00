"""Cut a byte stream into frames, and a frame into header and body.

A frame is ``total i32`` and then *total* bytes: ``type u8 | header length u24 | header | body``.
``FrameBuffer`` returns what follows the first four bytes. It keeps incoming pieces as they are and
joins them once a frame is complete: a frame of 16 MiB in 64 KiB pieces is copied twice, not 256
times. A caller that receives into ``room`` saves these two copies.
"""

from collections.abc import Callable
from struct import Struct
from typing import TypeAlias

from triomq.remoting.core.errors import FrameError, RemoteProtocolError

FRAME_BYTES_MAX = 16 * 1024 * 1024
"""Java's default limit (``com.rocketmq.remoting.frameMaxLength``), the first four bytes included.
"""

_HEAD: Callable[[bytes, int], tuple[int, int]] = Struct(">iI").unpack_from
_TOTAL: Callable[[bytes], tuple[int]] = Struct(">i").unpack_from
HEADER_WORD: Callable[..., tuple[int]] = Struct(">I").unpack_from
"""Unpack a frame's header word: the type in the first byte, the header's length in the others."""
HEADER_LENGTH = 0x00FFFFFF
"""the bits of the header word that hold the length"""
HEADER_BYTES_MAX = 512 * 1024
"""Properties have 32 KiB at most, up to six times that as JSON. The loop serves no other connection
while it decodes a header.
"""
_PIECES_MAX = 1024
_LARGE_BYTES = 128 * 1024
"""``room`` is for frames of which more is missing."""

FrameParts: TypeAlias = tuple[int, bytes, bytes]
"""serialize type, header, body."""


def split_frame(frame: bytes | bytearray | memoryview) -> FrameParts:
    """Split a frame (without its first four bytes) into type byte, header and body.

    Raises: RemoteProtocolError if the header overruns the frame.
    """
    if len(frame) < 4:
        raise RemoteProtocolError(f"a frame of {len(frame)} bytes has no header length", _FIX_FRAME)
    (word,) = HEADER_WORD(frame)
    end = 4 + (word & HEADER_LENGTH)
    if end > len(frame):
        raise RemoteProtocolError(
            f"header of {end - 4} bytes in a frame of {len(frame)}", _FIX_FRAME
        )
    return word >> 24, bytes(frame[4:end]), bytes(frame[end:])


class FrameBuffer:
    """Collects the bytes of one connection and cuts them into frames.

    After a FrameError the next frame cannot be found: every later ``feed`` raises the error again.
    """

    __slots__ = ("_error", "_filled", "_frame_bytes_max", "_large", "_needed", "_pieces", "_size")

    def __init__(self, frame_max_bytes: int = FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_max_bytes
        self._pieces: list[bytes] = []
        self._size = 0  # bytes in the pieces
        self._needed = 4  # bytes that the first frame needs, as far as known
        self._error: FrameError | None = None
        self._large = bytearray()  # for one large frame after the other: new pages cost time
        self._filled = 0  # bytes of the first frame in it, instead of in the pieces

    @property
    def pending_bytes(self) -> int:
        """Bytes that wait for the rest of their frame."""
        return self._size

    def feed(self, data: bytes) -> list[bytes]:
        """Add *data*; return all complete frames, each without its first four bytes.

        Raises: FrameError if a frame is longer than the limit, has an impossible length, or a
        header that overruns it; the error's ``frames`` are the valid frames before it in *data*.
        """
        if self._error is not None:
            raise self._error
        if self._filled:
            self._pieces, self._filled = [bytes(self._large[: self._filled])], 0
        if self._pieces:
            self._pieces.append(data)
            self._size += len(data)
            if self._size < self._needed:
                # A peer that sends byte by byte would cost many times the memory of its bytes.
                if len(self._pieces) > _PIECES_MAX:
                    self._pieces = [b"".join(self._pieces)]
                return []
            data = b"".join(self._pieces)
            self._pieces.clear()
        frames: list[bytes] = []
        size = len(data)
        position = 0
        while size - position >= 8:
            total, word = _HEAD(data, position)
            end = position + 4 + total
            header = word & HEADER_LENGTH
            if header > total - 4 or header > HEADER_BYTES_MAX or total + 4 > self._frame_bytes_max:
                self._fail(total, word, frames)
            if end > size:
                break
            frames.append(data[position + 4 : end])
            position = end
        self._keep(data[position:] if position else data, frames)
        return frames

    def room(self) -> memoryview | None:
        """Return where the caller may receive the rest of a large frame; None if none has begun.

        The caller then reports to ``fill``.
        """
        if not self._filled:
            if self._needed - self._size < _LARGE_BYTES:
                return None
            if len(self._large) < self._needed:
                self._large = bytearray(self._needed)
            self._large[: self._size] = b"".join(self._pieces)
            self._pieces.clear()
            self._filled = self._size
        return memoryview(self._large)[self._filled : self._needed]

    def fill(self, count: int) -> list[memoryview]:
        """Note ``count`` bytes in ``room``; return the frame if it is complete.

        The frame is valid until the next call of ``room``.
        """
        self._filled += count
        self._size = self._filled
        if self._filled < self._needed:
            return []
        frame = memoryview(self._large)[4 : self._needed]
        self._filled = self._size = 0
        self._needed = 4
        return [frame]

    def _keep(self, rest: bytes, frames: list[bytes]) -> None:
        self._size = len(rest)
        self._needed = 4
        if rest:
            self._pieces.append(rest)
            if len(rest) >= 4:
                (total,) = _TOTAL(rest)
                if total < 4 or total + 4 > self._frame_bytes_max:
                    self._fail(total, 0, frames)
                # Eight bytes first: an impossible header length shows before its frame is complete.
                self._needed = 4 + total if len(rest) >= 8 else 8

    def _fail(self, total: int, word: int, frames: list[bytes]) -> None:
        """Raise the error of a frame with this length and header word; ``feed`` repeats it."""
        if total >> 8 in _OTHER_PROTOCOLS:
            reason, fix = _OTHER_PROTOCOLS[total >> 8]
        elif total + 4 > self._frame_bytes_max:
            reason = (
                f"a frame of {total + 4} bytes is longer than the limit of {self._frame_bytes_max}"
            )
            fix = "raise the frame limit on this side, or send smaller bodies"
        elif total < 4:
            reason, fix = (
                f"a frame announces {total} bytes, less than its own header length needs",
                _FIX_FRAME,
            )
        elif (word & HEADER_LENGTH) > HEADER_BYTES_MAX:
            reason = (
                f"a header of {word & HEADER_LENGTH} bytes is longer than the limit of"
                f" {HEADER_BYTES_MAX}"
            )
            fix = "send shorter properties and fields; long values belong into the body"
        else:
            reason, fix = (
                f"header of {word & HEADER_LENGTH} bytes in a frame of {total}",
                _FIX_FRAME,
            )
        self._pieces.clear()
        self._size = 0
        self._error = FrameError(reason, fix)
        raise FrameError(reason, fix, frames)


_TLS = "the peer speaks TLS, and this side of the connection does not"
_CERTIFICATE_FIX = (
    "set tls.server.certPath and tls.server.keyPath of this server, or switch TLS off in the client"
)
_TLS_FIX = "switch TLS on in the client, or off in the server"
_PROXY = (
    "the connection begins with a PROXY header",
    "set proxyProtocol=optional, or let the load balancer send none",
)
_HTTP = "the peer speaks HTTP", "let the two sides speak RocketMQ's remoting protocol"
_OTHER_PROTOCOLS = {
    0x160301: (_TLS, _CERTIFICATE_FIX),
    0x160303: (_TLS, _TLS_FIX),
    0x150303: (_TLS, _TLS_FIX),
    0x50524F: _PROXY,
    0x0D0A0D: _PROXY,
    0x474554: _HTTP,  # GET
    0x485454: _HTTP,  # an answer
}
"""Cause and fix by the first three bytes. No frame begins so, since no frame is that long."""
_FIX_FRAME = (
    "check that the peer speaks the RocketMQ remoting protocol, and speaks it without TLS, on this"
    " port"
)
