"""``MessageTrace``: notes what a client does with each message, as hooks around its work.

What is not noted, as in Java's clients: one-way sends, failed attempts, messages of the trace topic
itself, and messages whose broker says TRACE_ON=false or that name no region. A batch has a record
for each of its messages; Java writes one for all, in which no query finds a single id.

Source: client/…/trace/hook/SendMessageTraceHookImpl.java, ConsumeMessageTraceHookImpl.java,
EndTransactionTraceHookImpl.java, DefaultRecallMessageTraceHook.java.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

import attrs

from triomq.client.core.message_hooks import ConsumeContext, SendContext
from triomq.client.core.trace_records import (
    ConsumeOutcome,
    EndTransactionRecord,
    PubRecord,
    RecallRecord,
    SubAfterRecord,
    SubBeforeRecord,
    TracedKind,
    TraceRecord,
)
from triomq.remoting.core.errors import RemoteProtocolError
from triomq.remoting.protocol.batch import decode_batch
from triomq.remoting.protocol.headers.transaction import EndTransactionHeader
from triomq.remoting.protocol.message_properties import (
    DELAY,
    KEYS,
    MSG_REGION,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRACE_ON,
    TRAN_MSG,
    UNIQ_KEY,
    decode_properties,
)
from triomq.remoting.protocol.names import TRACE_TOPIC

COMMITTED, ROLLED_BACK, UNDECIDED = "COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"
"""States of ``end_transaction``, in Java's spelling (LocalTransactionState)."""

_BEGAN = "triomq.trace.began"
_OPENED = "triomq.trace.opened"
_DEFAULT_REGION = "DefaultRegion"
_TIMED = (DELAY, TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_DELIVER_MS, "__STARTDELIVERTIME")


@attrs.frozen
class _Began:
    """A call of a handler, between its two records."""

    request_id: str
    ms: int
    """milliseconds since 1970"""
    traced: Sequence[Any]
    """the messages that have a record"""


