"""Messages that come again in the retry topic of the second name (``enableRetryTopicV2``)."""

from __future__ import annotations

from pathlib import Path

import trio
from brokers import peer_of, running_broker
from pop_peer import acknowledge, pop


async def test_a_waiting_pop_gets_what_comes_again(tmp_path: Path) -> None:
    """It looked into one of two topics by chance, and missed three of four."""
    async with running_broker(tmp_path, enableRetryTopicV2=True) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 1)
        for number in range(4):
            body = b"%d" % number
            await peer.send("T", body, queue_id=0)
            _, taken = await pop(peer, invisible_ms=1_000)
            assert [each.body for each in taken] == [body]
            with trio.fail_after(8):
                _, again = await pop(peer, poll_ms=15_000)
            assert [each.body for each in again] == [body]
            again[0].topic = "%RETRY%G+T"
            await acknowledge(peer, again[0])
