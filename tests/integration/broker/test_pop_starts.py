"""Where a new POP group begins that asks for the newest messages."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import trio
from brokers import crashed_broker, peer_of, running_broker
from pop_peer import pop

from triomq.broker.app import BrokerReady
from triomq.broker.services.pop import reviver

INIT_MAX = 1


async def test_a_young_queue_is_read_from_its_first_message(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 1)
        for number in range(3):
            await peer.send("T", b"%d" % number, queue_id=0)
        _, popped = await pop(peer, init_mode=INIT_MAX)
        assert [one.body for one in popped] == [b"0", b"1", b"2"]


async def test_without_that_setting_a_group_begins_at_the_newest_message(tmp_path: Path) -> None:
    settings = {"initPopOffsetByCheckMsgInMem": False}
    async with running_broker(tmp_path, **settings) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 1)
        for number in range(3):
            await peer.send("T", b"%d" % number, queue_id=0)
        _, popped = await pop(peer, init_mode=INIT_MAX)
        assert [one.body for one in popped] == [b"2"]


async def test_a_stop_notes_that_timed_messages_hold_no_unknown_position(tmp_path: Path) -> None:
    """Otherwise each start reads all timed messages since the last pop."""
    due = str(int(time.time() * 1000) + 3_600_000)
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 1)
        for number in range(20):
            await peer.send("T", b"%d" % number, properties={"TIMER_DELIVER_MS": due})
    table = json.loads((tmp_path / "config" / "consumerOffset.json").read_text())
    assert table["offsetTable"]["rmq_sys_wheel_timer@CID_RMQ_SYS_POP_POSITIONS"] == {"0": 20}


async def test_an_idle_broker_notes_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reviver, "COVER_SECONDS", 0.05)
    due = str(int(time.time() * 1000) + 3_600_000)
    path = tmp_path / "config" / "consumerOffset.json"

    async def send_and_wait(ready: BrokerReady) -> None:
        async with peer_of(ready) as peer:
            await peer.create_topic("T", 1)
            await peer.send("T", b"x", properties={"TIMER_DELIVER_MS": due})
        with trio.fail_after(30):
            while '"rmq_sys_wheel_timer@CID_RMQ_SYS_POP_POSITIONS":{"0":1}' not in (
                path.read_text() if path.exists() else ""
            ).replace("\n", "").replace("\t", ""):
                await trio.sleep(0.05)

    await crashed_broker(tmp_path, send_and_wait, flushConsumerOffsetInterval=100)
