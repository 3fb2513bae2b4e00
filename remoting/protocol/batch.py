"""The body of SEND_BATCH_MESSAGE (320): messages of one topic and queue, one after the other.

::

    totalSize i32 | magic i32 | bodyCRC i32 | flag i32 | bodyLength i32 | body |
    propertiesLength i16 | properties

Magic and CRC are 0 on the wire and ignored. Source: common/…/message/MessageDecoder.java
#encodeMessage, #decodeMessage.
"""

from collections.abc import Iterable
from struct import Struct

from triomq.remoting.core.errors import LocalProtocolError, RemoteProtocolError
from triomq.remoting.protocol.message_properties import PROPERTIES_BYTES_MAX

ELEMENT_HEAD = Struct(">iiiii")
"""What stands before the body: total size, two zeros, flag, length of the body."""
ELEMENT_LENGTH = Struct(">h")
"""What stands before the properties."""
_SIZES = Struct(">i8xii")
"""Total size, flag, length of the body."""
ELEMENT_BYTES = ELEMENT_HEAD.size + ELEMENT_LENGTH.size
"""Bytes of an element beside its body and its properties."""
ELEMENTS_MAX = 15_000
"""The most messages of one batch: the header of the answer, which names the place of each in 33
bytes, must not be longer than ``HEADER_BYTES_MAX``.
"""
_FIX = "encode the batch as MessageDecoder.encodeMessages of RocketMQ does"


class BatchTooLong(RemoteProtocolError):
    """A batch has too many messages."""


def encode_batch(elements: Iterable[tuple[int, bytes, bytes]]) -> bytes:
    """Return the body for messages given as flag, body and encoded properties.

    Raises: LocalProtocolError if properties are too long.
    """
    pieces: list[bytes] = []
    for flag, body, properties in elements:
        if len(properties) > PROPERTIES_BYTES_MAX:
            raise LocalProtocolError(
                f"properties of {len(properties)} bytes; the limit is {PROPERTIES_BYTES_MAX}"
            )
        size = ELEMENT_BYTES + len(body) + len(properties)
        pieces += (
            ELEMENT_HEAD.pack(size, 0, 0, flag, len(body)),
            body,
            ELEMENT_LENGTH.pack(len(properties)),
            properties,
        )
    return b"".join(pieces)


def decode_batch(data: bytes, count_max: int = ELEMENTS_MAX) -> list[tuple[int, bytes, bytes]]:
    """Return flag, body and encoded properties of each message.

    Raises: RemoteProtocolError if the lengths do not fit, BatchTooLong for more than ``count_max``.
    """
    return [
        (flag, data[start + ELEMENT_HEAD.size : at - ELEMENT_LENGTH.size], data[at:stop])
        for flag, start, at, stop in _spans(data, count_max)
    ]


def batch_properties(data: bytes) -> list[bytes]:
    """Return the properties of each message, for a batch that is stored as it is.

    Raises: RemoteProtocolError if the lengths do not fit, BatchTooLong for too many messages.
    """
    return [data[at:stop] for _, _, at, stop in _spans(data, ELEMENTS_MAX)]


def _spans(data: bytes, count_max: int) -> list[tuple[int, int, int, int]]:
    """Return flag, start, start of the properties and end of each message."""
    found: list[tuple[int, int, int, int]] = []
    read, read_length, end, position = _SIZES.unpack_from, ELEMENT_LENGTH.unpack_from, len(data), 0
    while position < end:
        if end - position < ELEMENT_BYTES:
            raise RemoteProtocolError(f"{end - position} bytes left over after a batch", _FIX)
        size, flag, body_size = read(data, position)
        stop, properties_at = position + size, position + ELEMENT_BYTES + body_size
        if (
            body_size < 0
            or not properties_at <= stop <= end
            or read_length(data, properties_at - ELEMENT_LENGTH.size)[0] != stop - properties_at
        ):
            raise RemoteProtocolError(
                f"batch element {len(found)} announces {size} bytes, {body_size} of them body; this"
                f" does not fit its properties or the batch of {end} bytes",
                _FIX,
            )
        found.append((flag, position, properties_at, stop))
        position = stop
        if len(found) > count_max:
            raise BatchTooLong(
                f"the batch has more than {count_max} messages", "send them in several batches"
            )
    return found
