"""Binary headers, read by what earlier ones said.

A client writes the same header again and again: the fields in the same order, and all but a few with the same values. So the first header of its kind is read the general
way (``header_binary``, ``fields``) and then cut into pieces around the values that its class declares as varying. A later one whose pieces are the same, byte for byte,
differs in those values only, and its header object is made of them and of what was read before: 2.3 µs instead of 8 µs for 12 fields of
SEND_MESSAGE_V2. What is signed differs in its signature, too, which no header object has. Whatever is not quite so (another length, a number that is not plain digits, bytes that are
no UTF-8) takes the general road: what this one reads, the general one reads the same (a property test).

What is kept is bounded in number and in bytes, as anybody can send headers.
"""

import struct
from collections.abc import Callable
from struct import Struct
from typing import Any, TypeAlias

import attrs

from triomq.remoting.protocol.fields import WireField, codec_of, compile_function

ReadHeader: TypeAlias = Callable[[bytes], Any]
"""The header object's twin, or None if the header has another shape."""

SHAPES_MAX = 4096
VARIANTS_MAX = 4
"""Shapes that are equal up to the first varying value: one client that sends now this and now that."""
READERS_MAX = 16
"""Orders of varying values, for each class."""
FIXED_BYTES_MAX = 1024
"""What is longer but for its varying values is not learned."""
REQUESTS_A_LESSON = 16
"""Learning costs as much as the general road, so no more than one request in so many is learned from, however many shapes there are."""
_LESSONS_MAX = 256
# Entries that any request may have besides those of its class, and that differ each time.
_SKIPPED = frozenset({b"Signature", b"ReqT"})

_ENTRIES = 21  # code i16, language u8, version i16, opaque i32, flag i32, remark i32 (none), size of the entries i32
_NUMBERS = Struct(">hBhiiii")
_VARYING = Struct(">iiii")
_NAME_SIZE = Struct(">H")
_VALUE_SIZE = Struct(">I")  # unsigned: a negative one leads beyond the end, which is looked at last
_DIGITS_MAX = {32: 9, 64: 18}  # longer ones may not fit; the general road tells


@attrs.frozen(eq=False, slots=True)
class _Shape:
    read: ReadHeader
    code: int
    flag: int
    version: int
    language: int


