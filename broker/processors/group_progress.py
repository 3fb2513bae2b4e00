"""The progress of consumer groups, and the entries of a consume queue.

Codes: QUERY_TOPICS_BY_CONSUMER (343), QUERY_SUBSCRIPTION_BY_CONSUMER (345), QUERY_CONSUME_TIME_SPAN
(303), QUERY_CORRECTION_OFFSET (308), QUERY_CONSUME_QUEUE (321). Source:
broker/processor/AdminBrokerProcessor.java.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from triomq.broker.processors.consumption import store_time
from triomq.broker.services.topics_and_groups import TopicsAndGroups
from triomq.broker.store.store import MessageStore
from triomq.remoting.core.errors import Rejected
from triomq.remoting.protocol.bodies.groups import GroupSubscription
from triomq.remoting.protocol.bodies.heartbeat import SubscriptionData
from triomq.remoting.protocol.bodies.offsets import (
    ConsumeQueueEntries,
    ConsumeQueueEntry,
    ConsumeTimeSpans,
    CorrectionOffsets,
    QueueTimeSpan,
)
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.bodies.topics import TopicNames
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.consuming.tag_expressions import ALL_TAGS
from triomq.remoting.protocol.headers.admin import QueryConsumeQueueHeader
from triomq.remoting.protocol.headers.offset import CorrectionOffsetHeader
from triomq.remoting.protocol.headers.topic import (
    GroupHeader,
    GroupSubscriptionHeader,
    GroupTopicHeader,
)
from triomq.remoting.server.requests import Request, Response
from triomq.remoting.server.turns import encoded, in_turns

LONG_MAX = 2**63 - 1
ENTRIES_MAX = 1024


@attrs.define(eq=False)
class GroupProgress:
    """The handlers."""

    store: MessageStore
    known: TopicsAndGroups
    clock_ms: Callable[[], int]
    broker_name: str

    def topics_of_group(self, request: Request) -> Response:
        """Return the topics that the group has offsets for."""
        header: GroupHeader = request.header
        return Response(
            body=TopicNames(sorted(self.known.offsets.topics_of(header.group))).encode()
        )

    def subscription(self, request: Request) -> Response:
        """Return the group's subscription of a topic, empty if no connected member has one."""
        header: GroupSubscriptionHeader = request.header
        topic = header.topic or ""
        return Response(
            body=GroupSubscription(
                header.group, topic, self._subscription(header.group, topic)
            ).encode()
        )

    def _subscription(self, group: str, topic: str) -> SubscriptionData | None:
        online = self.known.clients.consumers.get(group)
        return online.subscriptions.get(topic) if online is not None else None

    async def time_spans(self, request: Request) -> Response:
        """Return, for each queue, store times and the age of the next message to consume (ms).

        The times are those of the first, the last and the last consumed message.
        """
        header: GroupTopicHeader = request.header
        config = self.known.topics.find(header.topic)
        if config is None:
            raise Rejected(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist")
        queues = range(config.read_queue_count)
        spans = [await self._span(header, queue_id) async for queue_id in in_turns(queues)]
        return Response(body=await encoded(ConsumeTimeSpans(spans), len(spans)))

    async def _span(self, header: GroupTopicHeader, queue_id: int) -> QueueTimeSpan:
        topic = header.topic
        low, high = self.store.min_offset(topic, queue_id), self.store.max_offset(topic, queue_id)
        earliest = await self.store.store_time_at(topic, queue_id, low)
        consumed = self.known.offsets.committed_offset(header.group, topic, queue_id) or 0
        next_time = (
            await store_time(self.store, topic, queue_id, max(consumed, low))
            if high > consumed
            else 0
        )
        return QueueTimeSpan(
            message_queue=MessageQueue(topic, self.broker_name, queue_id),
            min_timestamp=earliest,
            max_timestamp=await store_time(self.store, topic, queue_id, high - 1)
            if high > low
            else -1,
            consume_timestamp=await store_time(self.store, topic, queue_id, consumed - 1)
            if consumed > 0
            else earliest,
            delay_ms=max(0, self.clock_ms() - next_time) if next_time > 0 else 0,
        )

    async def correction(self, request: Request) -> Response:
        """Return, for each queue, the smallest offset of all groups but the filtered ones.

        The largest possible number where the compared group is further behind.
        """
        header: CorrectionOffsetHeader = request.header
        left_out = {name.strip() for name in (header.filter_groups or "").split(",")}
        smallest: dict[int, int] = {}
        for group in self.known.offsets.groups_of(header.topic):
            if group in left_out:
                continue
            queues = self.known.offsets.queues_of(group, header.topic).items()
            async for queue_id, offset in in_turns(queues):
                if offset >= self.store.min_offset(header.topic, queue_id):
                    smallest[queue_id] = min(smallest.get(queue_id, LONG_MAX), offset)
        for queue_id, offset in self.known.offsets.queues_of(
            header.compare_group, header.topic
        ).items():
            if smallest.get(queue_id, 0) > offset:
                smallest[queue_id] = LONG_MAX
        body = await encoded(CorrectionOffsets(smallest), len(smallest), bare_keys=True)
        return Response(body=body)

    async def queue_entries(self, request: Request) -> Response:
        """Return entries of a consume queue, and whether the subscription of a group matches.

        Without a subscription nothing matches, as at Java's broker.
        """
        header: QueryConsumeQueueHeader = request.header
        topic, queue_id = header.topic, header.queue_id
        config = self.known.topics.find(topic)
        if config is None or not 0 <= queue_id < max(
            config.read_queue_count, config.write_queue_count
        ):
            raise Rejected(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
        low, high = self.store.min_offset(topic, queue_id), self.store.max_offset(topic, queue_id)
        first = max(low, header.index)
        wanted = self._subscription(header.consumer_group, topic) if header.consumer_group else None
        codes = wanted.codes if wanted is not None and wanted.sub_string != ALL_TAGS else None
        found = (
            await self.store.entries(
                topic, queue_id, first, min(header.count, ENTRIES_MAX, high - first)
            )
            if first < high
            else []
        )
        entries = [
            ConsumeQueueEntry(
                log_offset=log_offset,
                size_bytes=size,
                tags_code=code,
                matches=wanted is not None and (codes is None or code in codes),
            )
            for log_offset, size, code in found
        ]
        return Response(
            body=ConsumeQueueEntries(
                entries=entries, min_queue_index=low, max_queue_index=high, subscription=wanted
            ).encode()
        )
