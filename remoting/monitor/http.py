"""The small part of HTTP that probes and scrapers need. Pure: bytes in, bytes out.

One request for each connection, GET or HEAD, without a body; every answer has ``Connection:
close``.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

import attrs

HEAD_BYTES_MAX = 8192
"""of a request; a scraper's is some hundred bytes"""
TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
_METHODS = (b"GET", b"HEAD")


class BadRequest(Exception):
    """Input that is not a valid request; ``status`` is the answer."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@attrs.frozen
class HttpRequest:
    """The relevant parts of a request."""

    path: str
    """without the query"""
    head: bool = False
    """HEAD: headers only"""
    token: bytes = attrs.field(default=b"", repr=False)
    """what stands behind ``Authorization: Bearer``"""
    gzip: bool = False
    """whether the answer may be compressed, as ``Accept-Encoding`` says"""


@attrs.frozen
class HttpAnswer:
    """A status and a body."""

    status: HTTPStatus
    body: bytes
    content_type: str = TEXT
    rest: Sequence[bytes] = ()
    """More of the body: a page of 10 MB is neither joined nor copied."""
    gzip: bool = False
    """Whether the body is compressed."""

    def encode(self, *, head: bool = False) -> bytes:
        """Return the bytes of the answer."""
        lines = [
            f"HTTP/1.1 {self.status.value} {self.status.phrase}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(self.body) + sum(map(len, self.rest))}",
            "Cache-Control: no-store",
            "Connection: close",
        ]
        if self.gzip:
            lines.append("Content-Encoding: gzip")
        if self.status is HTTPStatus.METHOD_NOT_ALLOWED:
            lines.append("Allow: GET, HEAD")
        if self.status is HTTPStatus.UNAUTHORIZED:
            lines.append("WWW-Authenticate: Bearer")
        text = "\r\n".join([*lines, "", ""]).encode("ascii")
        return text if head else b"".join((text, self.body, *self.rest))


def read_request(data: bytes | bytearray) -> HttpRequest | None:
    """Read the head of a request; None while it is not complete. Raises: BadRequest."""
    end = data.find(b"\r\n\r\n")
    # The same limit for a head that comes in pieces.
    if end > HEAD_BYTES_MAX or (end < 0 and len(data) > HEAD_BYTES_MAX + 3):
        raise BadRequest(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            f"the head of the request is longer than {HEAD_BYTES_MAX} bytes",
        )
    if end < 0:
        return None
    first, *fields = bytes(data[:end]).split(b"\r\n")
    words = first.split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/1.") or not words[1].isascii():
        raise BadRequest(
            HTTPStatus.BAD_REQUEST, "this is not HTTP/1: the port is for probes and scrapers"
        )
    if words[0] not in _METHODS:
        raise BadRequest(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are answered")
    path = words[1].decode("ascii").partition("?")[0]
    return HttpRequest(path, words[0] == b"HEAD", _token(fields), _takes_gzip(fields))


def _takes_gzip(fields: Sequence[bytes]) -> bool:
    """Return whether ``Accept-Encoding`` names gzip, without the weight 0."""
    for field in fields:
        name, _, value = field.partition(b":")
        if name.strip().lower() == b"accept-encoding":
            for coding in value.lower().split(b","):
                word, _, weight = coding.partition(b";")
                if word.strip() == b"gzip":
                    return weight.strip().rstrip(b"0").rstrip(b".") not in (b"q=", b"q=0")
    return False


def _token(fields: Sequence[bytes]) -> bytes:
    for field in fields:
        name, _, value = field.partition(b":")
        scheme, _, token = value.strip().partition(b" ")
        if name.strip().lower() == b"authorization" and scheme.lower() == b"bearer":
            return token.strip()
    return b""
