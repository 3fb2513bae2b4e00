"""Positions: what a group has consumed (14, 15), and where a queue begins and ends (29, 30, 31, 32).

Source: broker/processor/ConsumerManageProcessor.java, AdminBrokerProcessor.java.
"""

from __future__ import annotations

from collections.abc import Awaitable

import attrs

from triomq.broker.services.delay import DelayedMessages
from triomq.broker.services.offsets import ConsumerOffsets
from triomq.broker.services.subscriptions import SubscriptionGroups
from triomq.broker.services.topics import Topics
from triomq.broker.store.store import MessageStore
from triomq.remoting.errors import Rejected
from triomq.remoting.protocol.bodies.offsets import ConsumerOffsetTable, DelayOffsetTable
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.offset import (
    GetEarliestStoreTimeHeader,
    GetMaxOffsetHeader,
    GetMinOffsetHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetHeader,
    QueryConsumerOffsetResponseHeader,
    SearchOffsetHeader,
    StoreTimeResponseHeader,
    UpdateConsumerOffsetHeader,
)
from triomq.remoting.server.handlers import Request, Response

EMPTY_EXT: dict[str, str] = {}


@attrs.define(eq=False)
class GroupOffsets:
    """The committed offsets of consumer groups."""

    store: MessageStore
    topics: Topics
    groups: SubscriptionGroups
    offsets: ConsumerOffsets
    delayed: DelayedMessages

    def query(self, request: Request) -> Response:
        """QUERY_CONSUMER_OFFSET.

        A group that never committed begins at 0 while the queue still has its first message and that message is young enough to count as
        in memory.  In a queue that is empty it begins at the end: whatever its client would decide is that offset too, but a message stored
        between this request and the client's next one would be skipped.  Otherwise it is told that nothing is known (22), and its client
        decides.
        """
        header: QueryConsumerOffsetHeader = request.header
        offset = self.offsets.committed_offset(header.consumer_group, header.topic, header.queue_id)
        if offset is not None and offset >= 0:
            return Response(header=QueryConsumerOffsetResponseHeader(offset))
        if header.set_zero_if_not_found is False:
            remark = "Not found, do not set to zero, maybe this group boot first"
            return Response(ResponseCode.QUERY_NOT_FOUND, remark=remark, ext=EMPTY_EXT)
        low = self.store.min_offset(header.topic, header.queue_id)
        if low <= 0 and self._begins_in_memory(header):
            return Response(header=QueryConsumerOffsetResponseHeader(0))
        if low > 0 and low >= self.store.max_offset(header.topic, header.queue_id):
            return Response(header=QueryConsumerOffsetResponseHeader(low))
        remark = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
        return Response(ResponseCode.QUERY_NOT_FOUND, remark=remark, ext=EMPTY_EXT)

    def _begins_in_memory(self, header: QueryConsumerOffsetHeader) -> bool:
        """Is the queue's first message (or the empty queue) not farther behind the end of the log than memory reaches?"""
        first = self.store.get(header.topic, header.queue_id, 0, messages_max=1, bytes_max=0)
        return first is not None and not first.far_behind

    def update(self, request: Request) -> Response:
        """UPDATE_CONSUMER_OFFSET: any value is stored, also a smaller one; but not from a consumer that does not know yet that it was reset.

        The queue must be one of the topic's, or have an offset already: queues that a topic had before it shrank.

        Raises: Rejected, LimitReached.
        """
        header: UpdateConsumerOffsetHeader = request.header
        if self.groups.find_or_create(header.consumer_group) is None:
            raise Rejected(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.consumer_group} not exist!")
        topic = self.topics.find(header.topic)
        if topic is None:
            raise Rejected(ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} not exist!")
        count = max(topic.read_queue_count, topic.write_queue_count)
        if not 0 <= header.queue_id < count and self.offsets.committed_offset(header.consumer_group, header.topic, header.queue_id) is None:
            remark = f"queue {header.queue_id} of topic {header.topic} does not exist, it has {count} queues: commit offsets of queues that the route names"
            raise Rejected(ResponseCode.INVALID_PARAMETER, remark)
        self.offsets.require_room(header.consumer_group, header.topic, header.queue_id)
        if self.offsets.pending_reset(header.consumer_group, header.topic, header.queue_id) is not None:
            return Response(remark="Offset has been previously reset")
        self.offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        return Response()

    def all(self, request: Request) -> Response:
        """GET_ALL_CONSUMER_OFFSET: the whole table."""
        rows = {
            f"{topic}@{group}": dict(queues)
            for group, topics in self.offsets.committed.items()
            for topic, queues in topics.items()
        }
        return Response(body=ConsumerOffsetTable(rows, self.offsets.version.current).encode(bare_keys=True))

    def all_delays(self, request: Request) -> Response:
        """GET_ALL_DELAY_OFFSET: how far the delivery of delayed messages has come."""
        table = DelayOffsetTable(dict(self.delayed.offsets), self.delayed.version.current)
        return Response(body=table.encode(bare_keys=True))


@attrs.define(eq=False)
class QueueOffsets:
    """Where queues begin and end.  Unknown topics and queues are empty ones, as in Java."""

    store: MessageStore

    def max_offset(self, request: Request) -> Response:
        header: GetMaxOffsetHeader = request.header
        return Response(header=OffsetResponseHeader(self.store.max_offset(header.topic, header.queue_id)))

    def min_offset(self, request: Request) -> Response:
        header: GetMinOffsetHeader = request.header
        return Response(header=OffsetResponseHeader(self.store.min_offset(header.topic, header.queue_id)))

    def search(self, request: Request) -> Response | Awaitable[Response]:
        header: SearchOffsetHeader = request.header
        upper = (header.boundary_type or "").upper() == "UPPER"
        offset = self.store.offset_by_time(header.topic, header.queue_id, header.timestamp, upper=upper)
        if offset is None:
            return self._search_cold(header, upper)
        return Response(header=OffsetResponseHeader(offset))

    async def _search_cold(self, header: SearchOffsetHeader, upper: bool) -> Response:
        offset = await self.store.offset_by_time_cold(header.topic, header.queue_id, header.timestamp, upper=upper)
        return Response(header=OffsetResponseHeader(offset))

    def earliest_store_time(self, request: Request) -> Response | Awaitable[Response]:
        header: GetEarliestStoreTimeHeader = request.header
        timestamp = self.store.earliest_store_time(header.topic, header.queue_id)
        if timestamp is None:
            return self._earliest_store_time_cold(header)
        return Response(header=StoreTimeResponseHeader(timestamp))

    async def _earliest_store_time_cold(self, header: GetEarliestStoreTimeHeader) -> Response:
        timestamp = await self.store.earliest_store_time_cold(header.topic, header.queue_id)
        return Response(header=StoreTimeResponseHeader(timestamp))
