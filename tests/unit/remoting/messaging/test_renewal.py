"""Renewals of invisible times, with a fake way to the brokers."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
import trio.testing

from triomq.remoting.core.errors import RequestTimeout
from triomq.remoting.messaging.known_clients import (
    SEEN_SECONDS,
    SEEN_SECONDS_WITHOUT_STREAM,
    KnownClient,
    KnownClients,
)
from triomq.remoting.messaging.messaging_settings import MessagingSettings
from triomq.remoting.messaging.popped_messages import RETURN_MS, PoppedMessage
from triomq.remoting.messaging.renewal import FAILURES_MAX, REQUESTS_MAX, Renewals
from triomq.remoting.messaging.status_codes import Refused
from triomq.remoting.messaging.waiting_commands import WaitingCommands
from triomq.remoting.protocol.command import Command, response_to
from triomq.remoting.protocol.headers.pop import (
    ChangeInvisibleTimeHeader,
    ChangeInvisibleTimeResponseHeader,
)
from triomq.remoting.protocol.limits import Limits
from triomq.remoting.protocol.receipt_handle import NORMAL, ReceiptHandle

MINUTE_MS = 60_000
SETTINGS = MessagingSettings()


@attrs.define(eq=False)
class FakeBrokers:
    """Notes what they are asked. ``silent``: names of those that do not answer."""

    now_ms: int = 1_000_000
    silent: set[str] = attrs.field(factory=set)
    credentials: Any = None
    peer: Any = None
    asked: list[tuple[str, int]] = attrs.field(factory=list)
    """Broker, invisible time."""

    async def invoke(self, broker_name: str, command: Command, timeout: float) -> Command:
        header = command.header(ChangeInvisibleTimeHeader)
        self.asked.append((broker_name, header.invisible_ms))
        if broker_name in self.silent:
            await trio.sleep(timeout)
            raise RequestTimeout(broker_name, int(command.code), timeout)
        await trio.sleep(0.001)
        changed = ChangeInvisibleTimeResponseHeader(self.now_ms, header.invisible_ms, 0)
        return response_to(command, header=changed)

    async def register(self, data: Any, language: int) -> None: ...

    async def unregister(self, client_id: str, producers: Any, consumers: Any) -> None: ...

    def close(self) -> None: ...


def made(brokers: FakeBrokers, retry_delay: Any = None) -> tuple[Renewals, KnownClient]:
    """Return renewals in front of these brokers, and a client."""

    async def ten_seconds(group: str, times: int) -> int:
        return 10_000

    limits = Limits(SETTINGS, "gRPC service")
    renewals = Renewals(SETTINGS, limits, lambda: brokers.now_ms, retry_delay or ten_seconds)
    client = KnownClient("c", ("127.0.0.1", 1), 0, 0.0)
    client.link = brokers
    return renewals, client


def popped(brokers: FakeBrokers, broker_name: str, offset: int) -> PoppedMessage:
    handle = ReceiptHandle(0, brokers.now_ms, MINUTE_MS, 0, NORMAL, broker_name, 0, offset)
    return PoppedMessage("G", "T", handle, 0)


async def test_a_silent_broker_does_not_keep_the_messages_of_others_waiting(
    autojump_clock: trio.testing.MockClock,
) -> None:
    brokers = FakeBrokers(silent={"hung"})
    renewals, client = made(brokers)
    for offset in range(100):
        renewals.add(client, popped(brokers, "hung", offset), 0)
    for offset in range(100):
        renewals.add(client, popped(brokers, "well", offset), 0)
    brokers.now_ms += MINUTE_MS - 5000
    begun = trio.current_time()
    await renewals.renew_due()
    assert brokers.asked.count(("well", MINUTE_MS)) == 100
    assert brokers.asked.count(("hung", MINUTE_MS)) == REQUESTS_MAX
    assert trio.current_time() - begun < SETTINGS.renew_ahead_ms / 1000
    for _ in range(FAILURES_MAX - 1):
        await renewals.renew_due()
    assert len(renewals.held) == 200 - REQUESTS_MAX

    begun = trio.current_time()
    await renewals.release(client)  # a client that goes does not wait for it for long, either
    assert trio.current_time() - begun < SETTINGS.renew_ahead_ms / 1000
    assert brokers.asked.count(("well", RETURN_MS)) == 100
    assert not renewals.held


async def test_a_message_whose_group_cannot_be_looked_up_is_given_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def unreachable(group: str, times: int) -> int:
        raise Refused(50001, "no broker answers")

    brokers = FakeBrokers()
    renewals, client = made(brokers, unreachable)
    renewals.add(client, popped(brokers, "b", 1), 0)
    brokers.now_ms += SETTINGS.renew_ms_max
    await renewals.renew_due()
    assert not renewals.held
    assert not brokers.asked


async def test_what_is_held_for_too_long_comes_again_by_the_policy_of_its_group(
    autojump_clock: trio.testing.MockClock,
) -> None:
    brokers = FakeBrokers()
    renewals, client = made(brokers)
    renewals.add(client, popped(brokers, "b", 1), 0)
    brokers.now_ms += SETTINGS.renew_ms_max
    await renewals.renew_due()
    assert brokers.asked == [("b", 10_000)]
    assert not renewals.held


@pytest.mark.parametrize("streams", [True, False])
async def test_what_a_client_holds_that_is_not_heard_any_more_is_not_renewed(
    streams: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """Its process hangs, or its connection ended without a word of it."""
    brokers = FakeBrokers()
    renewals, client = made(brokers)
    client.commands = WaitingCommands() if streams else None
    renewals.add(client, popped(brokers, "b", 1), 0)

    async def later(seconds: float) -> None:
        await trio.sleep(seconds)
        brokers.now_ms += round(seconds * 1000)
        await renewals.renew_due()

    patience = SEEN_SECONDS if streams else SEEN_SECONDS_WITHOUT_STREAM
    client.seen = trio.current_time() + MINUTE_MS / 1000 - 9 - patience
    await later(MINUTE_MS / 1000 - 9)
    assert brokers.asked == [("b", MINUTE_MS)], "it is heard"
    await later(MINUTE_MS / 1000 - 9)
    assert len(brokers.asked) == 1
    client.seen = trio.current_time()
    await later(1)
    assert len(brokers.asked) == 2, "it has come back in time"
    await later(200)
    assert len(brokers.asked) == 2
    assert not renewals.held


async def test_a_client_that_is_gone_holds_nothing() -> None:
    brokers = FakeBrokers()
    renewals, client = made(brokers)
    clients = KnownClients(renewals.limits, lambda client: brokers, 120)
    clients.forget(client)
    message = popped(brokers, "b", 1)
    renewals.add(client, message, 0)  # its receive was under way
    renewals.keep(client, message, message)
    assert not renewals.held


async def test_the_renewal_that_is_under_way_ends_before_a_message_is_settled(
    autojump_clock: trio.testing.MockClock,
) -> None:
    brokers = FakeBrokers()
    renewals, client = made(brokers)
    message = popped(brokers, "b", 1)
    renewals.add(client, message, 0)
    brokers.now_ms += MINUTE_MS - 5000
    async with trio.open_nursery() as nursery:
        nursery.start_soon(renewals.renew_due)
        await trio.testing.wait_all_tasks_blocked()
        newest = await renewals.take(client, message)
    assert newest.handle.pop_time == brokers.now_ms
    assert not renewals.held
