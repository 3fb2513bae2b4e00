"""How much work the parser has with a SendMessage: known before it parses. PURE.

Bodies are copied, which is cheap; anything else becomes objects, and a field of two bytes as many
as a long one. So the fields of the request and of its messages are counted on the wire.
"""

from __future__ import annotations

FIELD_BYTES = 64
"""what a shorter field counts"""
SMALLEST_FIELD = 2
_MESSAGES, _BODY = 1, 4
_VARINT, _FIXED64, _LENGTH, _GROUP, _GROUP_END, _FIXED32 = range(6)
_VARINT_BYTES, _HEAD_BYTES = 10, 5
"""of a number, and of a tag or a length"""


class _Malformed(Exception):
    """The parser cannot read it either, or it is inside of something that the parser skips."""


def send_cost(request: bytes, most: int) -> int:
    """Return the bytes of a SendMessageRequest without the bodies of its messages.

    A field counts ``FIELD_BYTES`` at least. Counting ends above *most*. What is no field counts
    whole.
    """
    size = len(request)
    if size * FIELD_BYTES <= most * SMALLEST_FIELD:
        return size
    return _cost(request, 0, size, most, inside=False)


def _cost(data: bytes, at: int, end: int, most: int, *, inside: bool) -> int:
    cost = 0
    while at < end and cost <= most:
        try:
            number, begin, following = _field(data, at, end)
        except _Malformed:
            return cost + end - at
        if number == _MESSAGES and not inside:
            cost += FIELD_BYTES + _cost(data, begin, following, most - cost, inside=True)
        elif number == _BODY and inside:
            cost += FIELD_BYTES
        else:
            cost += max(FIELD_BYTES, following - at)
        at = following
    return cost


def _field(data: bytes, at: int, end: int) -> tuple[int, int, int]:
    """Return its number if it has a length, else 0; where its value begins, and where it ends."""
    tag, begin = _varint(data, at, end, _HEAD_BYTES)
    kind = tag & 7
    number = 0
    if kind == _LENGTH:
        length, begin = _varint(data, begin, end, _HEAD_BYTES)
        number, following = tag >> 3, begin + length
    elif kind == _VARINT:
        _, following = _varint(data, begin, end, _VARINT_BYTES)
    elif kind in (_GROUP, _GROUP_END):
        following = begin  # the fields of a group count as those around it
    elif kind in (_FIXED64, _FIXED32):
        following = begin + (8 if kind == _FIXED64 else 4)
    else:
        raise _Malformed
    if following > end:
        raise _Malformed
    return number, begin, following


def _varint(data: bytes, at: int, end: int, most: int) -> tuple[int, int]:
    """Return a number of at most that many bytes, and where it ends."""
    if at < end and (value := data[at]) < 128:
        return value, at + 1
    value = shift = 0
    for place in range(at, min(at + most, end)):
        byte = data[place]
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place + 1
        shift += 7
    raise _Malformed
