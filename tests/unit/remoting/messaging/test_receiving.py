"""Receives that end in the middle, with a fake way to the brokers: no message stays hidden."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from triomq.remoting.core.errors import RequestTimeout
from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.grpc.apache_rocketmq import service_pb2 as rpc
from triomq.remoting.messaging import receiving
from triomq.remoting.messaging.known_clients import KnownClient, KnownClients
from triomq.remoting.messaging.messaging_settings import MessagingSettings
from triomq.remoting.messaging.popped_messages import RETURN_MS, PoppedMessage
from triomq.remoting.messaging.receiving import Receiving, TakenMessage
from triomq.remoting.messaging.renewal import Renewals
from triomq.remoting.protocol.bodies.groups import SubscriptionGroupConfig
from triomq.remoting.protocol.bodies.route import BrokerData, QueueData, TopicRoute
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import Command, response_to
from triomq.remoting.protocol.limits import Limits
from triomq.remoting.protocol.receipt_handle import NORMAL, ReceiptHandle
from triomq.remoting.protocol.record import StoredMessage

NOW_MS = 1_000_000


@attrs.define(eq=False)
class FakeLink:
    """A broker with messages to pop. ``given_back``: offsets of those made visible again.

    ``answering`` is called when a pop is about to be answered.
    """

    answering: Callable[[], None] = lambda: None
    popped: trio.Event = attrs.field(factory=trio.Event)
    given_back: list[int] = attrs.field(factory=list)
    credentials: Any = None
    peer: Any = None

    async def invoke(self, broker_name: str, command: Command, timeout: float) -> Command:
        if command.code == RequestCode.POP_MESSAGE:
            await self.popped.wait()
            self.answering()
        elif command.code == RequestCode.CONSUMER_SEND_MSG_BACK:
            raise RequestTimeout(broker_name, int(command.code), timeout)
        elif command.code == RequestCode.CHANGE_MESSAGE_INVISIBLETIME:
            assert command.ext is not None
            assert command.ext["invisibleTime"] == str(RETURN_MS)
            self.given_back.append(int(command.ext["offset"]))
        made = response_to(command)
        made.ext = {"popTime": str(NOW_MS), "invisibleTime": "1", "reviveQid": "0"}
        return made

    async def register(self, data: Any, language: int) -> None: ...

    async def unregister(self, client_id: str, producers: Any, consumers: Any) -> None: ...

    def close(self) -> None: ...


class OneBroker:
    """A cluster with one topic; messages of the group may come again once."""

    async def route(self, topic: str) -> TopicRoute:
        queues = QueueData("b", 1, 1, 6, 0)
        return TopicRoute([queues], [BrokerData("c", "b", {0: "127.0.0.1:1"})])

    async def group(self, group: str) -> SubscriptionGroupConfig:
        return SubscriptionGroupConfig(group_name=group, retry_max_times=1)


@attrs.define(eq=False)
class FakeCall:
    """What the handler reads of a call, and its answers. ``window``: answers that it takes."""

    window: float = float("inf")
    sent: list[Any] = attrs.field(factory=list)
    together: list[int] = attrs.field(factory=list)
    """how many answers were sent each time"""
    metadata: dict[str, str] = attrs.field(factory=lambda: {"x-mq-client-id": "c"})
    peer: tuple[str, int] = ("127.0.0.1", 1)
    draining: trio.Event = attrs.field(factory=trio.Event)

    def time_left(self) -> float:
        return float("inf")

    async def send(self, *answers: Any) -> None:
        if len(self.sent) + len(answers) > self.window:
            await trio.sleep_forever()
        self.sent += answers
        self.together.append(len(answers))


def taken(offset: int, deliveries: int = 0) -> TakenMessage:
    """Return a message as a pop brings it."""
    host = bytes((127, 0, 0, 1)) + (1).to_bytes(4)
    stored = StoredMessage(
        topic="T",
        queue_id=0,
        queue_offset=offset,
        log_offset=offset,
        size=100,
        flag=0,
        sys_flag=0,
        born_timestamp=NOW_MS,
        born_host_bytes=host,
        store_timestamp=NOW_MS,
        store_host_bytes=host,
        reconsume_times=deliveries,
        prepared_transaction_offset=0,
        body=b"%d" % offset,
        body_crc=0,
        properties_bytes=b"",
    )
    handle = ReceiptHandle(0, NOW_MS, 60_000, 0, NORMAL, "b", 0, offset)
    return TakenMessage(stored, PoppedMessage("G", "T", handle, offset))


async def receive(
    nursery: trio.Nursery,
    link: FakeLink,
    call: FakeCall,
    messages: list[TakenMessage],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Make a call that pops these messages."""
    monkeypatch.setattr(receiving, "received", lambda answer, asked: messages)
    settings = MessagingSettings()
    limits = Limits(settings, "gRPC service")
    clients = KnownClients(limits, lambda client: link, 120)
    clients.by_id["c"] = client = KnownClient("c", ("127.0.0.1", 1), 0, 0.0)
    client.link = link

    async def retry_delay(group: str, times: int) -> int:
        raise AssertionError("not asked for")

    cluster: Any = OneBroker()
    renewals = Renewals(settings, limits, lambda: NOW_MS, retry_delay)
    handler = Receiving(cluster, clients, renewals, settings, nursery.start_soon, lambda: NOW_MS)
    topic = pb.MessageQueue(topic=pb.Resource(name="T"))
    request = rpc.ReceiveMessageRequest(
        group=pb.Resource(name="G"), message_queue=topic, batch_size=32, auto_renew=True
    )
    stream: Any = call
    await handler.receive(request, stream, stream)


