"""Deliver messages: PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361), with long polling.

The body of the response is records in the format of the log. A pull that finds no message and may
wait goes to ``HeldPulls``; when a message arrives, or its time is up, it goes through the pool
again as a pull that may not wait. Source: broker/processor/PullMessageProcessor.java,
DefaultPullMessageResultHandler.java.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import partial
from typing import cast

import attrs
import trio

from triomq.broker.filters.tokens import FilterInvalid
from triomq.broker.roles.slave_reads import SlaveReads
from triomq.broker.services.cold_pulls import ColdPulls
from triomq.broker.services.filtered_reads import filtered, get_filtered
from triomq.broker.services.filters import ConsumerFilters, Wanted, compile_typed, is_filter
from triomq.broker.services.held_pulls import HeldPull, HeldPulls
from triomq.broker.services.live_settings import LiveSettings
from triomq.broker.services.statistics import Item
from triomq.broker.services.topics import PERM_READ
from triomq.broker.services.topics_and_groups import TopicsAndGroups
from triomq.broker.store.core.results import GetResult, GetStatus
from triomq.broker.store.store import MessageStore
from triomq.remoting.core.errors import LocalProtocolError, Rejected
from triomq.remoting.protocol import names
from triomq.remoting.protocol.bodies.groups import SubscriptionGroupConfig
from triomq.remoting.protocol.bodies.heartbeat import (
    BROADCASTING,
    CONSUME_ACTIVELY,
    TAG,
    SubscriptionData,
)
from triomq.remoting.protocol.bodies.route import MASTER_ID
from triomq.remoting.protocol.bodies.topics import TopicConfig
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.consuming.tag_expressions import ALL_TAGS, subscription
from triomq.remoting.protocol.headers.pull import (
    CLASS_FILTER,
    COMMIT_OFFSET,
    RANGE_READ,
    SUBSCRIPTION,
    SUSPEND,
    PullMessageHeader,
    PullMessageResponseHeader,
)
from triomq.remoting.server.requests import Deferred, Request, Response

CODES: dict[GetStatus, int] = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.NO_MATCHED_LOGIC_QUEUE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.NO_MESSAGE_IN_QUEUE: ResponseCode.PULL_NOT_FOUND,
}
# Largest body of a response if the client names no limit (4.9 clients).
PULL_BYTES_MAX = 128 * 1024 * 1024
# What nearly every response needs, looked up once: an enum member takes 0.5 µs for its name, 0.25
# µs as the key of a dict.
FOUND, FOUND_REMARK, SUCCESS = GetStatus.FOUND, GetStatus.FOUND.name, int(ResponseCode.SUCCESS)
# With these the response is PULL_OFFSET_MOVED, unless the offset was 0.
EMPTY_QUEUE = (GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE)
# ``request_source`` of a client that pulls for itself; the numbers of proxies begin at 0.
SOURCES_OF_CLIENTS = (None, -1)


def compares_tags(header: PullMessageHeader) -> bool:
    """Return whether the client compares the tags of messages, so that other tags do no harm.

    Brokers compare hashes, so clients compare the text again. They do not with SQL and filter
    classes, which only brokers evaluate. A proxy may pass on all messages, and some clients that
    name no expression type keep every message without a tag.
    """
    return (
        header.expression_type == TAG
        and not header.sys_flag & CLASS_FILTER
        and header.request_source in SOURCES_OF_CLIENTS
    )


def bytes_max_of(header: PullMessageHeader) -> int:
    return PULL_BYTES_MAX if header.message_bytes_max is None else header.message_bytes_max


@attrs.define(eq=False)
class PullMessages:
    """The handler of both codes. A pull that must wait goes to ``held`` or ``cold``."""

    store: MessageStore
    known: TopicsAndGroups
    held: HeldPulls
    live: LiveSettings
    broker_ip: str
    slave_reads: SlaveReads
    cold: ColdPulls
    filters: ConsumerFilters
    _get_items: dict[tuple[str, str], tuple[Item, Item]] = attrs.field(factory=dict, init=False)
    _generation: int = attrs.field(default=-1, init=False)

    def handle(self, request: Request) -> Response | Deferred:
        """Return the messages of a queue from an offset on.

        Raises: Rejected, LimitReached. Checkpoint: never.
        """
        header: PullMessageHeader = request.header
        group = self._group(header)
        if request.code == RequestCode.LITE_PULL_MESSAGE and not self.live.lite_pulls:
            raise Rejected(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self.broker_ip}] for lite pull consumer is forbidden",
            )
        topic = self._topic(header)
        if not 0 <= header.queue_id < topic.read_queue_count:
            raise Rejected(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}]"
                f" topicConfig.readQueueNums:[{topic.read_queue_count}]"
                f" consumer:[{request.connection.peer_text}]",
            )
        tag_codes = self._tag_codes(request, group)
        wanted = self._wanted(header) if self.live.property_filter else None
        if self.known.groups.forbidden and not self.known.groups.may_read(
            header.consumer_group, header.topic
        ):
            remark = (
                f"the consumer group[{header.consumer_group}] is forbidden for"
                f" topic[{header.topic}]"
            )
            raise Rejected(ResponseCode.NO_PERMISSION, remark)
        if self.live.reject_pull_consumers:
            self._refuse_other_consumers(request)
        if self.known.offsets.resets and (moved := self._reset(header, topic, group)) is not None:
            return moved
        if header.sys_flag & COMMIT_OFFSET:
            self.known.offsets.require_room(header.consumer_group, header.topic, header.queue_id)
            passed = self.known.offsets.commit(
                header.consumer_group, header.topic, header.queue_id, header.commit_offset
            )
            self.known.statistics.note_consumed(header.consumer_group, header.topic, passed)
        begin = time.perf_counter()
        bytes_max = bytes_max_of(header)
        if wanted is None:
            found = self.store.get(
                header.topic,
                header.queue_id,
                header.queue_offset,
                messages_max=header.message_count_max,
                bytes_max=bytes_max,
                tag_codes=tag_codes,
                is_range=bool(header.sys_flag & RANGE_READ),
            )
        else:
            limits = self.store.config
            found = get_filtered(
                partial(self._get, header),
                header.queue_offset,
                min(header.message_count_max, limits.transfer_count_memory_max),
                min(bytes_max, limits.transfer_bytes_memory_max),
                wanted,
            )
        seconds = time.perf_counter() - begin
        if seconds > self.known.statistics.get_time_max:
            self.known.statistics.get_time_max = seconds
        if found is None:
            deferred = Deferred((request,))
            if not self.cold.add(
                request.connection,
                partial(self._answer_cold, deferred, request, topic, group, tag_codes, wanted),
            ):
                raise Rejected(
                    ResponseCode.SYSTEM_BUSY,
                    "too many pulls wait for the disk, start flow control for a while",
                )
            return deferred
        return self._answer(request, topic, group, tag_codes, found, filtered_by=wanted)

    def _get(
        self, header: PullMessageHeader, offset: int, messages_max: int, bytes_max: int
    ) -> GetResult | None:
        return self.store.get(
            header.topic, header.queue_id, offset, messages_max=messages_max, bytes_max=bytes_max
        )

    async def _answer_cold(
        self,
        deferred: Deferred,
        request: Request,
        topic: TopicConfig,
        group: SubscriptionGroupConfig,
        tag_codes: frozenset[int] | None,
        wanted: Wanted | None,
    ) -> None:
        header: PullMessageHeader = request.header
        begin = time.perf_counter()
        try:
            found = await self.store.get_cold(
                header.topic,
                header.queue_id,
                header.queue_offset,
                messages_max=header.message_count_max,
                bytes_max=bytes_max_of(header),
                tag_codes=tag_codes,
                is_range=bool(header.sys_flag & RANGE_READ),
            )
            self.known.statistics.get_time_max = max(
                self.known.statistics.get_time_max, time.perf_counter() - begin
            )
            answer = self._answer(
                request,
                topic,
                group,
                tag_codes,
                found if wanted is None else filtered(found, wanted),
                filtered_by=wanted,
            )
            deferred.finish(lambda: answer)
        except Exception as error:
            deferred.fail(error)

    def _reset(
        self, header: PullMessageHeader, topic: TopicConfig, group: SubscriptionGroupConfig
    ) -> Response | None:
        """Return the response that tells the group of a reset, once for each queue; None otherwise.

        A pull that begins at the new offset gets it, too: its member may hold messages before that
        offset, which it has prefetched. Source: broker/processor/PullMessageProcessor.java.
        """
        offset = self.known.offsets.take_reset(header.consumer_group, header.topic, header.queue_id)
        if offset is None:
            return None
        made = PullMessageResponseHeader(
            MASTER_ID,
            offset,
            self.store.min_offset(header.topic, header.queue_id),
            self.store.max_offset(header.topic, header.queue_id),
            None,
            topic.topic_sys_flag,
            group.group_sys_flag,
        )
        return Response(ResponseCode.PULL_OFFSET_MOVED, made, remark=GetStatus.OFFSET_RESET.name)

    def _resume(self, request: Request) -> None:
        """Send a held request through its pool again, without its commit and the right to wait.

        A request with a filter over properties may wait again, for the rest of its time, since most
        arrivals do not match its filter.
        """
        header: PullMessageHeader = request.header
        header.sys_flag &= ~COMMIT_OFFSET
        if self.live.property_filter and self.live.long_polling and self._is_filtered(header):
            header.suspend_timeout_ms -= math.ceil((trio.current_time() - request.arrived) * 1000)
        else:
            header.suspend_timeout_ms = 0
        if header.suspend_timeout_ms <= 0:
            header.sys_flag &= ~SUSPEND
        request.resubmit()

    def _is_filtered(self, header: PullMessageHeader) -> bool:
        if header.sys_flag & SUBSCRIPTION:
            return is_filter(header.expression_type)
        connected = self.known.clients.consumers.get(header.consumer_group)
        known = connected.subscriptions.get(header.topic) if connected is not None else None
        return known is not None and is_filter(known.expression_type)

    # The checks, in the order of a Java broker

    def _group(self, header: PullMessageHeader) -> SubscriptionGroupConfig:
        if not self.live.readable:
            remark = f"the broker[{self.broker_ip}] pulling message is forbidden"
            raise Rejected(ResponseCode.NO_PERMISSION, remark)
        config = self.known.groups.find_or_create(header.consumer_group)
        if config is None:
            remark = f"subscription group [{header.consumer_group}] does not exist, {names.FAQ}"
            raise Rejected(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        if not config.consume_enable:
            remark = f"subscription group no permission, {header.consumer_group}"
            raise Rejected(ResponseCode.NO_PERMISSION, remark)
        return config

    def _topic(self, header: PullMessageHeader) -> TopicConfig:
        config = self.known.topics.find(header.topic)
        if config is None:
            remark = f"topic[{header.topic}] not exist, apply first please! {names.FAQ}"
            raise Rejected(ResponseCode.TOPIC_NOT_EXIST, remark)
        if not config.perm & PERM_READ:
            raise Rejected(
                ResponseCode.NO_PERMISSION,
                f"the topic[{header.topic}] pulling message is forbidden",
            )
        return config

    def _tag_codes(self, request: Request, group: SubscriptionGroupConfig) -> frozenset[int] | None:
        """Return the tags that the store must filter by, None for all messages. Raises: Rejected.

        They come from the request's own expression, or from the group's heartbeats. None if the
        client has a newer subscription, which the broker has not received: a message that is not
        delivered now would be lost to the client.
        """
        header: PullMessageHeader = request.header
        if header.sys_flag & SUBSCRIPTION:
            self.known.clients.note_pull(header.consumer_group, header.topic, request.arrived)
            if is_filter(header.expression_type):
                self._refuse_filter(header.expression_type)
                return None
            if header.subscription == ALL_TAGS:
                return None
            try:
                wanted = subscription(header.topic, header.subscription, header.sub_version)
            except LocalProtocolError:
                remark = "parse the consumer's subscription failed"
                raise Rejected(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark) from None
        else:
            wanted = self._registered_subscription(header, group)
            if is_filter(wanted.expression_type):
                self._refuse_filter(wanted.expression_type)
                return None
            if wanted.sub_version < header.sub_version:
                return None
        return None if wanted.sub_string == ALL_TAGS else wanted.codes

    def _registered_subscription(
        self, header: PullMessageHeader, group: SubscriptionGroupConfig
    ) -> SubscriptionData:
        connected = self.known.clients.consumers.get(header.consumer_group)
        if connected is None:
            remark = "the consumer's group info not exist" + names.FAQ
            raise Rejected(ResponseCode.SUBSCRIPTION_NOT_EXIST, remark)
        if not group.consume_broadcast_enable and connected.message_model == BROADCASTING:
            remark = f"the consumer group[{header.consumer_group}] can not consume by broadcast way"
            raise Rejected(ResponseCode.NO_PERMISSION, remark)
        found = connected.subscriptions.get(header.topic)
        if found is None:
            remark = "the consumer's subscription not exist" + names.FAQ
            raise Rejected(ResponseCode.SUBSCRIPTION_NOT_EXIST, remark)
        # A Java broker always refuses. But a Java consumer gives its subscription a new version
        # when it gets queues, and skips the heartbeat with this version if another thread holds the
        # client's lock. Its queues would stand still until the next heartbeat, up to 30 s.
        if found.sub_version < header.sub_version and (
            is_filter(found.expression_type) or found.class_filter_mode or not compares_tags(header)
        ):
            raise Rejected(
                ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"
            )
        return found

    def _refuse_other_consumers(self, request: Request) -> None:
        """Raise Rejected unless a member of a push consumers' group or a system group pulls."""
        group = request.header.consumer_group
        connected = self.known.clients.consumers.get(group)
        member = (
            connected is not None
            and request.connection in connected.members
            and connected.consume_type != CONSUME_ACTIVELY
        )
        if not member and not names.is_system_group(group):
            remark = (
                "the consumer's group info not exist, or the pull consumer is rejected by server."
                + names.FAQ
            )
            raise Rejected(ResponseCode.SUBSCRIPTION_NOT_EXIST, remark)

    def _refuse_filter(self, expression_type: str | None) -> None:
        if not self.live.property_filter:
            remark = f"The broker does not support consumer to filter message by {expression_type}"
            raise Rejected(ResponseCode.SYSTEM_ERROR, remark)

    def _wanted(self, header: PullMessageHeader) -> Wanted | None:
        """Return the filter over properties, None if the subscription has none.

        ``_tag_codes`` was called before: the subscription exists. Raises: Rejected.
        """
        if header.sys_flag & SUBSCRIPTION:
            if header.expression_type is None or not is_filter(header.expression_type):
                return None
            try:
                return compile_typed(header.expression_type, header.subscription or "")
            except FilterInvalid as error:
                raise Rejected(
                    ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                    f"parse the consumer's subscription failed: {error}",
                ) from None
        connected = self.known.clients.consumers[header.consumer_group]
        if not is_filter(connected.subscriptions[header.topic].expression_type):
            return None
        known = self.filters.find(header.topic, header.consumer_group)
        if known is None:
            remark = "The broker's consumer filter data is not exist!Your expression may be wrong!"
            raise Rejected(ResponseCode.FILTER_DATA_NOT_EXIST, remark)
        if known.version < header.sub_version:
            raise Rejected(
                ResponseCode.FILTER_DATA_NOT_LATEST,
                "the consumer's consumer filter data not latest",
            )
        return known.wanted

    # The response

    def _answer(
        self,
        request: Request,
        topic: TopicConfig,
        group: SubscriptionGroupConfig,
        tag_codes: frozenset[int] | None,
        found: GetResult,
        *,
        filtered_by: Wanted | None,
    ) -> Response | Deferred:
        """Return the response, or hold the pull.

        Between the read of the store and this call there is no checkpoint, so no arrival is missed.
        """
        header: PullMessageHeader = request.header
        status = found.status
        code, remark = SUCCESS, FOUND_REMARK
        if status is not FOUND:
            code, remark = CODES[status], status.name
            if status in EMPTY_QUEUE and header.queue_offset:
                code = ResponseCode.PULL_OFFSET_MOVED
        suggested = MASTER_ID
        reads = self.slave_reads
        if reads.enabled:
            suggested = reads.suggestion(group, found.far_behind)
            if reads.master_alive is not None:
                code, suggested = self._as_slave(code, suggested, header, found)
        totals = self.known.statistics.totals
        if code == SUCCESS:
            totals.gets_found += 1
            totals.gets_messages += found.count
            self._count_get(header, found)
        else:
            totals.gets_missed += 1
            if (
                status is GetStatus.NO_MATCHED_MESSAGE
                and filtered_by is not None
                and found.next_offset >= found.max_offset
                and header.sys_flag & SUSPEND
            ):
                # No message up to the end of the queue matches: wait for those behind it.
                header.queue_offset = found.next_offset
                if self._hold(request, tag_codes):
                    return Deferred((request,))
            if (
                code == ResponseCode.PULL_NOT_FOUND
                and header.sys_flag & SUSPEND
                and self._hold(request, tag_codes)
            ):
                return Deferred((request,))
        self.known.offsets.note_pull(
            header.consumer_group, header.topic, header.queue_id, found.next_offset
        )
        made = PullMessageResponseHeader(
            suggested,
            found.next_offset,
            found.min_offset,
            found.max_offset,
            None,
            topic.topic_sys_flag,
            group.group_sys_flag,
        )
        # A bytearray is sent like bytes; its content does not change any more.
        chunks = cast("Sequence[bytes | memoryview]", found.chunks)
        return Response(code, made, chunks, remark, None, found.size_bytes)

    def _as_slave(
        self, code: int, suggested: int, header: PullMessageHeader, found: GetResult
    ) -> tuple[int, int]:
        """Return the code and the suggested broker of a slave.

        The consumer keeps an offset that the slave does not have: the master may have it.
        """
        if code == ResponseCode.PULL_OFFSET_MOVED:
            found.next_offset = header.queue_offset
            code = ResponseCode.PULL_NOT_FOUND
        if self.slave_reads.back_to_master(found.far_behind):
            suggested = MASTER_ID
            if code != SUCCESS:
                code = ResponseCode.PULL_RETRY_IMMEDIATELY
        return code, suggested

    def _hold(self, request: Request, tag_codes: frozenset[int] | None) -> bool:
        header: PullMessageHeader = request.header
        seconds = header.suspend_timeout_ms / 1000
        if not self.live.long_polling:
            seconds = self.live.short_polling_ms / 1000
        pull = HeldPull(
            header.topic,
            header.queue_id,
            header.queue_offset,
            tag_codes,
            trio.current_time() + max(0.0, seconds),
            request.connection,
            partial(self._resume, request),
        )
        return self.held.hold(pull)

    def _count_get(self, header: PullMessageHeader, found: GetResult) -> None:
        if self._generation != self.known.topics.generation:
            self._get_items.clear()
            self._generation = self.known.topics.generation
        key = (header.topic, header.consumer_group)
        items = self._get_items.get(key)
        if items is None:
            name = f"{header.topic}@{header.consumer_group}"
            items = self._get_items[key] = (
                self.known.statistics.item("GROUP_GET_NUMS", name),
                self.known.statistics.item("GROUP_GET_SIZE", name),
            )
        count, size = items
        count.value += found.count
        count.times += 1
        size.value += found.size_bytes
        size.times += 1
