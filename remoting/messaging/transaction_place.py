"""Transaction ids that name the place of their half message.

The id that a send returns is what the client gives back at the transaction's end. It has all that
the end needs, so that any instance of the service can serve it at any time; Java's proxy keeps
this in memory for 30 s, in the instance that took the send.
"""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple

from triomq.remoting.grpc.apache_rocketmq.definition_pb2 import Code
from triomq.remoting.messaging.status_codes import Refused

VERSION = "t1"
_NUMBER_DIGITS_MAX = 19


class TransactionPlace(NamedTuple):
    """Where a half message is. Offsets: messages of the half queue, bytes of the log."""

    broker_name: str
    queue_offset: int
    log_offset: int
    message_id: str

    def encode(self) -> str:
        """Return the id."""
        text = " ".join((VERSION, *map(str, self)))
        return base64.urlsafe_b64encode(text.encode()).decode("ascii")

    @classmethod
    def decode(cls, text: str) -> TransactionPlace:
        """Return the place that an id names. Raises: Refused."""
        try:
            parts = base64.b64decode(text.encode("ascii"), b"-_", validate=True).decode().split(" ")
        except (binascii.Error, ValueError):
            parts = []
        if len(parts) != 5 or parts[0] != VERSION or not all(map(_is_number, parts[2:4])):
            raise Refused(
                Code.INVALID_TRANSACTION_ID,
                f"{text[:60]!r} is no transaction id; give back the one of the send's answer",
            )
        return cls(parts[1], int(parts[2]), int(parts[3]), parts[4])


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _NUMBER_DIGITS_MAX
