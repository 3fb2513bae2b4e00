"""The status of a call, and the error that a handler raises to choose one. Pure.

Source: grpc.io, "gRPC over HTTP2" and "Status codes and their use in gRPC".
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from triomq.remoting.core.errors import RemotingError

STATUS_TEXT_BYTES_MAX = 1024
"""of an encoded ``grpc-message``: many clients refuse trailers above 8 KiB"""
_PLAIN = frozenset(range(0x20, 0x7F)) - {ord("%")}


class GrpcStatus(enum.IntEnum):
    """How a call ended."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class CallFailed(RemotingError):
    """Raised by a handler to end its call with a *status* other than OK.

    *text* is what the client's user reads: the cause and the fix. *trailers* are sent as metadata
    behind the status.
    """

    def __init__(
        self, status: GrpcStatus, text: str, trailers: Sequence[tuple[str, str]] = ()
    ) -> None:
        super().__init__(f"{status.name}: {text}")
        self.status = status
        self.text = text
        self.trailers = tuple(trailers)


def encode_text(text: str) -> bytes:
    """Return the value of ``grpc-message``: UTF-8 with all but printable ASCII as ``%XX``.

    A text above ``STATUS_TEXT_BYTES_MAX`` is cut between characters.
    """
    encoded, size = [], 0
    for character in text:
        piece = b"".join(
            byte.to_bytes() if byte in _PLAIN else b"%%%02X" % byte
            for byte in character.encode("utf-8", "replace")
        )
        size += len(piece)
        if size > STATUS_TEXT_BYTES_MAX:
            break
        encoded.append(piece)
    return b"".join(encoded)


def decode_text(value: bytes) -> str:
    """Return the text of a ``grpc-message``; an invalid ``%`` stays as it is."""
    decoded = bytearray()
    at = 0
    while at < len(value):
        digits = value[at + 1 : at + 3]
        if value[at] == ord("%") and len(digits) == 2 and digits.isalnum():
            try:
                decoded.append(int(digits, 16))
            except ValueError:
                decoded += value[at : at + 3]
            at += 3
        else:
            decoded.append(value[at])
            at += 1
    return decoded.decode("utf-8", "replace")
