"""Brokers of ours under a controller of ours, as processes: who is master, what is acknowledged,
and what is there when the master has changed.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from controlled_group import controlled_group

from triomq.broker.replication.epochs import EpochHistory


def history(root: Path) -> EpochHistory:
    return EpochHistory.decode((root / "store" / "epochFileCheckpoint").read_bytes())


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_killed_master_is_replaced_and_comes_back_as_slave(
    tmp_path: Path, flush: str
) -> None:
    async with controlled_group(tmp_path, flushDiskType=flush, minInSyncReplicas=1) as group:
        sent = [b"%d" % number for number in range(50)]
        for body in sent:
            await group.send_until_ok(1, "T", body)
        await group.brokers[1].end(9)
        after = await group.settled(2, {2})
        assert after.master_epoch == 2
        await group.send_until_ok(2, "T", b"next")
        assert await group.bodies(2, "T", 51) == [*sent, b"next"]
        assert await group.master_in_route("T") == group.brokers[2].address
        await group.brokers[1].start()
        await group.settled(2, {1, 2})
        await group.send_until_ok(2, "T", b"both")
        await group.brokers[2].end(9)
        await group.settled(1, {1})
        await group.send_until_ok(1, "T", b"last")
        assert await group.bodies(1, "T", 53) == [*sent, b"next", b"both", b"last"]
        numbers = [epoch.number for epoch in history(tmp_path / "broker-1").entries]
        assert numbers == [1, 2, 3]
