"""Bodies compressed by the sending client: sysFlag bit 0, and bits 8 to 10 for the method.

zlib (RFC 1950) is always there; LZ4 (frame format) and Zstandard need the packages of the extras
``lz4`` and ``zstd``. Source: common/…/compression/CompressionType.java, ZlibCompressor.java,
Lz4Compressor.java, ZstdCompressor.java.
"""

import enum
import zlib
from collections.abc import Callable
from importlib import import_module
from typing import Any

from triomq.remoting.core.errors import LocalProtocolError, RemoteProtocolError
from triomq.remoting.protocol.sys_flags import (
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_MASK,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
)

COMPRESS_FROM_BYTES = 4096
LEVEL = 5
BODY_BYTES_MAX = 64 * 1024 * 1024


class Compression(enum.Enum):
    """How bodies are compressed; values as in ``rocketmq.message.compressType``."""

    ZLIB = "ZLIB"
    LZ4 = "LZ4"
    ZSTD = "ZSTD"

    @classmethod
    def of(cls, name: "str | Compression") -> "Compression":
        """Return the member with this name, in upper or lower case.

        Raises: LocalProtocolError for an unknown name, and if the package is not installed.
        """
        if not isinstance(name, Compression):
            try:
                name = cls[str(name).upper()]
            except KeyError:
                raise LocalProtocolError(
                    f"compression {name!r} is not known: use zlib, lz4 or zstd"
                ) from None
        try:
            _library(name)
        except ImportError as error:
            raise LocalProtocolError(_missing(name, error)) from None
        return name


def compress_body(
    body: bytes,
    *,
    threshold_bytes: int = COMPRESS_FROM_BYTES,
    level: int = LEVEL,
    compression: Compression = Compression.ZLIB,
) -> tuple[bytes, int]:
    """Return the body to send and its bits of sysFlag; short bodies stay as they are.

    As in Java, a result that is longer than the body is sent, too.

    `level`: zlib 0 to 9, Zstandard up to 22; LZ4 has no levels in RocketMQ.
    """
    if len(body) < threshold_bytes:
        return body, 0
    library = _library(compression)
    if compression is Compression.ZSTD:
        packed = library.ZstdCompressor(level=level).compress(body)
    elif compression is Compression.LZ4:
        packed = library.compress(body)
    else:
        packed = library.compress(body, level)
    return packed, COMPRESSED | _BITS[compression]


def plain_body(
    body: bytes, sys_flag: int, *, bytes_max: int = BODY_BYTES_MAX, cut: bool = False
) -> bytes:
    """Return the body as its producer had it, however it was compressed.

    ``cut``: of a longer one the first ``bytes_max`` bytes, which cost no more than these.

    Raises: RemoteProtocolError if the body is damaged or longer than ``bytes_max``, or if it needs
    a package that is not installed.
    """
    if not sys_flag & COMPRESSED:
        return body[:bytes_max] if cut else body
    compression = _OF_BITS.get(sys_flag & COMPRESSION_MASK)
    if compression is None:
        kind = (sys_flag & COMPRESSION_MASK) >> 8
        raise RemoteProtocolError(
            f"a body is compressed with type {kind}", "let producers use zlib, lz4 or zstd"
        )
    try:
        plain, complete = _UNPACKERS[compression](body, bytes_max)
    except ImportError as error:
        raise RemoteProtocolError("a body cannot be read", _missing(compression, error)) from None
    except _Broken as error:
        raise RemoteProtocolError(
            f"a compressed body cannot be inflated: {error}", "send it again"
        ) from None
    if len(plain) > bytes_max:
        if cut:
            return plain[:bytes_max]
        raise RemoteProtocolError(
            f"a body inflates to more than {bytes_max} bytes", "send smaller messages"
        )
    if not complete:
        raise RemoteProtocolError("a compressed body ends too early", "send it again")
    return plain


class _Broken(Exception):
    """A library cannot read the body."""


def _missing(compression: Compression, error: ImportError) -> str:
    extra = compression.value.lower()
    return f"install {compression.value} with: pip install 'triomq[{extra}]' ({error})"


ZLIB_OR_GZIP = zlib.MAX_WBITS | 32
"""Reads both frames of deflated bytes: clients of RocketMQ 5 (gRPC) send gzip under the flags of
zlib.
"""


# Each reader returns at most bytes_max + 1 bytes, and whether the compressed data was complete.


def _inflate(body: bytes, bytes_max: int) -> tuple[bytes, bool]:
    inflater = zlib.decompressobj(ZLIB_OR_GZIP)
    try:
        plain = inflater.decompress(body, bytes_max + 1)
    except zlib.error as error:
        raise _Broken(str(error)) from None
    return plain, inflater.eof


def _read_lz4(body: bytes, bytes_max: int) -> tuple[bytes, bool]:
    reader = _library(Compression.LZ4).LZ4FrameDecompressor()
    try:
        plain: bytes = reader.decompress(body, bytes_max + 1)
    except RuntimeError as error:
        raise _Broken(str(error)) from None
    return plain, reader.eof


def _read_zstd(body: bytes, bytes_max: int) -> tuple[bytes, bool]:
    """Decompress in pieces, since the library cannot limit its output.

    Four bytes can become 128 KiB, so a piece can become 16 MiB.
    """
    zstandard = _library(Compression.ZSTD)
    reader = zstandard.ZstdDecompressor().decompressobj()
    plain: list[bytes] = []
    size = position = 0
    try:
        while position < len(body) and size <= bytes_max and not reader.eof:
            piece = reader.decompress(body[position : position + _PIECE_BYTES])
            plain.append(piece)
            size += len(piece)
            position += _PIECE_BYTES
    except zstandard.ZstdError as error:
        raise _Broken(str(error)) from None
    return b"".join(plain), reader.eof


def _library(compression: Compression) -> Any:
    return import_module(_LIBRARIES[compression])


_PIECE_BYTES = 512
_LIBRARIES = {
    Compression.ZLIB: "zlib",
    Compression.LZ4: "lz4.frame",  # of an optional extra, as the next
    Compression.ZSTD: "zstandard",
}
_BITS = {
    Compression.ZLIB: COMPRESSION_ZLIB,
    Compression.LZ4: COMPRESSION_LZ4,
    Compression.ZSTD: COMPRESSION_ZSTD,
}
_OF_BITS = {0: Compression.ZLIB} | {bits: compression for compression, bits in _BITS.items()}
_UNPACKERS: dict[Compression, Callable[[bytes, int], tuple[bytes, bool]]] = {
    Compression.ZLIB: _inflate,
    Compression.LZ4: _read_lz4,
    Compression.ZSTD: _read_zstd,
}
