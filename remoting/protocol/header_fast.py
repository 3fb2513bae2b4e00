"""The same JSON headers as in ``header_json``, many times faster, for the few shapes that make up the load.

Decoding: one msgspec class per request code reads the whole header, ``extFields`` included and typed, in one pass; what it makes of
``extFields`` is the header object's twin (see ``fields``), as good as the header object itself. Encoding: one generated function per header class fills a text
template. Both fall back to the general codecs for anything unusual, and agree with them otherwise (a property test).

Measured on CPython 3.11 with 14 header fields of SEND_MESSAGE_V2: decoding 1.6 µs, the general way about 5 µs; head of a
send response 1.2 µs, the general way 3.5 µs.
"""

import struct
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, TypeAlias

import msgspec

from triomq.remoting.errors import HeaderFieldError, LocalProtocolError
from triomq.remoting.protocol.codes import PROTOCOL_VERSION, LanguageCode
from triomq.remoting.protocol.fields import I32, WireField, codec_of, compile_function
from triomq.remoting.protocol.header_json import LANGUAGE_NUMBERS, Buffer, decode_header, language_number, read_typed

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
    slow = _slow_decoder(cls, short)
    made = "typed.extFields" if cls is not None else "None"
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
        f"    return typed.code, typed.opaque, typed.flag, typed.version, number, typed.remark, {made}\n"
    )
    namespace = {
        "read": frame_reader(cls, short),
        "slow": slow,
        "numbers": LANGUAGE_NUMBERS,
        "language_number": language_number,
    }
    decode: RequestDecoderFunction = compile_function(source, "decode", namespace)
    return decode


def frame_reader(cls: type | None, short: bool) -> Callable[[Buffer], Any]:
    """The function that reads a JSON header of this shape into an object with the header's members; ValueError if it is another shape."""
    if cls is None:
        return read_typed  # it reads the entries, which nobody asks for here, so that what it refuses is what the general decoder refuses
    return msgspec.json.Decoder(_frame_struct(cls, short), strict=False).decode


def _frame_struct(cls: type, short: bool) -> type[msgspec.Struct]:
    members: list[Any] = [
        ("code", I32, 0),
        ("opaque", I32, 0),
        ("flag", I32, 0),
        ("version", I32, 0),
        ("language", str | I32 | None, None),
        ("remark", str | None, None),
    ]
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
    fields = codec_of(cls).fields if cls is not None else ()
    # Entries that are always there come first, so that each optional one can bring its comma.
    ordered = sorted(fields, key=lambda field: field.optional)
    lines, template, values = [], "", []
    for field in ordered:
        value = f"h.{field.attribute}"
        if field.optional:
            variable = f"_{field.attribute}"
            lines.append(f"{variable} = {value}")
            lines.append(f"{variable} = b'' if {variable} is None else {_optional_entry(field, variable, short)}")
            template += "%b"
            values.append(variable)
        else:
            template += ("," if template else "") + _entry(field, short)
            values.append(_ENTRY_VALUE[field.kind].format(value))
    if fields and ordered[0].optional:
        lines.append(f"_ext = ({' + '.join(values)})[1:]")
        template, values = "%b", ["_ext"]
    ext = f'"extFields":{{{template}}},' if cls is not None else ""
    lines.append("_remark = b'' if remark is None else b'\"remark\":%b,' % text(remark)")
    whole = (
        f'{{"code":%d,{ext}"flag":%d,"language":"{LanguageCode(language).name}","opaque":%d,%b'
        f'"serializeTypeCurrentRPC":"JSON","version":{version}}}'
    )
    lines.append(f"data = b'{whole}' % ({', '.join(['code', *values, 'flag', 'opaque', '_remark'])})")
    lines.append("size = len(data)")
    lines.append("return pack(4 + size + body_size, size) + data")
    source = (
        "def encode(h, code, opaque, flag, remark, body_size):\n"
        "    try:\n"
        f"        {_NEXT_LINE.join(lines)}\n"
        "    except (TypeError, AttributeError, ValueError, error) as reason:\n"
        "        raise refuse(h, code, reason) from reason\n"
    )
    namespace = {"text": msgspec.json.Encoder().encode, "pack": FRAME_HEAD.pack, "error": struct.error, "refuse": _refusal}
    encode: HeadEncoder = compile_function(source, "encode", namespace)
    return encode


class LatestNumbers:
    """The numbers that were written last: messages of one millisecond share them, whatever their queues.

    Shared by the templates of one client, which one thread uses: it is read and written in several steps.
    """

    __slots__ = ("made", "numbers", "template")

    def __init__(self) -> None:
        self.numbers: tuple[int, ...] = ()
        self.template = self.made = b""


