"""Decode frames into requests, with a server's table of header classes.

The JSON header of a known code is read by the typed decoder of that code. The code is guessed from
the first bytes, and the result counts only if the decoded code is the same. A binary header that
repeats an earlier one is read by ``header_rocketmq_fast``. All others take the slow path, with
equal results.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from triomq.remoting.core.errors import HeaderFieldError
from triomq.remoting.protocol import header_json, header_rocketmq
from triomq.remoting.protocol.codes import SerializeType
from triomq.remoting.protocol.command import RESPONSE_FLAG, serialize_type
from triomq.remoting.protocol.fields import codec_of
from triomq.remoting.protocol.framing import HEADER_LENGTH, HEADER_WORD
from triomq.remoting.protocol.header_json import LANGUAGE_NUMBERS, language_number
from triomq.remoting.protocol.header_json_fast import frame_reader
from triomq.remoting.protocol.header_rocketmq_fast import RepeatedHeaders
from triomq.remoting.protocol.structs import msgspec

DecodedRequest: TypeAlias = tuple[int, int, int, int, int, str | None, object, int, bytes, bytes]
"""code, opaque, flag, version, language, remark, header object, serialize type, header bytes, body.

The header object is of the header class's msgspec twin: same attributes, equal to it.
"""

# Headers of Java and Go begin with b'{"code":200050,'; a dict lookup is cheaper than a search.
_PREFIX = 15
_PREFIXES_MAX = 1024


class _Texts(msgspec.Struct, gc=False):
    texts: dict[str, str] | None = msgspec.field(name="extFields", default=None)


_read_texts = msgspec.json.Decoder(_Texts).decode
"""Read the ext fields and skip the rest: a third faster than all of a header."""


class RequestDecoder:
    """Decodes frames with a table: request code -> header class or None, short names or not."""

    def __init__(self, headers: Mapping[int, tuple[type | None, bool]]) -> None:
        self._headers: dict[int, tuple[type | None, bool]] = {
            int(code): entry for code, entry in headers.items()
        }
        self._readers: dict[int, Callable[[bytes], object]] = {}
        self._by_prefix: dict[bytes, tuple[int, Callable[[bytes], Any]]] = {}
        self._repeated = RepeatedHeaders()

    def decode(self, frame: bytes) -> DecodedRequest:
        """Return the request of one frame, as ``FrameBuffer.feed`` returns it.

        The header object is None for responses (flag bit 0; decode those with ``decode_frame``),
        for codes outside the table and for codes without header class.

        Raises: HeaderFieldError, with code, opaque and flag, if only fields of the header class are
        wrong: the request can be answered. RemoteProtocolError otherwise.
        """
        # `split_frame` without the call and the check, which ``FrameBuffer`` has done.
        (word,) = HEADER_WORD(frame)
        end = 4 + (word & HEADER_LENGTH)
        kind, header, body = word >> 24, frame[4:end], frame[end:]
        if kind:
            return self._decode_binary(kind, header, body)
        known = self._by_prefix.get(header[:_PREFIX]) or self._choose(header)
        if known is not None:
            code, read = known
            try:
                typed = read(header)
            except (ValueError, RecursionError):
                pass  # unusual or damaged: the slow path tells
            else:
                if typed.code == code and not typed.flag & RESPONSE_FLAG:
                    language = LANGUAGE_NUMBERS.get(typed.language)
                    if language is None:
                        language = language_number(typed.language)
                    return (
                        code,
                        typed.opaque,
                        typed.flag,
                        typed.version,
                        language,
                        typed.remark,
                        typed.extFields,
                        0,
                        header,
                        body,
                    )
        code, opaque, flag, version, language, remark, ext = header_json.decode_header(header)
        made = self._header_object(code, opaque, flag, ext)
        return code, opaque, flag, version, language, remark, made, 0, header, body

    def _choose(self, header: bytes) -> tuple[int, Callable[[bytes], Any]] | None:
        """Return the guessed code and the typed reader of its headers, made at first use.

        Returns: None for a code without header class.
        """
        code = header_json.find_code(header)
        cls, short = self._headers.get(code, (None, False))
        if cls is None:
            return None
        read = self._readers.get(code)
        if read is None:
            read = self._readers[code] = frame_reader(cls, short)
        prefix = header[:_PREFIX]
        if prefix.startswith(b'{"code":%d,' % code) and len(self._by_prefix) < _PREFIXES_MAX:
            self._by_prefix[prefix] = code, read
        return code, read

    def _decode_binary(self, kind: int, header: bytes, body: bytes) -> DecodedRequest:
        serialize = serialize_type(kind)
        known = self._repeated.read(header)
        if known is not None:
            code, opaque, flag, version, language, made = known
            return code, opaque, flag, version, language, None, made, serialize, header, body
        code, opaque, flag, version, language, remark, ext = header_rocketmq.decode_header(header)
        made = self._header_object(code, opaque, flag, ext)
        if made is not None:
            cls, short = self._headers[code]
            assert cls is not None
            self._repeated.learn(header, cls, short, made)
        return code, opaque, flag, version, language, remark, made, serialize, header, body

    def _header_object(
        self, code: int, opaque: int, flag: int, ext: dict[str, str] | None
    ) -> object:
        cls, short = self._headers.get(code, (None, False))
        if cls is None or flag & RESPONSE_FLAG:
            return None
        try:
            return codec_of(cls).from_ext(ext, short=short)
        except HeaderFieldError as error:
            raise error.for_frame(code, opaque, flag) from None


def decode_ext(serialize: int, header: bytes) -> dict[str, str]:
    """Return all ext fields of a header, the unknown ones included.

    Raises: RemoteProtocolError if the header is damaged.
    """
    if serialize == SerializeType.JSON:
        try:
            return _read_texts(header).texts or {}
        except (ValueError, RecursionError):
            pass  # unusual or damaged: the slow path tells
    decode = (
        header_rocketmq.decode_header if serialize_type(serialize) else header_json.decode_header
    )
    return decode(header)[6] or {}
