"""Cut a call's data into messages: five bytes of prefix, then the message. Pure.

Messages are cut out when they are taken, so a flood of tiny messages costs no more memory than its
bytes. ``granted`` says how many bytes the peer may send again: those of messages that were taken,
and those of a message that is not complete yet, which would stall otherwise once it is larger than
the window.

Source: grpc.io, "gRPC over HTTP2" (Length-Prefixed-Message).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import attrs

from triomq.remoting.grpc.status import CallFailed, GrpcStatus
from triomq.remoting.protocol.limits import Limits

PREFIX_BYTES = 5
_GZIP = 16 + zlib.MAX_WBITS

Cost = Callable[[bytes, int], int]
"""How many bytes of a request become objects when it is decoded; counting may end above the second
argument. Bodies of messages are only copied, which is cheap.
"""


def all_bytes(request: bytes, _most: int) -> int:
    """Return the cost of a request without bodies."""
    return len(request)


class MessageTooLarge(CallFailed):
    """A message is above the limit of its size, whose field in the settings is *limit*."""

    def __init__(self, limit: str, text: str) -> None:
        super().__init__(GrpcStatus.RESOURCE_EXHAUSTED, text)
        self.limit = limit


@attrs.define(eq=False)
class MessageReader:
    """The data of one call that no handler has taken.

    ``limits``: ``message_bytes_max`` on the wire, ``inflated_bytes_max`` after gzip,
    ``fields_bytes_max`` without bodies. ``ended``: the client has sent its last message.
    """

    limits: Limits
    gzip: bool = False
    ended: bool = False
    _data: bytearray = attrs.field(factory=bytearray, init=False)
    _size: int = attrs.field(default=-1, init=False)
    """of the next message with its prefix, -1 while that is not known"""
    _held: int = attrs.field(default=0, init=False)
    """bytes received and not granted again"""

    def add(self, data: bytes | memoryview, flow_bytes: int) -> None:
        """Take data from the wire, which used *flow_bytes* of the window.

        Raises: MessageTooLarge, CallFailed.
        """
        self._data += data
        self._held += flow_bytes
        if self._size < 0:
            self._measure()

    @property
    def complete(self) -> bool:
        """Whether a whole message can be taken."""
        return 0 <= self._size <= len(self._data)

    @property
    def exhausted(self) -> bool:
        """Whether no message will come any more."""
        return self.ended and not self._data

    @property
    def kept_bytes(self) -> int:
        return len(self._data)

    def take(self, cost: Cost = all_bytes) -> bytes | None:
        """Return the next message, None if it is not complete.

        Raises: MessageTooLarge; CallFailed if it is cut off, or cannot be decompressed.
        """
        if not self.complete:
            if self.ended and self._data:
                raise CallFailed(
                    GrpcStatus.INTERNAL,
                    f"the call ends inside a message: {len(self._data)} bytes of it came; send"
                    " whole messages",
                )
            return None
        size, data = self._size, self._data
        compressed = data[0]
        if size == len(data):
            message = bytes(memoryview(data)[PREFIX_BYTES:])
            self._data = bytearray()
        else:
            message = bytes(memoryview(data)[PREFIX_BYTES:size])
            del data[:size]
        self._size = -1
        self._measure()
        if compressed:
            message = self._decompress(message)
        # Before it is parsed: a megabyte of fields of two bytes each would hold the loop for 40 ms.
        most = self.limits.most("fields_bytes_max")
        if cost(message, most) > most:
            what = f"a message of {len(message)} bytes has too many beside the bodies in it"
            raise self._too_large("fields_bytes_max", what)
        return message

    def granted(self) -> int:
        """Return how many bytes the peer may send again; each is reported once."""
        kept = len(self._data) if self.complete else 0
        granted = self._held - kept
        if granted <= 0:
            return 0
        self._held = kept
        return granted

    def release(self) -> int:
        """Forget all data; return what was not granted yet."""
        held, self._held = self._held, 0
        self._data = bytearray()
        self._size = -1
        return held

    def _measure(self) -> None:
        """Read the prefix of the next message, if it is there."""
        if len(self._data) < PREFIX_BYTES:
            return
        flag = self._data[0]
        size = int.from_bytes(self._data[1:PREFIX_BYTES])
        if size > self.limits.most("message_bytes_max"):
            raise self._too_large("message_bytes_max", f"a message has {size} bytes")
        if flag > 1:
            raise CallFailed(
                GrpcStatus.INTERNAL, f"a message begins with {flag}; only 0 and 1 have a meaning"
            )
        if flag and not self.gzip:
            raise CallFailed(
                GrpcStatus.INTERNAL,
                "a message is compressed, and the call has no grpc-encoding; send gzip as encoding",
            )
        self._size = PREFIX_BYTES + size

    def _decompress(self, message: bytes) -> bytes:
        unpacker = zlib.decompressobj(_GZIP)
        most = self.limits.most("inflated_bytes_max")
        try:
            plain = unpacker.decompress(message, most + 1)
        except zlib.error:
            plain = b""
        if len(plain) > most:
            raise self._too_large("inflated_bytes_max", "a message is too large without gzip")
        if not unpacker.eof or unpacker.unused_data:
            raise CallFailed(
                GrpcStatus.INTERNAL, "a message is not one whole gzip member; send it again"
            )
        return plain

    def _too_large(self, limit: str, what: str) -> MessageTooLarge:
        most, setting = self.limits.most(limit), self.limits.name(limit)
        return MessageTooLarge(
            limit, f"{what}, and the server takes {most}; send less, or raise {setting}"
        )


def message_prefix(size: int) -> bytes:
    """Return what is before an uncompressed message."""
    return b"\0" + size.to_bytes(4)
