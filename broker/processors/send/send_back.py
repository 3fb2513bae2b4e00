"""Messages that a consumer could not handle: CONSUMER_SEND_MSG_BACK (36).

A copy goes to the group's retry or dead-letter topic. It comes back after a delay that grows with
the number of retries (level 3 + retries: 10 s, 30 s, 1 min, …), or after the delay level that the
consumer names. Source: broker/processor/AbstractSendMessageProcessor.java#consumerSendMsgBack.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable

import attrs

from triomq.broker.processors.send.admission import Target, deliveries_max, no_group
from triomq.broker.processors.send.pipeline import SendPipeline
from triomq.broker.services.live_settings import LiveSettings
from triomq.broker.services.subscriptions import SubscriptionGroups
from triomq.broker.store.core.draft import Draft, copied_draft
from triomq.broker.store.core.errors import IllegalMessage, StoreUnavailable
from triomq.remoting.access.resources import Action
from triomq.remoting.core.errors import Rejected, RemoteProtocolError
from triomq.remoting.core.printable import printable
from triomq.remoting.protocol.bodies.groups import SubscriptionGroupConfig
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.send import SendBackHeader
from triomq.remoting.protocol.inner_batch import is_inner_batch, unwrap
from triomq.remoting.protocol.message_properties import (
    DELAY,
    FAILURE,
    FAILURE_CHARS_MAX,
    INNER_BASE,
    INNER_NUM,
    ORIGIN_MESSAGE_ID,
    PROPERTIES_BYTES_MAX,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    RETRY_TOPIC,
    WAIT,
    joined_properties,
)
from triomq.remoting.protocol.record import StoredMessage
from triomq.remoting.protocol.record_reader import decode_records
from triomq.remoting.server.access_check import AccessCheck
from triomq.remoting.server.requests import Request, Response

FIRST_RETRY_LEVEL = 3


@attrs.define(eq=False)
class SendBack:
    """The handler. It classifies and drafts; the pipeline appends."""

    pipeline: SendPipeline
    groups: SubscriptionGroups
    live: LiveSettings
    broker_ip: str
    access: AccessCheck | None = None
    """Set where requests are authorized."""

    def handle(self, request: Request) -> Response | Awaitable[Response]:
        """Store a copy of the message. Raises: Rejected."""
        header: SendBackHeader = request.header
        group = self.groups.find_or_create(header.group)
        if group is None:
            raise no_group(header.group)
        if not self.live.writable:
            raise Rejected(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self.broker_ip}] sending message is forbidden",
            )
        if group.retry_queue_count <= 0:
            return Response()
        # The retry topic must be writable even if the copy goes to the dead-letter topic, as in
        # Java.
        self._retry_target(header, group)
        return self._copy(request, group)

    async def _copy(self, request: Request, group: SubscriptionGroupConfig) -> Response:
        header: SendBackHeader = request.header
        pipeline = self.pipeline
        message = await self._read(header)
        if self.access is not None:  # the copy can be read by the group
            self.access.require_message(request, message, Action.SUB)
        limit = deliveries_max(group, request.version, header.max_reconsume_times)
        dead = message.reconsume_times >= limit or header.delay_level < 0
        if dead:
            target, level = pipeline.admission.dead_letter_target(header.group), 0
        else:
            target = self._retry_target(header, group)
            level = header.delay_level or FIRST_RETRY_LEVEL + message.reconsume_times
        draft = copy_of(message, target, level, header.failure)
        if level:
            pipeline.delayed.schedule(draft, level)
        try:
            pipeline.store.check_draft(draft)
            pipeline.append_copies([draft], target)
        except StoreUnavailable as error:
            raise Rejected(ResponseCode.SYSTEM_ERROR, f"SERVICE_NOT_AVAILABLE ({error})") from None
        except IllegalMessage as error:
            raise Rejected(ResponseCode.SYSTEM_ERROR, f"MESSAGE_ILLEGAL ({error})") from None
        item = f"{message.topic}@{header.group}"
        pipeline.statistics.add("SNDBCK_PUT_NUMS", item, 1)
        if dead:
            pipeline.statistics.add("DLQ_PUT_NUMS", item, 1)
        await pipeline.topics.settled()
        return Response()

    def _retry_target(self, header: SendBackHeader, group: SubscriptionGroupConfig) -> Target:
        return self.pipeline.admission.retry_target(
            header.group, group.retry_queue_count, unit_mode=header.unit_mode
        )

    async def _read(self, header: SendBackHeader) -> StoredMessage:
        store = self.pipeline.store
        record = await store.read_record(header.offset)
        message = next(iter(decode_records(record)), None) if record is not None else None
        topic, message_id = header.origin_topic or "", header.origin_message_id or ""
        target = self.pipeline.admission.target_of(topic) if topic else None
        is_copy = message is None or message.message_id != message_id
        if target is not None and target.compacted and is_copy:
            # Its reader got a copy, whose offset is one of another log.
            message = await store.compacted.message(topic, header.offset, message_id)
        if message is None:
            raise Rejected(
                ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.offset}"
            )
        if is_inner_batch(message):
            return one_of(message, header.origin_message_id)
        return message


def copy_of(message: StoredMessage, target: Target, level: int, failure: str | None) -> Draft:
    """Return the draft of the copy: same body, flag, sender and id, one more delivery.

    It says why this delivery failed, not an earlier one. The consumer does not wait for the disk.
    """
    properties = dict(message.properties)
    properties.setdefault(RETRY_TOPIC, message.topic)
    properties.setdefault(ORIGIN_MESSAGE_ID, message.offset_message_id)
    properties[WAIT] = "false"
    for name in (DELAY, REAL_TOPIC, REAL_QUEUE_ID, INNER_NUM, INNER_BASE, FAILURE):
        properties.pop(name, None)
    # The reason is left out where it could make the properties too long, and the copy be refused.
    if failure and len(joined_properties(properties).encode()) < PROPERTIES_BYTES_MAX // 2:
        properties[FAILURE] = printable(failure)[:FAILURE_CHARS_MAX]
    if level:
        properties[DELAY] = str(level)
    queue_id = random.randrange(max(1, target.write_queues))
    draft = copied_draft(message, target.topic, queue_id, joined_properties(properties).encode())
    draft.reconsume_times += 1
    return draft


def one_of(record: StoredMessage, message_id: str | None) -> StoredMessage:
    """Return the message of an inner batch that is sent back. Raises: Rejected.

    The request names the record's offset, so only the id identifies the message. Java's broker
    refuses all of them, and its clients then send a new message to the retry topic.
    """
    try:
        found = next(
            (message for message in unwrap(record) if message.message_id == message_id), None
        )
    except RemoteProtocolError as error:
        raise Rejected(
            ResponseCode.SYSTEM_ERROR,
            f"MESSAGE_ILLEGAL (the record at {record.log_offset} is not an inner batch:"
            f" {error.reason})",
        ) from None
    if found is None:
        raise Rejected(
            ResponseCode.SYSTEM_ERROR,
            f"MESSAGE_ILLEGAL (the record at {record.log_offset} holds several messages, and none"
            f" has the id {message_id})",
        )
    return found
