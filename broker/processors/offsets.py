"""Requests about offsets: what a group has consumed, and where a queue begins and ends.

``services/offsets.py`` keeps the offsets of groups. Codes: QUERY_CONSUMER_OFFSET (14),
UPDATE_CONSUMER_OFFSET (15), GET_ALL_CONSUMER_OFFSET (43), GET_ALL_DELAY_OFFSET (45),
SEARCH_OFFSET_BY_TIMESTAMP (29), GET_MAX_OFFSET (30), GET_MIN_OFFSET (31),
GET_EARLIEST_MSG_STORETIME (32). Source: broker/processor/ConsumerManageProcessor.java,
AdminBrokerProcessor.java.
"""

from __future__ import annotations

import attrs

from triomq.broker.roles.set_tables import SetTables
from triomq.broker.services.delay import DelayedMessages
from triomq.broker.services.offsets import ConsumerOffsets, by_row
from triomq.broker.services.statistics import Statistics
from triomq.broker.services.subscriptions import SubscriptionGroups
from triomq.broker.services.topics import Topics
from triomq.broker.store.store import MessageStore
from triomq.remoting.core.errors import Rejected
from triomq.remoting.protocol.bodies.offsets import (
    ConsumerOffsetTable,
    DelayOffsetTable,
    MovedOffsetTable,
)
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.offset import (
    GetMaxOffsetHeader,
    GetMinOffsetHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetHeader,
    SearchOffsetHeader,
    StoreTimeResponseHeader,
    UpdateConsumerOffsetHeader,
)
from triomq.remoting.server.requests import Deferred, Request, Response
from triomq.remoting.server.turns import Turns, encoded, in_turns

EMPTY_EXT: dict[str, str] = {}


