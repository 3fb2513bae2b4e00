"""The few words of HTTP that probes and scrapers speak.  Pure: bytes in, bytes out.

One request a connection, GET or HEAD, no body: `Connection: close` is said in every answer, so nothing has to be kept in step.
"""

from __future__ import annotations

from http import HTTPStatus

import attrs

HEAD_BYTES_MAX = 8192
"""of a request; a scraper's is some hundred bytes"""
TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
_METHODS = (b"GET", b"HEAD")


class BadRequest(Exception):
    """What came is not a request that is answered here; ``status`` says why."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@attrs.frozen
class HttpRequest:
    """A request as far as it matters here."""

    path: str
    """without the query"""
    head: bool = False
    """HEAD: headers only"""


@attrs.frozen
class HttpAnswer:
    """A status and a body."""

    status: HTTPStatus
    body: bytes
    content_type: str = TEXT

    def encode(self, *, head: bool = False) -> bytes:
        """Return the answer as it travels."""
        lines = [
            f"HTTP/1.1 {self.status.value} {self.status.phrase}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(self.body)}",
            "Cache-Control: no-store",
            "Connection: close",
        ]
        if self.status is HTTPStatus.METHOD_NOT_ALLOWED:
            lines.append("Allow: GET, HEAD")
        text = "\r\n".join([*lines, "", ""]).encode("ascii")
        return text if head else text + self.body


def read_request(data: bytes | bytearray) -> HttpRequest | None:
    """Read the head of a request; None while it is not complete.  Raises BadRequest."""
    end = data.find(b"\r\n\r\n")
    if end > HEAD_BYTES_MAX or (end < 0 and len(data) > HEAD_BYTES_MAX + 3):  # in pieces as in one piece
        raise BadRequest(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"the head of the request is longer than {HEAD_BYTES_MAX} bytes")
    if end < 0:
        return None
    words = bytes(data[:end]).split(b"\r\n", 1)[0].split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/1.") or not words[1].isascii():
        raise BadRequest(HTTPStatus.BAD_REQUEST, "this is not HTTP/1: the port is for probes and scrapers")
    if words[0] not in _METHODS:
        raise BadRequest(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are answered")
    return HttpRequest(words[1].decode("ascii").partition("?")[0], words[0] == b"HEAD")
