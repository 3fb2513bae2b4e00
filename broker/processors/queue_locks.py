"""Queue locks of orderly consumers: LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42).

Source: broker/processor/AdminBrokerProcessor.java#lockBatchMQ, #unlockBatchMQ.
"""

from __future__ import annotations

import attrs
import trio

from triomq.broker.services.queue_locks import QueueLocks
from triomq.remoting.protocol.bodies.locks import LockRequest, LockResponse
from triomq.remoting.server.requests import Request, Response


@attrs.define(eq=False)
class QueueLockRequests:
    """The handlers."""

    locks: QueueLocks

    def lock(self, request: Request, asked: LockRequest) -> Response:
        """Lock queues or renew their locks; return the queues that the client now holds."""
        held = self.locks.lock(
            asked.consumer_group, asked.client_id, asked.queues, trio.current_time()
        )
        return Response(body=LockResponse(held).encode())

    def unlock(self, request: Request, asked: LockRequest) -> Response:
        """Release the client's locks of these queues."""
        self.locks.unlock(asked.consumer_group, asked.client_id, asked.queues)
        return Response()
