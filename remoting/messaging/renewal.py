"""Renew the invisible time of messages that push consumers hold.

A push consumer of 5.x does not say how long it needs: the server hides its messages for a minute
and renews that as long as the client is heard. A client gives back the handle that came with the
message; the newest one is here. Source: proxy/…/receipt/DefaultReceiptHandleManager.java,
common/RenewStrategyPolicy.java.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable

import attrs
import trio

from triomq.remoting.core.errors import RemotingError, RequestTimeout
from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.messaging.known_clients import KnownClient
from triomq.remoting.messaging.messaging_settings import MessagingSettings
from triomq.remoting.messaging.popped_messages import RETURN_MS, PoppedMessage
from triomq.remoting.protocol.limits import Limits

logger = logging.getLogger(__name__)

RENEWED_MS = tuple(60_000 * minutes for minutes in (1, 3, 5, 10, 30, 60))
"""Invisible times of the first renewals; the last one is that of all others."""
FAILURES_MAX = 3
REQUESTS_MAX = 8
"""Requests to one broker at once."""

HoldingKey = tuple[str, str, str]
"""Client id, group, and the handle that the client has."""


@attrs.define(eq=False)
class HeldMessage:
    """A message that a client holds. ``message`` has the newest handle. Times: ms."""

    client: KnownClient
    message: PoppedMessage
    since_ms: int
    ends_ms: int
    """When it comes again unless it is renewed."""
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

    ``steady_ms``: a clock that does not jump, as the broker's of invisible times.
    ``retry_delay``: when the message of a group comes again that was delivered so often (ms).
    """

    settings: MessagingSettings
    limits: Limits
    steady_ms: Callable[[], int]
    retry_delay: Callable[[str, int], Awaitable[int]]
    limit: LogLimit = attrs.field(factory=LogLimit, init=False)
    held: dict[HoldingKey, HeldMessage] = attrs.field(factory=dict, init=False)
    under_way: int = attrs.field(default=0, init=False)
    """Renewals that wait for a broker: ``take`` may have to wait, too."""

    def add(self, client: KnownClient, message: PoppedMessage, reconsume_times: int) -> None:
        """Begin to renew. Above the limit the message comes again when its first time is over.

        So it does if the client ended while the message was on its way.
        """
        if client.gone:
            return
        if len(self.held) >= self.limits.most("held_messages_max"):
            self.limits.note("held_messages_max")
            return
        key = client.client_id, message.group, message.handle.encode()
        now = self.steady_ms()
        ends_ms = now + message.handle.invisible_ms
        self.held[key] = HeldMessage(client, message, now, ends_ms, reconsume_times)

    async def take(self, client: KnownClient, message: PoppedMessage) -> PoppedMessage:
        """End the renewals of a message; return it with its newest handle. Checkpoint: maybe."""
        held = self._pop(client, message)
        if held is not None and held.renewing is not None:
            await held.renewing.wait()
        return message if held is None else held.message

    def take_nowait(self, client: KnownClient, message: PoppedMessage) -> PoppedMessage:
        """Do the same while no renewal is ``under_way``. Checkpoint: never."""
        held = self._pop(client, message)
        return message if held is None else held.message

    def _pop(self, client: KnownClient, message: PoppedMessage) -> HeldMessage | None:
        if not self.held:
            return None
        return self.held.pop((client.client_id, message.group, message.handle.encode()), None)

    def keep(self, client: KnownClient, given: PoppedMessage, newest: PoppedMessage) -> None:
        """Go on renewing a message whose settlement failed, soon: its client tries again."""
        if client.gone:
            return
        key = client.client_id, given.group, given.handle.encode()
        now = self.steady_ms()
        self.held[key] = HeldMessage(client, newest, now, now, 0)

    async def release(self, client: KnownClient) -> None:
        """Give back what a client holds: it is gone."""
        mine = [(key, held) for key, held in self.held.items() if held.client is client]
        await self._at_brokers(mine, self._give_back)
        for key, held in mine:
            self._drop(key, held)

    async def renew_due(self) -> None:
        """Renew what ends soon; give up what is held for too long.

        What a client holds that is not heard any more is not renewed: it comes again at the end of
        its time, or a little after the client is forgotten.
        """
        now, seen_now = self.steady_ms(), trio.current_time()
        soon = [
            (key, held)
            for key, held in self.held.items()
            if held.ends_ms - now <= self.settings.renew_ahead_ms
        ]
        due = []
        for key, held in soon:
            if held.client.lives(seen_now):
                due.append((key, held))
            elif held.ends_ms <= now:
                self._drop(key, held)
        await self._at_brokers(due, self._renew_or_give_up)

    async def _at_brokers(
        self,
        entries: Iterable[tuple[HoldingKey, HeldMessage]],
        ask: Callable[[HoldingKey, HeldMessage], Awaitable[None]],
    ) -> None:
        """Ask the brokers about messages, side by side: a silent one keeps no other waiting."""
        by_broker: dict[str, deque[tuple[HoldingKey, HeldMessage]]] = {}
        for key, held in entries:
            by_broker.setdefault(held.message.handle.broker_name, deque()).append((key, held))
        async with trio.open_nursery() as nursery:
            for waiting in by_broker.values():
                for _ in range(min(len(waiting), REQUESTS_MAX)):
                    nursery.start_soon(self._ask_broker, waiting, ask)

    async def _ask_broker(
        self,
        waiting: deque[tuple[HoldingKey, HeldMessage]],
        ask: Callable[[HoldingKey, HeldMessage], Awaitable[None]],
    ) -> None:
        """Ask one broker about what waits; after a time-out, the rest waits for the next round."""
        while waiting:
            key, held = waiting.popleft()
            if self.held.get(key) is not held:
                continue  # settled meanwhile
            try:
                await ask(key, held)
            except RequestTimeout:
                waiting.clear()
            except RemotingError as error:
                logger.debug("a message is not given back: %s; its time ends by itself", error)

    async def _renew_or_give_up(self, key: HoldingKey, held: HeldMessage) -> None:
        """Renew once, unless it is held for too long. Raises: RemotingError."""
        if self.steady_ms() - held.since_ms < self.settings.renew_ms_max:
            await self._renew(key, held)
            return
        del self.held[key]
        delay_ms = await self.retry_delay(held.message.group, held.reconsume_times)
        await held.message.change_time(held.client.link, max(1, delay_ms))

    async def _renew(self, key: HoldingKey, held: HeldMessage) -> None:
        """Renew once; end it when that failed too often. Raises: RequestTimeout."""
        held.renewing = trio.Event()
        self.under_way += 1
        now, invisible_ms = self.steady_ms(), held.next_invisible_ms
        try:
            held.message = await held.message.change_time(held.client.link, invisible_ms)
            held.ends_ms = now + invisible_ms
        except RemotingError as error:
            held.failures += 1
            self.limit.warning(
                logger,
                "the invisible time of a message of %s that %s holds could not be renewed: %s",
                held.message.group,
                held.client.client_id,
                error,
            )
            if held.failures >= FAILURES_MAX:
                self._drop(key, held)
            if isinstance(error, RequestTimeout):
                raise
            return
        finally:
            self.under_way -= 1
            held.renewing.set()
            held.renewing = None
        held.renewals += 1
        held.failures = 0

    async def _give_back(self, key: HoldingKey, held: HeldMessage) -> None:
        """Make a message visible soon. Raises: RemotingError."""
        del self.held[key]
        if held.renewing is not None:
            await held.renewing.wait()
        await held.message.change_time(held.client.link, RETURN_MS)

    def _drop(self, key: HoldingKey, held: HeldMessage) -> None:
        if self.held.get(key) is held:
            del self.held[key]
