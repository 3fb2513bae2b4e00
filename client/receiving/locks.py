"""Queue locks of an ordered consumer: one member of a group works on a queue at a time.

A lock is taken before a queue is pulled, renewed every ``lock_interval``, and released after the
offset was stored. Brokers drop a lock that was not renewed for 60 s; this side trusts it for
``lock_life`` only, so two members never trust the same lock. A broker that restarts has lost all
locks: they are taken anew as soon as it is back (the official client waits for its next renewal, up
to 20 s). While a broker cannot be reached, renewals are repeated every ``error_delay``, and
requests for queues to be gained every ``lock_retry``; no request waits for its broker.

Source: client/…/impl/consumer/RebalanceImpl.java#lock, #lockAll, ConsumeMessageOrderlyService.java;
broker/…/RebalanceLockManager.java.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager

import attrs
import trio

from triomq.client.core.config import ConsumerSettings
from triomq.client.core.errors import ProtocolBroken, TrioMQError
from triomq.client.core.failure_log import FailureLog
from triomq.client.core.session import Session
from triomq.client.receiving.assignment import Assignment
from triomq.remoting.core.errors import ProtocolError
from triomq.remoting.protocol.bodies.locks import LockRequest, LockResponse
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import request

logger = logging.getLogger(__name__)


@attrs.define(eq=False)
class QueueLocks:
    """Takes, renews and releases locks; failures are logged and leave queues unlocked."""

    group: str
    session: Session
    settings: ConsumerSettings
    owned: Callable[[], Iterable[Assignment]]
    on_renewed: Callable[[MessageQueue], None]
    """called when a lock was renewed"""
    on_lost: Callable[[MessageQueue], None]
    """called when another member has the lock"""
    _asked: set[MessageQueue] = attrs.field(factory=set, init=False)
    """queues whose locks were requested and not released since: any of them may be held"""
    _gaining: set[MessageQueue] = attrs.field(factory=set, init=False)
    """queues that are being gained now"""
    _wanted: trio.Event = attrs.field(factory=trio.Event, init=False)
    _failures: FailureLog = attrs.field(factory=lambda: FailureLog(logger), init=False)

    @asynccontextmanager
    async def gaining(
        self, queues: Iterable[MessageQueue]
    ) -> AsyncIterator[dict[MessageQueue, float]]:
        """Lock queues for a block that takes them; release those that it did not take.

        The block gets the queues that are locked, each with the trio time until which the lock may
        be trusted.
        """
        wanted = set(queues)
        self._gaining |= wanted
        granted: dict[MessageQueue, float] = {}
        try:
            granted = await self._acquire(wanted)
            yield granted
        finally:  # after a cancellation `release_all` does the rest
            self._gaining -= wanted
            owned = {assignment.queue for assignment in self.owned()}
            await self.release(granted.keys() - owned)

    async def _acquire(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, float]:
        granted: dict[MessageQueue, float] = {}

        async def ask(broker_name: str, wanted: list[MessageQueue]) -> None:
            answer = await self._lock(broker_name, wanted)
            if answer is not None:
                held, until = answer
                granted.update((queue, until) for queue in wanted if queue in held)

        await _by_broker(ask, queues)
        return granted

    async def release_all(self) -> None:
        """Release every lock that may be held, including those requested by a cancelled task."""
        await self.release(list(self._asked))

    async def release(self, queues: Iterable[MessageQueue]) -> None:
        """Release locks, so that the next member need not wait until they expire."""
        await _by_broker(self._unlock, queues)

    async def renew_when_due(self) -> None:
        """Renew all locks every ``lock_interval``, when asked to, and soon after a failure."""
        while True:
            self._wanted = trio.Event()
            worked = await self.renew()
            with trio.move_on_after(
                self.settings.lock_interval if worked else self.settings.error_delay
            ):
                await self._wanted.wait()

    def renew_soon(self) -> None:
        """Renew the locks now: a broker came back, and lost its locks if it was restarted."""
        self._wanted.set()

    async def renew(self) -> bool:
        """Renew all locks; return whether every broker answered."""
        results: list[bool] = []

        async def ask(broker_name: str, wanted: list[MessageQueue]) -> None:
            answer = await self._lock(broker_name, wanted)
            results.append(answer is not None)
            if answer is not None:
                await self.release(self._take_answer(wanted, *answer))

        await _by_broker(ask, (assignment.queue for assignment in self.owned()))
        return all(results)

    def _take_answer(
        self, wanted: Iterable[MessageQueue], held: frozenset[MessageQueue], until: float
    ) -> list[MessageQueue]:
        """Act on a renewal; return queues that were locked again after they were handed over."""
        mine = {assignment.queue: assignment for assignment in self.owned()}
        strays: list[MessageQueue] = []
        for queue in wanted:
            if queue not in mine:
                if queue in held and queue not in self._gaining:
                    strays.append(queue)
            elif queue in held:
                mine[queue].locked_until = until
                self.on_renewed(queue)
            else:
                logger.warning(
                    "group %s: the lock of %s belongs to another member now", self.group, queue
                )
                self.on_lost(queue)
        return strays

    async def _lock(
        self, broker_name: str, queues: list[MessageQueue]
    ) -> tuple[frozenset[MessageQueue], float] | None:
        """Ask one broker for locks; return None if it does not answer.

        Returns: the queues that it locked, and the trio time until which they may be trusted.
        """
        until = trio.current_time() + self.settings.lock_life
        self._asked.update(queues)
        what = f"locking queues of broker {broker_name}"
        try:
            body = await self._ask(RequestCode.LOCK_BATCH_MQ, queues)
            try:
                held = LockResponse.decode(body).queues
            except ProtocolError as error:
                raise ProtocolBroken(
                    f"broker {broker_name} sent an unreadable list of locks: {error}"
                ) from error
        except TrioMQError as error:
            self._failures.failed(what, error)
            return None
        self._failures.worked(what)
        return frozenset(held), until

    async def _unlock(self, broker_name: str, queues: list[MessageQueue]) -> None:
        self._asked.difference_update(queues)
        try:
            await self._ask(RequestCode.UNLOCK_BATCH_MQ, queues)
        except TrioMQError as error:
            logger.debug("locks on broker %s are left to expire: %s", broker_name, error)
        except trio.Cancelled:
            self._asked.update(queues)  # they may still be locked
            raise

    async def _ask(self, code: RequestCode, queues: list[MessageQueue]) -> bytes:
        """Ask the master of the queues, which are all of one broker."""
        address = self.session.master_address(queues[0])
        body = LockRequest(
            consumer_group=self.group, client_id=self.session.client_id, queues=queues
        ).encode()
        answer = await self.session.call(
            address, request(code, None, body), self.settings.lock_timeout
        )
        return bytes(answer.body)


async def _by_broker(
    ask: Callable[[str, list[MessageQueue]], Awaitable[None]], queues: Iterable[MessageQueue]
) -> None:
    """Ask all brokers at the same time, each about its own queues."""
    brokers: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        brokers.setdefault(queue.broker_name, []).append(queue)
    async with trio.open_nursery() as nursery:
        for broker_name, its_queues in brokers.items():
            nursery.start_soon(ask, broker_name, its_queues)
