"""Move a group's offsets: by time, to an offset, or to those of another group.

Codes: INVOKE_BROKER_TO_RESET_OFFSET (222), CLONE_GROUP_OFFSET (314). The broker itself stores the
new offsets, even if no member is connected, and tells the group: our members at once, all at their
next pull of each queue; until then it ignores the group's own commits. With
``useServerSideResetOffset=false``, and for a broadcasting group, whose offsets are stored by the
members, it only tells the members (RESET_CONSUMER_CLIENT_OFFSET 220), as brokers before 5.x do.
Source: broker/processor/AdminBrokerProcessor.java#resetOffset, #cloneGroupOffset,
broker/client/net/Broker2Client.java#resetOffset.
"""

from __future__ import annotations

import logging

import attrs

from triomq.broker.processors.relays import Relays
from triomq.broker.services.live_settings import LiveSettings
from triomq.broker.services.pop.group_moves import GroupMoves
from triomq.broker.services.topics_and_groups import TopicsAndGroups
from triomq.broker.store.store import MessageStore
from triomq.remoting.core.errors import Rejected
from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.protocol.bodies.heartbeat import BROADCASTING
from triomq.remoting.protocol.bodies.offsets import QueueOffsets
from triomq.remoting.protocol.bodies.topics import TopicConfig
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.offset import CloneGroupOffsetHeader, ResetOffsetHeader
from triomq.remoting.server.requests import Request, Response
from triomq.remoting.server.turns import encoded, in_turns

logger = logging.getLogger(__name__)


@attrs.define(eq=False)
class Resets:
    """The handlers."""

    store: MessageStore
    known: TopicsAndGroups
    moves: GroupMoves
    live: LiveSettings
    relays: Relays
    limit: LogLimit = attrs.field(factory=LogLimit, init=False)

    async def reset(self, request: Request) -> Response:
        """Reset a group's offsets in a topic; return the new offset of each queue."""
        header: ResetOffsetHeader = request.header
        topic = self.known.topics.find(header.topic)
        if topic is None:
            raise Rejected(ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} does not exist")
        if self.known.groups.find_or_create(header.group) is None:
            raise Rejected(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.group} does not exist"
            )
        wanted = await self._wanted(header, topic)
        online = self.known.clients.consumers.get(header.group)
        if not self.live.server_side_reset or (
            online is not None and online.message_model == BROADCASTING
        ):
            if online is None:
                remark = (
                    f"Consumer not online, so can not reset offset. Group: {header.group} Topic:"
                    f" {header.topic} Timestamp: {header.timestamp}"
                )
                raise Rejected(ResponseCode.CONSUMER_NOT_ONLINE, remark)
            if not header.force and online.message_model != BROADCASTING:
                wanted = {
                    queue_id: min(offset, self._committed(header, queue_id, offset))
                    async for queue_id, offset in in_turns(wanted.items())
                }
            table = await self.relays.by_queue(header.topic, wanted)
            await self.relays.tell_reset(online, header, table)
        else:
            await self.moves.move(header.group, header.topic, wanted)
            table = await self.relays.by_queue(header.topic, wanted)
        self.limit.log(
            logger,
            logging.INFO,
            "%s reset group %s in topic %s: %s",
            request.connection.peer_text,
            header.group,
            header.topic,
            wanted,
            lines=50,
        )
        return Response(body=await encoded(QueueOffsets(table), len(table)))

    def _committed(self, header: ResetOffsetHeader, queue_id: int, otherwise: int) -> int:
        offset = self.known.offsets.committed_offset(header.group, header.topic, queue_id)
        return otherwise if offset is None else offset

    async def _wanted(self, header: ResetOffsetHeader, topic: TopicConfig) -> dict[int, int]:
        """Return the new offset of each queue, within the queue's range. Raises: Rejected."""
        if header.queue_id >= 0:
            if header.queue_id >= topic.read_queue_count:
                remark = (
                    f"queue {header.queue_id} of topic {header.topic} does not exist: it has"
                    f" {topic.read_queue_count} for reading"
                )
                raise Rejected(ResponseCode.SYSTEM_ERROR, remark)
            return {header.queue_id: await self._target(header, header.queue_id)}
        return {
            queue_id: await self._target(header, queue_id)
            async for queue_id in in_turns(range(topic.read_queue_count))
        }

    async def _target(self, header: ResetOffsetHeader, queue_id: int) -> int:
        low = self.store.min_offset(header.topic, queue_id)
        high = self.store.max_offset(header.topic, queue_id)
        if header.offset is not None and header.offset >= 0 and header.queue_id >= 0:
            if not low <= header.offset <= high:
                remark = f"Target offset {header.offset} not in consume queue range [{low}-{high}]"
                raise Rejected(ResponseCode.SYSTEM_ERROR, remark)
            return header.offset
        if header.timestamp < 0:
            return high
        found = await self.store.offset_by_time(header.topic, queue_id, header.timestamp)
        return min(max(low, found), high)

    async def clone(self, request: Request) -> Response:
        """Copy a group's offsets in one topic, or in all topics of the source group.

        Skips topics that connected members do not subscribe.
        """
        header: CloneGroupOffsetHeader = request.header
        online = self.known.clients.consumers.get(header.source_group)
        for topic in (
            [header.topic] if header.topic else self.known.offsets.topics_of(header.source_group)
        ):
            unwanted = (
                online is not None and topic not in online.subscriptions and not header.offline
            )
            if self.known.topics.find(topic) is None or unwanted:
                logger.warning(
                    "offsets of %s in %s are not copied to %s: the topic does not exist, or the"
                    " group does not subscribe it",
                    header.source_group,
                    topic,
                    header.target_group,
                )
                continue
            offsets = self.known.offsets.queues_of(header.source_group, topic)
            await self.moves.move(
                header.target_group,
                topic,
                offsets,
                members=header.target_group in self.known.clients.consumers,
            )
        return Response()
