"""The parts of an acting slave, each alone: where it sends a message, what becomes of the message
there, and how acting ends in the middle of a delivery.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from stores import empty_store

from triomq.broker.roles.acting_master import ActingMaster
from triomq.broker.roles.acting_rules import ActingRules
from triomq.broker.services.delay import open_delayed_messages
from triomq.broker.services.persisted import Version
from triomq.broker.services.remote_sender import (
    RemoteMaster,
    RemoteSender,
    RemoteSendFailed,
    RemoteSendRefused,
    remote_masters,
)
from triomq.broker.services.routes import Routes
from triomq.remoting.core.errors import ConnectFailed
from triomq.remoting.protocol.bodies.offsets import DelayOffsetTable
from triomq.remoting.protocol.bodies.route import BrokerData, QueueData, TopicRoute
from triomq.remoting.protocol.bodies.topics import DataVersion
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command
from triomq.remoting.protocol.headers.send import SendMessageHeader
from triomq.remoting.protocol.message_properties import encode_properties
from triomq.remoting.protocol.record import StoredMessage


def route(*brokers: tuple[str, dict[int, str], int, int]) -> TopicRoute:
    """Return a route; each broker is (name, addresses, queues to write, permission)."""
    return TopicRoute(
        [QueueData(name, queues, queues, perm) for name, _, queues, perm in brokers],
        [BrokerData("C", name, addresses) for name, addresses, _, _ in brokers],
    )


def test_remote_masters_are_those_of_other_groups_that_take_messages() -> None:
    found = remote_masters(
        route(
            ("own", {0: "o:1"}, 4, 6),
            ("b", {0: "b:1", 1: "b:2"}, 2, 6),
            ("headless", {1: "h:1"}, 4, 6),
            ("acting", {0: "a:1"}, 4, 4),
            ("closed", {0: "c:1"}, 0, 6),
        ),
        "own",
    )
    assert found == [RemoteMaster("b", "b:1", 2)]


@attrs.define(eq=False)
class Brokers:
    """Answers for every address: a code, or what is raised; a name server knows the route."""

    topic: TopicRoute
    answers: dict[str, int | Exception]
    sent: list[tuple[str, SendMessageHeader, bytes]] = attrs.field(factory=list)

    async def invoke(self, address: str, command: Command, *, timeout: float) -> Command:
        await trio.lowlevel.checkpoint()
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return Command(code=0, body=self.topic.encode())
        answer = self.answers[address]
        if isinstance(answer, Exception):
            raise answer
        self.sent.append((address, command.header(SendMessageHeader), bytes(command.body)))
        return Command(code=answer, remark="because")

    async def oneway(self, address: str, command: Command, *, timeout: float) -> None:
        raise AssertionError("nothing is sent without an answer")

    def sender(self) -> RemoteSender:
        return RemoteSender("own", Routes(["ns:1"], self), self)


def message(properties: Mapping[str, str] | None = None, body: bytes = b"hello") -> StoredMessage:
    return StoredMessage(
        topic="SCHEDULE_TOPIC_XXXX",
        queue_id=1,
        queue_offset=7,
        log_offset=0,
        size=100,
        flag=3,
        sys_flag=0x11,
        born_timestamp=123,
        born_host_bytes=bytes(8),
        store_timestamp=456,
        store_host_bytes=bytes(8),
        reconsume_times=2,
        prepared_transaction_offset=0,
        body=body,
        body_crc=0,
        properties_bytes=encode_properties(
            {"DELAY": "2", "REAL_TOPIC": "T", "REAL_QID": "5", "KEYS": "k", **(properties or {})}
        ),
    )


TWO = route(("b", {0: "b:1"}, 4, 6), ("c", {0: "c:1"}, 4, 6))


async def test_a_remote_master_gets_the_message_as_it_was_sent_once() -> None:
    brokers = Brokers(TWO, {"b:1": 0, "c:1": 0})
    sender = brokers.sender()
    for _ in range(4):
        await sender.send(message())
    assert sorted(address for address, _, _ in brokers.sent) == ["b:1", "b:1", "c:1", "c:1"]
    header, body = brokers.sent[0][1:]
    assert (
        header.topic,
        header.queue_id,
        header.properties,
        header.sys_flag,
        header.flag,
        header.reconsume_times,
        header.born_timestamp,
        body,
    ) == (*("T", 1, "KEYS\1k\2", 1, 3, 2, 123), b"hello")


async def test_a_remote_master_gets_a_value_with_a_separator() -> None:
    brokers = Brokers(TWO, {"b:1": 0, "c:1": 0})
    odd = message()
    odd.properties_bytes += b"a\1b\1c\2"
    await brokers.sender().send(odd)
    assert brokers.sent[0][1].properties == "KEYS\1k\2a\1b\1c\2"


@pytest.mark.parametrize(
    "answer",
    [ResponseCode.SYSTEM_BUSY, ResponseCode.NO_PERMISSION, ConnectFailed("b:1", "refused")],
)
async def test_a_refusal_leads_to_the_next_broker(answer: int | Exception) -> None:
    brokers = Brokers(TWO, {"b:1": answer, "c:1": 0})
    sender = brokers.sender()
    await sender.send(message())
    await sender.send(message())
    assert [address for address, _, _ in brokers.sent if address == "c:1"] == ["c:1"] * 2


@pytest.mark.parametrize(
    "code",
    [
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ],
)
async def test_a_message_stored_with_too_few_copies_counts_as_stored(code: int) -> None:
    brokers = Brokers(TWO, {"b:1": code, "c:1": code})
    await brokers.sender().send(message())
    assert len(brokers.sent) == 1


async def test_a_message_that_no_other_broker_takes_names_each_answer() -> None:
    brokers = Brokers(
        TWO, {"b:1": ResponseCode.SYSTEM_BUSY, "c:1": ConnectFailed("c:1", "refused")}
    )
    with pytest.raises(RemoteSendFailed, match=r"topic 'T': .*b:1.*2 because"):
        await brokers.sender().send(message())
    with pytest.raises(RemoteSendFailed, match="no other master has this topic"):
        await Brokers(route(("own", {0: "o:1"}, 4, 6)), {}).sender().send(message())


@pytest.mark.parametrize(
    ("other", "permanent"),
    [
        (ResponseCode.MESSAGE_ILLEGAL, True),
        (ResponseCode.SYSTEM_BUSY, False),
        (ConnectFailed("c:1", "refused"), False),
    ],
)
async def test_a_refusal_is_permanent_if_all_answers_are(
    other: int | Exception, permanent: bool
) -> None:
    with pytest.raises(RemoteSendFailed, match="13 because") as failed:
        await (
            Brokers(TWO, {"b:1": ResponseCode.MESSAGE_ILLEGAL, "c:1": other})
            .sender()
            .send(message())
        )
    assert isinstance(failed.value, RemoteSendRefused) is permanent
    with pytest.raises(RemoteSendFailed) as failed:
        await Brokers(route(), {}).sender().send(message())
    assert not isinstance(failed.value, RemoteSendRefused)


async def test_many_sends_at_once_each_try_every_broker() -> None:
    """A send that no broker takes would raise RemoteSendFailed."""
    sender = Brokers(TWO, {"b:1": ResponseCode.SYSTEM_BUSY, "c:1": 0}).sender()
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(sender.send, message())


class Members:
    """Lists slave 1 only, and the master once it is there."""

    def __init__(self) -> None:
        self.view = {1: "s:1"}
        settings = attrs.make_class("Settings", ["broker_name"])("broker-a")
        self.registrar = attrs.make_class("Registrar", ["settings"])(settings)

    async def members(self) -> list[Mapping[int, str]]:
        await trio.lowlevel.checkpoint()
        return [dict(self.view)]


async def test_the_end_waits_for_the_message_in_flight(mock_clock: trio.testing.MockClock) -> None:
    mock_clock.autojump_threshold = 0.02
    done: list[int] = []
    started = trio.Event()

    async def duty() -> None:
        for number in range(100):
            with trio.CancelScope(shield=True):
                started.set()
                await trio.sleep(2)
                done.append(number)
            await trio.lowlevel.checkpoint_if_cancelled()

    members = Members()
    acting = ActingMaster(ActingRules(1), members, lambda: False, [duty])  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(acting.run)
        await started.wait()
        assert acting.rules.acting
        await acting.hand_over()
        assert done == [0]
        await trio.sleep(20)
        assert done == [0]  # no view shows the master yet, but it has said that it starts
        members.view = {0: "m:1", 1: "s:1"}
        await trio.sleep(5)
        members.view = {1: "s:1"}  # and is gone again
        await trio.sleep(5)
        assert len(done) > 1
        nursery.cancel_scope.cancel()


def delayed(folder: Path, *, forward_only: bool) -> Any:
    return open_delayed_messages(
        folder, empty_store(), None, Version(lambda: 1), lambda: 1, forward_only=forward_only
    )  # type: ignore[arg-type]


def test_progress_of_delayed_messages_only_advances_on_a_slave_that_may_act(tmp_path: Path) -> None:
    table = DelayOffsetTable({1: 5, 2: 9}, DataVersion(0, 7, 3))
    acting, plain, master = (
        delayed(tmp_path, forward_only=True),
        delayed(tmp_path, forward_only=False),
        delayed(tmp_path, forward_only=False),
    )
    acting.offsets = {1: 8, 3: 2}
    acting.replace(table)
    assert (acting.offsets, acting.version.current) == ({1: 8, 2: 9, 3: 2}, DataVersion(0, 7, 3))
    plain.offsets = {1: 8, 3: 2}
    plain.replace(table)
    assert plain.offsets == {1: 5, 2: 9}
    master.offsets = {1: 8, 3: 2}
    assert master.take_back(table) == 1
    assert master.offsets == {1: 8, 2: 9, 3: 2}
    assert master.take_back(table) == 0
