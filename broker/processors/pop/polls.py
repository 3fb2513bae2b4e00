"""NOTIFICATION (200054), PEEK_MESSAGE (200052) and POLLING_INFO (200055): look, take nothing.

Source: broker/processor/NotificationProcessor.java, PeekMessageProcessor.java,
PollingInfoProcessor.java.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator

import attrs
import trio

from triomq.broker.processors.pop.pop_checks import PopChecks
from triomq.broker.services.pop.held_pops import HeldPop, HeldPops
from triomq.broker.services.pop.pops import Pops
from triomq.broker.store.core.results import GetStatus
from triomq.broker.store.store import MessageStore
from triomq.remoting.protocol.bodies.topics import TopicConfig
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.pop import (
    NotificationHeader,
    NotificationResponseHeader,
    PeekMessageHeader,
    PollingCountHeader,
    PollingCountResponseHeader,
    PopMessageResponseHeader,
)
from triomq.remoting.protocol.names import pop_retry_topics
from triomq.remoting.server.requests import Deferred, Request, Response, Result
from triomq.remoting.server.turns import ROWS_AT_ONCE

BYTES_MAX = 256 * 1024


@attrs.define(eq=False)
class Polls:
    """The handlers."""

    store: MessageStore
    checks: PopChecks
    held: HeldPops

    def notify(self, request: Request) -> Result | Awaitable[Result]:
        """Say whether there are messages to pop; wait for some. Raises: Rejected, LimitReached.

        Filters do not count, as in Java. Checkpoint: never; a returned awaitable has some.
        """
        header: NotificationHeader = request.header
        pops = self.checks.state()
        self.checks.count(1)
        topic = self.checks.topic(header.topic, header.queue_id, header.consumer_group)
        queues = self._queues(header.consumer_group, topic, header.queue_id)
        found = self._has_message(pops, header.consumer_group, queues)
        if found is None:
            return self._notify_in_turns(request, pops, queues)
        return self._notified(request, found)

    async def _notify_in_turns(
        self, request: Request, pops: Pops, queues: Iterator[tuple[str, int]]
    ) -> Result:
        header: NotificationHeader = request.header
        watch, found = self.held.watch(header, request.connection), None
        try:
            while found is None:
                await trio.lowlevel.checkpoint()
                found = self._has_message(pops, header.consumer_group, queues)
        finally:
            woken = self.held.end_watch(watch)
        return self._notified(request, found or woken)

    def _notified(self, request: Request, found: bool) -> Result:
        """Answer, or let the request wait. Checkpoint: never."""
        header: NotificationHeader = request.header
        if found:
            return Response(header=NotificationResponseHeader(True, False))
        left = request.wait_seconds(header.poll_ms / 1000)
        if left <= 0:
            return Response(header=NotificationResponseHeader(False, False))
        old, new = pop_retry_topics(header.consumer_group, header.topic)
        pop = HeldPop(
            header.consumer_group,
            (header.topic, old, new),
            header.queue_id,
            trio.current_time() + left,
            request.connection,
            request.resubmit,
        )
        if not self.held.hold(pop):
            return Response(header=NotificationResponseHeader(False, True))
        return Deferred((request,))

    def _has_message(
        self, pops: Pops, group: str, queues: Iterator[tuple[str, int]]
    ) -> bool | None:
        """Look into some queues; return None if the turn ends before all. Checkpoint: never."""
        for count, (name, queue_id) in enumerate(queues, 1):
            if self.store.max_offset(name, queue_id) > self._position(pops, group, name, queue_id):
                return True
            if count == ROWS_AT_ONCE:
                return None
        return False

    def _queues(self, group: str, topic: TopicConfig, queue_id: int) -> Iterator[tuple[str, int]]:
        for each in range(topic.read_queue_count) if queue_id < 0 else (queue_id,):
            yield topic.topic_name, each
        for name in pop_retry_topics(group, topic.topic_name):
            retry = self.checks.topics.find(name)
            for each in range(retry.read_queue_count if retry is not None else 0):
                yield name, each

    def _position(self, pops: Pops, group: str, topic: str, queue_id: int) -> int:
        position = pops.position((group, topic, queue_id))
        return position if position is not None else self.store.min_offset(topic, queue_id)

    async def peek(self, request: Request) -> Response:
        """Return messages that a pop would take. Raises: Rejected, LimitReached, StoreIoError.

        Checkpoint: maybe.
        """
        header: PeekMessageHeader = request.header
        pops = self.checks.state()
        self.checks.count(header.message_count_max)
        topic = self.checks.topic(header.topic, header.queue_id, header.consumer_group)
        chunks: list[bytes] = []
        count = rest = 0
        for name, queue_id in self._queues(header.consumer_group, topic, header.queue_id):
            found = await self.store.get_cold(
                name,
                queue_id,
                self._position(pops, header.consumer_group, name, queue_id),
                messages_max=header.message_count_max - count,
                bytes_max=BYTES_MAX,
            )
            rest += max(0, found.max_offset - found.next_offset)
            if found.status is GetStatus.FOUND:
                chunks += [bytes(chunk) for chunk in found.chunks]
                count += found.count
            if count >= header.message_count_max:
                break
        made = PopMessageResponseHeader(pops.clock_ms(), 0, 0, rest)
        if not count:
            remark = GetStatus.NO_MESSAGE_IN_QUEUE.name
            return Response(ResponseCode.PULL_NOT_FOUND, made, remark=remark)
        return Response(ResponseCode.SUCCESS, made, chunks, GetStatus.FOUND.name)

    def count(self, request: Request) -> Response:
        """Say how many requests of a group wait for a topic. Raises: Rejected, LimitReached.

        Checkpoint: never.
        """
        header: PollingCountHeader = request.header
        self.checks.count(1)
        self.checks.topic(header.topic, header.queue_id, header.consumer_group)
        waiting = self.held.waiting(header.consumer_group, header.topic)
        return Response(header=PollingCountResponseHeader(waiting))
