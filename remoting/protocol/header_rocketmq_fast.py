"""Binary headers that repeat, read by comparing them with an earlier header.

A client writes the same header for each of its requests, except the values of a few fields, which
the header class declares as varying. ``RepeatedHeaders`` learns a header by cutting it into the
fixed parts between these values. A later header with the same fixed parts, byte for byte, differs
in these values only: its header object is a copy of the first one with other values. Any other
header, and any unusual value, is left to ``header_rocketmq``, which takes twice as long and reads
the same: a property test. See docs/adr/010-typed-headers.md.
"""

import struct
from struct import Struct
from typing import Any, NamedTuple

from triomq.remoting.protocol.fields import HeaderCodec, WireField, codec_of

SHAPES_MAX = 4096
FIXED_BYTES_MAX = 1024
"""The largest fixed parts to learn: clients choose what is in them."""
LEARN_EVERY = 16
"""Learn one unknown header in 16: learning takes as long as reading with ``header_rocketmq``."""

# code i16, language u8, version i16, opaque i32, flag i32, remark size i32, size of entries i32
_FIXED = Struct(">hBhiiii")
_NAME_SIZE = Struct(">H")
_VALUE_SIZE = Struct(">I")  # unsigned: a negative size leads beyond the end, which is refused
_DIGITS_MAX = {32: 9, 64: 18}  # a longer number may not fit
_size_at = _VALUE_SIZE.unpack_from


class _Shape(NamedTuple):
    header_object: Any
    varying: list[tuple[WireField, bytes]]  # each with the fixed part that follows its value


class RepeatedHeaders:
    """The headers that were learned."""

    def __init__(self) -> None:
        self._shapes: dict[bytes, _Shape] = {}  # by the bytes before the first varying value
        self._marks: dict[bytes, bytes] = {}  # code -> name of the first varying entry
        self._unknown = 0

    def __len__(self) -> int:
        return len(self._shapes)

    def read(self, header: bytes) -> tuple[int, int, int, int, int, object] | None:
        """Return code, opaque, flag, version, language and header object; None if unknown."""
        mark = self._marks.get(header[:2])
        if mark is None or len(header) < _FIXED.size:
            return None
        position = header.find(mark, _FIXED.size, _FIXED.size + FIXED_BYTES_MAX) + len(mark)
        shape = self._shapes.get(_start_of(header, position))
        if shape is None:
            return None
        made = shape.header_object.__copy__()
        try:
            for field, part in shape.varying:
                value_at = position + _VALUE_SIZE.size
                end = value_at + _size_at(header, position)[0]
                position = end + len(part)
                value = header[value_at:end]
                if header[end:position] != part:
                    return None
                if field.kind is str:
                    setattr(made, field.attribute, value.decode())
                elif value.isdigit() and len(value) <= _DIGITS_MAX[field.bits]:
                    if value[0] == 48 and len(value) > 1:  # the slow path refuses leading zeros
                        return None
                    setattr(made, field.attribute, int(value))
                else:
                    return None
        except (struct.error, UnicodeDecodeError):
            return None
        code, language, version, opaque, flag, _, size = _FIXED.unpack_from(header)
        if not position == len(header) == _FIXED.size + size:
            return None
        return code, opaque, flag, version, language, made

    def learn(self, header: bytes, cls: type, short: bool, made: object) -> None:
        """Learn a whole header of ``cls`` that the slow path has read as ``made``."""
        self._unknown += 1
        *_, remark_size, size = _FIXED.unpack_from(header)
        if self._unknown % LEARN_EVERY != 1 or remark_size or size != len(header) - _FIXED.size:
            return
        codec: HeaderCodec[object] = codec_of(cls)
        fields = {field.wire_name(short).encode(): field for field in codec.fields}
        parts: list[bytes] = []
        varying: list[WireField] = []
        names: list[bytes] = []
        start = position = _FIXED.size
        while position < len(header):
            name_end = position + 2 + _NAME_SIZE.unpack_from(header, position)[0]
            names.append(header[position + 2 : name_end])
            position = name_end + _VALUE_SIZE.size + _size_at(header, name_end)[0]
            field = fields.get(names[-1])
            if field is not None and field.varies:
                parts.append(header[start:name_end])
                varying.append(field)
                start = position
        parts.append(header[start:])
        if not varying or len(set(names)) < len(names) or sum(map(len, parts)) > FIXED_BYTES_MAX:
            return
        if len(self._shapes) >= SHAPES_MAX:
            self._shapes.clear()
        # Varying values are not kept: they are replaced in each copy, and may be large.
        values = {
            field.attribute: field.kind() if field in varying else getattr(made, field.attribute)
            for field in codec.fields
        }
        name = varying[0].wire_name(short).encode()
        self._marks[header[:2]] = _NAME_SIZE.pack(len(name)) + name
        self._shapes[_start_of(header, _FIXED.size + len(parts[0]))] = _Shape(
            codec.struct(short)(**values), list(zip(varying, parts[1:]))
        )


def _start_of(header: bytes, end: int) -> bytes:
    """Return the bytes up to ``end`` without opaque number and size of the entries."""
    return header[:5] + header[9:17] + header[_FIXED.size : end]
