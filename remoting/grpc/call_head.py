"""The headers of a call: path, deadline, encoding and metadata of a request. Pure.

Source: grpc.io, "gRPC over HTTP2"; RFC 9113, section 8.3.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus

import attrs

from triomq.remoting.core.errors import RemotingError
from triomq.remoting.grpc.status import CallFailed, GrpcStatus

ENCODINGS = ("identity", "gzip")
"""how a message of a request may be compressed; answers never are"""
ACCEPTED = ("grpc-accept-encoding", ",".join(ENCODINGS))
_TIMEOUT_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_TIMEOUT_DIGITS_MAX = 8
_NOT_IN_NAMES = re.compile(rb"[^!-@\[-~]")
_NOT_IN_VALUES = re.compile(rb"[\0\r\n]")
_NOT_METADATA = frozenset({"te", "content-type", "grpc-timeout", "grpc-encoding"})
_NOT_FOR_HANDLERS = frozenset({b"te", b"grpc-accept-encoding"})


class NotGrpc(RemotingError):
    """A request that is HTTP but no call; *status* is the answer, *reason* its text."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(f"{status.value}: {reason}")
        self.status = status
        self.reason = reason


@attrs.define
class CallHead:
    """What a client says about a call before its first message.

    ``path``: ``/package.Service/Method``. ``timeout_seconds``: infinite without a deadline.
    ``metadata``: the other headers; values of one name are joined by commas, those of names in
    ``-bin`` are base64 (``binary`` decodes them).
    """

    path: str
    timeout_seconds: float = math.inf
    gzip: bool = False
    metadata: Mapping[str, str] = attrs.field(factory=dict)

    def binary(self, name: str) -> bytes | None:
        """Return the first value of binary metadata (``name-bin``), None without a valid one."""
        value = self.metadata.get(name)
        if value is None:
            return None
        first = value.partition(",")[0]
        try:
            return base64.b64decode(first + "=" * (-len(first) % 4), validate=True)
        except (binascii.Error, ValueError):
            return None


def checked_size(headers: Sequence[tuple[bytes, bytes]]) -> int:
    """Return the size of a header list as RFC 9113 counts it, in section 6.5.2.

    Raises: NotGrpc for characters that RFC 9113 forbids, in section 8.2.1: handlers log metadata.
    """
    names = b"".join([name for name, _ in headers])
    values = b"".join([value for _, value in headers])
    if _NOT_IN_NAMES.search(names) or _NOT_IN_VALUES.search(values):
        raise NotGrpc(HTTPStatus.BAD_REQUEST, "a header has a forbidden character")
    return len(names) + len(values) + 32 * len(headers)


def read_head(headers: Iterable[tuple[bytes, bytes]]) -> CallHead:
    """Read the headers of a request; names are in lower case, as HTTP/2 demands.

    Raises: NotGrpc; CallFailed for an encoding or a deadline that cannot be read.
    """
    method = path = content_type = timeout = encoding = b""
    metadata: dict[str, str] = {}
    for name, value in headers:
        if name[:1] == b":":
            if name == b":path":
                path = value
            elif name == b":method":
                method = value
        elif name == b"content-type":
            content_type = value
        elif name == b"grpc-timeout":
            timeout = value
        elif name == b"grpc-encoding":
            encoding = value
        elif name not in _NOT_FOR_HANDLERS:
            key, text = name.decode("latin-1"), value.decode("latin-1")
            metadata[key] = f"{metadata[key]},{text}" if key in metadata else text
    if method != b"POST":
        raise NotGrpc(HTTPStatus.METHOD_NOT_ALLOWED, "a gRPC call is a POST")
    if not _is_grpc(content_type):
        raise NotGrpc(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the content-type of a call is application/grpc"
        )
    gzip = False
    if encoding and encoding != b"identity":
        if encoding != b"gzip":
            raise CallFailed(
                GrpcStatus.UNIMPLEMENTED,
                f"messages compressed as {encoding.decode('latin-1')[:32]!r} are not supported;"
                f" use {' or '.join(ENCODINGS)}",
                (ACCEPTED,),
            )
        gzip = True
    return CallHead(
        path.decode("latin-1"), read_timeout(timeout) if timeout else math.inf, gzip, metadata
    )


def _is_grpc(content_type: bytes) -> bool:
    base = content_type.partition(b";")[0].strip().lower()
    return base in {b"application/grpc", b"application/grpc+proto"}


def read_timeout(value: bytes) -> float:
    """Return the seconds of a ``grpc-timeout``: up to eight digits and a unit.

    Raises: CallFailed.
    """
    digits, unit = value[:-1], value[-1:].decode("latin-1")
    if unit not in _TIMEOUT_UNITS or not digits.isdigit() or len(digits) > _TIMEOUT_DIGITS_MAX:
        raise CallFailed(
            GrpcStatus.INTERNAL,
            f"grpc-timeout {value.decode('latin-1')[:16]!r} cannot be read; send up to eight digits"
            f" and a unit ({', '.join(_TIMEOUT_UNITS)})",
        )
    return int(digits) * _TIMEOUT_UNITS[unit]


def require_trailer(name: str, value: str) -> tuple[str, str]:
    """Return trailing metadata that can be sent; values of names in ``-bin`` are Base64, unpadded.

    Raises: ValueError for a reserved or invalid name, or a value outside printable ASCII.
    """
    valid = name and all(
        character in "abcdefghijklmnopqrstuvwxyz0123456789_-." for character in name
    )
    if not valid or name.startswith("grpc-") or name in _NOT_METADATA:
        raise ValueError(f"{name!r} is no name of metadata; use lower case, and not grpc-…")
    if not all(" " <= character <= "~" for character in value):
        raise ValueError(f"the value of {name} is not printable ASCII; use a name in -bin")
    return name, value