@attrs.define(eq=False)
class MessageTrace:
    """Makes the records of one producer or consumer; a send hook and a consume hook."""

    group: str
    trace_topic: str
    _append: Callable[[Sequence[TraceRecord]], None]
    """takes records without waiting"""
    _new_id: Callable[[], str]
    """returns another id for the calls of handlers"""
    consume_timeout: float = inf
    """seconds after which a call of a handler counts as timed out"""

    # Sends

    def before_send(self, context: SendContext) -> None:
        context.attributes[_BEGAN] = time.time_ns(), time.monotonic_ns()

    def after_send(self, context: SendContext) -> None:
        receipt = context.receipt
        if receipt is None or not context.trace_on or self._is_trace(context.topic):
            return
        began, began_steady = context.attributes[_BEGAN]
        shared = context.properties
        kind = _kind(shared)
        if context.batch:
            messages = _batch_messages(context.body)
        else:
            messages = [(context.message_id, shared, len(context.body))]
        offset_ids = (receipt.offset_message_id or "").split(",")
        if len(offset_ids) != len(messages):
            offset_ids = [receipt.offset_message_id] * len(messages)
        cost_ms = (time.monotonic_ns() - began_steady) // 1_000_000
        self._append(
            [
                PubRecord(
                    timestamp=began // 1_000_000,
                    region=receipt.region,
                    group=self.group,
                    topic=context.topic,
                    message_id=message_id,
                    tag=properties.get(TAGS),
                    keys=properties.get(KEYS),
                    store_host=context.address,
                    body_bytes=size,
                    cost_ms=cost_ms,
                    kind=kind,
                    offset_message_id=offset_id,
                    success=receipt.status.name == "STORED",
                )
                for (message_id, properties, size), offset_id in zip(messages, offset_ids)
            ]
        )

    # Handlers

    def before_consume(self, context: ConsumeContext) -> None:
        traced = [message for message in context.messages if self._wants(message)]
        if not traced:
            return
        ms = int((time.time() - context.elapsed) * 1000)
        began = context.attributes[_OPENED] = _Began(self._new_id(), ms, traced)
        self._append(
            [
                SubBeforeRecord(
                    timestamp=ms,
                    region=message.properties[MSG_REGION],
                    group=self.group,
                    request_id=began.request_id,
                    message_id=message.message_id,
                    retry_times=message.reconsume_times,
                    keys=message.properties.get(KEYS),
                )
                for message in traced
            ]
        )

    def after_consume(self, context: ConsumeContext) -> None:
        began: _Began | None = context.attributes.pop(_OPENED, None)
        if began is None:
            return
        now_ms = time.time_ns() // 1_000_000
        spent_ms = max(0, now_ms - began.ms)
        records = []
        for message in began.traced:
            outcome = self._outcome(context, message, spent_ms)
            records.append(
                SubAfterRecord(
                    request_id=began.request_id,
                    message_id=message.message_id,
                    cost_ms=spent_ms // len(context.messages),
                    success=context.success and outcome is not ConsumeOutcome.FAILED,
                    keys=message.properties.get(KEYS),
                    outcome=outcome,
                    timestamp=now_ms,
                    group=self.group,
                )
            )
        self._append(records)

    def _outcome(self, context: ConsumeContext, message: Any, spent_ms: int) -> ConsumeOutcome:
        if context.error is not None:
            return ConsumeOutcome.RAISED
        if spent_ms >= self.consume_timeout * 1000:
            return ConsumeOutcome.TIMED_OUT
        if message.given_back:
            return ConsumeOutcome.FAILED
        return ConsumeOutcome.SUCCESS

    # Transactions and timers

    def end_transaction(
        self, header: EndTransactionHeader, state: str, address: str, properties: Mapping[str, str]
    ) -> None:
        """Note that a broker was told how a transaction ended.

        ``state``: ``COMMITTED``, ``ROLLED_BACK`` or ``UNDECIDED``. ``address``: the broker's.
        ``properties``: those of the half message; tag, keys and region are taken from them.
        """
        topic = header.topic or ""
        if self._is_trace(topic):
            return
        self._append(
            [
                EndTransactionRecord(
                    timestamp=time.time_ns() // 1_000_000,
                    region=properties.get(MSG_REGION) or _DEFAULT_REGION,
                    group=self.group,
                    topic=topic,
                    message_id=header.message_id,
                    tag=properties.get(TAGS),
                    keys=properties.get(KEYS),
                    store_host=address,
                    transaction_id=header.transaction_id or "",
                    state=state,
                    from_check=header.from_check,
                )
            ]
        )

    def recall(
        self, *, topic: str, message_id: str, success: bool, region: str | None = _DEFAULT_REGION
    ) -> None:
        """Note that a broker was asked to recall a timed message.

        ``region``: MSG_REGION of the broker's answer; None, as without it, is not noted.
        """
        if region is not None and not self._is_trace(topic):
            self._append(
                [
                    RecallRecord(
                        timestamp=time.time_ns() // 1_000_000,
                        region=region,
                        group=self.group,
                        topic=topic,
                        message_id=message_id,
                        success=success,
                    )
                ]
            )

    def _is_trace(self, topic: str) -> bool:
        return topic in (self.trace_topic, TRACE_TOPIC)

    def _wants(self, message: Any) -> bool:
        properties = message.properties
        return (
            MSG_REGION in properties
            and properties.get(TRACE_ON) != "false"
            and not self._is_trace(message.topic)
        )


def _kind(properties: Mapping[str, str]) -> TracedKind:
    if any(name in properties for name in _TIMED):
        return TracedKind.DELAY
    return TracedKind.HALF if properties.get(TRAN_MSG) == "true" else TracedKind.NORMAL


def _batch_messages(body: bytes) -> list[tuple[str, Mapping[str, str], int]]:
    """Return id, properties and body size of each message of a batch; none of a foreign body."""
    try:
        elements = decode_batch(body)
    except RemoteProtocolError:
        return []
    found: list[tuple[str, Mapping[str, str], int]] = []
    for _, content, encoded in elements:
        properties = decode_properties(encoded)
        found.append((properties.get(UNIQ_KEY, ""), properties, len(content)))
    return found
