"""``AckQueue``: acknowledges handled messages in the background, those of a broker together.

A failed request is repeated while the invisible time lasts; a message whose time is over comes
again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

import attrs
import trio

from triomq.client.core.errors import MessageGone, RequestNotSupported, TrioMQError
from triomq.client.core.failure_log import FailureLog
from triomq.client.receiving.pop.hold import Hold
from triomq.client.receiving.pop.pop_calls import PopCalls

logger = logging.getLogger(__name__)

TOGETHER_MAX = 256
"""Messages of one request."""


@attrs.define(eq=False)
class AckQueue:
    """Messages that are handled, and whose broker does not know it yet."""

    calls: PopCalls
    retry_seconds: float
    release: Callable[[Hold], None]
    """called when a message needs no more work here"""
    _waiting: dict[str, deque[Hold]] = attrs.field(factory=dict, init=False)
    """broker name → holds; a broker is listed while its task runs"""
    _singly: set[str] = attrs.field(factory=set, init=False)
    """brokers of releases without BATCH_ACK_MESSAGE (before 5.1)"""
    _failures: FailureLog = attrs.field(factory=lambda: FailureLog(logger), init=False)

    def put(self, hold: Hold) -> None:
        """Acknowledge a message soon. Checkpoint: never."""
        broker = hold.lease.handle.broker_name
        waiting = self._waiting.get(broker)
        if waiting is None:
            waiting = self._waiting[broker] = deque()
            self.calls.start_soon(self._send, broker, waiting)
        waiting.append(hold)

    async def _send(self, broker: str, waiting: deque[Hold]) -> None:
        while waiting:
            count = 1 if broker in self._singly else TOGETHER_MAX
            holds = [waiting.popleft() for _ in range(min(count, len(waiting)))]
            now = trio.current_time()
            for hold in [hold for hold in holds if hold.lease.ends <= now]:
                logger.warning(
                    "message %s of %s was handled, but its broker could not be told within the"
                    " invisible time: it comes again",
                    hold.message_id,
                    hold.lease.topic,
                )
                holds.remove(hold)
                self.release(hold)
            if holds and not await self._acknowledge(broker, holds):
                waiting.extendleft(reversed(holds))
        del self._waiting[broker]

    async def _acknowledge(self, broker: str, holds: list[Hold]) -> bool:
        """Acknowledge messages; return False, after a pause, if it is to be repeated."""
        what = f"acknowledging messages of broker {broker}"
        try:
            await self.calls.requests.acknowledge_all([hold.lease for hold in holds])
        except MessageGone as error:
            logger.warning("a handled message of broker %s comes again: %s", broker, error)
        except TrioMQError as error:
            if isinstance(error, RequestNotSupported) and len(holds) > 1:
                self._singly.add(broker)
                return False
            self._failures.failed(what, error)
            await trio.sleep(self.retry_seconds)
            return False
        else:
            self._failures.worked(what)
        for hold in holds:
            self.release(hold)
        return True
