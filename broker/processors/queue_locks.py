"""Queue locks of orderly consumers: LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42).

Source: broker/processor/AdminBrokerProcessor.java#lockBatchMQ, #unlockBatchMQ.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator

import attrs
import trio

from triomq.broker.services.queue_locks import QueueLocks
from triomq.remoting.protocol.bodies.locks import LockRequest, LockResponse
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.server.requests import Request, Response
from triomq.remoting.server.turns import ROWS_AT_ONCE, encoded


@attrs.define(eq=False)
class QueueLockRequests:
    """The handlers."""

    locks: QueueLocks

    def lock(self, request: Request, asked: LockRequest) -> Response | Awaitable[Response]:
        """Lock queues or renew their locks; return the queues that the client now holds."""
        if len(asked.queues) > ROWS_AT_ONCE:
            return self._lock_in_turns(asked)
        held = self.locks.lock(
            asked.consumer_group, asked.client_id, asked.queues, trio.current_time()
        )
        return Response(body=LockResponse(held).encode())

    async def _lock_in_turns(self, asked: LockRequest) -> Response:
        """Lock many queues; lock none if the table has no room for all. Raises: LimitReached."""
        new = 0
        for part in parts(asked.queues):
            new += self.locks.new(asked.consumer_group, part)
            await trio.lowlevel.checkpoint()
        self.locks.require_room(asked.consumer_group, new)
        held: list[MessageQueue] = []
        for part in parts(asked.queues):
            now = trio.current_time()
            held += self.locks.lock(asked.consumer_group, asked.client_id, part, now)
            await trio.lowlevel.checkpoint()
        return Response(body=await encoded(LockResponse(held), len(held)))

    def unlock(self, request: Request, asked: LockRequest) -> Response | Awaitable[Response]:
        """Release the client's locks of these queues."""
        if len(asked.queues) > ROWS_AT_ONCE:
            return self._unlock_in_turns(asked)
        self.locks.unlock(asked.consumer_group, asked.client_id, asked.queues)
        return Response()

    async def _unlock_in_turns(self, asked: LockRequest) -> Response:
        for part in parts(asked.queues):
            self.locks.unlock(asked.consumer_group, asked.client_id, part)
            await trio.lowlevel.checkpoint()
        return Response()


def parts(queues: list[MessageQueue]) -> Iterator[list[MessageQueue]]:
    """Yield as many queues at once as a turn has."""
    for first in range(0, len(queues), ROWS_AT_ONCE):
        yield queues[first : first + ROWS_AT_ONCE]
