"""Members of a group that consume differently log it, each once and with the other's address."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from typing import Any

import pytest
import trio
from serving import until

from triomq import PullConsumer, PushConsumer, RequestTimeout, SimpleConsumer
from triomq.client.receiving.agreement import ATTEMPTS_MAX, Agreement
from triomq.client.receiving.membership import Membership
from triomq.client.receiving.pop.pop_membership import PopMembership
from triomq.remoting.protocol.bodies.running import ConsumerRunning
from triomq.testing import InProcessCluster

LOG = "triomq.client.receiving.agreement"
A, B = {"T": "a"}, {"T": "b || c"}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{LOG}.SETTLE_SECONDS", 0.05)


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        (
            (PushConsumer, {"subscriptions": A}),
            (PushConsumer, {"subscriptions": B}),
            ["subscribes to T with 'a', and this one", "subscribes to T with 'b || c', and"],
        ),
        (
            (PushConsumer, {"subscriptions": A}),
            (PushConsumer, {"subscriptions": {**A, "U": "*"}}),
            ["subscribes to U with '*', and this one", "subscribes to no U, and this one"],
        ),
        (
            (PushConsumer, {"subscriptions": A}),
            (PushConsumer, {"subscriptions": A, "mode": "pop"}),
            ["pops, and this one pulls", "pulls, and this one pops"],
        ),
        (
            (PushConsumer, {"subscriptions": A}),
            (SimpleConsumer, {"subscriptions": B}),
            ["; pops, and this one pulls", "; pulls, and this one pops"],
        ),
        ((PushConsumer, {"subscriptions": A}), (PushConsumer, {"subscriptions": A}), []),
        (
            (PushConsumer, {"subscriptions": B, "mode": "pop"}),
            (SimpleConsumer, {"subscriptions": {"T": "c||b"}}),
            [],
        ),
    ],
)
async def test_members_that_consume_differently_are_named(
    triomq_cluster: InProcessCluster,
    caplog: pytest.LogCaptureFixture,
    first: tuple[Any, dict[str, object]],
    second: tuple[Any, dict[str, object]],
    told: list[str],
) -> None:
    for topic in "TU":
        await triomq_cluster.create_topic(topic, queues=2)
    async with AsyncExitStack() as stack:
        members = []
        for kind, settings in (first, second):
            member = kind(triomq_cluster.namesrv_address, group="g", **settings)
            members.append(await stack.enter_async_context(member))
            if kind is PushConsumer and "mode" not in settings:
                await member.wait_assigned()

        def both_asked() -> bool:
            return all(member._membership.agreement._asked for member in members)

        await until(both_asked)
        await until(lambda: len(texts(caplog)) >= len(told))
        lines = texts(caplog)
        for member in members:
            member._membership.agreement.changed()
        await trio.sleep(0.2)
        assert texts(caplog) == lines  # once
        for text in told:
            (line,) = [line for line in lines if text in line]
            assert "member 127.0.0.1:" in line
            assert all(member.client_id in line for member in members) or "T with" not in text
        assert len(lines) == len(told)


@pytest.mark.parametrize(
    ("kind", "settings", "membership"),
    [
        (PushConsumer, {}, Membership),
        (PullConsumer, {}, Membership),
        (PushConsumer, {"mode": "pop"}, PopMembership),
        (SimpleConsumer, {}, PopMembership),
    ],
)
async def test_a_member_that_is_asked_while_it_joins_answers(
    kind: Any,
    settings: dict[str, object],
    membership: type[Membership | PopMembership],
    triomq_cluster: InProcessCluster,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = triomq_cluster.namesrv_address
    await triomq_cluster.create_topic("T", queues=2)
    async with PushConsumer(names, group="g", subscriptions=A) as first:

        async def begin(member: object, topics: object) -> None:
            await until(lambda: any("with 'b || c', and" in text for text in texts(caplog)))

        monkeypatch.setattr(membership, "begin", begin)
        async with kind(names, group="g", subscriptions=B, **settings) as second:
            assert list(first._membership.agreement._asked) == [second.client_id]


async def test_a_member_that_does_not_answer_is_asked_again(
    triomq_cluster: InProcessCluster,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = triomq_cluster.namesrv_address
    await triomq_cluster.create_topic("T", queues=2)
    async with PushConsumer(names, group="g", subscriptions=A) as first:
        asked, answers = 0, first._membership.agreement._running

        async def running(address: str, client_id: str) -> ConsumerRunning:
            nonlocal asked
            asked += 1
            if asked < ATTEMPTS_MAX:
                raise RequestTimeout(address, "GET_CONSUMER_RUNNING_INFO", 3)
            return await answers(address, client_id)

        monkeypatch.setattr(Agreement, "_running", lambda self, *call: running(*call))
        async with PushConsumer(names, group="g", subscriptions=B):
            await until(lambda: any("with 'b || c', and" in text for text in texts(caplog)))


def texts(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.message
        for record in caplog.records
        if record.name == LOG and record.levelno == logging.WARNING
    ]
