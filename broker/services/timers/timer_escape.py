"""A task of a slave that acts for its master: it sends due timed messages to other masters.

Its log takes nothing but its master's, so nothing is stored here. A message that no master takes is
tried again, and those behind it wait. The master that starts again asks how far this went, and
leaves out what was delivered. Source: broker/failover/EscapeBridge.java.
"""

from __future__ import annotations

import logging
from typing import ClassVar

import attrs
import trio

from triomq.broker.services.remote_sender import RemoteSender, RemoteSendFailed, send_to_the_end
from triomq.broker.services.timers.timer_delivery import TimerDelivery
from triomq.remoting.protocol.message_properties import TIMER_DELETE_KEY, TIMER_OUT_MS
from triomq.remoting.protocol.record import StoredMessage

logger = logging.getLogger(__name__)


@attrs.define(eq=False)
class RemoteTimerDelivery(TimerDelivery):
    """Sends one message after the other, so that a failure repeats none."""

    sender: RemoteSender
    batch_messages: ClassVar[int] = 1

    async def run(self) -> None:
        """Run while the slave acts. Raises: StoreIoError."""
        self.timers.begin_acting()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.timers.run_open, name="timer-open")
                nursery.start_soon(self.deliver_all, name="timer-deliver")
        finally:
            self.timers.end_acting()

    async def store(self, plain: list[StoredMessage], rolled: list[StoredMessage]) -> bool:
        for message in rolled:
            # The other master gives it a slot of its own. A recall counts here already.
            message.properties.pop(TIMER_OUT_MS, None)
        for message in (*plain, *rolled):
            if TIMER_DELETE_KEY not in message.properties and not await self._send(message):
                return False
        self.timers.delivered += len(plain)
        return True

    async def _send(self, message: StoredMessage) -> bool:
        try:
            await send_to_the_end(self.sender, message)
        except RemoteSendFailed as error:
            self.timers.limit.warning(
                logger,
                "timed messages must wait until this group has its master again, or another master"
                " takes them: %s",
                error,
            )
            return False
        return True
