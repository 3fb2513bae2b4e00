"""The body of SEND_BATCH_MESSAGE (320): several messages of one topic and queue, one after the other.

``totalSize i32 | magic i32 | bodyCRC i32 | flag i32 | bodyLength i32 | body | propertiesLength i16 | properties``

Magic and CRC are 0 on the wire and ignored. Source: common/…/message/MessageDecoder.java (encodeMessage, decodeMessage).
"""

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from triomq.remoting.errors import LocalProtocolError, RemoteProtocolError
from triomq.remoting.protocol.message import PROPERTIES_BYTES_MAX

_HEAD = Struct(">iiiii")
_LENGTH = Struct(">h")
_SIZES = Struct(">i8xii")
"""Total size, flag, length of the body."""
_FIXED_BYTES = _HEAD.size + _LENGTH.size
ELEMENTS_MAX = 32_767
"""Messages of one batch, as many as a batch consume queue can count."""
_FIX = "encode the batch as MessageDecoder.encodeMessages of RocketMQ does"


class BatchElement(NamedTuple):
    """One message of a batch; properties in their encoded text form."""

    flag: int
    body: bytes
    properties: bytes


def encode_batch(elements: Iterable[tuple[int, bytes, bytes]]) -> bytes:
    """Write (flag, body, encoded properties) triples; LocalProtocolError if properties are too long."""
    pieces: list[bytes] = []
    for flag, body, properties in elements:
        if len(properties) > PROPERTIES_BYTES_MAX:
            raise LocalProtocolError(f"properties of {len(properties)} bytes; the limit is {PROPERTIES_BYTES_MAX}")
        size = _FIXED_BYTES + len(body) + len(properties)
        pieces += (_HEAD.pack(size, 0, 0, flag, len(body)), body, _LENGTH.pack(len(properties)), properties)
    return b"".join(pieces)


def decode_batch(data: bytes) -> list[BatchElement]:
    """Read the elements; RemoteProtocolError if lengths do not fit.  Their number is not looked at: a broker calls `split_batch`."""
    elements: list[BatchElement] = []
    position = 0
    while position < len(data):
        if len(data) - position < _FIXED_BYTES:
            raise RemoteProtocolError(f"{len(data) - position} bytes left over after a batch", _FIX)
        size, _, _, flag, body_size = _HEAD.unpack_from(data, position)
        start = position + _HEAD.size
        body_end = start + body_size
        if body_size < 0 or body_end + _LENGTH.size > len(data):
            raise RemoteProtocolError(f"a body of {body_size} bytes overruns the batch of {len(data)}", _FIX)
        (properties_size,) = _LENGTH.unpack_from(data, body_end)
        end = body_end + _LENGTH.size + properties_size
        if properties_size < 0 or end > len(data) or end - position != size:
            raise RemoteProtocolError(f"batch element {len(elements)} announces {size} bytes, has other lengths", _FIX)
        elements.append(BatchElement(flag, data[start:body_end], data[body_end + _LENGTH.size : end]))
        position = end
    return elements


def split_batch(data: bytes) -> list[tuple[int, bytes, bytes]]:
    """What ``decode_batch`` reads, (flag, body, properties) of each element, at half of the cost."""
    return [(flag, data[start + _HEAD.size : at - _LENGTH.size], data[at:stop]) for flag, start, at, stop in _spans(data)]


def batch_properties(data: bytes) -> list[bytes]:
    """The properties of each element, for whoever keeps the batch as it is; RemoteProtocolError as ``decode_batch``."""
    return [data[at:stop] for _, _, at, stop in _spans(data)]


def _spans(data: bytes) -> list[tuple[int, int, int, int]]:
    """(flag, start, start of the properties, end) of each element; what is wrong is for ``decode_batch`` to say."""
    found: list[tuple[int, int, int, int]] = []
    read, read_length, end, position = _SIZES.unpack_from, _LENGTH.unpack_from, len(data), 0
    last = end - _FIXED_BYTES
    while position <= last:
        size, flag, body_size = read(data, position)
        stop, properties_at = position + size, position + _FIXED_BYTES + body_size
        if body_size < 0 or not properties_at <= stop <= end or read_length(data, properties_at - 2)[0] != stop - properties_at:
            break
        found.append((flag, position, properties_at, stop))
        position = stop
        if len(found) > ELEMENTS_MAX:
            raise RemoteProtocolError(f"the batch has more than {ELEMENTS_MAX} messages", "send them in several batches")
    if position != end:
        decode_batch(data)
        raise AssertionError("the two readings of a batch differ")
    return found
