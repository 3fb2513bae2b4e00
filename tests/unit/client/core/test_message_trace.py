"""What the hooks of a message trace note of a handler's call: which messages, which outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import pytest
import trio

from triomq.client.core.message_hooks import ConsumeContext, SendContext
from triomq.client.core.message_trace import MessageTrace
from triomq.client.core.trace_records import (
    ConsumeOutcome,
    PubRecord,
    SubAfterRecord,
    SubBeforeRecord,
    TracedKind,
)
from triomq.client.sending.receipt import SendReceipt, SendStatus
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.names import TRACE_TOPIC

QUEUE = MessageQueue("Orders", "broker-a", 0)
REGION = {"MSG_REGION": "R", "TRACE_ON": "true"}


@attrs.define(eq=False)
class Message:
    message_id: str
    properties: Mapping[str, str] = REGION
    topic: str = "Orders"
    reconsume_times: int = 0
    given_back: bool = False


def tracing(**more: Any) -> tuple[MessageTrace, list[Any]]:
    found: list[Any] = []
    return MessageTrace("billing", TRACE_TOPIC, found.extend, lambda: "REQ", **more), found


def call(
    trace: MessageTrace, messages: Sequence[Message], error: BaseException | None = None
) -> None:
    context = ConsumeContext(group="billing", messages=messages)
    trace.before_consume(context)
    context.error, context.success = error, error is None
    trace.after_consume(context)


def test_messages_without_a_region_or_with_the_switch_off_are_left_out() -> None:
    trace, found = tracing()
    call(
        trace,
        [
            Message("no region", {}),
            Message("off", {**REGION, "TRACE_ON": "false"}),
            Message("old broker", {"MSG_REGION": "R"}),
            Message("trace", topic=TRACE_TOPIC),
            Message("plain", {**REGION, "KEYS": "k1 k2"}, reconsume_times=3),
        ],
    )
    assert [(type(record), record.message_id) for record in found] == [
        (SubBeforeRecord, "old broker"),
        (SubBeforeRecord, "plain"),
        (SubAfterRecord, "old broker"),
        (SubAfterRecord, "plain"),
    ]
    assert (found[1].keys, found[1].retry_times, found[1].region) == ("k1 k2", 3, "R")
    assert {record.request_id for record in found} == {"REQ"}
    trace, found = tracing()
    call(trace, [Message("no region", {})])
    assert found == []


@pytest.mark.parametrize(
    ("error", "given_back", "seconds", "success", "outcome"),
    [
        (None, False, 1000.0, True, ConsumeOutcome.SUCCESS),
        (None, True, 1000.0, False, ConsumeOutcome.FAILED),
        (ValueError("no"), False, 1000.0, False, ConsumeOutcome.RAISED),
        (KeyboardInterrupt(), False, 1000.0, False, ConsumeOutcome.RAISED),
        (None, False, 0.0, True, ConsumeOutcome.TIMED_OUT),
    ],
)
def test_outcomes(
    error: BaseException | None,
    given_back: bool,
    seconds: float,
    success: bool,
    outcome: ConsumeOutcome,
) -> None:
    trace, found = tracing(consume_timeout=seconds)
    call(trace, [Message("ID", given_back=given_back)], error)
    after = found[1]
    assert (after.success, after.outcome, after.group) == (success, outcome, "billing")


def test_a_call_that_is_noted_late_begins_when_the_message_was_handed_out() -> None:
    trace, found = tracing()
    context = ConsumeContext(group="billing", messages=[Message("A"), Message("B")], elapsed=10.0)
    trace.before_consume(context)
    context.success = True
    trace.after_consume(context)
    assert found[0].timestamp == pytest.approx(found[2].timestamp - 10_000, abs=1000)
    assert found[2].cost_ms == pytest.approx(5000, abs=500)  # divided by the number of messages


@pytest.mark.parametrize(
    ("properties", "kind"),
    [
        ("", TracedKind.NORMAL),
        ("DELAY\x013\x02", TracedKind.DELAY),
        ("TIMER_DELIVER_MS\x011\x02", TracedKind.DELAY),
        ("TRAN_MSG\x01true\x02", TracedKind.HALF),
    ],
)
async def test_sends(properties: str, kind: TracedKind) -> None:
    trace, found = tracing()

    def send(*, trace_on: bool = True, batch: bool = False, body: bytes = b"x") -> SendContext:
        context = SendContext(
            group="billing",
            topic="Orders",
            queue=QUEUE,
            address="h:1",
            message_id="ID",
            body=body,
            batch=batch,
            oneway=False,
            properties_text=properties,
        )
        trace.before_send(context)
        context.trace_on = trace_on
        return context

    trace.after_send(send())  # failed, cancelled or one-way: no receipt
    receipt = SendReceipt("ID", "OFFSET", QUEUE, 7, SendStatus.FLUSH_DISK_TIMEOUT, "R", None)
    off = send(trace_on=False)
    off.receipt = receipt
    trace.after_send(off)
    foreign = send(batch=True, body=b"not a batch")
    foreign.receipt = receipt
    trace.after_send(foreign)
    assert found == []
    sent = send()
    sent.receipt = receipt
    await trio.sleep(0.01)
    trace.after_send(sent)
    (record,) = found
    assert isinstance(record, PubRecord)
    assert (record.kind, record.success, record.region) == (kind, False, "R")
    assert (record.offset_message_id, record.store_host) == ("OFFSET", "h:1")
    assert record.cost_ms >= 9
