"""Classify: find or create the topic of a message, and check that the topic accepts it.

Also creates retry and dead-letter topics. Source:
broker/processor/AbstractSendMessageProcessor.java#msgCheck,
SendMessageProcessor.java#handleRetryAndDLQ.
"""

from __future__ import annotations

import time

import attrs

from triomq.broker.services.live_settings import LiveSettings
from triomq.broker.services.message_types import type_of_topic
from triomq.broker.services.put_types import no_larger
from triomq.broker.services.statistics import Item, Statistics
from triomq.broker.services.subscriptions import SubscriptionGroups
from triomq.broker.services.topics import (
    PERM_WRITE,
    UNIT_FLAG,
    UNIT_SUBSCRIPTION_FLAG,
    Topics,
    has_batch_queues,
    is_compacted,
)
from triomq.remoting.core.errors import Rejected
from triomq.remoting.protocol import names
from triomq.remoting.protocol.bodies.groups import SubscriptionGroupConfig
from triomq.remoting.protocol.bodies.topics import TopicConfig
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.send import SendMessageHeader

DEAD_LETTER_QUEUES = 1
# Since this version (V3_4_9) a client names the maximum number of deliveries of its messages.
VERSION_WITH_MAX_RECONSUME_TIMES = 121


@attrs.define(eq=False)
class Target:
    """A topic as the send path sees it, valid until any topic changes."""

    topic: str
    queue_limit: int
    """Queue ids from here on are refused."""
    write_queues: int
    puts: Item
    put_bytes: Item
    batched: bool = False
    """Whether a batch becomes one record (queue.type=BatchCQ)."""
    message_type: str | None = None
    """The type that its messages must have; None if types are not checked."""
    retry: bool = False
    compacted: bool = False
    """Whether its messages need a key, since only the newest of each is kept."""
    larger: list[int] = attrs.field(factory=no_larger)
    """Its messages above 1 KiB, by size."""
    writable: bool = True
    """Whether its permission allows writing; only messages that are sent back need that."""
    plain: bool = attrs.field(init=False)
    """Whether a message without traits need only be stored."""

    def __attrs_post_init__(self) -> None:
        self.plain = not (
            self.batched or self.retry or self.compacted or self.message_type is not None
        )


