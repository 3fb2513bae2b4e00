"""The same JSON headers as in ``header_json``, many times faster, for the few shapes that make up the load.

Decoding: one msgspec class per request code reads the whole header, ``extFields`` included and typed, in one pass; a
generated function turns it into the header object. Encoding: one generated function per header class fills a text
template. Both fall back to the general codecs for anything unusual, and agree with them otherwise (a property test).

Measured on CPython 3.11, SEND_MESSAGE_V2 with 13 fields: decode 1.9 µs against 6.5 µs; send response 0.9 µs against 2.4 µs.
"""

from collections.abc import Callable
from struct import Struct
from typing import Any, TypeAlias

import msgspec

from triomq.remoting.errors import HeaderFieldError, LocalProtocolError
from triomq.remoting.protocol.codes import PROTOCOL_VERSION, LanguageCode
from triomq.remoting.protocol.fields import I32, WireField, codec_of, compile_function
from triomq.remoting.protocol.header_json import LANGUAGE_NUMBERS, Buffer, decode_header, language_number

DecodedHeader: TypeAlias = tuple[int, int, int, int, int, str | None, Any]
"""code, opaque, flag, version, language, remark, header object (None for a response or without header class)."""

RequestDecoderFunction: TypeAlias = Callable[[Buffer], DecodedHeader]

HeadEncoder: TypeAlias = Callable[[Any, int, int, int, str | None, int], bytes]
"""(header, code, opaque, flag, remark, body size) -> the frame up to its body."""

FRAME_HEAD = Struct(">II")  # total without itself; serialize type in the high byte, header length in the rest


def compile_request_decoder(cls: type | None, *, short: bool = False) -> RequestDecoderFunction:
    """Make the decoder of one request code's JSON header.

    The decoder takes the header bytes (without frame) and raises HeaderFieldError, tied to the frame, when a field of
    *cls* is missing or unreadable, and RemoteProtocolError when the header as a whole is. Call it for requests only;
    compare the returned code with the expected one before using the header object.
    """
    struct = _frame_struct(cls, short)
    slow = _slow_decoder(cls, short)
    arguments = ", ".join(f"ext.{field.attribute}" for field in codec_of(cls).fields) if cls is not None else ""
    made = f"cls({arguments})" if cls is not None else "None"
    source = (
        "def decode(data):\n"
        "    try:\n"
        "        typed = read(data)\n"
        "    except (ValueError, RecursionError):\n"
        "        return slow(data)\n"
        "    language = typed.language\n"
        "    number = numbers.get(language)\n"
        "    if number is None:\n"
        "        number = language_number(language)\n"
        "    ext = typed.extFields\n"
        f"    return typed.code, typed.opaque, typed.flag, typed.version, number, typed.remark, {made}\n"
    )
    namespace = {
        "read": msgspec.json.Decoder(struct, strict=False).decode,
        "slow": slow,
        "numbers": LANGUAGE_NUMBERS,
        "language_number": language_number,
        "cls": cls,
    }
    decode: RequestDecoderFunction = compile_function(source, "decode", namespace)
    return decode


def _frame_struct(cls: type | None, short: bool) -> type[msgspec.Struct]:
    members: list[Any] = [
        ("code", I32, 0),
        ("opaque", I32, 0),
        ("flag", I32, 0),
        ("version", I32, 0),
        ("language", str | I32 | None, None),
        ("remark", str | None, None),
    ]
    if cls is None:
        # Not parsed here; who wants these entries asks the general decoder for them.
        members.append(("extFields", msgspec.Raw, msgspec.field(default_factory=msgspec.Raw)))
        return msgspec.defstruct("FrameWithoutHeader", members, gc=False)
    ext = codec_of(cls).struct(short)
    needed = any(field.required for field in codec_of(cls).fields)
    members.append(("extFields", ext) if needed else ("extFields", ext, msgspec.field(default_factory=ext)))
    return msgspec.defstruct(f"{cls.__name__}Frame", members, kw_only=True, gc=False)


def _slow_decoder(cls: type | None, short: bool) -> RequestDecoderFunction:
    def decode(data: Buffer) -> DecodedHeader:
        code, opaque, flag, version, language, remark, ext = decode_header(data)
        made: Any = None
        if cls is not None and not flag & 1:
            try:
                made = codec_of(cls).from_ext(ext, short=short)
            except HeaderFieldError as error:
                raise error.for_frame(code, opaque, flag) from None
        return code, opaque, flag, version, language, remark, made

    return decode


def compile_head_encoder(
    cls: type | None, *, short: bool = False, version: int = PROTOCOL_VERSION, language: int = LanguageCode.PYTHON
) -> HeadEncoder:
    """Make the function that writes a frame with a JSON header of class *cls*, up to but without its body.

    LocalProtocolError for values that are not what the class declares, or text that is not Unicode.
    """
    lines, entries = [], ""
    fields = codec_of(cls).fields if cls is not None else ()
    # Entries that are always there come first, so that each optional one can bring its comma.
    for field in sorted(fields, key=lambda field: field.optional):
        name, value = field.wire_name(short), f"h.{field.attribute}"
        if field.optional:
            variable = f"_{field.attribute}"
            lines.append(f"    {variable} = {value}\n")
            text = _entry(name, variable, field, leading=",")
            lines.append(f"    {variable} = '' if {variable} is None else f'{text}'\n")
            entries += f"{{{variable}}}"
        else:
            entries += _entry(name, value, field, leading="," if entries else "")
    if fields and all(field.optional for field in fields):
        lines.append(f"    _ext = f'{entries}'[1:]\n")
        entries = "{_ext}"
    ext = f'"extFields":{{{{{entries}}}}},' if cls is not None else ""
    source = (
        "def encode(h, code, opaque, flag, remark, body_size):\n"
        f"{''.join(lines)}"
        '    remark = "" if remark is None else f\'"remark":"{escape(remark)}",\'\n'
        f"    data = f'{{{{\"code\":{{code:d}},{ext}\"flag\":{{flag:d}},\"language\":\"{LanguageCode(language).name}\","
        f"\"opaque\":{{opaque:d}},{{remark}}\"serializeTypeCurrentRPC\":\"JSON\",\"version\":{version}}}}}'.encode()\n"
        "    size = len(data)\n"
        "    return pack(4 + size + body_size, size) + data\n"
    )
    plain: HeadEncoder = compile_function(source, "encode", {"escape": _escape, "pack": FRAME_HEAD.pack})

    def encode(h: Any, code: int, opaque: int, flag: int, remark: str | None, body_size: int) -> bytes:
        try:
            return plain(h, code, opaque, flag, remark, body_size)
        except (TypeError, AttributeError, ValueError) as error:
            raise LocalProtocolError(f"cannot write {h!r} as the header of code {code}: {error}") from error

    return encode


def _entry(name: str, value: str, field: WireField, leading: str) -> str:
    """One ``"name":"value"`` of the template, as the inside of an f-string in single quotes."""
    text = {
        # Most texts are ids and plain names: asking isalnum() is much cheaper than escaping.
        str: f"{{{value} if {value}.isalnum() else escape({value})}}",
        bool: f'{{"true" if {value} else "false"}}',
        int: f"{{{value}:d}}",
        float: f"{{{value}!r}}",
    }[field.kind]
    return f'{leading}"{name}":"{text}"'


def _escape(text: str) -> str:
    """Text as it stands between the quotes of a JSON string; UnicodeEncodeError (a ValueError) for lone surrogates."""
    return msgspec.json.encode(text)[1:-1].decode()
