"""Requests about topics, which ``services/topics.py`` keeps.

Codes: UPDATE_AND_CREATE_TOPIC (17), UPDATE_AND_CREATE_TOPIC_LIST (18), DELETE_TOPIC_IN_BROKER
(215), GET_TOPIC_CONFIG (351), GET_ALL_TOPIC_CONFIG (21), GET_TOPIC_STATS_INFO (202),
GET_SYSTEM_TOPIC_LIST_FROM_BROKER (305), QUERY_TOPIC_CONSUME_BY_WHO (300). Source:
broker/processor/AdminBrokerProcessor.java.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping

import attrs
import trio

from triomq.broker.processors.consumption import store_time
from triomq.broker.services.attributes import parse_attribute_changes
from triomq.broker.services.held_pulls import HeldPulls
from triomq.broker.services.live_settings import LiveSettings
from triomq.broker.services.persisted import SETTLE_SECONDS
from triomq.broker.services.registration import Registrar
from triomq.broker.services.topics_and_groups import TopicsAndGroups
from triomq.broker.store.store import MessageStore
from triomq.remoting.core.errors import Rejected
from triomq.remoting.protocol import names
from triomq.remoting.protocol.bodies.groups import GroupNames
from triomq.remoting.protocol.bodies.offsets import TopicOffset, TopicStats
from triomq.remoting.protocol.bodies.route import QUEUES_MAX, MessageQueue
from triomq.remoting.protocol.bodies.topics import (
    TopicConfig,
    TopicConfigList,
    TopicNames,
    TopicTable,
)
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.topic import (
    AllTopicsResponseHeader,
    CreateTopicHeader,
    DeleteTopicHeader,
    TopicHeader,
)
from triomq.remoting.server.requests import Request, Response
from triomq.remoting.server.turns import Turns, encoded, in_turns

# The remark of Java's successful response; some tools print it.
UNSET_REMARK = "not set any response code"
TOPICS_AT_ONCE = 128
"""Topics, or groups, that are created at once: a few milliseconds."""


@attrs.define(eq=False)
class TopicRequests:
    """The handlers. With a topic, its queues, offsets and statistics are deleted."""

    store: MessageStore
    known: TopicsAndGroups
    held: HeldPulls
    registrar: Registrar
    live: LiveSettings
    broker_name: str

    def create(self, request: Request) -> Response | Awaitable[Response]:
        """Create or change a topic; answer at once if that changes nothing. Raises: Rejected."""
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
        if not self._put(config, changes) and self.known.topics.copies is None:
            return Response()
        return self._settled(Response(remark=UNSET_REMARK))

    async def create_list(self, request: Request, body: TopicConfigList) -> Response:
        """Create or change all topics, or none if one of them is refused. Raises: Rejected.

        Java stops at the first topic that already exists.
        """
        wanted, turns, changed = body.topic_config_list, Turns(TOPICS_AT_ONCE), False
        async for config in in_turns(wanted, turns):
            self._check(config, config.attributes)
        async for config in in_turns(wanted, turns):
            new = self._put(attrs.evolve(config, attributes={}), config.attributes)
            changed = changed or new
        waits = changed or self.known.topics.copies is not None
        return await self._settled(Response()) if waits else Response()

    def _check(self, config: TopicConfig, changes: Mapping[str, str]) -> None:
        complaint = self._complaint(config, changes)
        if complaint is not None:
            raise Rejected(ResponseCode.INVALID_PARAMETER, complaint)
        try:
            self.known.topics.altered_attributes(config.topic_name, changes)
        except ValueError as error:
            raise Rejected(ResponseCode.SYSTEM_ERROR, str(error)) from None

    def _complaint(self, config: TopicConfig, changes: Mapping[str, str]) -> str | None:
        complaint = names.topic_complaint(config.topic_name)
        if complaint is not None:
            return complaint
        if self.known.topics.is_system_topic(config.topic_name):
            return f"The topic[{config.topic_name}] is conflict with system topic."
        if config.read_queue_count < 0 or config.write_queue_count < 0:
            return "the number of queues is negative"
        count = max(config.read_queue_count, config.write_queue_count)
        if count > QUEUES_MAX:
            return (
                f"{count} queues are more than {QUEUES_MAX}, the most that a topic has on one"
                " broker: ask for fewer"
            )
        if not 0 <= config.perm <= 15:
            return f"the permission {config.perm} is not made of 8, 4, 2 and 1"
        if changes.get("+message.type") == "MIXED" and not self.live.mixed_message_type:
            return (
                "MIXED message type is not supported. Set enableMixedMessageType=true on the broker"
                " first (`mqadmin broker set`)"
            )
        return None

    def _put(self, config: TopicConfig, changes: Mapping[str, str]) -> bool:
        """Check and store one topic; return whether it has changed. Raises: Rejected."""
        self._check(config, changes)
        changed = self.known.topics.put(config, changes)
        if changed:
            self.held.wake_topic(config.topic_name)
        return changed

    async def _settled(self, response: Response) -> Response:
        """Return the response when the change is saved and the reachable name servers have it.

        In controller mode the set has it, too. Raises: Rejected.
        """
        with trio.move_on_after(SETTLE_SECONDS):
            await self.known.topics.written()
            await self.registrar.wait_announced()
        await self.known.topics.copied()
        return response

    def delete(self, request: Request) -> Response | Awaitable[Response]:
        """Delete a topic; succeed even if it does not exist. Raises: Rejected.

        The admin tool deletes the topic on the name servers.
        """
        header: DeleteTopicHeader = request.header
        if not header.topic.strip():
            raise Rejected(ResponseCode.INVALID_PARAMETER, "The specified topic is blank.")
        if self.known.topics.is_system_topic(header.topic):
            raise Rejected(
                ResponseCode.INVALID_PARAMETER,
                f"The topic[{header.topic}] is conflict with system topic.",
            )
        retries = [
            name
            for group in self.known.offsets.groups_of(header.topic)
            for name in names.pop_retry_topics(group, header.topic)
            if self.known.topics.find(name) is not None
        ]
        for name in (header.topic, *retries):
            self.known.topics.delete(name)
            self.known.offsets.forget_topic(name)
            self.store.delete_topic(name)
            self.known.statistics.forget(name)
            self.known.clients.forget_topic(name)
            self.held.wake_topic(name)
        self.known.offsets.save_soon()
        return self._deleted()

    async def _deleted(self) -> Response:
        """Return a response when the disk has the deletion.

        After a kill, offsets of the old topic would count in a new one. Name servers need not hear
        of it: a registration only adds topics.
        """
        with trio.move_on_after(SETTLE_SECONDS):
            await self.known.offsets.written()
            await self.known.topics.written()
        await self.known.topics.copied()
        return Response()

    def describe(self, request: Request) -> Response:
        """Return the settings of a topic. Raises: Rejected."""
        header: TopicHeader = request.header
        config = self.known.topics.find(header.topic)
        if config is None:
            raise Rejected(
                ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {header.topic}"
            )
        return Response(body=config.encode())

    async def all(self, request: Request) -> Response:
        """Return all topics, even to clients that request pages.

        They take a response without a total as complete.
        """
        table = TopicTable(dict(self.known.topics.configs), self.known.topics.version.current)
        body = await encoded(table, len(table.topic_config_table))
        return Response(header=AllTopicsResponseHeader(), body=body)

    async def stats(self, request: Request) -> Response:
        """Return each queue's first and last offset and last store time. Raises: Rejected."""
        header: TopicHeader = request.header
        config = self.known.topics.find(header.topic)
        if config is None:
            raise Rejected(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist")
        table = {}
        count = max(config.read_queue_count, config.write_queue_count)
        async for queue_id in in_turns(range(count)):
            low = self.store.min_offset(header.topic, queue_id)
            high = self.store.max_offset(header.topic, queue_id)
            last = (
                await store_time(self.store, header.topic, queue_id, high - 1) if high > low else 0
            )
            table[MessageQueue(header.topic, self.broker_name, queue_id)] = TopicOffset(
                low, high, last
            )
        stats = TopicStats(table, self.known.statistics.rate("TOPIC_PUT_NUMS", header.topic))
        return Response(body=await encoded(stats, count))

    def system(self, request: Request) -> Response:
        """Return the names of the system topics."""
        return Response(body=TopicNames(self.known.topics.system_topic_names()).encode())

    def consumers(self, request: Request) -> Response:
        """Return the groups that consume a topic: connected groups, and groups with offsets."""
        header: TopicHeader = request.header
        groups = dict.fromkeys(
            [
                *self.known.clients.groups_subscribing(header.topic),
                *self.known.offsets.groups_of(header.topic),
            ]
        )
        return Response(body=GroupNames(list(groups)).encode())
