"""Queue locks of an ordered consumer: a broker lets one member of a group work on a queue at a time.

A lock is taken before a queue is pulled, renewed every `lock_interval`, and given up after the offset was stored; brokers forget one that was not
renewed for 60 s, and this side trusts one for `lock_life` only, so that two members never believe in the same lock.  A broker that restarts
has forgotten all locks: they are taken anew as soon as it is there again (the official client waits for its next renewal, up to 20 s).

Source: client/…/impl/consumer/RebalanceImpl.java#lock, #lockAll, ConsumeMessageOrderlyService.java; broker/…/RebalanceLockManager.java.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

import attrs
import trio

from triomq.client.config import ConsumerSettings
from triomq.client.consumer.assignment import Assignment
from triomq.client.errors import ProtocolBroken, RouteNotFound, TrioMQError
from triomq.client.session import Session
from triomq.client.trouble import TroubleLog
from triomq.remoting.errors import ProtocolError
from triomq.remoting.protocol.bodies.locks import LockRequest, LockResponse
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import request

logger = logging.getLogger(__name__)


@attrs.define(eq=False)
class QueueLocks:
    """Takes, renews and gives up locks; failures are logged and leave queues unlocked."""

    group: str
    session: Session
    settings: ConsumerSettings
    owned: Callable[[], Iterable[Assignment]]
    on_renewed: Callable[[MessageQueue], None]
    """a lock is good again"""
    on_lost: Callable[[MessageQueue], None]
    """another member has the lock"""
    _asked: set[MessageQueue] = attrs.field(factory=set, init=False)
    """queues whose locks we asked for and did not give up since: any of them may be ours"""
    _gaining: set[MessageQueue] = attrs.field(factory=set, init=False)
    """queues that are being gained just now"""
    _wanted: trio.Event = attrs.field(factory=trio.Event, init=False)
    _trouble: TroubleLog = attrs.field(factory=lambda: TroubleLog(logger), init=False)

    @asynccontextmanager
    async def gaining(self, queues: Iterable[MessageQueue]) -> AsyncIterator[dict[MessageQueue, float]]:
        """Lock these queues for a block that takes them; gives those that are ours now, each with the trio time until which we may trust it.

        What the block did not take is given up at its end.
        """
        wanted = set(queues)
        self._gaining |= wanted
        granted: dict[MessageQueue, float] = {}
        try:
            granted = await self._acquire(wanted)
            yield granted
        finally:  # if cancelled, `release_all` does it
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

        async with trio.open_nursery() as nursery:
            for broker_name, wanted in _by_broker(queues).items():
                nursery.start_soon(ask, broker_name, wanted)
        return granted

    async def release_all(self) -> None:
        """Give up every lock that may be ours, those included that a cancelled task asked for."""
        await self.release(list(self._asked))

    async def release(self, queues: Iterable[MessageQueue]) -> None:
        """Give locks up, so that the next member need not wait for their end."""
        async with trio.open_nursery() as nursery:
            for broker_name, mine in _by_broker(queues).items():
                nursery.start_soon(self._unlock, broker_name, mine)

    async def run(self) -> None:
        """Renew every `lock_interval`, and when asked to; after a failure, soon again."""
        while True:
            self._wanted = trio.Event()
            worked = await self.renew()
            with trio.move_on_after(self.settings.lock_interval if worked else self.settings.error_delay):
                await self._wanted.wait()

    def renew_soon(self) -> None:
        """Renew now: a broker came back, and has forgotten its locks if it was restarted.  Atomic: no checkpoint."""
        self._wanted.set()

    async def renew(self) -> bool:
        """Renew all locks; returns whether every broker answered."""
        results: list[bool] = []

        async def ask(broker_name: str, wanted: list[MessageQueue]) -> None:
            answer = await self._lock(broker_name, wanted)
            results.append(answer is not None)
            if answer is not None:
                await self.release(self._take_answer(wanted, *answer))

        async with trio.open_nursery() as nursery:
            for broker_name, wanted in _by_broker(assignment.queue for assignment in self.owned()).items():
                nursery.start_soon(ask, broker_name, wanted)
        return all(results)

    def _take_answer(
        self, wanted: Iterable[MessageQueue], held: frozenset[MessageQueue], until: float
    ) -> list[MessageQueue]:
        """Act on a renewal; returns queues that were locked once more although they were handed over meanwhile."""
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
                logger.warning("group %s: the lock of %s belongs to another member now", self.group, queue)
                self.on_lost(queue)
        return strays

    async def _lock(self, broker_name: str, queues: list[MessageQueue]) -> tuple[frozenset[MessageQueue], float] | None:
        """Ask one broker; None if it does not answer."""
        until = trio.current_time() + self.settings.lock_life
        self._asked.update(queues)
        what = f"locking queues of broker {broker_name}"
        try:
            body = await self._ask(RequestCode.LOCK_BATCH_MQ, broker_name, queues)
            try:
                held = LockResponse.decode(body).queues
            except ProtocolError as error:
                raise ProtocolBroken(f"broker {broker_name} sent an unreadable list of locks: {error}") from error
        except TrioMQError as error:
            self._trouble.failed(what, error)
            return None
        self._trouble.worked(what)
        return frozenset(held), until

    async def _unlock(self, broker_name: str, queues: list[MessageQueue]) -> None:
        self._asked.difference_update(queues)
        try:
            await self._ask(RequestCode.UNLOCK_BATCH_MQ, broker_name, queues)
        except TrioMQError as error:
            logger.debug("locks of broker %s end by themselves: %s", broker_name, error)
        except trio.Cancelled:
            self._asked.update(queues)  # perhaps they are still ours
            raise

    async def _ask(self, code: RequestCode, broker_name: str, queues: list[MessageQueue]) -> bytes:
        address = self.session.routes.master(broker_name)
        if address is None:
            topic = queues[0].topic
            raise RouteNotFound(topic, f"broker {broker_name} has no master now", offered=self.session.routes.topic(topic) is not None)
        body = LockRequest(consumer_group=self.group, client_id=self.session.client_id, queues=queues).encode()
        answer = await self.session.call(address, request(code, None, body), self.settings.lock_timeout)
        return bytes(answer.body)


def _by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    brokers: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        brokers.setdefault(queue.broker_name, []).append(queue)
    return brokers
