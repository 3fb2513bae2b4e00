"""From a byte stream to whole frames, whatever the pieces it arrives in.

A frame is ``total i32`` and then *total* bytes: ``type u8 | header length u24 | header | body``. ``FrameBuffer`` hands out
what follows the first four bytes. It keeps incoming pieces as they are and joins them once a frame is complete: a frame
of 16 MiB in 64 KiB pieces is copied twice, not 256 times.
"""

from collections.abc import Callable
from struct import Struct
from typing import TypeAlias

from triomq.remoting.errors import FrameError, RemoteProtocolError

FRAME_BYTES_MAX = 16 * 1024 * 1024
"""Java's default limit (``com.rocketmq.remoting.frameMaxLength``), the first four bytes included."""

_HEAD: Callable[[bytes, int], tuple[int, int]] = Struct(">iI").unpack_from
_TOTAL: Callable[[bytes], tuple[int]] = Struct(">i").unpack_from
_TYPE_AND_LENGTH: Callable[..., tuple[int]] = Struct(">I").unpack_from
HEADER_BYTES_MAX = 512 * 1024
"""Properties have 32 KiB at most, up to six times that as JSON. The loop serves no other connection while it decodes a header."""
_HEADER_LENGTH = 0x00FFFFFF
_PIECES_MAX = 1024

FrameParts: TypeAlias = tuple[int, bytes, bytes]
"""serialize type, header, body."""


def split_frame(frame: bytes | bytearray | memoryview) -> FrameParts:
    """Take a frame (without its first four bytes) apart; RemoteProtocolError if the header overruns it."""
    if len(frame) < 4:
        raise RemoteProtocolError(f"a frame of {len(frame)} bytes has no header length", _FIX_FRAME)
    (word,) = _TYPE_AND_LENGTH(frame)
    end = 4 + (word & _HEADER_LENGTH)
    if end > len(frame):
        raise RemoteProtocolError(f"header of {end - 4} bytes in a frame of {len(frame)}", _FIX_FRAME)
    return word >> 24, bytes(frame[4:end]), bytes(frame[end:])


class FrameBuffer:
    """Collects the bytes of one connection and cuts them into frames.

    After a FrameError the stream cannot be followed any further: every later ``feed`` raises it again.
    """

    __slots__ = ("_error", "_frame_bytes_max", "_needed", "_pieces", "_size")

    def __init__(self, frame_max_bytes: int = FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_max_bytes
        self._pieces: list[bytes] = []
        self._size = 0  # bytes in the pieces
        self._needed = 4  # bytes that complete the first frame, as far as known
        self._error: FrameError | None = None

    @property
    def pending_bytes(self) -> int:
        """Bytes that wait for the rest of their frame."""
        return self._size

    def feed(self, data: bytes) -> list[bytes]:
        """Add *data* and return all frames that are complete now, each without its first four bytes.

        FrameError if a frame is longer than the limit, has an impossible length, or a header that overruns it; the
        error's ``frames`` are the good ones that came before in the same *data*.
        """
        if self._error is not None:
            raise self._error
        if self._pieces:
            self._pieces.append(data)
            self._size += len(data)
            if self._size < self._needed:
                if len(self._pieces) > _PIECES_MAX:  # a peer that sends byte by byte would cost many times what it sends
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
            header = word & _HEADER_LENGTH
            if header > total - 4 or header > HEADER_BYTES_MAX or total + 4 > self._frame_bytes_max:
                self._fail(total, word, frames)
            if end > size:
                break
            frames.append(data[position + 4 : end])
            position = end
        self._keep(data[position:] if position else data, frames)
        return frames

    def _keep(self, rest: bytes, frames: list[bytes]) -> None:
        self._size = len(rest)
        self._needed = 4
        if rest:
            self._pieces.append(rest)
            if len(rest) >= 4:
                (total,) = _TOTAL(rest)
                if total < 4 or total + 4 > self._frame_bytes_max:
                    self._fail(total, 0, frames)
                # Eight bytes first: then an impossible header length shows before its frame is collected.
                self._needed = 4 + total if len(rest) >= 8 else 8

    def _fail(self, total: int, word: int, frames: list[bytes]) -> None:
        """Remember and raise what is wrong with a frame that announces *total* bytes and the type word *word*."""
        if total >> 8 in _OTHER_PROTOCOLS:
            reason, fix = _OTHER_PROTOCOLS[total >> 8]
        elif total + 4 > self._frame_bytes_max:
            reason = f"a frame of {total + 4} bytes is longer than the limit of {self._frame_bytes_max}"
            fix = "raise the frame limit on this side, or send smaller bodies"
        elif total < 4:
            reason, fix = f"a frame announces {total} bytes, less than its own header length needs", _FIX_FRAME
        elif (word & _HEADER_LENGTH) > HEADER_BYTES_MAX:
            reason = f"a header of {word & _HEADER_LENGTH} bytes is longer than the limit of {HEADER_BYTES_MAX}"
            fix = "send shorter properties and fields; what is long belongs into the body"
        else:
            reason, fix = f"header of {word & _HEADER_LENGTH} bytes in a frame of {total}", _FIX_FRAME
        self._pieces.clear()
        self._size = 0
        self._error = FrameError(reason, fix)
        raise FrameError(reason, fix, frames)


_TLS = "the peer speaks TLS, and this side of the connection does not"
_OTHER_PROTOCOLS: dict[int, tuple[str, str]] = {
    0x160301: (_TLS, "set tls.server.certPath and tls.server.keyPath of this server, or switch TLS off in the client"),
    0x160303: (_TLS, "switch TLS on in the client, or off in the server"),
    0x150303: (_TLS, "switch TLS on in the client, or off in the server"),
    0x50524F: ("the connection begins with a PROXY header", "set proxyProtocol=optional, or let the load balancer send none"),
    0x0D0A0D: ("the connection begins with a PROXY header", "set proxyProtocol=optional, or let the load balancer send none"),
    0x474554: ("the peer speaks HTTP", "let the two sides speak RocketMQ's remoting protocol"),  # GET
    0x485454: ("the peer speaks HTTP", "let the two sides speak RocketMQ's remoting protocol"),  # an answer
}
"""By the first three bytes. No frame begins so, since none is that long."""
_FIX_FRAME = "check that the peer speaks the RocketMQ remoting protocol, and speaks it without TLS, on this port"
