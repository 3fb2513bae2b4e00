"""The ROCKETMQ header: the same content as the JSON header, packed.

::

    code i16 | language u8 | version i16 | opaque i32 | flag i32 | remarkLen i32 | remark |
    extLen i32 | entries…
    entry:  keyLen i16 | key | valueLen i32 | value

Length 0 of the remark means no remark. Codes and versions have 16 bits, so POP requests have no
binary form. An empty value is kept as ``""``, although Java reads it as null: nothing is lost that
way. Of two equal entries the last counts. Bytes that are not UTF-8 become U+FFFD, as in Java.
Source: remoting/…/protocol/RocketMQSerializable.java.
"""

import struct
from struct import Struct

from triomq.remoting.core.errors import LocalProtocolError, RemoteProtocolError
from triomq.remoting.protocol.header_json import Buffer, HeaderTuple

_FIXED = Struct(">hBhiii")  # code, language, version, opaque, flag, length of the remark
_I16 = Struct(">h")
_NAMES: dict[bytes, str] = {}  # decoded names of entries: there are few, and all requests use them
_NAMES_MAX = 512
_I32 = Struct(">i")
_FIX = "send the header as RocketMQSerializable of RocketMQ 4.x or 5.x does"


def fits_binary(code: int, version: int) -> bool:
    """Return whether a command can be written in this form."""
    return -0x8000 <= code <= 0x7FFF and -0x8000 <= version <= 0x7FFF


def encode_header(fields: HeaderTuple) -> bytes:
    """Return a binary header.

    Raises: LocalProtocolError for values that do not fit.
    """
    code, opaque, flag, version, language, remark, ext = fields
    try:
        remark_bytes = remark.encode() if remark else b""
        entries: list[bytes] = []
        for name, value in (ext or {}).items():
            name_bytes, value_bytes = name.encode(), value.encode()
            entries += (
                _I16.pack(len(name_bytes)),
                name_bytes,
                _I32.pack(len(value_bytes)),
                value_bytes,
            )
        ext_bytes = b"".join(entries)
        fixed = _FIXED.pack(code, language, version, opaque, flag, len(remark_bytes))
        return b"".join((fixed, remark_bytes, _I32.pack(len(ext_bytes)), ext_bytes))
    except (struct.error, UnicodeEncodeError, AttributeError) as error:
        raise LocalProtocolError(
            f"cannot write code {code} with a binary header: {error}"
        ) from error


def decode_header(header: Buffer) -> HeaderTuple:
    """Return the content of a binary header.

    Raises: RemoteProtocolError if the lengths do not fit.
    """
    data = bytes(header)
    try:
        code, language, version, opaque, flag, remark_size = _FIXED.unpack_from(data)
        position = _FIXED.size
        remark_end = _end(data, position, remark_size, "remark")
        remark = data[position:remark_end].decode("utf-8", "replace") if remark_size else None
        (ext_size,) = _I32.unpack_from(data, remark_end)
        position = remark_end + 4
        end = _end(data, position, ext_size, "ext fields")
        ext = None
        if ext_size:
            try:
                ext = _decode_entries(data, position, end, "strict")
            except UnicodeDecodeError:
                ext = _decode_entries(data, position, end, "replace")
    except (struct.error, IndexError):
        raise RemoteProtocolError(
            f"the binary header of {len(data)} bytes ends too early", _FIX
        ) from None
    return code, opaque, flag, version, language, remark, ext


def _decode_entries(data: bytes, position: int, end: int, errors: str) -> dict[str, str]:
    ext: dict[str, str] = {}
    names = _NAMES
    length_at = _I32.unpack_from
    while position < end:
        name_start = position + 2
        name_end = name_start + (data[position] << 8 | data[name_start - 1])
        value_start = name_end + 4
        value_end = value_start + length_at(data, name_end)[0]
        if not value_start <= value_end <= end:
            raise RemoteProtocolError(
                "an ext field of the binary header overruns the length of all", _FIX
            )
        raw = data[name_start:name_end]
        name = names.get(raw)
        if name is None:
            name = raw.decode("utf-8", errors)
            if len(names) < _NAMES_MAX and len(raw) <= 32 and raw.isalnum():
                names[raw] = name
        ext[name] = data[value_start:value_end].decode("utf-8", errors)
        position = value_end
    return ext


def _end(data: bytes, start: int, size: int, what: str) -> int:
    if size < 0 or start + size > len(data):
        raise RemoteProtocolError(
            f"length {size} of the {what} does not fit a header of {len(data)} bytes", _FIX
        )
    return start + size