@attrs.define(eq=False)
class Admission:
    """The checks, in the order of a Java broker; each refusal is a Rejected with code and remark.

    ``targets`` caches the topics that were found in this ``generation`` of the table of topics.
    """

    topics: Topics
    groups: SubscriptionGroups
    statistics: Statistics
    live: LiveSettings
    broker_ip: str
    targets: dict[str, Target] = attrs.field(factory=dict, init=False)
    generation: int = attrs.field(default=-1, init=False)
    _inner_targets: dict[str, Target] = attrs.field(factory=dict, init=False)
    """Topics that the broker itself writes to; clients may not write to all of them."""

    def closed_until(self, now_ms: int) -> str | None:
        """Return the refusal of sends before startAcceptSendRequestTimeStamp; None after it."""
        if now_ms >= self.live.accept_sends_from_ms:
            return None
        seconds, milliseconds = divmod(self.live.accept_sends_from_ms, 1000)
        try:
            opens = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
        except (OverflowError, ValueError, OSError):
            return f"broker unable to service, until {self.live.accept_sends_from_ms} ms"
        return f"broker unable to service, until {opens},{milliseconds:03d}"

    def forget_targets(self) -> None:
        """Clear the cache: a topic, or a setting that topics depend on, has changed."""
        self.targets.clear()
        self._inner_targets.clear()
        self.generation = self.topics.generation

    def find(self, header: SendMessageHeader, sender: str) -> Target:
        """Find or create the topic of a message, and keep it in ``targets``. Raises: Rejected."""
        config = self._find_config(header)
        target = self._target_of(config)
        if header.queue_id >= target.queue_limit:
            raise Rejected(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{header.queue_id}] is illegal, {describe_topic(config)} Producer:"
                f" {sender}",
            )
        self.targets[header.topic] = target
        return target

    def _find_config(self, header: SendMessageHeader) -> TopicConfig:
        topic = header.topic
        config = self.topics.find(topic)
        if not self.live.writable and config is not None and config.order:
            raise Rejected(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self.broker_ip}] sending message is forbidden",
            )
        complaint = names.topic_complaint(topic)
        if complaint is not None:
            raise Rejected(ResponseCode.INVALID_PARAMETER, complaint)
        if topic in names.TOPICS_CLOSED_TO_CLIENTS:
            raise Rejected(
                ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden."
            )
        if topic.startswith(names.RETRY_PREFIX):
            group = topic.removeprefix(names.RETRY_PREFIX)
            if self.groups.find_or_create(group) is None:
                raise no_group(group)
        return config if config is not None else self._create(header)

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
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{header.topic}] not exist, apply first please!{names.FAQ}",
            )
        return config

    def _target_of(self, config: TopicConfig) -> Target:
        name = config.topic_name
        checked = (
            self.live.enforce_message_type
            and not name.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX))
            and not self.topics.is_system_topic(name)
        )
        return Target(
            name,
            max(config.read_queue_count, config.write_queue_count),
            config.write_queue_count,
            self.statistics.item("TOPIC_PUT_NUMS", name),
            self.statistics.item("TOPIC_PUT_SIZE", name),
            has_batch_queues(config),
            type_of_topic(config) if checked else None,
            name.startswith(names.RETRY_PREFIX),
            is_compacted(config),
            self.statistics.types.larger_of(name),
            bool(config.perm & PERM_WRITE),
        )

    def target_of(self, topic: str) -> Target | None:
        """Return a topic that exists as the send path sees it; None if there is none."""
        if self.generation != self.topics.generation:
            self.forget_targets()
        target = self._inner_targets.get(topic)
        if target is None and (config := self.topics.find(topic)) is not None:
            target = self._inner_targets[topic] = self._target_of(config)
        return target

    # Retry and dead letters

    def dead_letter_target(self, group: str) -> Target:
        """Return the dead-letter topic of a group; the first message creates it."""
        return self._target_of(
            self.topics.ensure(names.dead_letter_topic(group), DEAD_LETTER_QUEUES)
        )

    def retry_target(self, group: str, queue_count: int, *, unit_mode: bool) -> Target:
        """Return the retry topic of a group; the first message creates it. Raises: Rejected."""
        name = names.RETRY_PREFIX + group
        if self.generation != self.topics.generation:
            self.forget_targets()
        target = self.targets.get(name)
        if target is None:
            flag = UNIT_SUBSCRIPTION_FLAG if unit_mode else 0
            target = self._target_of(self.topics.ensure(name, queue_count, sys_flag=flag))
            self.targets[name] = target
        if not target.writable:
            raise Rejected(
                ResponseCode.NO_PERMISSION, f"the topic[{name}] sending message is forbidden"
            )
        return target


def no_group(name: str) -> Rejected:
    """Return the refusal of a request that names a group that does not exist."""
    return Rejected(
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        f"subscription group not exist, {name} {names.FAQ}",
    )


def deliveries_max(
    group: SubscriptionGroupConfig, version: int, named_by_client: int | None
) -> int:
    """Return the maximum number of deliveries before a message is dead."""
    if version >= VERSION_WITH_MAX_RECONSUME_TIMES and named_by_client is not None:
        return named_by_client
    return group.retry_max_times


def describe_topic(config: TopicConfig) -> str:
    """Return the text that a Java broker prints of a topic."""
    return (
        f"TopicConfig [topicName={config.topic_name}, readQueueNums={config.read_queue_count},"
        f" writeQueueNums={config.write_queue_count}, perm={perm_text(config.perm)},"
        f" topicFilterType={config.topic_filter_type}, topicSysFlag={config.topic_sys_flag},"
        f" order={'true' if config.order else 'false'}, attributes={config.attributes}]"
    )


def perm_text(perm: int) -> str:
    """Return a permission as R, W and X."""
    return ("R" if perm & 4 else "-") + ("W" if perm & 2 else "-") + ("X" if perm & 1 else "-")
