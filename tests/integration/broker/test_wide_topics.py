"""Requests about a topic with many queues: other tasks have their turn while one is answered."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
import trio
from brokers import peer_of, running_broker

from triomq.broker.processors.bodies import ROWS_AT_ONCE
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.headers.admin import BrokerConsumeStatsHeader, ConsumeStatsHeader
from triomq.remoting.protocol.headers.offset import (
    CloneGroupOffsetHeader,
    CorrectionOffsetHeader,
    ResetOffsetHeader,
)
from triomq.remoting.protocol.headers.topic import GroupTopicHeader, TopicHeader

QUEUES = 20 * ROWS_AT_ONCE
REQUESTS = (
    (Code.INVOKE_BROKER_TO_RESET_OFFSET, ResetOffsetHeader("G", "T", 0, force=True)),
    (Code.GET_TOPIC_STATS_INFO, TopicHeader("T")),
    (Code.GET_CONSUME_STATS, ConsumeStatsHeader("G", "T")),
    (Code.QUERY_CONSUME_TIME_SPAN, GroupTopicHeader(topic="T", group="G")),
    (Code.QUERY_CORRECTION_OFFSET, CorrectionOffsetHeader("T", "G")),
    (Code.CLONE_GROUP_OFFSET, CloneGroupOffsetHeader("G", "H", "T", True)),
    (Code.GET_BROKER_CONSUME_STATS, BrokerConsumeStatsHeader(False)),
)


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
            assert answer.code == 0, answer.remark
            found[code.name] = turns["in_turns"] + turns["move"]
    assert min(found.values()) >= QUEUES // ROWS_AT_ONCE, found