def bodies(call: FakeCall) -> list[bytes]:
    return [answer.message.body for answer in call.sent if answer.HasField("message")]


async def test_a_call_that_ends_while_the_broker_answers_keeps_no_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call, scope = FakeCall(), trio.CancelScope()
    link = FakeLink(scope.cancel)
    async with trio.open_nursery() as nursery:

        async def cancelled() -> None:
            with scope:
                await receive(nursery, link, call, [taken(1), taken(2)], monkeypatch)

        nursery.start_soon(cancelled)
        await trio.testing.wait_all_tasks_blocked()
        link.popped.set()
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert link.given_back == [1, 2]
    assert not call.sent


async def test_a_call_that_ends_before_the_broker_answers_keeps_no_message(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    link, call = FakeLink(), FakeCall()
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(0.01):
            await receive(nursery, link, call, [taken(1)], monkeypatch)
        link.popped.set()
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert link.given_back == [1]


async def test_what_a_client_does_not_take_comes_again_soon(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    monkeypatch.setattr(receiving, "TOGETHER_BYTES", 1)
    link, call = FakeLink(), FakeCall(window=2)  # the status and a message
    link.popped.set()
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(0.01):
            await receive(nursery, link, call, [taken(1), taken(2), taken(3)], monkeypatch)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert bodies(call) == [b"1"]
    assert link.given_back == [2, 3]


async def test_messages_go_together_up_to_about_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "TOGETHER_BYTES", 3)
    link, call = FakeLink(), FakeCall()
    link.popped.set()
    async with trio.open_nursery() as nursery:
        messages = [taken(number) for number in (1, 2, 3, 4, 5555, 6)]
        await receive(nursery, link, call, messages, monkeypatch)
        nursery.cancel_scope.cancel()
    assert bodies(call) == [b"1", b"2", b"3", b"4", b"5555", b"6"]
    assert call.together == [1, 3, 2, 1, 1]  # the status first, the time last


async def test_a_message_that_cannot_become_a_dead_letter_does_not_keep_others_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    link, call = FakeLink(), FakeCall()
    link.popped.set()
    async with trio.open_nursery() as nursery:
        messages = [taken(1), taken(2, deliveries=2), taken(3)]
        await receive(nursery, link, call, messages, monkeypatch)
        nursery.cancel_scope.cancel()
    assert bodies(call) == [b"1", b"3"]
    assert link.given_back == []