@attrs.define(eq=False, slots=True)
class KnownShapes:
    """The headers that were learned, by what stands before their first varying value."""

    _shapes: dict[bytes, list[_Shape]] = attrs.field(factory=dict, init=False)
    _marks: dict[bytes, list[tuple[bytes, int]]] = attrs.field(factory=dict, init=False)  # by code: the bytes before first varying values, and how many of them belong to the piece
    _count: int = attrs.field(default=0, init=False)
    _credit: int = attrs.field(default=_LESSONS_MAX * REQUESTS_A_LESSON, init=False)

    @property
    def count(self) -> int:
        """How many are known."""
        return self._count

    def read(self, header: bytes) -> tuple[int, int, int, int, int, Any] | None:
        """code, opaque, flag, version, language, header object; None if nothing like it was learned."""
        if self._credit < _LESSONS_MAX * REQUESTS_A_LESSON:
            self._credit += 1
        if len(header) <= _ENTRIES:
            return None
        opaque, _, _, size = _VARYING.unpack_from(header, 5)
        if size != len(header) - _ENTRIES:
            return None
        for mark, length in self._marks.get(header[:2], ()):
            at = header.find(mark, _ENTRIES, _ENTRIES + FIXED_BYTES_MAX)
            if at < 0:
                continue
            known = self._shapes.get(header[:5] + header[9:17] + header[_ENTRIES : at + length])
            if known is None:
                continue
            for shape in known:
                made = shape.read(header)
                if made is not None:
                    if shape is not known[0]:
                        known.remove(shape)
                        known.insert(0, shape)
                    return shape.code, opaque, shape.flag, shape.version, shape.language, made
        return None

    def learn(self, header: bytes, cls: type, short: bool, made: Any) -> None:
        """*made* is what the general road has read from *header*, of class *cls*."""
        if self._credit < REQUESTS_A_LESSON or not any(field.varies for field in codec_of(cls).fields):
            return
        self._credit -= REQUESTS_A_LESSON
        code, language, version, _, flag, remark, size = _NUMBERS.unpack_from(header)
        if remark or size != len(header) - _ENTRIES:
            return
        cut = _cut(header, cls, short)
        if cut is None:
            return
        pieces, varying, mark = cut
        reader = _reader(cls, short, varying) if sum(map(len, pieces)) <= FIXED_BYTES_MAX else None
        if reader is None:
            return
        shape = _Shape(reader(made, *pieces), code, flag, version, language)
        if shape.read(header) is None:
            return  # odd values: the shape may be known already, and its like would drive out others
        if self._count >= SHAPES_MAX:
            for oldest in list(self._shapes)[: SHAPES_MAX // 2]:
                self._count -= len(self._shapes.pop(oldest))
        marks = self._marks.setdefault(header[:2], [])
        if mark not in marks:
            marks.append(mark)
        variants = self._shapes.setdefault(header[:5] + header[9:17] + pieces[0], [])
        variants.insert(0, shape)
        self._count += 1
        if len(variants) > VARIANTS_MAX:
            variants.pop()
            self._count -= 1


def _cut(header: bytes, cls: type, short: bool) -> tuple[list[bytes], tuple[str, ...], tuple[bytes, int]] | None:
    """The pieces around the varying values, the attributes those belong to ("" for none), and the mark of the first; None if there are none, or an entry repeats."""
    fields = {field.wire_name(short).encode(): field for field in codec_of(cls).fields}
    names: set[bytes] = set()
    pieces: list[bytes] = []
    varying: list[str] = []
    mark = b"", 0
    start = position = _ENTRIES
    while position < len(header):
        name_end = position + 2 + _NAME_SIZE.unpack_from(header, position)[0]
        name = header[position + 2 : name_end]
        value_end = name_end + 4 + _VALUE_SIZE.unpack_from(header, name_end)[0]
        if name in names:
            return None
        names.add(name)
        field = fields.get(name)
        if field.varies if field is not None else name in _SKIPPED:
            if not pieces:
                mark = header[position:name_end] + b"\0\0", name_end - position  # no value of 64 KiB and more
            pieces.append(header[start:name_end])
            varying.append(field.attribute if field is not None else "")
            start = value_end
        position = value_end
    return ([*pieces, header[start:]], tuple(varying), mark) if varying else None


_readers: dict[tuple[type, bool, tuple[str, ...]], Callable[..., ReadHeader]] = {}


def _reader(cls: type, short: bool, varying: tuple[str, ...]) -> Callable[..., ReadHeader] | None:
    """Makes readers of the headers of *cls* in which these values vary, in this order, from a header object and the pieces; None if there are too many of its kind."""
    maker = _readers.get((cls, short, varying))
    if maker is None and sum(known[0] is cls for known in _readers) < READERS_MAX:
        maker = _readers[cls, short, varying] = _compile_reader(cls, short, varying)
    return maker


def _compile_reader(cls: type, short: bool, varying: tuple[str, ...]) -> Callable[..., ReadHeader]:
    fields = {field.attribute: field for field in codec_of(cls).fields}
    count = len(varying)
    fixed = [attribute for attribute in fields if attribute not in varying]
    lines = []
    for place, attribute in enumerate(varying):
        lines += [
            f"s{place + 1} = e{place} + 4 + size_at(header, e{place})[0]",
            f"v{place} = header[e{place} + 4 : s{place + 1}]" if attribute else "pass",
            f"if header[s{place + 1} : (e{place + 1} := s{place + 1} + n{place + 1})] != p{place + 1}{_unless_plain(fields.get(attribute), place)}:",
            "    return None",
        ]
    values = [f"{attribute}={_value(fields[attribute], varying.index(attribute)) if attribute in varying else 'f_' + attribute}" for attribute in fields]
    source = (
        f"def make(made, {', '.join(f'p{place}' for place in range(count + 1))}):\n"
        + "".join(f"    f_{attribute} = made.{attribute}\n" for attribute in fixed)
        + f"    e0 = {_ENTRIES} + len(p0)\n"
        + "".join(f"    n{place} = len(p{place})\n" for place in range(1, count + 1))
        + "    def read(header):\n"
        "        try:\n"
        + "".join(f"            {line}\n" for line in lines)
        + f"            if e{count} != len(header):\n"
        "                return None\n"
        f"            return twin({', '.join(values)})\n"
        "        except (ValueError, error):\n"
        "            return None\n"
        "    return read\n"
    )
    made: Callable[..., ReadHeader] = compile_function(source, "make", {"size_at": _VALUE_SIZE.unpack_from, "error": struct.error, "twin": codec_of(cls).struct(short)})
    return made


def _unless_plain(field: WireField | None, place: int) -> str:
    """More of a condition: this value is not what the short road can read. The general one refuses numbers that begin with 0."""
    if field is None or field.kind is not int:
        return ""
    return f" or not v{place}.isdigit() or len(v{place}) > {_DIGITS_MAX[field.bits]} or (v{place}[0] == 48 and v{place} != b'0')"


def _value(field: WireField, place: int) -> str:
    return f"int(v{place})" if field.kind is int else f"str(v{place}, 'utf-8')"
