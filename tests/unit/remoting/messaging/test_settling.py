"""Calls that settle messages whose time is renewed, with a fake way to the brokers."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
import trio.testing
from scripted_cluster import record

from triomq.remoting.core.errors import RequestTimeout
from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.grpc.apache_rocketmq import service_pb2 as rpc
from triomq.remoting.messaging.known_clients import KnownClient, KnownClients
from triomq.remoting.messaging.messaging_settings import MessagingSettings
from triomq.remoting.messaging.popped_messages import PoppedMessage
from triomq.remoting.messaging.renewal import Renewals
from triomq.remoting.messaging.settling import ENTRIES_MAX, REQUESTS_MAX, Settling
from triomq.remoting.messaging.status_codes import Refused
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command, response_to
from triomq.remoting.protocol.limits import Limits
from triomq.remoting.protocol.receipt_handle import NORMAL, ReceiptHandle

NOW_MS = 1_000_000
FAILURES = ("time-out", ResponseCode.SYSTEM_BUSY)
KINDS = ("acknowledge", "change_time", "to_dead_letters")


@attrs.define(eq=False)
class FakeLink:
    """Answers in a second, with this code or not at all; notes the handles that it was asked by."""

    answers: list[Any] = attrs.field(factory=list)
    handles: list[str] = attrs.field(factory=list)
    credentials: Any = None
    peer: Any = None
    asked: int = 0
    """Requests without an answer; ``asked_most``: the most at once."""
    asked_most: int = 0

    async def invoke(self, broker_name: str, command: Command, timeout: float) -> Command:
        if command.code == RequestCode.VIEW_MESSAGE_BY_ID:
            return response_to(command, body=record(7, topic="T"))
        self.handles.append((command.ext or {}).get("extraInfo", ""))
        self.asked += 1
        self.asked_most = max(self.asked_most, self.asked)
        try:
            await trio.sleep(1)
        finally:
            self.asked -= 1
        answer = self.answers.pop(0)
        if answer == "time-out":
            raise RequestTimeout(broker_name, int(command.code), timeout)
        ext = {"popTime": str(NOW_MS), "invisibleTime": "1", "reviveQid": "0"}
        made = response_to(command, int(answer))
        made.ext = ext
        return made

    async def register(self, data: Any, language: int) -> None: ...

    async def unregister(self, client_id: str, producers: Any, consumers: Any) -> None: ...

    def close(self) -> None: ...


@attrs.define(eq=False)
class FakeCall:
    """What the handlers read of a call."""

    metadata: dict[str, str] = attrs.field(factory=lambda: {"x-mq-client-id": "c"})
    peer: tuple[str, int] = ("127.0.0.1", 1)


def held(link: FakeLink, **settings: Any) -> tuple[Settling, PoppedMessage, PoppedMessage]:
    """Return the handlers, a message as its client has it, and the same after a renewal."""
    messaging = MessagingSettings(**settings)
    limits = Limits(messaging, "gRPC service")
    clients = KnownClients(limits, lambda client: link, 120)
    client = clients.by_id["c"] = KnownClient("c", ("127.0.0.1", 1), 0, 0.0)
    client.link = link

    async def retry_delay(group: str, times: int) -> int:
        return 1000

    renewals = Renewals(messaging, limits, lambda: NOW_MS, retry_delay)
    handle = ReceiptHandle(0, NOW_MS - 60_000, 60_000, 0, NORMAL, "b", 0, 7)
    given = PoppedMessage("G", "T", handle, 9)
    newest = PoppedMessage("G", "T", handle._replace(pop_time=NOW_MS), 9)
    renewals.keep(client, given, newest)
    return Settling(clients, renewals, lambda: NOW_MS), given, newest


async def settle(settling: Settling, message: PoppedMessage, kind: str) -> int:
    """Make the call; return the code of its answer."""
    names: dict[str, Any] = {"group": pb.Resource(name="G"), "topic": pb.Resource(name="T")}
    call: Any = FakeCall()
    if kind == "acknowledge":
        entry = rpc.AckMessageEntry(message_id="m", receipt_handle=message.text)
        answer: Any = await settling.acknowledge(
            rpc.AckMessageRequest(entries=[entry], **names), call
        )
        return int(answer.status.code)
    names["receipt_handle"] = message.text
    try:
        if kind == "change_time":
            answer = await settling.change_time(rpc.ChangeInvisibleDurationRequest(**names), call)
        else:
            answer = await settling.to_dead_letters(
                rpc.ForwardMessageToDeadLetterQueueRequest(**names), call
            )
    except Refused as error:
        return error.code
    return int(answer.status.code)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("failure", FAILURES)
async def test_what_could_not_be_settled_is_renewed_until_the_client_tries_again(
    autojump_clock: trio.testing.MockClock, kind: str, failure: Any
) -> None:
    link = FakeLink([failure, ResponseCode.SUCCESS, ResponseCode.SUCCESS])
    settling, given, newest = held(link)
    assert await settle(settling, given, kind) != pb.Code.OK
    assert [one.message for one in settling.renewals.held.values()] == [newest]
    assert await settle(settling, given, kind) == pb.Code.OK
    assert link.handles[-1] == newest.handle.encode()
    assert not settling.renewals.held


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("answer", ["time-out", ResponseCode.SUCCESS])
async def test_a_cancelled_call_leaves_nothing_half_done(
    autojump_clock: trio.testing.MockClock, kind: str, answer: Any
) -> None:
    link = FakeLink([answer, answer])
    settling, given, _ = held(link)
    with trio.move_on_after(0.5):
        await settle(settling, given, kind)
    done = answer == ResponseCode.SUCCESS
    assert len(settling.renewals.held) == (0 if done else 1)
    assert len(link.handles) == (2 if done and kind == "to_dead_letters" else 1)


@pytest.mark.parametrize("cancelled", [False, True])
async def test_many_messages_are_acknowledged_some_at_once(
    autojump_clock: trio.testing.MockClock, cancelled: bool
) -> None:
    link = FakeLink([ResponseCode.SUCCESS] * ENTRIES_MAX)
    settling, _, newest = held(link)
    messages = [
        attrs.evolve(newest, handle=newest.handle._replace(offset=offset))
        for offset in range(ENTRIES_MAX)
    ]
    entries = [rpc.AckMessageEntry(receipt_handle=message.text) for message in messages]
    request = rpc.AckMessageRequest(
        group=pb.Resource(name="G"), topic=pb.Resource(name="T"), entries=entries
    )
    call: Any = FakeCall()
    with trio.move_on_after(0.5 if cancelled else 1000) as scope:
        answer = await settling.acknowledge(request, call)
    assert scope.cancelled_caught is cancelled
    assert link.asked_most == REQUESTS_MAX
    if cancelled:  # what was begun is ended, nothing else is begun
        assert len(link.handles) == REQUESTS_MAX
        return
    assert answer.status.code == pb.Code.OK
    assert [entry.receipt_handle for entry in answer.entries] == [one.text for one in messages]
    assert sorted(link.handles) == sorted(one.handle.encode() for one in messages)


async def test_the_longest_invisible_time_is_that_of_the_settings() -> None:
    settling, given, _ = held(FakeLink(), invisible_ms_max=1000)
    request = rpc.ChangeInvisibleDurationRequest(
        group=pb.Resource(name="G"), topic=pb.Resource(name="T"), receipt_handle=given.text
    )
    request.invisible_duration.seconds = 2
    call: Any = FakeCall()
    with pytest.raises(Refused, match="max is 1000 ms"):
        await settling.change_time(request, call)
