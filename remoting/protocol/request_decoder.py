"""From frame to request for a server that knows which header class belongs to which request code.

The JSON header of a known code is read by its own typed decoder: the code is found first by a look at the bytes, and the
decoder is trusted only if the decoded code is the same. A binary header like one before it is read by what that one said. Everything else takes
the general road with equal results.
"""

from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any, TypeAlias

from triomq.remoting.errors import HeaderFieldError
from triomq.remoting.protocol import header_binary, header_json
from triomq.remoting.protocol.command import RESPONSE_FLAG, serialize_type
from triomq.remoting.protocol.fields import codec_of
from triomq.remoting.protocol.header_binary_fast import KnownShapes
from triomq.remoting.protocol.header_fast import (
    DecodedHeader,
    RequestDecoderFunction,
    compile_request_decoder,
    frame_reader,
)
from triomq.remoting.protocol.header_json import LANGUAGE_NUMBERS, language_number

DecodedRequest: TypeAlias = tuple[int, int, int, int, int, str | None, Any, int, bytes, bytes]
"""code, opaque, flag, version, language, remark, header object, serialize type, header bytes, body.

The header object is of the header class or, by the fast road, its msgspec twin: same attributes, equal to it.
"""

_WORD: Callable[[bytes], tuple[int]] = Struct(">I").unpack_from
_HEADER_LENGTH = 0x00FFFFFF
_PREFIX = 15  # b'{"code":200050,': headers of Java and Go begin so, and a dict lookup is cheaper than a search
_PREFIXES_MAX = 1024


class RequestDecoder:
    """Decodes frames by a table: request code -> (header class or None, whether it uses the one-letter names)."""

    __slots__ = ("_by_code", "_by_prefix", "_headers", "_shapes", "_unknown")

    def __init__(self, headers: Mapping[int, tuple[type | None, bool]]) -> None:
        self._headers: dict[int, tuple[type | None, bool]] = {int(code): entry for code, entry in headers.items()}
        self._by_code: dict[int, RequestDecoderFunction] = {}
        self._by_prefix: dict[bytes, tuple[int, Callable[[bytes], Any]]] = {}
        self._shapes = KnownShapes()
        self._unknown = compile_request_decoder(None)

    def decode(self, frame: bytes) -> DecodedRequest:
        """Decode one frame (without its first four bytes), as ``FrameBuffer.feed`` returns it.

        The header object is None for responses (flag bit 0; decode those with ``decode_frame``), for codes outside
        the table and for codes without header class. HeaderFieldError, which carries code, opaque and flag, if only the
        fields of the header class are at fault: the request can still be answered. RemoteProtocolError otherwise.
        """
        (word,) = _WORD(frame)
        end = 4 + (word & _HEADER_LENGTH)
        header = frame[4:end]
        if word >> 24:
            return self._decode_binary(word >> 24, header, frame[end:])
        known = self._by_prefix.get(header[:_PREFIX])
        if known is not None:
            code, read = known
            try:
                typed = read(header)
            except (ValueError, RecursionError):
                pass  # unusual, or damaged: the other road tells
            else:
                if typed.code == code and not typed.flag & RESPONSE_FLAG:
                    language = LANGUAGE_NUMBERS.get(typed.language)
                    if language is None:
                        language = language_number(typed.language)
                    return code, typed.opaque, typed.flag, typed.version, language, typed.remark, typed.extFields, 0, header, frame[end:]
        return (*self._decode_json(header), 0, header, frame[end:])

    def _decode_json(self, header: bytes) -> DecodedHeader:
        """Any JSON header, with the first of its kind or something unusual in it."""
        code, decoder = self._choose(header)
        try:
            decoded = decoder(header)
        except HeaderFieldError as error:
            if error.code == code:
                raise
            return self._decode_again(header)
        if decoded[0] != code or decoded[2] & RESPONSE_FLAG:
            return self._decode_again(header)
        return decoded

    def _choose(self, header: bytes) -> tuple[int, RequestDecoderFunction]:
        """Guess the code and find its decoder, which is made at first use: unseen codes cost nothing."""
        code = header_json.find_code(header)
        entry = self._headers.get(code)
        if entry is None:
            return code, self._unknown
        decoder = self._by_code.get(code)
        if decoder is None:
            decoder = self._by_code[code] = compile_request_decoder(entry[0], short=entry[1])
        prefix = header[:_PREFIX]
        if entry[0] is not None and prefix.startswith(b'{"code":%d,' % code) and len(self._by_prefix) < _PREFIXES_MAX:
            self._by_prefix[prefix] = code, frame_reader(*entry)
        return code, decoder

    def _decode_again(self, header: bytes) -> DecodedHeader:
        """The first guess at the code was wrong (it stood in some text), or this is a response."""
        code, opaque, flag, version, language, remark, ext = header_json.decode_header(header)
        return code, opaque, flag, version, language, remark, self._header_object(code, opaque, flag, ext)

    def _decode_binary(self, kind: int, header: bytes, body: bytes) -> DecodedRequest:
        serialize = serialize_type(kind)
        known = self._shapes.read(header)
        if known is not None:
            code, opaque, flag, version, language, made = known
            return code, opaque, flag, version, language, None, made, serialize, header, body
        code, opaque, flag, version, language, remark, ext = header_binary.decode_header(header)
        made = self._header_object(code, opaque, flag, ext)
        if made is not None:
            cls, short = self._headers[code]
            assert cls is not None
            self._shapes.learn(header, cls, short, made)
        return code, opaque, flag, version, language, remark, made, serialize, header, body

    def _header_object(self, code: int, opaque: int, flag: int, ext: dict[str, str] | None) -> Any:
        cls, short = self._headers.get(code, (None, False))
        if cls is None or flag & RESPONSE_FLAG:
            return None
        try:
            return codec_of(cls).from_ext(ext, short=short)
        except HeaderFieldError as error:
            raise error.for_frame(code, opaque, flag) from None


def decode_ext(serialize: int, header: bytes) -> dict[str, str]:
    """All ext fields of a header, the unknown ones included; RemoteProtocolError if it is damaged."""
    decode = header_binary.decode_header if serialize_type(serialize) else header_json.decode_header
    return decode(header)[6] or {}
