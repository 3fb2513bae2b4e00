"""Requests about a topic with many queues: other tasks have their turn while one is answered."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
import trio
from brokers import peer_of, running_broker

from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.admin import BrokerConsumeStatsHeader, ConsumeStatsHeader
from triomq.remoting.protocol.headers.offset import (
    CloneGroupOffsetHeader,
    CorrectionOffsetHeader,
    ResetOffsetHeader,
)
from triomq.remoting.protocol.headers.pop import (
    NotificationHeader,
    NotificationResponseHeader,
    PopMessageHeader,
)
from triomq.remoting.protocol.headers.topic import GroupTopicHeader, TopicHeader
from triomq.remoting.server.turns import ROWS_AT_ONCE

QUEUES = 20 * ROWS_AT_ONCE
REQUESTS = (
    (Code.INVOKE_BROKER_TO_RESET_OFFSET, ResetOffsetHeader("G", "T", 0, force=True)),
    (Code.GET_TOPIC_STATS_INFO, TopicHeader("T")),
    (Code.GET_CONSUME_STATS, ConsumeStatsHeader("G", "T")),
    (Code.QUERY_CONSUME_TIME_SPAN, GroupTopicHeader(topic="T", group="G")),
    (Code.QUERY_CORRECTION_OFFSET, CorrectionOffsetHeader("T", "G")),
    (Code.CLONE_GROUP_OFFSET, CloneGroupOffsetHeader("G", "H", "T", True)),
    (Code.GET_BROKER_CONSUME_STATS, BrokerConsumeStatsHeader(False)),
    (Code.POP_MESSAGE, PopMessageHeader("G", "T", -1, 32, 60_000, 0, 0)),
    (Code.NOTIFICATION, NotificationHeader("G", "T", -1, 0, 0)),
)
TURNS = ("__anext__", "move", "_in_turns", "_notify_in_turns")
"""Functions that let others have their turn."""


async def test_no_request_about_many_queues_stops_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred bytes a second held the loop of a broker for most of the time."""
    turns, found = Counter[str](), {}
    checkpoint = trio.lowlevel.checkpoint

    async def counted() -> None:
        turns[sys._getframe(1).f_code.co_name] += 1
        await checkpoint()

    monkeypatch.setattr(trio.lowlevel, "checkpoint", counted)
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", queues=QUEUES)
        for code, header in REQUESTS:
            turns.clear()
            answer = await peer.call(code, header, timeout=60)
            assert answer.code in (0, ResponseCode.POLLING_TIMEOUT), answer.remark
            found[code.name] = sum(turns[name] for name in TURNS)
    assert min(found.values()) >= QUEUES // ROWS_AT_ONCE, found


async def test_a_message_that_comes_behind_a_pop_on_its_way_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes to a queue that the pop has visited already, between two of its turns."""
    turns = 0
    checkpoint = trio.lowlevel.checkpoint
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer, peer_of(ready) as other:
        await peer.create_topic("T", queues=QUEUES)
        monkeypatch.setattr("random.randrange", lambda *_: 99)  # it begins with queue 99

        async def counted() -> None:
            nonlocal turns
            if sys._getframe(1).f_code.co_name in ("_in_turns", "_notify_in_turns"):
                turns += 1
                if turns == 5:
                    await other.send("T", b"late", queue_id=99 + 7)
            await checkpoint()

        monkeypatch.setattr(trio.lowlevel, "checkpoint", counted)
        for code, header in (
            (Code.NOTIFICATION, NotificationHeader("G", "T", -1, 20_000, 0)),
            (Code.POP_MESSAGE, PopMessageHeader("G", "T", -1, 1, 60_000, 20_000, 0)),
        ):
            turns = 0
            with trio.fail_after(15):
                answer = await peer.call(code, header, timeout=30)
            assert turns >= 5
            assert answer.code == 0, answer.remark
            if code is Code.POP_MESSAGE:
                assert b"late" in bytes(answer.body)
            else:
                assert answer.header(NotificationResponseHeader).has_message
                pop = PopMessageHeader("G", "T", 99 + 7, 1, 60_000, 0, 0)
                assert b"late" in bytes((await peer.call(Code.POP_MESSAGE, pop)).body)
