"""Members of a group that consume differently log it, each once and with the other's address."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from typing import Any

import pytest
import trio
from serving import until

from triomq import PushConsumer, SimpleConsumer
from triomq.testing import InProcessCluster

LOG = "triomq.client.consumer.agreement"
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
        with trio.fail_after(30):
            while len(lines := texts(caplog)) < len(told):
                await trio.sleep(0.01)
        for member in members:
            member._membership.agreement.changed()
        await trio.sleep(0.2)
        assert texts(caplog) == lines  # once
        for text in told:
            (line,) = [line for line in lines if text in line]
            assert "member 127.0.0.1:" in line
            assert all(member.client_id in line for member in members) or "T with" not in text
        assert len(lines) == len(told)


def texts(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.message
        for record in caplog.records
        if record.name == LOG and record.levelno == logging.WARNING
    ]