class RequestTemplate:
    """Requests of one code whose headers differ in a few fields: the rest of the JSON header is written once.

    ``RequestTemplate(code, header, ["sys_flag", "properties"], short=True)`` makes requests by ``make((0,), "text", body)``: numbers in the
    order of the header class's fields, then the one text. 0.9 µs a frame of SEND_MESSAGE_V2, the general way 3. Templates that are used
    in one thread may share a ``latest``.
    """

    __slots__ = ("_end", "_ends", "_fixed_bytes", "_latest", "_middle", "_start", "code")

    def __init__(
        self,
        code: int,
        header: object,
        varying: Sequence[str],
        *,
        latest: LatestNumbers | None = None,
        short: bool = False,
        version: int = PROTOCOL_VERSION,
        language: int = LanguageCode.PYTHON,
    ) -> None:
        codec = codec_of(type(header))
        fixed = codec.to_ext(header, short=short)
        pieces = [b""]  # before the first number, from there to the text, after the text
        kinds: list[type] = []
        for field in codec.fields:
            name = field.wire_name(short)
            if field.attribute in varying:
                if field.kind is str or not kinds:
                    pieces.append(b"")
                entry = _entry(field, short).encode()
                if field.kind is str:
                    pieces[-2] += entry.replace(b"%b", b"")
                    pieces[-1] += b","
                else:
                    pieces[-1] += entry + b","
                kinds.append(field.kind)
            elif name in fixed:
                entry = b'"%b":%b,' % (name.encode(), msgspec.json.encode(fixed[name]))
                pieces[-1] += entry.replace(b"%", b"%%") if len(pieces) == 2 else entry
        if kinds != [int] * (len(varying) - 1) + [str]:
            raise TypeError(f"{type(header).__name__} has not all of {varying}, or they are not numbers and then one text")
        start, middle, end = pieces
        self.code = int(code)
        self._latest = latest or LatestNumbers()
        self._start = b'{"code":%d,"extFields":{' % self.code + start
        self._middle = _middles.setdefault(middle, middle)  # one object for equal ones: they are compared by identity
        self._ends: dict[int, bytes] = {}
        for flag in (0, 2):  # answered and not
            shape = b'},"flag":%d,"language":"%b","opaque":'
            self._ends[flag] = end.removesuffix(b",") + shape % (flag, LanguageCode(language).name.encode())
        self._end = b',"serializeTypeCurrentRPC":"JSON","version":%d}' % version
        self._fixed_bytes = len(self._start) + len(self._ends[0]) + len(self._end)

    def make(self, numbers: tuple[int, ...], text: str, body: bytes, flag: int = 0) -> "TemplateRequest":
        """One request, to be sent once; *flag* is 0, or 2 for one that is not answered."""
        return TemplateRequest(self, numbers, text, body, flag)

    def encode(self, numbers: tuple[int, ...], text: str, flag: int, opaque: int, body: bytes) -> bytes:
        """A whole frame. LocalProtocolError for text that is not Unicode, or more bytes than a frame holds."""
        try:
            latest = self._latest
            if numbers == latest.numbers and self._middle is latest.template:
                middle = latest.made
            else:
                middle = self._middle % numbers
                latest.numbers, latest.template, latest.made = numbers, self._middle, middle
            written = _encode_text(text)
        except (TypeError, ValueError) as error:
            raise LocalProtocolError(f"cannot write the header of code {self.code}: {error}") from error
        number = b"%d" % opaque
        size = self._fixed_bytes + len(middle) + len(written) + len(number)
        if size >= 1 << 24 or size + len(body) >= (1 << 31) - 4:
            raise LocalProtocolError(f"a frame cannot hold a header of {size} and a body of {len(body)} bytes")
        head = _pack_head(4 + size + len(body), size)
        return b"".join((head, self._start, middle, written, self._ends[flag], number, self._end, body))


_middles: dict[bytes, bytes] = {}


class TemplateRequest:
    """A request from a template, for a connection to send."""

    __slots__ = ("_numbers", "_template", "_text", "body", "code", "flag", "opaque")

    def __init__(self, template: RequestTemplate, numbers: tuple[int, ...], text: str, body: bytes, flag: int) -> None:
        self.code = template.code
        self.opaque = 0
        self.flag = flag
        self.body = body
        self._template = template
        self._numbers = numbers
        self._text = text

    def encode(self) -> bytes:
        """The whole frame."""
        return self._template.encode(self._numbers, self._text, self.flag, self.opaque, self.body)


_encode_text = msgspec.json.Encoder().encode
_pack_head = FRAME_HEAD.pack
_NEXT_LINE = "\n        "
_ENTRY_VALUE: dict[type, str] = {
    str: "text({0})",
    bool: "(b'true' if {0} else b'false')",
    int: "{0}",
    float: "repr({0}).encode()",
}


def _entry(field: WireField, short: bool) -> str:
    """``"name":"value"`` as a piece of a bytes template; text brings its own quotes, escaped as JSON needs."""
    slot = {str: "%b", bool: '"%b"', int: '"%d"', float: '"%b"'}[field.kind]
    return f'"{field.wire_name(short)}":{slot}'


def _optional_entry(field: WireField, value: str, short: bool) -> str:
    """An expression for ``,"name":"value"``, by concatenation where that is cheaper than a template."""
    name = f',"{field.wire_name(short)}":'
    if field.kind is str:
        return f"b'{name}' + text({value})"
    if field.kind is bool:
        return f"b'{name}\"true\"' if {value} else b'{name}\"false\"'"
    return f"b',{_entry(field, short)}' % {_ENTRY_VALUE[field.kind].format(value)}"


def _refusal(header: Any, code: int, reason: Exception) -> LocalProtocolError:
    return LocalProtocolError(f"cannot write {header!r} as the header of code {code}: {reason}")
