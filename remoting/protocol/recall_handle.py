"""The handle of a timed message, by which its sender can recall it.

URL-safe base64, with padding, of ``v1 <topic> <broker name> <time of delivery, ms> <message id>``,
with single spaces. Source: common/…/producer/RecallMessageHandle.java.
"""

import base64
import binascii
from typing import NamedTuple

from triomq.remoting.core.errors import RemoteProtocolError

VERSION = "v1"


class RecallHandle(NamedTuple):
    """What a handle names. Java's ``deliver_ms`` is one ms behind the slot of the message."""

    topic: str
    broker_name: str
    deliver_ms: int
    message_id: str

    def encode(self) -> str:
        text = f"{VERSION} {self.topic} {self.broker_name} {self.deliver_ms} {self.message_id}"
        return base64.urlsafe_b64encode(text.encode()).decode("ascii")

    @classmethod
    def decode(cls, text: str) -> "RecallHandle":
        """Return what a handle names. Raises: RemoteProtocolError."""
        try:
            parts = base64.b64decode(text.encode("ascii"), b"-_", validate=True).decode().split(" ")
        except (binascii.Error, ValueError) as error:
            raise _invalid(text) from error
        if len(parts) != 5 or parts[0] != VERSION:
            raise _invalid(text)
        _, topic, broker_name, time, message_id = parts
        if not (time.isascii() and time.isdecimal() and len(time) <= 19):
            raise _invalid(text)
        if not message_id or "\x01" in message_id or "\x02" in message_id:
            raise _invalid(text)  # as the value of a property it would recall nothing
        return cls(topic, broker_name, int(time), message_id)


def _invalid(text: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"{text[:40]!r} is no recall handle",
        "use the one of the answer to the send of a message with a time of delivery",
    )
