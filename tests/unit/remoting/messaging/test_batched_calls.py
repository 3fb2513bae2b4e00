"""Sends, ends of transactions, recalls, acknowledgements and changes of invisible times in batches:
what becomes a request, and what the broker's response, or none, becomes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pytest

from triomq.remoting.core.errors import RemotingError
from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.grpc.apache_rocketmq import service_pb2 as rpc
from triomq.remoting.messaging.batched_acks import BatchedAcks
from triomq.remoting.messaging.batched_calls import BatchedSends, batch_of
from triomq.remoting.messaging.batched_changes import BatchedTimeChanges
from triomq.remoting.messaging.batched_questions import BatchedQuestions
from triomq.remoting.messaging.cluster import DirectRequest, Sendable
from triomq.remoting.messaging.known_clients import KnownClients
from triomq.remoting.messaging.messaging_settings import MessagingSettings
from triomq.remoting.messaging.popped_messages import PoppedMessage
from triomq.remoting.messaging.renewal import Renewals
from triomq.remoting.messaging.sending import Sending
from triomq.remoting.messaging.settling import REQUESTS_MAX, Settling
from triomq.remoting.messaging.transaction_place import TransactionPlace
from triomq.remoting.messaging.writable_queues import WritableQueues
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.headers.pop import ChangeInvisibleTimeResponseHeader
from triomq.remoting.protocol.headers.send import SendMessageResponseHeader
from triomq.remoting.protocol.limits import Limits
from triomq.remoting.protocol.recall_handle import RecallHandle
from triomq.remoting.protocol.receipt_handle import NORMAL, ReceiptHandle
from triomq.remoting.protocol.refused_sends import TOO_FEW
from triomq.remoting.server.requests import Response

NOW_MS = 1_700_000_000_000
PLACE = SendMessageResponseHeader("7F00000100002A9F0000000000000040", 1, 7)


@attrs.define(eq=False)
class FakeDirect:
    """A broker with one topic that keeps what it is given."""

    usable: bool = True
    topics: set[str] = attrs.field(factory=lambda: {"T"})
    steps: list[Sequence[DirectRequest]] = attrs.field(factory=list)

    def sendable(self, topic: str) -> Sendable | None:
        if topic not in self.topics:
            return None
        return Sendable(WritableQueues([("b", 2)]), (pb.NORMAL, pb.DELAY, pb.TRANSACTION))

    def submit(self, requests: Sequence[DirectRequest]) -> None:
        self.steps.append(list(requests))


@attrs.define(eq=False)
class FakeLink:
    credentials: Any = None


@attrs.define(eq=False)
class FakeContext:
    metadata: dict[str, str] = attrs.field(factory=lambda: {"x-mq-client-id": "c"})
    peer: tuple[str, int] = ("192.0.2.1", 1)


@attrs.define(eq=False)
class FakeCall:
    request: Any
    context: Any = attrs.field(factory=FakeContext)
    answers: list[Any] = attrs.field(factory=list)
    errors: list[Exception] = attrs.field(factory=list)
    late: Callable[[], None] | None = None
    handed_over: int = 0

    def hand_over(self) -> None:
        self.handed_over += 1

    def answer(self, answer: Any) -> None:
        self.answers.append(answer)

    def fail(self, error: Exception) -> None:
        self.errors.append(error)

    def give_up_at(self, late_at: float, on_late: Callable[[], None]) -> None:
        self.late = on_late


def send_of(*, topic: str = "T", count: int = 1, **system: Any) -> rpc.SendMessageRequest:
    message = pb.Message(
        topic=pb.Resource(name=topic),
        body=b"x",
        system_properties=pb.SystemProperties(message_id="id", **system),
    )
    return rpc.SendMessageRequest(messages=[message] * count)


def made(direct: FakeDirect) -> BatchedSends:
    limits = Limits(MessagingSettings(), "gRPC service")
    clients = KnownClients(limits, lambda client: FakeLink(), 120)  # type: ignore[arg-type,return-value]
    nothing: Any = None
    return BatchedSends(direct, clients, Sending(nothing, clients, lambda: NOW_MS), lambda: NOW_MS)


async def sent(*requests: Any) -> tuple[list[FakeCall], Sequence[DirectRequest]]:
    direct = FakeDirect()
    calls = [FakeCall(request) for request in requests]
    batch_of(None, "SendMessage", rpc.SendMessageResponse, made(direct))(calls)
    (step,) = direct.steps
    return calls, step


def test_what_has_its_own_handler() -> None:
    context: Any = FakeContext()
    direct = FakeDirect()
    takes = made(direct).takes
    assert takes(send_of(), context)
    for other in (send_of(count=2), send_of(count=0), send_of(topic="Nowhere"), send_of(topic=" ")):
        assert not takes(other, context)
    direct.usable = False
    assert not takes(send_of(), context)


async def test_the_sends_of_a_step_leave_together_but_for_those_that_are_refused() -> None:
    calls, step = await sent(send_of(), send_of(tag="a|b"), None, send_of(message_group="g"))
    assert [request.header.queue_id for request in step[:1]] == [1]  # type: ignore[attr-defined]
    assert len(step) == 1, "of the two good ones, a FIFO message is not for this topic"
    assert calls[0].answers == []
    assert calls[1].answers[0].status.code == pb.Code.ILLEGAL_MESSAGE_TAG
    assert isinstance(calls[2].errors[0], AttributeError)
    assert calls[3].answers[0].status.code == pb.Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE


async def test_a_stored_message() -> None:
    (call,), (request,) = await sent(send_of())
    request.answered(Response(0, header=PLACE))
    (answer,) = call.answers
    (entry,) = answer.entries
    assert answer.status.code == entry.status.code == pb.Code.OK
    assert (entry.message_id, entry.transaction_id, entry.offset) == ("id", "id", 7)


async def test_a_half_message_says_where_it_is() -> None:
    (call,), (request,) = await sent(send_of(message_type=pb.TRANSACTION))
    request.answered(Response(0, header=PLACE))
    place = TransactionPlace.decode(call.answers[0].entries[0].transaction_id)
    assert place == TransactionPlace("b", 7, 0x40, "id")


@pytest.mark.parametrize(
    ("response", "code"),
    [
        (Response(ResponseCode.SYSTEM_BUSY, remark="later"), pb.Code.TOO_MANY_REQUESTS),
        (Response(ResponseCode.GO_AWAY, remark=None), pb.Code.INTERNAL_SERVER_ERROR),
        (
            Response(ResponseCode.FLUSH_DISK_TIMEOUT, header=PLACE),
            pb.Code.MASTER_PERSISTENCE_TIMEOUT,
        ),
    ],
)
async def test_what_a_broker_says_otherwise(response: Response, code: int) -> None:
    (call,), (request,) = await sent(send_of())
    request.answered(response)
    assert call.answers[0].status.code == call.answers[0].entries[0].status.code == code


async def test_a_send_that_no_master_takes_yet_waits_in_its_handler() -> None:
    """As a call does that was in no batch: official clients try three times in milliseconds."""
    (call,), (request,) = await sent(send_of())
    request.answered(Response(ResponseCode.SYSTEM_ERROR, remark=f"{TOO_FEW}: 1 of 2"))
    assert (call.handed_over, call.answers) == (1, [])


async def test_a_response_that_cannot_be_read_fails_the_call_and_raises_nothing() -> None:
    (call,), (request,) = await sent(send_of(message_type=pb.TRANSACTION))
    request.answered(Response(0, header=attrs.evolve(PLACE, message_id="nonsense")))
    assert call.answers == []
    assert isinstance(call.errors[0], RemotingError | ValueError)


async def test_no_response_in_time() -> None:
    (call,), _ = await sent(send_of())
    assert call.late is not None
    call.late()
    assert call.answers[0].entries[0].status.code == pb.Code.PROXY_TIMEOUT
    assert "b has not answered within 3 s" in call.answers[0].entries[0].status.message


# Ends of transactions, recalls

END = rpc.EndTransactionRequest(
    topic=pb.Resource(name="T"),
    transaction_id=TransactionPlace("b", 7, 0x40, "id").encode(),
    resolution=pb.COMMIT,
)
RECALL = rpc.RecallMessageRequest(
    topic=pb.Resource(name="T"), recall_handle=RecallHandle("T", "b", NOW_MS, "id").encode()
)
ENDS = RequestCode.END_TRANSACTION, rpc.EndTransactionResponse
RECALLS = RequestCode.RECALL_MESSAGE, rpc.RecallMessageResponse


def questions(code: RequestCode, direct: FakeDirect) -> BatchedQuestions:
    limits = Limits(MessagingSettings(), "gRPC service")
    clients = KnownClients(limits, lambda client: FakeLink(), 120)  # type: ignore[arg-type,return-value]
    return BatchedQuestions(direct, clients, code)


async def asked(
    kind: tuple[RequestCode, Any], *requests: Any
) -> tuple[list[FakeCall], Sequence[DirectRequest]]:
    direct, calls = FakeDirect(), [FakeCall(request) for request in requests]
    batch_of(None, "", kind[1], questions(kind[0], direct))(calls)
    (step,) = direct.steps
    return calls, step


def test_questions_that_have_their_own_handler() -> None:
    context: Any = FakeContext()
    direct = FakeDirect()
    ends, recalls = questions(ENDS[0], direct), questions(RECALLS[0], direct)
    assert ends.takes(END, context)
    assert recalls.takes(RECALL, context)
    for name in ("Nowhere", " "):
        elsewhere = rpc.RecallMessageRequest(topic=pb.Resource(name=name))
        assert not recalls.takes(elsewhere, context)
    direct.usable = False
    assert not ends.takes(END, context)
    assert not recalls.takes(RECALL, context)


async def test_the_ends_of_a_step_leave_together_but_for_those_that_are_refused() -> None:
    blank = rpc.EndTransactionRequest(topic=pb.Resource(name="T"))
    calls, step = await asked(ENDS, END, blank, END)
    assert [(one.code, one.header.half_queue_offset) for one in step] == [(37, 7), (37, 7)]  # type: ignore[attr-defined]
    assert calls[1].answers[0].status.code == pb.Code.INVALID_TRANSACTION_ID
    step[0].answered(Response())
    step[1].answered(Response(ResponseCode.SYSTEM_BUSY, remark="later"))
    assert calls[0].answers[0].status.code == pb.Code.OK
    assert calls[2].answers[0].status.code == pb.Code.TOO_MANY_REQUESTS


async def test_a_recall_names_its_message() -> None:
    (call,), (request,) = await asked(RECALLS, RECALL)
    assert request.header.recall_handle == RECALL.recall_handle  # type: ignore[attr-defined]
    request.answered(Response())
    assert (call.answers[0].status.code, call.answers[0].message_id) == (pb.Code.OK, "id")


@pytest.mark.parametrize(("kind", "request_", "seconds"), [(ENDS, END, 3), (RECALLS, RECALL, 2)])
async def test_a_question_without_a_response_in_time(
    kind: tuple[RequestCode, Any], request_: Any, seconds: int
) -> None:
    (call,), _ = await asked(kind, request_)
    assert call.late is not None
    call.late()
    assert call.answers[0].status.code == pb.Code.PROXY_TIMEOUT
    assert f"b has not answered within {seconds} s" in call.answers[0].status.message


# Acknowledgements


def popped(offset: int, pop_time: int = NOW_MS) -> PoppedMessage:
    return PoppedMessage("G", "T", ReceiptHandle(0, pop_time, 60_000, 0, NORMAL, "b", 0, offset), 9)


def ack_of(*handles: str) -> rpc.AckMessageRequest:
    entries = [
        rpc.AckMessageEntry(message_id=f"m{at}", receipt_handle=text)
        for at, text in enumerate(handles)
    ]
    return rpc.AckMessageRequest(
        group=pb.Resource(name="G"), topic=pb.Resource(name="T"), entries=entries
    )


def settled(batches: Any) -> tuple[FakeDirect, Any]:
    """Return the batches of a method that settles messages, and what they ask."""
    limits = Limits(MessagingSettings(), "gRPC service")
    clients = KnownClients(limits, lambda client: FakeLink(), 120)  # type: ignore[arg-type,return-value]
    nothing: Any = None
    renewals = Renewals(MessagingSettings(), limits, lambda: NOW_MS, nothing)
    direct = FakeDirect()
    return direct, batches(direct, Settling(clients, renewals, lambda: NOW_MS))


def acks() -> tuple[FakeDirect, BatchedAcks]:
    return settled(BatchedAcks)


def test_acknowledgements_that_have_their_own_handler() -> None:
    context: Any = FakeContext()
    direct, batch = acks()
    good = ack_of(popped(1).text)
    assert batch.takes(good, context)
    assert not batch.takes(ack_of(), context)
    assert not batch.takes(ack_of(*[popped(1).text] * (REQUESTS_MAX + 1)), context)
    batch.settling.renewals.under_way = 1
    assert not batch.takes(good, context)
    batch.settling.renewals.under_way, direct.usable = 0, False
    assert not batch.takes(good, context)


async def test_each_entry_has_its_result() -> None:
    direct, batch = acks()
    call = FakeCall(ack_of(popped(1).text, "nonsense", popped(2).text, popped(3, 1).text))
    batch_of(None, "AckMessage", rpc.AckMessageResponse, batch)([call])
    (step,) = direct.steps
    assert [request.header.offset for request in step] == [1, 2]  # type: ignore[attr-defined]
    step[1].answered(Response(ResponseCode.SYSTEM_BUSY, remark="later"))
    assert call.answers == []
    step[0].answered(Response())
    (answer,) = call.answers
    assert answer.status.code == pb.Code.MULTIPLE_RESULTS
    assert [entry.status.code for entry in answer.entries] == [
        pb.Code.OK,
        pb.Code.INVALID_RECEIPT_HANDLE,
        pb.Code.TOO_MANY_REQUESTS,
        pb.Code.INVALID_RECEIPT_HANDLE,
    ]
    assert [entry.message_id for entry in answer.entries] == ["m0", "m1", "m2", "m3"]
    step[0].answered(Response())
    assert len(call.answers) == 1


async def test_no_entry_that_can_be_acknowledged() -> None:
    direct, batch = acks()
    call = FakeCall(ack_of("nonsense"))
    batch_of(None, "AckMessage", rpc.AckMessageResponse, batch)([call])
    assert direct.steps == [[]]
    assert call.answers[0].status.code == pb.Code.INVALID_RECEIPT_HANDLE


@pytest.mark.parametrize("failure", ["busy", "silence", "gone"])
async def test_a_held_message_is_renewed_again_if_it_is_not_acknowledged(failure: str) -> None:
    direct, batch = acks()
    renewals = batch.settling.renewals
    given, newest = popped(1, NOW_MS - 70_000), popped(1)
    context: Any = FakeContext()
    client = batch.settling.clients.find(context)
    renewals.keep(client, given, newest)
    call = FakeCall(ack_of(given.text))
    batch_of(None, "AckMessage", rpc.AckMessageResponse, batch)([call])
    ((request,),) = direct.steps
    assert request.header.receipt == newest.handle.encode()  # type: ignore[attr-defined]
    assert not renewals.held
    if failure == "silence":
        assert call.late is not None
        call.late()
        request.answered(Response())  # too late
    else:
        code = ResponseCode.SYSTEM_BUSY if failure == "busy" else ResponseCode.NO_MESSAGE
        request.answered(Response(code, remark="why"))
    assert [held.message for held in renewals.held.values()] == (
        [] if failure == "gone" else [newest]
    )
    assert len(call.answers) == 1
    assert call.answers[0].status.code != pb.Code.OK


# Changes of invisible times

CHANGED = ChangeInvisibleTimeResponseHeader(NOW_MS + 5, 30_000, 3)


def change_of(text: str, seconds: int = 30) -> rpc.ChangeInvisibleDurationRequest:
    made = rpc.ChangeInvisibleDurationRequest(
        group=pb.Resource(name="G"), topic=pb.Resource(name="T"), receipt_handle=text
    )
    made.invisible_duration.FromSeconds(seconds)
    return made


async def changes(
    *requests: Any, held: tuple[PoppedMessage, PoppedMessage] | None = None
) -> tuple[list[FakeCall], Sequence[DirectRequest], Renewals]:
    direct, batch = settled(BatchedTimeChanges)
    calls, context = [FakeCall(request) for request in requests], FakeContext()
    if held is not None:
        batch.settling.renewals.keep(batch.settling.clients.find(context), *held)
    batch_of(None, "", rpc.ChangeInvisibleDurationResponse, batch)(calls)
    (step,) = direct.steps
    return calls, step, batch.settling.renewals


def test_changes_that_have_their_own_handler() -> None:
    context: Any = FakeContext()
    direct, batch = settled(BatchedTimeChanges)
    good = change_of(popped(1).text)
    assert batch.takes(good, context)
    batch.settling.renewals.under_way = 1
    assert not batch.takes(good, context)
    batch.settling.renewals.under_way, direct.usable = 0, False
    assert not batch.takes(good, context)


async def test_the_changes_of_a_step_leave_together_but_for_those_that_are_refused() -> None:
    good, late = popped(1), popped(3, 1)
    calls, step, _ = await changes(
        *[change_of(text) for text in (good.text, "nonsense", late.text)],
        change_of(good.text, -1),
        change_of(good.text),
    )
    assert [(one.header.offset, one.header.invisible_ms) for one in step] == [(1, 30_000)] * 2  # type: ignore[attr-defined]
    assert [call.answers[0].status.code for call in calls[1:4]] == [
        pb.Code.INVALID_RECEIPT_HANDLE,
        pb.Code.INVALID_RECEIPT_HANDLE,
        pb.Code.ILLEGAL_INVISIBLE_TIME,
    ]
    step[1].answered(Response(ResponseCode.SYSTEM_BUSY, remark="later"))
    step[0].answered(Response(header=CHANGED))
    (answer,), (busy,) = calls[0].answers, calls[4].answers
    newest = PoppedMessage.of("G", "T", answer.receipt_handle)
    assert answer.status.code == pb.Code.OK
    assert newest == good.changed(CHANGED)
    assert (newest.handle.visible_at, newest.log_offset) == (NOW_MS + 30_005, 9)
    assert (busy.status.code, busy.receipt_handle) == (pb.Code.TOO_MANY_REQUESTS, good.text)


@pytest.mark.parametrize("failure", ["busy", "silence", "gone"])
async def test_a_held_message_is_renewed_again_if_its_time_is_not_changed(failure: str) -> None:
    given, newest = popped(1, NOW_MS - 70_000), popped(1)
    (call,), (request,), renewals = await changes(change_of(given.text), held=(given, newest))
    assert request.header.receipt == newest.handle.encode()  # type: ignore[attr-defined]
    assert not renewals.held
    if failure == "silence":
        assert call.late is not None
        call.late()
        request.answered(Response(header=CHANGED))  # too late
    else:
        code = ResponseCode.SYSTEM_BUSY if failure == "busy" else ResponseCode.NO_MESSAGE
        request.answered(Response(code, remark="why"))
    assert [held.message for held in renewals.held.values()] == (
        [] if failure == "gone" else [newest]
    )
    assert len(call.answers) == 1
    assert call.answers[0].status.code != pb.Code.OK


async def test_a_changed_time_that_cannot_be_read_fails_the_call_and_raises_nothing() -> None:
    (call,), (request,), _ = await changes(change_of(popped(1).text))
    request.answered(Response(header=None))
    assert (call.answers, len(call.errors)) == ([], 1)
