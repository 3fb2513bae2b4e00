"""Send copies of many messages: in order, at a rate, until the time limit or too many failures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import attrs

from triomq.client.admin.resend.copy_sender import CopySender, SentCopy
from triomq.client.admin.resend.message_copy import copy_to
from triomq.client.core.errors import TrioMQError
from triomq.remoting.protocol.record import StoredMessage

FAILURES_MAX = 3
"""copies in a row that fail before no more are sent"""
NO_ORIGIN = "it does not say to which topic it was sent first: name the topic of the copies"


@attrs.define
class SendRate:
    """An even rate: each message has a moment, and a missed moment is not made up for.

    The caller has the clock, and sleeps.
    """

    per_second: int | None
    """None: as fast as the brokers answer"""
    _next: float | None = None

    def delay(self, now: float) -> float:
        """Return the seconds to wait before the next message is sent; ``now``: seconds."""
        if self.per_second is None:
            return 0.0
        moment = now if self._next is None else max(now, self._next)
        self._next = moment + 1 / self.per_second
        return moment - now

    def seconds(self, count: int) -> float:
        """Return the shortest time in which ``count`` messages are sent."""
        return 0.0 if self.per_second is None else max(0, count - 1) / self.per_second


@attrs.define
class ResendOutcome:
    """What became of each message, in order."""

    sent: list[tuple[StoredMessage, str, SentCopy]] = attrs.field(factory=list)
    """message, topic of the copy, place of the copy"""
    failed: list[tuple[StoredMessage, str]] = attrs.field(factory=list)
    """message and reason"""
    left: Sequence[StoredMessage] = ()
    """messages that were not tried"""
    stopped: str = ""
    """why messages are left"""

    @property
    def go_on_ms(self) -> int | None:
        """Store time of the first message that was not tried."""
        return self.left[0].store_timestamp if self.left else None


@attrs.frozen(kw_only=True)
class Resending:
    """Sends copies; the clock and the sleep are the caller's."""

    sender: CopySender
    topic_of: Callable[[StoredMessage], str | None]
    """the topic of the copy; None: the message does not say"""
    group: str = ""
    """only this group gets the copies"""
    rate: SendRate
    clock: Callable[[], float]
    """seconds"""
    sleep: Callable[[float], Awaitable[None]]
    ends_at: float
    """on that clock: no message is tried later"""

    async def send(self, messages: Sequence[StoredMessage]) -> ResendOutcome:
        """Send a copy of each message. Checkpoint: maybe, not without messages."""
        outcome = ResendOutcome()
        in_row = 0
        for position, message in enumerate(messages):
            delay = self.rate.delay(self.clock())
            if self.clock() + delay >= self.ends_at:
                outcome.left, outcome.stopped = messages[position:], "the time limit was over"
                break
            if in_row >= FAILURES_MAX:
                reason = outcome.failed[-1][1]
                outcome.left = messages[position:]
                outcome.stopped = f"{FAILURES_MAX} in a row failed ({reason})"
                break
            if delay > 0:
                await self.sleep(delay)
            in_row = 0 if await self._send_copy(message, outcome) else in_row + 1
        return outcome

    async def _send_copy(self, message: StoredMessage, outcome: ResendOutcome) -> bool:
        topic = self.topic_of(message)
        if topic is None:
            outcome.failed.append((message, NO_ORIGIN))
            return True  # says nothing about the next message
        copy = copy_to(message, topic, self.group)
        try:
            place = await self.sender.send(copy)
        except TrioMQError as error:
            outcome.failed.append((message, str(error)))
            return False
        outcome.sent.append((message, copy.topic, place))
        return True
