"""Where a new POP group begins that asks for the newest messages."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from brokers import peer_of, running_broker
from pop_peer import pop

from triomq.broker.store import opening
from triomq.broker.store.io.disk import Disk
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.offset import OffsetResponseHeader, QueryConsumerOffsetHeader

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


FILLER = 500_000
MEMORY = 1_000_000
"""of the machine, so that a message counts as in memory if 400,000 bytes or fewer follow it"""


@pytest.mark.loss
@pytest.mark.parametrize(
    ("before", "after", "bodies", "offset"),
    [(0, 0, [b"0", b"1", b"2"], 0), (FILLER, 0, [b"0", b"1", b"2"], 0), (0, FILLER, [b"2"], None)],
    ids=["small log", "new topic of a large log", "old topic"],
)
async def test_a_queue_is_young_whatever_is_in_memory_at_this_moment(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: int,
    after: int,
    bodies: list[bytes],
    offset: int | None,
) -> None:
    """Under pressure the page of a message just stored may be busy: the group must not begin
    behind it, neither by POP nor by a pull consumer's question.
    """
    monkeypatch.setattr(opening, "memory_bytes", lambda: MEMORY)
    settings = {"flushIntervalConsumeQueue": 10}
    async with running_broker(tmp_path, **settings) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 1)
        await peer.create_topic("Filler", 1)
        await peer.send("Filler", bytes(before + 1), queue_id=0)
        for number in range(3):
            await peer.send("T", b"%d" % number, queue_id=0)
        await peer.send("Filler", bytes(after + 1), queue_id=0)
        queue = tmp_path / "consumequeue" / "T" / "0" / f"{0:020d}"
        with trio.fail_after(20):
            while not (queue.exists() and queue.read_bytes()[40:60].strip(b"\0")):
                await trio.sleep(0.05)
        monkeypatch.setattr(Disk, "read_nowait", lambda *_: None)
        _, popped = await pop(peer, init_mode=INIT_MAX)
        assert [one.body for one in popped] == bodies
        asked = QueryConsumerOffsetHeader("new", "T", 0)
        answer = await peer.call(RequestCode.QUERY_CONSUMER_OFFSET, asked)
        assert (answer.code == 0) is (offset is not None)
        if offset is not None:
            assert answer.header(OffsetResponseHeader).offset == offset
