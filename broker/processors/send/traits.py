"""Traits of messages that need more than to be stored: checks, and effects on the draft.

A trait acts on a message that has one of its properties or flags. First the checks of all these
traits run, then the draft is made, then the traits shape the draft. A check refuses by raising
Rejected, or changes where the message goes. Source: broker/processor/SendMessageProcessor.java,
broker/util/HookUtils.java.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import ClassVar

import attrs
import trio

from triomq.broker.processors.send.admission import Admission, Target, deliveries_max, no_group
from triomq.broker.processors.send.known_properties import OWN_NUMBERS, TIMER_NAMES
from triomq.broker.services.delay import DelayedMessages
from triomq.broker.services.message_types import type_complaint
from triomq.broker.services.queue_locks import QueueLocks
from triomq.broker.services.subscriptions import SubscriptionGroups
from triomq.broker.services.timers.timer_rules import NotATime, deliver_time
from triomq.broker.services.timers.timers import Timers
from triomq.broker.services.transactions.halves import COPY_BYTES, make_half
from triomq.broker.store.core.config import StoreConfig
from triomq.broker.store.core.draft import Draft
from triomq.broker.store.core.numbering import dispatch_fault, may_dispatch
from triomq.broker.store.store import MessageStore
from triomq.remoting.core.errors import Rejected
from triomq.remoting.protocol import names
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.send import SendMessageHeader
from triomq.remoting.protocol.message_properties import (
    DELAY,
    INNER_NUM,
    KEYS,
    MULTI_DISPATCH,
    PROPERTIES_BYTES_MAX,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELETE_KEY,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    TRAN_MSG,
)
from triomq.remoting.protocol.names import HALF_TOPIC, TIMER_TOPIC
from triomq.remoting.protocol.recall_handle import RecallHandle
from triomq.remoting.protocol.sys_flags import INNER_BATCH, TRANSACTION_MASK
from triomq.remoting.server.requests import Request


@attrs.define(eq=False)
class Incoming:
    """A message or a batch between classify and draft. Traits may change all but ``request``."""

    request: Request
    known: dict[str, str]
    """The values of the properties that the broker reads."""
    target: Target
    queue_id: int
    traits: list[Trait] = attrs.field(factory=list, init=False)
    """The traits that act on it."""
    dropped: list[str] = attrs.field(factory=list, init=False)
    """Properties that the record does not keep."""
    deliver_ms: int | None = attrs.field(default=None, init=False)
    """When it is to be delivered, for a message that waits."""
    handle: str | None = attrs.field(default=None, init=False)
    """By which its sender can recall it."""


class Trait:
    """The default trait refuses nothing and changes nothing."""

    properties: ClassVar[frozenset[str]] = frozenset()
    flags: ClassVar[int] = 0

    def concerns(self, message: Incoming) -> bool:
        """Return whether the trait acts on this message."""
        return bool(message.request.header.sys_flag & self.flags) or not (
            self.properties.isdisjoint(message.known)
        )

    def check(self, message: Incoming) -> None:
        """Check a single message. Raises: Rejected."""

    def check_batch(self, message: Incoming) -> None:
        """Check a batch as a whole, by its request. Raises: Rejected."""
        self.check(message)

    def check_element(self, message: Incoming) -> None:
        """Check a message of a batch. Raises: Rejected."""
        self.check(message)

    def shape(self, message: Incoming, draft: Draft) -> None:
        """Change the draft of a single message. Raises: Rejected."""


@attrs.define(eq=False)
class Halves(Trait):
    """A message of a transaction becomes a half, which no consumer sees until it is committed."""

    admission: Admission
    properties = frozenset({TRAN_MSG})
    flags = TRANSACTION_MASK

    def is_half(self, message: Incoming) -> bool:
        return message.known.get(TRAN_MSG, "").lower() == "true"

    def check(self, message: Incoming) -> None:
        if not self.is_half(message):
            if message.request.header.sys_flag & TRANSACTION_MASK:
                raise Rejected(
                    ResponseCode.MESSAGE_ILLEGAL,
                    "sysFlag says that the message is part of a transaction, but it has no property"
                    f" {TRAN_MSG}=true; send both for a half, none for another message",
                )
            return
        if self.admission.live.reject_transactions:
            raise Rejected(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self.admission.broker_ip}] sending transaction message is forbidden"
                " (rejectTransactionMessage=true)",
            )
        delay = next((name for name in (DELAY, *TIMER_NAMES) if name in message.known), None)
        if delay is not None and message.known[delay] != "0":
            raise Rejected(
                ResponseCode.MESSAGE_ILLEGAL,
                f"a message of a transaction cannot be delayed (property {delay}="
                f"{message.known[delay]}): a Java broker would lose it; send it without",
            )

    def check_batch(self, message: Incoming) -> None:
        if self.is_half(message) or message.request.header.sys_flag & TRANSACTION_MASK:
            raise Rejected(
                ResponseCode.MESSAGE_ILLEGAL,
                "a batch cannot be part of a transaction; send its messages one by one",
            )

    check_element = check_batch

    def shape(self, message: Incoming, draft: Draft) -> None:
        if self.is_half(message):
            make_half(draft)
            if len(draft.properties) > PROPERTIES_BYTES_MAX - COPY_BYTES:
                raise Rejected(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"the properties of a half may have {PROPERTIES_BYTES_MAX - COPY_BYTES} bytes,"
                    f" it has {len(draft.properties)}; checks of the transaction add to them",
                )
            target = self.admission.target_of(HALF_TOPIC)
            if target is not None:
                message.target = target  # counts as a message of that topic


@attrs.define(eq=False)
class Timed(Trait):
    """A message with a time of delivery waits in the topic of timers. A delay level counts more.

    ``timers``: None with timerWheelEnable=false.
    """

    timers: Timers | None
    config: StoreConfig
    broker_name: str
    properties = frozenset({TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS})

    def check(self, message: Incoming) -> None:
        known = message.known
        if delay_level(known):
            message.dropped += self.properties & known.keys()
            return
        if TIMER_OUT_MS in known or message.target.topic == TIMER_TOPIC:
            return  # it waited already: a copy of a message that was delivered
        if self.timers is None:
            raise Rejected(
                ResponseCode.SYSTEM_ERROR,
                "accurate timer message is not enabled, timerWheelEnable is false",
            )
        now_ms = self.timers.clock_ms()
        try:
            deliver_ms = deliver_time(known, now_ms)
        except NotATime as error:
            raise self._illegal(f" ({error})") from None
        if deliver_ms is None:
            return
        if deliver_ms <= now_ms:
            if TIMER_DELETE_KEY in known:
                raise self._illegal()
            return
        if deliver_ms - now_ms > self.timers.rules.delay_max_ms:
            raise self._illegal(f" ({deliver_ms - now_ms} ms; timerMaxDelaySec is the limit)")
        self._check_slot(deliver_ms)
        message.deliver_ms = deliver_ms
        if TIMER_DELIVER_MS in known:
            message.dropped.append(TIMER_DELIVER_MS)

    def _illegal(self, detail: str = "") -> Rejected:
        limit = self.timers.rules.delay_max_ms if self.timers is not None else 0
        return Rejected(
            ResponseCode.MESSAGE_ILLEGAL,
            "timer message illegal, the delay time should not be bigger than the max delay"
            f" {limit}ms; or if set del msg, the delay time should be bigger than the current"
            f" time{detail}",
        )

    def _check_slot(self, deliver_ms: int) -> None:
        """Refuse some messages of a full slot, all of one that is full twice. Raises: Rejected."""
        assert self.timers is not None
        limit, count = self.timers.settings.slot_count_max, self.timers.slot_count(deliver_ms)
        if count > limit and random.random() < (count - limit) / limit:
            self.timers.refused += 1
            raise Rejected(
                ResponseCode.SYSTEM_ERROR,
                f"timer message is under flow control, max num limit is {2 * limit} or the current"
                f" value is greater than {limit} and less than {2 * limit}, trigger random flow"
                f" control (the second of its delivery has {count}; spread the times, or raise"
                " timerCongestNumEachSlot)",
            )

    def check_batch(self, message: Incoming) -> None:
        raise illegal("a batch cannot have a time of delivery", self.config)

    check_element = check_batch

    def shape(self, message: Incoming, draft: Draft) -> None:
        if message.deliver_ms is None or self.timers is None:
            return
        if not message.target.retry and draft.unique_key:
            message.handle = RecallHandle(
                draft.topic, self.broker_name, message.deliver_ms, draft.unique_key
            ).encode()
        self.timers.delay(draft, message.deliver_ms)


class TopicTypes(Trait):
    """A topic with a checked type takes messages of that type only."""

    def concerns(self, message: Incoming) -> bool:
        return message.target.message_type is not None

    def check(self, message: Incoming) -> None:
        accepted = message.target.message_type
        assert accepted is not None
        complaint = type_complaint(message.target.topic, accepted, message.known)
        if complaint is not None:
            raise Rejected(ResponseCode.MESSAGE_ILLEGAL, complaint)

    def check_batch(self, message: Incoming) -> None:
        """Check nothing: the messages of a batch have types, the batch has none."""


@attrs.define(eq=False)
class Keyed(Trait):
    """A message of a compaction topic has a key: the newest message of each key is kept."""

    body_bytes_max: int
    """Half a file of copies, so that the record fits into one."""

    def concerns(self, message: Incoming) -> bool:
        return message.target.compacted

    def check(self, message: Incoming) -> None:
        self.check_element(message)
        self.check_batch(message)

    def check_batch(self, message: Incoming) -> None:
        size = len(message.request.body)
        if size > self.body_bytes_max:
            raise Rejected(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the body has {size} bytes, at most {self.body_bytes_max} are allowed in a topic"
                " with cleanup.policy=COMPACTION (half of compactionMappedFileSize); send less",
            )

    def check_element(self, message: Incoming) -> None:
        if not message.known.get(KEYS, "").strip():
            raise Rejected(
                ResponseCode.MESSAGE_ILLEGAL,
                f"Required message key is missing (topic {message.target.topic} has"
                " cleanup.policy=COMPACTION: send each message with KEYS)",
            )


@attrs.define(eq=False)
class Delays(Trait):
    """A message with a delay level waits in the topic of delayed messages."""

    delayed: DelayedMessages
    config: StoreConfig
    properties = frozenset({DELAY})

    def check(self, message: Incoming) -> None:
        delay_level(message.known)

    def check_batch(self, message: Incoming) -> None:
        if delay_level(message.known):
            raise illegal("a batch cannot be delayed", self.config)

    check_element = check_batch

    def shape(self, message: Incoming, draft: Draft) -> None:
        level = delay_level(message.known)
        if level:
            self.delayed.schedule(draft, level)


class InnerBatches(Trait):
    """Only the broker makes and numbers inner batches."""

    properties = frozenset({INNER_NUM, *OWN_NUMBERS})
    flags = INNER_BATCH

    def check(self, message: Incoming) -> None:
        sys_flag = message.request.header.sys_flag
        if sys_flag & INNER_BATCH or INNER_NUM in message.known:
            raise Rejected(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the message says that it is an inner batch (sysFlag {sys_flag:#x}, property"
                f" {INNER_NUM}), which only the broker makes of a batch; send it as a batch",
            )

    def check_element(self, message: Incoming) -> None:
        for name in (INNER_NUM, *OWN_NUMBERS):
            if name in message.known:
                raise Rejected(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"the property {name} is the broker's own; remove it",
                )


@attrs.define(eq=False)
class Retries(Trait):
    """A message for a retry topic goes to the dead-letter topic when it was delivered too often.

    A message of an orderly group goes there at its first return.
    """

    admission: Admission
    groups: SubscriptionGroups
    locks: QueueLocks

    def concerns(self, message: Incoming) -> bool:
        return message.target.retry

    def check(self, message: Incoming) -> None:
        request = message.request
        header: SendMessageHeader = request.header
        name = header.topic.removeprefix(names.RETRY_PREFIX)
        group = self.groups.find_or_create(name)
        if group is None:
            raise no_group(name)
        tries_max = deliveries_max(group, request.version, header.max_reconsume_times)
        tried_too_often = (header.reconsume_times or 0) > tries_max
        if tried_too_often or self.locks.any_alive(group.group_name, trio.current_time()):
            message.target = self.admission.dead_letter_target(group.group_name)
            message.queue_id = 0
            message.known.pop(DELAY, None)
            message.dropped.append(DELAY)


@attrs.define(eq=False)
class LightQueues(Trait):
    """A message may have entries in further queues: light message queues (LMQ)."""

    store: MessageStore
    properties = frozenset({MULTI_DISPATCH})

    def shape(self, message: Incoming, draft: Draft) -> None:
        """Mark the draft as special. Raises: Rejected.

        Also refuses a delayed message: when it is due, no sender is there to get the error.
        """
        listed = message.known[MULTI_DISPATCH]
        if (
            not listed.strip()
            or not self.store.config.multi_dispatch
            or not may_dispatch(draft.topic)
        ):
            return
        queues = listed.split(",")
        fault = dispatch_fault(queues)
        if fault is not None:
            raise Rejected(ResponseCode.MESSAGE_ILLEGAL, fault)
        limit, table = self.store.config.light_queues_max, self.store.queue_table
        if (
            limit is not None
            and table.light_count >= limit
            and any((name, 0) not in table.queues for name in queues)
        ):
            raise Rejected(
                ResponseCode.LMQ_QUOTA_EXCEEDED,
                "[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]lmq consume queue num exceeded. (there are"
                f" {table.light_count}, maxLmqConsumeQueueNum is {limit}; raise it, or use fewer"
                " queues)",
            )
        draft.special = True


class Traits:
    """All traits, in the order in which they act: the order of a Java broker's checks."""

    def __init__(
        self,
        admission: Admission,
        delayed: DelayedMessages,
        locks: QueueLocks,
        store: MessageStore,
        timers: Timers | None,
        broker_name: str,
    ) -> None:
        self._all: tuple[Trait, ...] = (
            Halves(admission),
            Timed(timers, store.config, broker_name),
            TopicTypes(),
            Keyed(store.compacted.sizes.log_bytes // 2),
            LightQueues(store),  # before Delays, which changes the topic of the draft
            Delays(delayed, store.config),
            InnerBatches(),
            Retries(admission, admission.groups, locks),
        )

    def check(self, message: Incoming) -> None:
        """Check a single message. Raises: Rejected."""
        message.traits = [trait for trait in self._all if trait.concerns(message)]
        for trait in message.traits:
            trait.check(message)

    def shape(self, message: Incoming, draft: Draft) -> None:
        """Change the draft of a message that was checked. Raises: Rejected."""
        for trait in message.traits:
            trait.shape(message, draft)

    def check_batch(self, batch: Incoming) -> None:
        """Check a batch as a whole. Raises: Rejected."""
        for trait in self._all:
            if trait.concerns(batch):
                trait.check_batch(batch)

    def check_element(self, message: Incoming) -> None:
        """Check a message of a batch. Raises: Rejected."""
        for trait in self._all:
            if trait.concerns(message):
                trait.check_element(message)


def delay_level(known: Mapping[str, str]) -> int:
    """Return the delay level of a message, 0 for none. Raises: Rejected."""
    text = known.get(DELAY)
    if not text:
        return 0
    try:
        return max(0, int(text))
    except ValueError:
        remark = f"the delay level {text!r} (property {DELAY}) is not a number"
        raise Rejected(ResponseCode.MESSAGE_ILLEGAL, remark) from None


def illegal(detail: str, config: StoreConfig) -> Rejected:
    """Return the refusal of a message that no broker could store."""
    return Rejected(
        ResponseCode.MESSAGE_ILLEGAL,
        "the message is illegal, maybe msg body or properties length not matched. msg body"
        f" length limit {config.message_size_bytes_max}B, msg properties length limit 32KB."
        f" ({detail})",
    )
