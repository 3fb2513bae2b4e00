"""The JSON header: one compact object with the fixed members and ``extFields``.

::

    {"code":105,"extFields":{"topic":"T"},"flag":0,"language":"PYTHON","opaque":7,
    "serializeTypeCurrentRPC":"JSON","version":479}

Reading is as tolerant as fastjson: any member order, quoted numbers, numbers and bools in
``extFields``, a numeric or unknown language, missing members. A header that Java could not decode
either (an opaque outside 32 bits, text that is not an object) raises RemoteProtocolError. Source:
remoting/…/protocol/RemotingCommand.java, RemotingSerializable.java.
"""

import re
from typing import TypeAlias

from triomq.remoting.core.errors import LocalProtocolError, RemoteProtocolError
from triomq.remoting.protocol.codes import LanguageCode, SerializeType
from triomq.remoting.protocol.fastjson import REQUEST_LIMITS, loads
from triomq.remoting.protocol.fields import I32, LIMITS
from triomq.remoting.protocol.structs import msgspec

Buffer: TypeAlias = bytes | bytearray | memoryview

HeaderTuple: TypeAlias = tuple[int, int, int, int, int, str | None, dict[str, str] | None]
"""code, opaque, flag, version, language, remark, ext fields."""

LANGUAGE_NUMBERS: dict[str, int] = {language.name: language.value for language in LanguageCode}
LANGUAGE_NAMES: dict[int, str] = {language.value: language.name for language in LanguageCode}

_CODE = re.compile(rb'"code"[ \t\r\n]*:[ \t\r\n]*"?(-?\d{1,11})')
_FIX = "send the header as a RocketMQ 4.x or 5.x client would"
_INT = re.compile(r"[ \t]*([+-]?\d{1,20})(?:\.0*)?[ \t]*\Z")


class _TypedHeader(msgspec.Struct, kw_only=True, gc=False):
    """The shape that every known client sends; any other takes the slow path."""

    code: I32 = 0
    opaque: I32 = 0
    flag: I32 = 0
    version: I32 = 0
    language: str | I32 | None = None
    remark: str | None = None
    ext_fields: dict[str, str] | None = msgspec.field(name="extFields", default=None)


read_typed = msgspec.json.Decoder(_TypedHeader, strict=False).decode
"""Read the common shape; ValueError for any other shape, which ``decode_header`` may read."""


def find_code(header: Buffer) -> int:
    """Return the first request code in the bytes, -1 without any.

    This is a guess: compare it with the decoded code.
    """
    match = _CODE.search(header)
    return int(match[1]) if match is not None else -1


def decode_header(header: Buffer) -> HeaderTuple:
    """Return the content of a JSON header.

    Raises: RemoteProtocolError if the bytes are not a JSON header.
    """
    try:
        typed = read_typed(header)
    except (ValueError, RecursionError):
        return _decode_loosely(header)
    return (
        typed.code,
        typed.opaque,
        typed.flag,
        typed.version,
        language_number(typed.language),
        typed.remark,
        typed.ext_fields,
    )


def encode_header(fields: HeaderTuple) -> bytes:
    """Return a JSON header, members in Java's order.

    Raises: LocalProtocolError for text that is not Unicode.
    """
    code, opaque, flag, version, language, remark, ext = fields
    members: dict[str, object] = {"code": int(code)}
    if ext is not None:
        members["extFields"] = ext
    members["flag"] = flag
    members["language"] = LANGUAGE_NAMES.get(language, "OTHER")
    members["opaque"] = opaque
    if remark is not None:
        members["remark"] = remark
    members["serializeTypeCurrentRPC"] = SerializeType.JSON.name
    members["version"] = version
    try:
        return msgspec.json.encode(members)
    except (TypeError, ValueError, OverflowError) as error:
        raise LocalProtocolError(f"cannot write the header of code {code}: {error}") from error


def language_number(language: str | int | None) -> int:
    """Return the number of a language.

    As in Java: JAVA without a language, OTHER for an unknown name.
    """
    if isinstance(language, str):
        number = LANGUAGE_NUMBERS.get(language)
        return (
            LANGUAGE_NUMBERS.get(language.upper(), LanguageCode.OTHER.value)
            if number is None
            else number
        )
    return LanguageCode.JAVA.value if language is None else language


def _decode_loosely(header: Buffer) -> HeaderTuple:
    members = loads(header, REQUEST_LIMITS)
    if not isinstance(members, dict):
        raise RemoteProtocolError("the JSON header is not an object", _FIX)
    remark = members.get("remark")
    ext = members.get("extFields")
    if ext is not None and not isinstance(ext, dict):
        raise RemoteProtocolError("extFields of the JSON header is not an object", _FIX)
    language = members.get("language")
    return (
        _whole_number(members, "code"),
        _whole_number(members, "opaque"),
        _whole_number(members, "flag"),
        _whole_number(members, "version"),
        language_number(language if isinstance(language, str | int) else None),
        None if remark is None else _text(remark),
        None
        if ext is None
        else {name: _text(value) for name, value in ext.items() if value is not None},
    )


def _whole_number(members: dict[str, object], name: str) -> int:
    value = members.get(name)
    if value is None:
        return 0
    low, high = LIMITS[32]
    match = _INT.match(value if isinstance(value, str) else repr(value))
    if match is None or isinstance(value, bool) or not low <= int(match[1]) <= high:
        raise RemoteProtocolError(
            f"{name} of the JSON header is not a 32-bit number: {str(value)[:40]!r}", _FIX
        )
    return int(match[1])


def _text(value: object) -> str:
    """Return a scalar or nested value as the text that fastjson makes of it."""
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()
