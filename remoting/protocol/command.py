"""A request or response in its generic form, to and from a frame.

::

    total i32 | type u8 | header length u24 | header | body          total = 4 + header + body

Source: remoting/…/protocol/RemotingCommand.java.
"""

from typing import Protocol, TypeVar

from triomq.remoting.core.errors import HeaderFieldError, LocalProtocolError, RemoteProtocolError
from triomq.remoting.protocol import header_json, header_rocketmq
from triomq.remoting.protocol.codes import (
    PROTOCOL_VERSION,
    LanguageCode,
    RequestCode,
    SerializeType,
)
from triomq.remoting.protocol.fields import codec_of
from triomq.remoting.protocol.framing import split_frame
from triomq.remoting.protocol.header_json_fast import FRAME_HEAD, HeadEncoder, compile_head_encoder
from triomq.remoting.protocol.short_repr import short_bytes, short_names, short_text
from triomq.remoting.protocol.structs import msgspec

H = TypeVar("H")

RESPONSE_FLAG = 1
ONEWAY_FLAG = 2

SHORT_NAME_CODES = frozenset(
    {RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2}
)
"""Requests whose headers use the one-letter names."""

_JSON_TYPE = SerializeType.JSON
_read_json = header_json.read_typed
_PYTHON = LanguageCode.PYTHON


class Command(msgspec.Struct, eq=False, gc=False):
    """A request or a response in its generic form: header fields as text, body as bytes."""

    code: int
    opaque: int = 0
    flag: int = 0
    language: int = _PYTHON
    version: int = PROTOCOL_VERSION
    remark: str | None = None
    ext: dict[str, str] | None = None
    body: bytes | memoryview = b""
    serialize: SerializeType = _JSON_TYPE

    def __repr__(self) -> str:
        return (
            f"Command(code={self.code}, opaque={self.opaque}, flag={self.flag},"
            f" remark={short_text(self.remark)}, ext={short_names(self.ext or {})},"
            f" body={short_bytes(self.body)})"
        )

    def encode(self) -> bytes:
        """Return the whole frame; see ``encode_command``."""
        return encode_command(self)

    @property
    def is_response(self) -> bool:
        return bool(self.flag & RESPONSE_FLAG)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & ONEWAY_FLAG)

    def header(self, cls: type[H]) -> H:
        """Return the ext fields as a header object.

        Raises: HeaderFieldError for a missing or unreadable field.
        """
        short = self.code in SHORT_NAME_CODES and not self.flag & RESPONSE_FLAG
        try:
            return codec_of(cls).from_ext(self.ext, short=short)
        except HeaderFieldError as error:
            raise error.for_frame(self.code, self.opaque, self.flag) from None


class Outgoing(Protocol):
    """A request for a connection to send: a Command, or a request from a template."""

    opaque: int
    flag: int

    @property
    def code(self) -> int: ...

    def encode(self) -> bytes:
        """Return the whole frame, with the present opaque number and flag."""


class Answerable(Protocol):
    """The values that a response copies from its request: a Command, or a server's Request."""

    @property
    def opaque(self) -> int: ...

    @property
    def serialize(self) -> SerializeType: ...


def request(
    code: int, header: object | None = None, body: bytes | memoryview = b"", *, oneway: bool = False
) -> Command:
    """Return a request; the connection that sends it fills in the opaque number."""
    ext = (
        None
        if header is None
        else codec_of(type(header)).to_ext(header, short=code in SHORT_NAME_CODES)
    )
    return Command(code=code, flag=ONEWAY_FLAG if oneway else 0, ext=ext, body=body)


def response_to(
    asked: Answerable,
    code: int = 0,
    header: object | None = None,
    body: bytes | memoryview = b"",
    remark: str | None = None,
) -> Command:
    """Return the response to a request: same opaque number, same serialisation."""
    ext = None if header is None else codec_of(type(header)).to_ext(header)
    return Command(
        code=code,
        opaque=asked.opaque,
        flag=RESPONSE_FLAG,
        remark=remark,
        ext=ext,
        body=body,
        serialize=asked.serialize,
    )


