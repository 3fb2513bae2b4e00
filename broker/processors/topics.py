"""Topics as things that exist: create, delete, describe (17, 18, 215, 351, 21, 202, 305, 300).

Source: broker/processor/AdminBrokerProcessor.java.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping

import attrs
import trio

from triomq.broker.processors.consumption import store_time
from triomq.broker.services.attributes import parse_attribute_changes
from triomq.broker.services.groups import GroupTable
from triomq.broker.services.held_pulls import HeldPulls
from triomq.broker.services.live_settings import LiveSettings
from triomq.broker.services.offsets import ConsumerOffsets
from triomq.broker.services.registration import Registration
from triomq.broker.services.statistics import Statistics
from triomq.broker.services.topics import Topics
from triomq.broker.store.store import MessageStore
from triomq.remoting.errors import Rejected
from triomq.remoting.protocol import names
from triomq.remoting.protocol.bodies.groups import GroupNames
from triomq.remoting.protocol.bodies.offsets import TopicOffset, TopicStats
from triomq.remoting.protocol.bodies.route import QUEUES_MAX, MessageQueue
from triomq.remoting.protocol.bodies.topics import TopicConfig, TopicConfigList, TopicNames, TopicTable
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.topic import (
    AllTopicsResponseHeader,
    CreateTopicHeader,
    DeleteTopicHeader,
    TopicHeader,
)
from triomq.remoting.server.connection import Connection
from triomq.remoting.server.handlers import Request, Response

# A change is answered when it is on disk and the name servers know of it, but not later than this.
SETTLE_SECONDS = 3.0
# Java answers success with this preset remark; some tools print it.
UNSET_REMARK = "not set any response code"


@attrs.define(eq=False)
class TopicRequests:
    """The handlers; a deleted topic takes its queues, offsets and statistics along."""

    store: MessageStore
    topics: Topics
    offsets: ConsumerOffsets
    clients: GroupTable[Connection]
    held: HeldPulls
    registration: Registration
    statistics: Statistics
    live: LiveSettings
    broker_name: str

    def create(self, request: Request) -> Response | Awaitable[Response]:
        """UPDATE_AND_CREATE_TOPIC: a topic that is already exactly so changes nothing."""
        header: CreateTopicHeader = request.header
        config = TopicConfig(
            topic_name=header.topic,
            read_queue_count=header.read_queue_count,
            write_queue_count=header.write_queue_count,
            perm=header.perm,
            topic_filter_type=header.topic_filter_type,
            topic_sys_flag=header.topic_sys_flag or 0,
            order=header.order,
        )
        try:
            changes = parse_attribute_changes(header.attributes or "")
        except ValueError as error:
            raise Rejected(ResponseCode.SYSTEM_ERROR, str(error)) from None
        if not self._put(config, changes):
            return Response()
        return self._settled(Response(remark=UNSET_REMARK))

    def create_list(self, request: Request, body: TopicConfigList) -> Response | Awaitable[Response]:
        """UPDATE_AND_CREATE_TOPIC_LIST: all or, when one of them is refused, none.  (Java stops at the first that is there already.)"""
        wanted = body.topic_config_list
        for config in wanted:
            self._check(config, config.attributes)
        changed = [self._put(attrs.evolve(config, attributes={}), config.attributes) for config in wanted]
        return self._settled(Response()) if any(changed) else Response()

    def _check(self, config: TopicConfig, changes: Mapping[str, str]) -> None:
        complaint = names.topic_complaint(config.topic_name)
        if complaint is not None:
            raise Rejected(ResponseCode.INVALID_PARAMETER, complaint)
        if self.topics.is_system_topic(config.topic_name):
            raise Rejected(ResponseCode.INVALID_PARAMETER, f"The topic[{config.topic_name}] is conflict with system topic.")
        if config.read_queue_count < 0 or config.write_queue_count < 0:
            raise Rejected(ResponseCode.INVALID_PARAMETER, "the number of queues is negative")
        if max(config.read_queue_count, config.write_queue_count) > QUEUES_MAX:
            count = max(config.read_queue_count, config.write_queue_count)
            raise Rejected(ResponseCode.INVALID_PARAMETER, f"{count} queues are more than {QUEUES_MAX}, the most that a topic has on one broker: ask for fewer")
        if not 0 <= config.perm <= 15:
            raise Rejected(ResponseCode.INVALID_PARAMETER, f"the permission {config.perm} is not made of 8, 4, 2 and 1")
        if changes.get("+message.type") == "MIXED" and not self.live.mixed_message_type:
            raise Rejected(ResponseCode.INVALID_PARAMETER, "MIXED message type is not supported.")
        try:
            self.topics.altered_attributes(config.topic_name, changes)
        except ValueError as error:
            raise Rejected(ResponseCode.SYSTEM_ERROR, str(error)) from None

    def _put(self, config: TopicConfig, changes: Mapping[str, str]) -> bool:
        """Check and store one topic; False when it was exactly so before."""
        self._check(config, changes)
        changed = self.topics.put(config, changes)
        if changed:
            self.held.wake_topic(config.topic_name)
        return changed

    async def _saved(self, response: Response) -> Response:
        """Answer when the change would survive a crash. Name servers are not told of a topic that is gone: registrations only add."""
        with trio.move_on_after(SETTLE_SECONDS):
            if self.topics.table.unsaved:
                await self.topics.table.wait_saved()
        return response

    async def _settled(self, response: Response) -> Response:
        """Answer when the change would survive a crash and reachable name servers have it."""
        with trio.move_on_after(SETTLE_SECONDS):
            if self.topics.table.unsaved:
                await self.topics.table.wait_saved()
            await self.registration.wait_announced()
        return response

    def delete(self, request: Request) -> Response | Awaitable[Response]:
        """DELETE_TOPIC_IN_BROKER: success also when there is no such topic; the name servers are the admin tool's business."""
        header: DeleteTopicHeader = request.header
        if not header.topic.strip():
            raise Rejected(ResponseCode.INVALID_PARAMETER, "The specified topic is blank.")
        if self.topics.is_system_topic(header.topic):
            raise Rejected(ResponseCode.INVALID_PARAMETER, f"The topic[{header.topic}] is conflict with system topic.")
        self.topics.delete(header.topic)
        self.offsets.forget_topic(header.topic)
        self.store.delete_topic(header.topic)
        self.statistics.forget(header.topic)
        self.clients.forget_topic(header.topic)
        self.held.wake_topic(header.topic)
        return self._saved(Response())

    def describe(self, request: Request) -> Response:
        header: TopicHeader = request.header
        config = self.topics.find(header.topic)
        if config is None:
            raise Rejected(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {header.topic}")
        return Response(body=config.encode())

    def all(self, request: Request) -> Response:
        """GET_ALL_TOPIC_CONFIG: always the whole table; clients that ask for pages take an answer without a total as complete."""
        table = TopicTable(dict(self.topics.configs), self.topics.version.current)
        return Response(header=AllTopicsResponseHeader(), body=table.encode())

    async def stats(self, request: Request) -> Response:
        """GET_TOPIC_STATS_INFO: bounds and last store time of each queue."""
        header: TopicHeader = request.header
        config = self.topics.find(header.topic)
        if config is None:
            raise Rejected(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist")
        table = {}
        for queue_id in range(max(config.read_queue_count, config.write_queue_count)):
            low = max(0, self.store.min_offset(header.topic, queue_id))
            high = max(0, self.store.max_offset(header.topic, queue_id))
            last = await store_time(self.store, header.topic, queue_id, high - 1) if high > low else 0
            table[MessageQueue(header.topic, self.broker_name, queue_id)] = TopicOffset(low, high, last)
        return Response(body=TopicStats(table, self.statistics.topic_put_rate(header.topic)).encode())

    def system(self, request: Request) -> Response:
        return Response(body=TopicNames(self.topics.system_topic_names()).encode())

    def consumers(self, request: Request) -> Response:
        """QUERY_TOPIC_CONSUME_BY_WHO: groups that are connected, and groups with offsets."""
        header: TopicHeader = request.header
        groups = dict.fromkeys([*self.clients.groups_subscribing(header.topic), *self.offsets.groups_of(header.topic)])
        return Response(body=GroupNames(list(groups)).encode())
