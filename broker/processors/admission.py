"""Whether a message may come in, and where it goes: the topic's limits, automatic creation, retry and dead-letter topics.

Source: broker/processor/AbstractSendMessageProcessor.java#msgCheck, SendMessageProcessor.java#handleRetryAndDLQ.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import attrs
import trio

from triomq.broker.processors import properties as props
from triomq.broker.services.live_settings import LiveSettings
from triomq.broker.services.message_types import type_complaint, type_of_topic
from triomq.broker.services.queue_locks import QueueLocks
from triomq.broker.services.statistics import Item, Statistics
from triomq.broker.services.subscriptions import SubscriptionGroups
from triomq.broker.services.topics import UNIT_FLAG, UNIT_SUBSCRIPTION_FLAG, Topics, has_batch_queues
from triomq.remoting.errors import Rejected
from triomq.remoting.protocol import names
from triomq.remoting.protocol.bodies.groups import SubscriptionGroupConfig
from triomq.remoting.protocol.bodies.topics import TopicConfig
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.send import SendMessageHeader
from triomq.remoting.protocol.message import DELAY, TRAN_MSG, TRANSACTION_MASK

# Since this version (V3_4_9) a client says itself how often its messages may be tried.
VERSION_WITH_MAX_RECONSUME_TIMES = 121
DEAD_LETTER_QUEUES = 1


@attrs.define(eq=False)
class Target:
    """A topic as far as storing a message needs it, looked up once."""

    topic: str
    queue_limit: int
    write_queues: int
    puts: Item
    put_bytes: Item
    batched: bool = False
    """whether a batch becomes one record (queue.type=BatchCQ)"""
    message_type: str | None = None
    """what its messages must be; None when that is not checked"""

    def note(self, requests: int, messages: int, size_bytes: int) -> None:
        """Count what was stored."""
        self.puts.times += requests
        self.puts.value += messages
        self.put_bytes.times += requests
        self.put_bytes.value += size_bytes


@attrs.define(eq=False)
class Admission:
    """The checks, in the order of a Java broker; each refusal is a Rejected with its code and remark."""

    topics: Topics
    groups: SubscriptionGroups
    locks: QueueLocks
    statistics: Statistics
    live: LiveSettings
    broker_ip: str

    def closed_until(self, now_ms: int) -> str | None:
        """What to tell senders who come before startAcceptSendRequestTimeStamp; None when it is later than that."""
        if now_ms >= self.live.accept_sends_from_ms:
            return None
        seconds, milliseconds = divmod(self.live.accept_sends_from_ms, 1000)
        try:
            opens = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
        except (OverflowError, ValueError, OSError):
            return f"broker unable to service, until {self.live.accept_sends_from_ms} ms"
        return f"broker unable to service, until {opens},{milliseconds:03d}"

    def target(self, header: SendMessageHeader, sender: str) -> Target:
        """Find or create the topic of a message."""
        topic = header.topic
        config = self.topics.find(topic)
        if not self.live.writable and config is not None and config.order:
            raise Rejected(ResponseCode.NO_PERMISSION, f"the broker[{self.broker_ip}] sending message is forbidden")
        complaint = names.topic_complaint(topic)
        if complaint is not None:
            raise Rejected(ResponseCode.INVALID_PARAMETER, complaint)
        if topic in names.TOPICS_CLOSED_TO_CLIENTS:
            raise Rejected(ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden.")
        if topic.startswith(names.RETRY_PREFIX):
            self._retry_group(topic)
        if config is None:
            config = self._create(header)
        queue_limit = max(config.read_queue_count, config.write_queue_count)
        if header.queue_id >= queue_limit:
            raise Rejected(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{header.queue_id}] is illegal, {describe_topic(config)} Producer: {sender}",
            )
        return self._target_of(config)

    def _create(self, header: SendMessageHeader) -> TopicConfig:
        retry = header.topic.startswith(names.RETRY_PREFIX)
        unit_flag = 0 if not header.unit_mode else UNIT_SUBSCRIPTION_FLAG if retry else UNIT_FLAG
        config = self.topics.create_on_send(
            header.topic, header.default_topic, header.default_topic_queue_count, sys_flag=unit_flag
        )
        if config is None and retry:
            config = self.topics.ensure(header.topic, 1, sys_flag=unit_flag)
        if config is None:
            raise Rejected(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist, apply first please!{names.FAQ}"
            )
        return config

    def _target_of(self, config: TopicConfig) -> Target:
        name = config.topic_name
        checked = self.live.enforce_message_type and not name.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX)) and not self.topics.is_system_topic(name)
        return Target(
            name,
            max(config.read_queue_count, config.write_queue_count),
            config.write_queue_count,
            self.statistics.item("TOPIC_PUT_NUMS", name),
            self.statistics.item("TOPIC_PUT_SIZE", name),
            has_batch_queues(config),
            type_of_topic(config) if checked else None,
        )

    def refuse_other_type(self, target: Target, known: Mapping[str, str]) -> None:
        """Refuse a message that is not of its topic's type, where that is checked."""
        if target.message_type is not None:
            complaint = type_complaint(target.topic, target.message_type, known)
            if complaint is not None:
                raise Rejected(ResponseCode.MESSAGE_ILLEGAL, complaint)

    def refuse_unsupported(self, header: SendMessageHeader, known: Mapping[str, str]) -> None:
        """Refuse what this version would deliver too early: halves of transactions, and messages for a certain time."""
        if known.get(TRAN_MSG, "").lower() == "true" or header.sys_flag & TRANSACTION_MASK:
            raise Rejected(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self.broker_ip}] sending transaction message is forbidden: this version has no transactions yet",
            )
        for name in props.TIMER_NAMES:
            if known.get(name):
                remark = (
                    f"the message is to be delivered at a certain time (property {name}={known[name]}), which this version cannot do yet; "
                    "it would be delivered at once, so it is refused; delay levels (property DELAY) are possible"
                )
                raise Rejected(ResponseCode.MESSAGE_ILLEGAL, remark)

    def delay_level(self, known: Mapping[str, str]) -> int:
        """The delay level of a message, 0 for none.  Raises Rejected for one that is no number."""
        text = known.get(DELAY)
        if not text:
            return 0
        try:
            return max(0, int(text))
        except ValueError:
            remark = f"the delay level {text!r} (property {DELAY}) is no number"
            raise Rejected(ResponseCode.MESSAGE_ILLEGAL, remark) from None

    # Retry and dead letters

    def is_dead(self, header: SendMessageHeader, version: int) -> bool:
        """Was this message, sent to a retry topic, tried too often?  An orderly group's is dead at its first return."""
        if not header.topic.startswith(names.RETRY_PREFIX):
            return False
        config = self._retry_group(header.topic)
        limit = config.retry_max_times
        if version >= VERSION_WITH_MAX_RECONSUME_TIMES and header.max_reconsume_times is not None:
            limit = header.max_reconsume_times
        group = config.group_name
        return (header.reconsume_times or 0) > limit or self.locks.any_alive(group, trio.current_time())

    def dead_letter_target(self, retry_topic: str) -> Target:
        """The dead-letter topic that belongs to a retry topic, created when the first message comes."""
        return self.dead_letter_of(retry_topic.removeprefix(names.RETRY_PREFIX))

    def dead_letter_of(self, group: str) -> Target:
        return self._target_of(self.topics.ensure(names.dead_letter_topic(group), DEAD_LETTER_QUEUES))

    def retry_of(self, group: str) -> Target:
        return self._target_of(self.topics.ensure(names.retry_topic(group), 1))

    def _retry_group(self, topic: str) -> SubscriptionGroupConfig:
        group = topic.removeprefix(names.RETRY_PREFIX)
        config = self.groups.find_or_create(group)
        if config is None:
            raise Rejected(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group} {names.FAQ}"
            )
        return config


def describe_topic(config: TopicConfig) -> str:
    """A topic as a Java broker prints it."""
    return (
        f"TopicConfig [topicName={config.topic_name}, readQueueNums={config.read_queue_count}, "
        f"writeQueueNums={config.write_queue_count}, perm={perm_text(config.perm)}, topicFilterType={config.topic_filter_type}, "
        f"topicSysFlag={config.topic_sys_flag}, order={'true' if config.order else 'false'}, attributes={config.attributes}]"
    )


def perm_text(perm: int) -> str:
    return ("R" if perm & 4 else "-") + ("W" if perm & 2 else "-") + ("X" if perm & 1 else "-")