def encode_command(command: Command) -> bytes:
    """Return the whole frame.

    A code that does not fit a binary header (POP requests) gets a JSON header, as Java peers
    expect.
    """
    body = command.body
    return b"".join((_head_of(command, len(body)), body))


def _head_of(command: Command, body_size: int) -> bytes:
    serialize = command.serialize
    if serialize and not header_rocketmq.fits_binary(command.code, command.version):
        serialize = SerializeType.JSON
    encode = header_rocketmq.encode_header if serialize else header_json.encode_header
    c = command
    header = encode((c.code, c.opaque, c.flag, c.version, c.language, c.remark, c.ext))
    size = len(header)
    if size >= 1 << 24 or size + body_size >= 1 << 31:
        raise LocalProtocolError(
            f"a frame cannot hold a header of {size} and a body of {body_size} bytes"
        )
    return FRAME_HEAD.pack(4 + size + body_size, serialize << 24 | size) + header


def decode_frame(frame: bytes | bytearray | memoryview) -> Command:
    """Return the command of a frame without its first four bytes.

    Raises: RemoteProtocolError if the frame is damaged.
    """
    kind, header, body = split_frame(frame)
    if kind == 0:  # fast path: nearly every frame, without a call for each part
        try:
            typed = _read_json(header)
        except (ValueError, RecursionError):
            pass  # unusual or damaged: the slow path tells
        else:
            language = header_json.LANGUAGE_NUMBERS.get(typed.language)  # type: ignore[arg-type]
            if language is None:
                language = header_json.language_number(typed.language)
            return Command(
                typed.code,
                typed.opaque,
                typed.flag,
                language,
                typed.version,
                typed.remark,
                typed.ext_fields,
                body,
            )
    serialize = serialize_type(kind)
    decode = header_rocketmq.decode_header if serialize else header_json.decode_header
    code, opaque, flag, version, language, remark, ext = decode(header)
    return Command(code, opaque, flag, language, version, remark, ext, body, serialize)


def serialize_type(kind: int) -> SerializeType:
    """Return the form of a header by the frame's type byte.

    Raises: RemoteProtocolError for an unknown type.
    """
    if kind == 0:
        return SerializeType.JSON
    if kind == 1:
        return SerializeType.ROCKETMQ
    raise RemoteProtocolError(
        f"unknown header type {kind} in a frame", "use header type 0 (JSON) or 1 (ROCKETMQ)"
    )


_head_encoders: dict[type, HeadEncoder] = {}


def head_encoder(cls: type | None) -> HeadEncoder:
    """Return the function that writes response frames of a header class, up to their bodies."""
    kind = type(None) if cls is None else cls
    encoder = _head_encoders.get(kind)
    if encoder is None:
        encoder = _head_encoders[kind] = compile_head_encoder(cls)
    return encoder


def encode_response_head(
    header: object | None,
    code: int,
    opaque: int,
    remark: str | None = None,
    body_size: int = 0,
    serialize: int = 0,
    ext: dict[str, str] | None = None,
) -> bytes:
    """Return the frame of a response up to its body.

    `body_size`: the size of the body, which the caller sends after the returned bytes.
    `ext`: entries besides those of ``header``.

    A server calls this for every request. Pass arguments by position: keywords would add a quarter
    to its time.
    """
    if ext is None and not serialize:
        encoder = _head_encoders.get(header.__class__) or head_encoder(
            None if header is None else type(header)
        )
        return encoder(header, code, opaque, RESPONSE_FLAG, remark, body_size)
    entries: dict[str, str] | None = None
    if header is not None or ext is not None:
        entries = {
            **(codec_of(type(header)).to_ext(header) if header is not None else {}),
            **(ext or {}),
        }
    response = Command(code=code, opaque=opaque, flag=RESPONSE_FLAG, remark=remark, ext=entries)
    response.serialize = SerializeType(serialize)
    return _head_of(response, body_size)
