"""Renew the invisible time of messages that push consumers hold.

A push consumer of 5.x does not say how long it needs: the server hides its messages for a minute
and renews that as long as the client lives. A client gives back the handle that came with the
message; the newest one is here. Source: proxy/…/receipt/DefaultReceiptHandleManager.java,
common/RenewStrategyPolicy.java.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import attrs
import trio

from triomq.remoting.errors import RemotingError
from triomq.remoting.limits import Limits
from triomq.remoting.log_limit import LogLimit
from triomq.remoting.messaging.known_clients import KnownClient
from triomq.remoting.messaging.messaging_settings import MessagingSettings
from triomq.remoting.messaging.popped_messages import RETURN_MS, PoppedMessage

logger = logging.getLogger(__name__)

RENEWED_MS = tuple(60_000 * minutes for minutes in (1, 3, 5, 10, 30, 60))
"""Invisible times of the first renewals; the last one is that of all others."""
FAILURES_MAX = 3


@attrs.define(eq=False)
class HeldMessage:
    """A message that a client holds. ``message`` has the newest handle. Times: ms."""

    client: KnownClient
    message: PoppedMessage
    since_ms: int
    reconsume_times: int
    renewals: int = 0
    failures: int = 0
    renewing: trio.Event | None = None
    """Set when the renewal that is under way has ended."""

    @property
    def next_invisible_ms(self) -> int:
        return RENEWED_MS[min(self.renewals, len(RENEWED_MS) - 1)]


@attrs.define(eq=False)
class Renewals:
    """The held messages, and the task that renews their times.

    ``retry_delay``: when the message of a group comes again that was delivered so often (ms).
    """

    settings: MessagingSettings
    limits: Limits
    clock_ms: Callable[[], int]
    retry_delay: Callable[[str, int], Awaitable[int]]
    limit: LogLimit = attrs.field(factory=LogLimit, init=False)
    held: dict[tuple[str, str, str], HeldMessage] = attrs.field(factory=dict, init=False)
    """By client id, group, and the handle that the client has."""

    def add(self, client: KnownClient, message: PoppedMessage, reconsume_times: int) -> None:
        """Begin to renew. Above the limit the message comes again when its first time is over."""
        if len(self.held) >= self.limits.most("held_messages_max"):
            self.limits.note("held_messages_max")
            return
        key = client.client_id, message.group, message.handle.encode()
        self.held[key] = HeldMessage(client, message, self.clock_ms(), reconsume_times)

    async def take(self, client: KnownClient, message: PoppedMessage) -> PoppedMessage:
        """End the renewals of a message; return it with its newest handle. Checkpoint: maybe."""
        held = self.held.pop((client.client_id, message.group, message.handle.encode()), None)
        if held is None:
            return message
        if held.renewing is not None:
            await held.renewing.wait()
        return held.message

    def keep(self, client: KnownClient, given: PoppedMessage, newest: PoppedMessage) -> None:
        """Go on renewing a message whose settlement failed: its client tries again."""
        key = client.client_id, given.group, given.handle.encode()
        self.held[key] = HeldMessage(client, newest, self.clock_ms(), 0)

    async def release(self, client: KnownClient, group: str | None = None) -> None:
        """Give back what a client holds, of one group or of all: it is gone."""
        keys = [
            key
            for key, held in self.held.items()
            if held.client is client and group in (None, key[1])
        ]
        for key in keys:
            held = self.held.pop(key, None)
            if held is not None:
                await self._return(held, RETURN_MS)

    async def run(self) -> None:
        """Renew until cancelled."""
        while True:
            await trio.sleep(self.settings.renew_period_ms / 1000)
            await self.renew_due()

    async def renew_due(self) -> None:
        """Renew what ends soon; give up what is held for too long."""
        now = self.clock_ms()
        due = [
            (key, held)
            for key, held in self.held.items()
            if held.message.handle.visible_at - now <= self.settings.renew_ahead_ms
        ]
        for key, held in due:
            if self.held.get(key) is not held:
                continue  # settled while others were renewed
            if now - held.since_ms >= self.settings.renew_ms_max:
                del self.held[key]
                delay_ms = await self.retry_delay(held.message.group, held.reconsume_times)
                await self._return(held, max(1, delay_ms))
            elif not await self._renew(held):
                self.held.pop(key, None)

    async def _renew(self, held: HeldMessage) -> bool:
        """Renew once; return False when it failed too often."""
        held.renewing = trio.Event()
        try:
            held.message = await held.message.change_time(held.client.link, held.next_invisible_ms)
        except RemotingError as error:
            held.failures += 1
            self.limit.log(
                logger,
                logging.WARNING,
                "the invisible time of a message of %s that %s holds could not be renewed: %s",
                held.message.group,
                held.client.client_id,
                error,
            )
            return held.failures < FAILURES_MAX
        finally:
            held.renewing.set()
            held.renewing = None
        held.renewals += 1
        held.failures = 0
        return True

    async def _return(self, held: HeldMessage, invisible_ms: int) -> None:
        try:
            await held.message.change_time(held.client.link, invisible_ms)
        except RemotingError as error:
            logger.debug("a message is not given back: %s; its time ends by itself", error)