@attrs.define(eq=False)
class GroupOffsetRequests:
    """The committed offsets of consumer groups."""

    store: MessageStore
    topics: Topics
    groups: SubscriptionGroups
    offsets: ConsumerOffsets
    delayed: DelayedMessages
    statistics: Statistics
    tables: SetTables | None = None
    """On a master in controller mode."""

    async def query(self, request: Request) -> Response:
        """Return the offset at which a group goes on in a queue.

        A group that never committed begins at 0 while the queue still has its first message and
        that message is young enough to count as in memory. In an empty queue the group begins at
        the end: its client would choose that offset too, but would skip a message that is stored
        before the client's next request. Otherwise the answer is QUERY_NOT_FOUND (22), and the
        client decides.

        Checkpoint: maybe, if the disk must be read.
        """
        header: QueryConsumerOffsetHeader = request.header
        offset = self.offsets.committed_offset(header.consumer_group, header.topic, header.queue_id)
        if offset is not None and offset >= 0:
            return Response(header=OffsetResponseHeader(offset))
        if header.set_zero_if_not_found is False:
            remark = "Not found, do not set to zero, maybe this group boot first"
            return Response(ResponseCode.QUERY_NOT_FOUND, remark=remark, ext=EMPTY_EXT)
        low = self.store.min_offset(header.topic, header.queue_id)
        if low <= 0:
            near = self.store.begins_near(header.topic, header.queue_id)
            if near is None:
                near = await self.store.begins_near_cold(header.topic, header.queue_id)
            if near:
                return Response(header=OffsetResponseHeader(0))
        if low > 0 and low >= self.store.max_offset(header.topic, header.queue_id):
            return Response(header=OffsetResponseHeader(low))
        remark = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
        return Response(ResponseCode.QUERY_NOT_FOUND, remark=remark, ext=EMPTY_EXT)

    def update(self, request: Request) -> Response | Deferred:
        """Store the offset of a group, even if it is smaller than before.

        In controller mode the set has it before the answer.

        Ignores the offset of a consumer that has not received the reset of its offset yet. The
        queue must belong to the topic, or have an offset from the time before the topic shrank.

        Raises: Rejected, LimitReached.
        """
        header: UpdateConsumerOffsetHeader = request.header
        if self.groups.find_or_create(header.consumer_group) is None:
            raise Rejected(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"Group {header.consumer_group} not exist!",
            )
        topic = self.topics.find(header.topic)
        if topic is None:
            raise Rejected(ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} not exist!")
        count = max(topic.read_queue_count, topic.write_queue_count)
        if (
            not 0 <= header.queue_id < count
            and self.offsets.committed_offset(header.consumer_group, header.topic, header.queue_id)
            is None
        ):
            remark = (
                f"queue {header.queue_id} of topic {header.topic} does not exist, it has {count}"
                " queues: commit offsets of queues that the route names"
            )
            raise Rejected(ResponseCode.INVALID_PARAMETER, remark)
        self.offsets.require_room(header.consumer_group, header.topic, header.queue_id)
        if (
            self.offsets.pending_reset(header.consumer_group, header.topic, header.queue_id)
            is not None
        ):
            return Response(remark="Offset has been previously reset")
        passed = self.offsets.commit(
            header.consumer_group, header.topic, header.queue_id, header.commit_offset
        )
        self.statistics.note_consumed(header.consumer_group, header.topic, passed)
        if self.tables is None or request.oneway:
            return Response()
        return self.tables.commit(
            *(header.consumer_group, header.topic, header.queue_id, header.commit_offset),
            Deferred((request,)),
        )

    async def all(self, request: Request) -> Response:
        """Return the offsets of all groups, for a slave.

        What changes meanwhile may be in the answer or not. Its version is the one from before, so
        that the slave asks again.
        """
        version = self.offsets.version.current
        rows: dict[str, dict[int, int]] = {}
        turns, count = Turns(), 0
        async for group, topics in in_turns(list(self.offsets.committed.items()), turns):
            async for topic, queues in in_turns(list(topics.items()), turns):
                rows[f"{topic}@{group}"] = dict(queues)
                count += len(queues)
        # Asked last: a slave may know what is safe by now.
        for (group, topic, queue_id), known in self.offsets.unknown_to_slaves().items():
            queues = rows.get(f"{topic}@{group}", {})
            if known is None:
                queues.pop(queue_id, None)
            elif queue_id in queues:
                queues[queue_id] = known
        resets, moved = self.offsets.resets, self.offsets.moved
        body = ConsumerOffsetTable(rows, version)
        if resets or moved:
            body = MovedOffsetTable(rows, version, by_row(resets), by_row(moved))
        return Response(body=await encoded(body, count, bare_keys=True))

    def all_delays(self, request: Request) -> Response:
        """Return the delivery progress of every delay level."""
        table = DelayOffsetTable(dict(self.delayed.offsets), self.delayed.version.current)
        return Response(body=table.encode(bare_keys=True))


@attrs.define(eq=False)
class QueueOffsetRequests:
    """Where queues begin and end. An unknown topic or queue counts as empty, as in Java."""

    store: MessageStore

    def max_offset(self, request: Request) -> Response:
        header: GetMaxOffsetHeader = request.header
        return Response(
            header=OffsetResponseHeader(self.store.max_offset(header.topic, header.queue_id))
        )

    def min_offset(self, request: Request) -> Response:
        header: GetMinOffsetHeader = request.header
        return Response(
            header=OffsetResponseHeader(self.store.min_offset(header.topic, header.queue_id))
        )

    async def search(self, request: Request) -> Response:
        header: SearchOffsetHeader = request.header
        upper = (header.boundary_type or "").upper() == "UPPER"
        offset = await self.store.offset_by_time(
            header.topic, header.queue_id, header.timestamp, upper=upper
        )
        return Response(header=OffsetResponseHeader(offset))

    async def earliest_store_time(self, request: Request) -> Response:
        header: GetMinOffsetHeader = request.header
        topic, queue_id = header.topic, header.queue_id
        timestamp = await self.store.store_time_at(
            topic, queue_id, self.store.min_offset(topic, queue_id)
        )
        return Response(header=StoreTimeResponseHeader(timestamp))
