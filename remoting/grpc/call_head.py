"""The headers of a call: path, deadline, encoding and metadata of a request. Pure.

Source: grpc.io, "gRPC over HTTP2"; RFC 9113, section 8.3.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterable, Mapping
from http import HTTPStatus

import attrs

from triomq.remoting.core.errors import RemotingError
from triomq.remoting.grpc.header_entry import HeaderEntry, HeaderKind
from triomq.remoting.grpc.status import CallFailed, GrpcStatus

ENCODINGS = ("identity", "gzip")
"""how a message of a request may be compressed; answers never are"""
ACCEPTED = ("grpc-accept-encoding", ",".join(ENCODINGS))
_TIMEOUT_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_TIMEOUT_DIGITS_MAX = 8
_NOT_METADATA = frozenset({"te", "content-type", "grpc-timeout", "grpc-encoding"})

# An attribute of an enum is looked up by name at each use.
_METADATA, _PATH, _METHOD = HeaderKind.METADATA, HeaderKind.PATH, HeaderKind.METHOD
_CONTENT_TYPE, _TIMEOUT, _ENCODING, _FORBIDDEN = (
    HeaderKind.CONTENT_TYPE,
    HeaderKind.TIMEOUT,
    HeaderKind.ENCODING,
    HeaderKind.FORBIDDEN,
)


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
    ``metadata``: the other headers; of several values of one name the last counts, as in grpc-java:
    Go's producers add a second signature and date to a send that they repeat. Values of names in
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


def read_head(headers: Iterable[HeaderEntry]) -> CallHead:
    """Read the headers of a request; names are in lower case, as HTTP/2 demands.

    Raises: NotGrpc; CallFailed for an encoding or a deadline that cannot be read.
    """
    path = ""
    method = content_type = timeout = encoding = b""
    metadata: dict[str, str] = {}
    for _, value, key, text, _, kind in headers:
        if kind is _METADATA:
            metadata[key] = text
        elif kind is _PATH:
            path = text
        elif kind is _METHOD:
            method = value
        elif kind is _CONTENT_TYPE:
            content_type = value
        elif kind is _TIMEOUT:
            timeout = value
        elif kind is _ENCODING:
            encoding = value
        elif kind is _FORBIDDEN:
            raise NotGrpc(HTTPStatus.BAD_REQUEST, "a header has a forbidden character")
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
    return CallHead(path, read_timeout(timeout) if timeout else math.inf, gzip, metadata)


def _is_grpc(content_type: bytes) -> bool:
    if content_type == b"application/grpc":
        return True
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
