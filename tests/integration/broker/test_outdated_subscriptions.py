"""Pulls of clients with a newer subscription than their group's heartbeats: a client that compares
tags itself gets messages with any tag, any other client is refused.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from brokers import BrokerPeer, Pulled, peer_of, running_broker

from triomq.remoting.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.consuming.tag_expressions import subscription
from triomq.remoting.protocol.headers.pull import CLASS_FILTER, LITE_PULL

KNOWN = 5
"""the version that the heartbeats of these tests bring"""
NEWER: dict[str, Any] = {"expression": None, "sub_version": KNOWN + 1, "expression_type": "TAG"}
"""a pull as a push consumer sends it"""
REMARK = "the consumer's subscription not latest"


async def fill(peer: BrokerPeer) -> None:
    """A, B and a message without a tag."""
    await peer.create_topic("T", 1)
    await peer.send("T", b"A", properties={"TAGS": "A"})
    await peer.send("T", b"B", properties={"TAGS": "B"})
    await peer.send("T", b"none")


async def register(peer: BrokerPeer, wanted: SubscriptionData) -> None:
    body = HeartbeatData(client_id="c", consumers=[ConsumerData(group="G", subscriptions=[wanted])])
    assert (await peer.call(Code.HEART_BEAT, None, body.encode())).code == 0


@pytest.mark.feature("117a")
@pytest.mark.parametrize(
    "more",
    [{}, {"code": Code.LITE_PULL_MESSAGE, "flags": LITE_PULL}, {"request_source": -1}],
    ids=["pull", "lite", "named-client"],
)
async def test_a_newer_subscription_gets_all_tags_until_the_heartbeat_brings_it(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await fill(peer)
        await register(peer, subscription("T", "B", KNOWN))
        pulled = await peer.pull("T", **NEWER, **more)
        assert pulled.bodies == [b"A", b"B", b"none"]
        assert pulled.header.next_begin_offset == 3
        await register(peer, subscription("T", "A", KNOWN + 1))
        assert (await peer.pull("T", **NEWER, **more)).bodies == [b"A"]


@pytest.mark.feature("117a")
@pytest.mark.parametrize("version", [0, KNOWN - 1, KNOWN])
async def test_an_older_or_the_same_subscription_is_filtered_by_the_known_one(
    tmp_path: Path, version: int
) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await fill(peer)
        await register(peer, subscription("T", "B", KNOWN))
        pulled = await peer.pull("T", **NEWER | {"sub_version": version})
        assert pulled.bodies == [b"B"]
        assert pulled.header.next_begin_offset == 3


@pytest.mark.feature("117a")
async def test_an_expression_in_the_pull_is_taken_whatever_its_version(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await fill(peer)
        await register(peer, subscription("T", "B", KNOWN))
        assert (await peer.pull("T", **NEWER | {"expression": "A"})).bodies == [b"A"]


@pytest.mark.parametrize("enabled", [True, False], ids=["filters", "no-filters"])
@pytest.mark.parametrize(
    ("known", "more"),
    [
        (
            SubscriptionData(
                topic="T", sub_string="price > 1", sub_version=KNOWN, expression_type="SQL92"
            ),
            {},
        ),
        (
            SubscriptionData(
                topic="T", sub_string="price > 1", sub_version=KNOWN, expression_type="SQL92"
            ),
            {"expression_type": "SQL92"},
        ),
        (
            SubscriptionData(
                topic="T",
                sub_string="org.example.Wanted",
                sub_version=KNOWN,
                class_filter_mode=True,
            ),
            {},
        ),
        (subscription("T", "B", KNOWN), {"expression_type": "SQL92"}),
        (subscription("T", "*", KNOWN), {"expression_type": "SQL92"}),
        (subscription("T", "B", KNOWN), {"expression_type": None}),
        (subscription("T", "B", KNOWN), {"flags": CLASS_FILTER}),
        (subscription("T", "B", KNOWN), {"request_source": 1}),
    ],
    ids=[
        "sql-known",
        "sql-both",
        "class-known",
        "sql-pulled",
        "sql-after-all",
        "no-type",
        "class-pulled",
        "proxy",
    ],
)
async def test_who_does_not_compare_tags_is_refused(
    tmp_path: Path, known: SubscriptionData, more: dict[str, Any], enabled: bool
) -> None:
    async with (
        running_broker(tmp_path, enablePropertyFilter=enabled) as ready,
        peer_of(ready) as peer,
    ):
        await fill(peer)
        await register(peer, known)
        answer = await peer.pull_raw("T", **NEWER | more)
        assert (answer.code, answer.remark, bytes(answer.body)) == (
            ResponseCode.SUBSCRIPTION_NOT_LATEST,
            REMARK,
            b"",
        )


@attrs.define
class Held:
    """A pull that waits at the end of the queue, and what it got."""

    answers: list[Pulled] = attrs.field(factory=list)
    answered: trio.Event = attrs.field(factory=trio.Event)

    async def run(self, peer: BrokerPeer, version: int) -> None:
        self.answers.append(
            await peer.pull("T", 0, 3, hold_ms=20_000, **NEWER | {"sub_version": version})
        )
        self.answered.set()

    async def wait(self) -> Pulled:
        with trio.fail_after(5):
            await self.answered.wait()
        return self.answers[0]


@asynccontextmanager
async def held_pull(
    tmp_path: Path, version: int
) -> AsyncIterator[tuple[Held, BrokerPeer, BrokerPeer]]:
    """A consumer registered for tag B as of ``KNOWN``, and its pull of ``version`` that waits for a
    fourth message: (pull, consumer, sender).
    """
    async with (
        running_broker(tmp_path) as ready,
        peer_of(ready) as peer,
        peer_of(ready) as sender,
        trio.open_nursery() as nursery,
    ):
        await fill(sender)
        await register(peer, subscription("T", "B", KNOWN))
        held = Held()
        nursery.start_soon(held.run, peer, version)
        await trio.sleep(0.1)
        assert held.answers == [], "it must be held"
        yield held, peer, sender


@pytest.mark.feature("86a")
@pytest.mark.parametrize("tag", ["A", "B", None])
async def test_a_held_pull_with_a_newer_subscription_wakes_for_any_tag(
    tmp_path: Path, tag: str | None
) -> None:
    async with held_pull(tmp_path, KNOWN + 1) as (held, _, sender):
        await sender.send("T", b"late", properties={"TAGS": tag} if tag is not None else None)
        assert (await held.wait()).bodies == [b"late"]


@pytest.mark.feature("86a", "117a")
async def test_a_held_pull_with_the_known_subscription_sleeps_through_other_tags(
    tmp_path: Path,
) -> None:
    async with held_pull(tmp_path, KNOWN) as (held, _, sender):
        await sender.send("T", b"other", properties={"TAGS": "A"})
        await sender.send("T", b"other")
        await trio.sleep(0.2)
        assert held.answers == [], "nothing that it wants has come"
        await sender.send("T", b"late", properties={"TAGS": "B"})
        assert (await held.wait()).bodies == [b"late"]


@pytest.mark.feature("117a")
async def test_a_held_pull_is_filtered_by_the_subscription_that_came_meanwhile(
    tmp_path: Path,
) -> None:
    async with held_pull(tmp_path, KNOWN + 1) as (held, peer, sender):
        await register(peer, subscription("T", "A", KNOWN + 1))
        await sender.send("T", b"not wanted", properties={"TAGS": "B"})
        answer = await held.wait()
        assert (answer.code, answer.header.next_begin_offset) == (
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            4,
        )
