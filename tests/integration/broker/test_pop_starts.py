"""Where a new POP group begins that asks for the newest messages."""

from __future__ import annotations

from pathlib import Path

from brokers import peer_of, running_broker
from pop_peer import pop

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
