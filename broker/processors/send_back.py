"""Messages that a consumer could not handle: CONSUMER_SEND_MSG_BACK (36) copies them to the group's retry or dead-letter topic.

The copy comes back after a while that grows with the number of tries (level 3 + tries: 10 s, 30 s, 1 min, …), or after the delay level that
the consumer names.
Source: broker/processor/AbstractSendMessageProcessor.java#consumerSendMsgBack.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable

import attrs
import trio

from triomq.broker.processors.admission import VERSION_WITH_MAX_RECONSUME_TIMES, Admission, Target
from triomq.broker.services.delay import DelayedMessages
from triomq.broker.services.live_settings import LiveSettings
from triomq.broker.services.statistics import Statistics
from triomq.broker.services.subscriptions import SubscriptionGroups
from triomq.broker.services.topics import PERM_WRITE, UNIT_SUBSCRIPTION_FLAG, Topics
from triomq.broker.store.draft import Draft
from triomq.broker.store.errors import IllegalMessage, StoreUnavailable
from triomq.broker.store.store import MessageStore
from triomq.remoting.errors import Rejected, RemoteProtocolError
from triomq.remoting.protocol import names
from triomq.remoting.protocol.bodies.groups import SubscriptionGroupConfig
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.send import SendBackHeader
from triomq.remoting.protocol.inner_batch import is_inner_batch, unwrap
from triomq.remoting.protocol.message import (
    DELAY,
    INNER_BASE,
    INNER_NUM,
    KEYS,
    ORIGIN_MESSAGE_ID,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    RETRY_TOPIC,
    TAGS,
    UNIQ_KEY,
    WAIT,
    encode_properties,
)
from triomq.remoting.protocol.record import StoredMessage, decode_records
from triomq.remoting.server.handlers import Request, Response

TABLE_SAVE_SECONDS = 3.0
FIRST_RETRY_LEVEL = 3


@attrs.define(eq=False)
class SendBack:
    """The handler of code 36."""

    store: MessageStore
    topics: Topics
    groups: SubscriptionGroups
    admission: Admission
    delayed: DelayedMessages
    statistics: Statistics
    live: LiveSettings
    broker_ip: str

    def handle(self, request: Request) -> Response | Awaitable[Response]:
        header: SendBackHeader = request.header
        group = self.groups.find_or_create(header.group)
        if group is None:
            remark = f"subscription group not exist, {header.group} {names.FAQ}"
            raise Rejected(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        if not self.live.writable:
            raise Rejected(ResponseCode.NO_PERMISSION, f"the broker[{self.broker_ip}] sending message is forbidden")
        if group.retry_queue_count <= 0:
            return Response()
        name = names.retry_topic(header.group)
        flag = UNIT_SUBSCRIPTION_FLAG if header.unit_mode else 0
        topic = self.topics.ensure(name, group.retry_queue_count, sys_flag=flag)
        if not topic.perm & PERM_WRITE:
            raise Rejected(ResponseCode.NO_PERMISSION, f"the topic[{name}] sending message is forbidden")
        return self._copy(request, group)

    async def _copy(self, request: Request, group: SubscriptionGroupConfig) -> Response:
        header: SendBackHeader = request.header
        record = await self.store.read_record(header.offset)
        messages = decode_records(record) if record is not None else []
        if not messages:
            raise Rejected(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.offset}")
        message = messages[0] if not is_inner_batch(messages[0]) else one_of(messages[0], header.origin_message_id)
        limit = group.retry_max_times
        if request.version >= VERSION_WITH_MAX_RECONSUME_TIMES and header.max_reconsume_times is not None:
            limit = header.max_reconsume_times
        dead = message.reconsume_times >= limit or header.delay_level < 0
        target = self.admission.dead_letter_of(header.group) if dead else self.admission.retry_of(header.group)
        level = 0 if dead else header.delay_level or FIRST_RETRY_LEVEL + message.reconsume_times
        self._append(message, target, level)
        self.statistics.add("SNDBCK_PUT_NUMS", f"{message.topic}@{header.group}", 1)
        if dead:
            self.statistics.add("DLQ_PUT_NUMS", f"{message.topic}@{header.group}", 1)
        if self.topics.table.unsaved:
            with trio.move_on_after(TABLE_SAVE_SECONDS):
                await self.topics.table.wait_saved()
        return Response()

    def _append(self, message: StoredMessage, target: Target, level: int) -> None:
        """Store the copy: same body, flag, sender and id; one more try; it never waits for the disk."""
        properties = dict(message.properties)
        properties.setdefault(RETRY_TOPIC, message.topic)
        properties.setdefault(ORIGIN_MESSAGE_ID, message.offset_message_id)
        properties[WAIT] = "false"
        for name in (DELAY, REAL_TOPIC, REAL_QUEUE_ID, INNER_NUM, INNER_BASE):
            properties.pop(name, None)
        if level:
            properties[DELAY] = str(level)
        draft = Draft(
            target.topic,
            random.randrange(max(1, target.write_queues)),
            message.body,
            encode_properties(properties),
            message.flag,
            message.sys_flag,
            message.born_timestamp,
            message.born_host_bytes,
            message.reconsume_times + 1,
            tags=properties.get(TAGS),
            unique_key=properties.get(UNIQ_KEY),
            keys=properties.get(KEYS),
        )
        if level:
            self.delayed.schedule(draft, level)
        try:
            self.store.check_draft(draft)
            place = self.store.append([draft])[0]
        except StoreUnavailable as error:
            self.statistics.totals.puts_failed += 1
            raise Rejected(ResponseCode.SYSTEM_ERROR, f"SERVICE_NOT_AVAILABLE ({error})") from None
        except IllegalMessage as error:
            raise Rejected(ResponseCode.SYSTEM_ERROR, f"MESSAGE_ILLEGAL ({error})") from None
        self.statistics.note_put(1, place.size, 0.0)
        target.note(1, 1, place.size)


def one_of(record: StoredMessage, message_id: str | None) -> StoredMessage:
    """The message of an inner batch that is sent back; the request's offset is that of the record, so its id must tell.

    Java's broker refuses all of them, and its clients then send a new message to the retry topic.
    """
    try:
        found = next((message for message in unwrap(record) if message.message_id == message_id), None)
    except RemoteProtocolError as error:
        raise Rejected(ResponseCode.SYSTEM_ERROR, f"MESSAGE_ILLEGAL (the record at {record.log_offset} is no inner batch: {error.reason})") from None
    if found is None:
        raise Rejected(ResponseCode.SYSTEM_ERROR, f"MESSAGE_ILLEGAL (the record at {record.log_offset} holds several messages, and none has the id {message_id})")
    return found
