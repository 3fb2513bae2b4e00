"""A slave whose log is behind its master's tables becomes the master: no delayed message is lost,
and no group skips what comes.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from brokers import BrokerPeer
from replicated_brokers import broker_group, eventually, log_bytes

from triomq.remoting.protocol.bodies.offsets import ConsumerOffsetTable
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.headers.offset import UpdateConsumerOffsetHeader


async def committed(peer: BrokerPeer) -> dict[int, int]:
    table = ConsumerOffsetTable.decode(bytes((await peer.call(Code.GET_ALL_CONSUMER_OFFSET)).body))
    return dict(table.offset_table.get("T@G", {}))


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_what_the_slave_s_log_does_not_have_is_neither_lost_nor_skipped(
    tmp_path: Path, flush: str
) -> None:
    """The slave loses the log's stream, but not the way to its master's tables; the master goes on,
    delivers a delayed message, a group commits.
    """
    async with broker_group(tmp_path) as group:
        master = await group.start(0, flushDiskType=flush)
        slave = await group.start(1, flushDiskType=flush)
        await master.peer.create_topic("T", 1)
        for number in range(40):
            await master.peer.send("T", b"%d" % number)
        await master.peer.send("T", b"late", properties={"DELAY": "1"})
        await eventually(lambda: log_bytes(slave.root) == log_bytes(master.root))
        await slave.stop()
        slave = await group.start(1, flushDiskType=flush, haMasterAddress="127.0.0.1:1")
        for number in range(40, 100):
            await master.peer.send("T", b"%d" % number)
        assert b"late" in await master.peer.next_bodies("T", 101)
        await master.peer.call(
            Code.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetHeader("G", "T", 0, 101)
        )

        async def copied() -> bool:
            return bool(await committed(slave.peer))

        await eventually(copied)
        assert await committed(slave.peer) == {0: 40}
        await master.stop()
        await slave.stop()
        promoted = await group.start(0, folder="broker-1", flushDiskType=flush)
        assert (await promoted.peer.next_bodies("T", 41))[40] == b"late"
        assert await committed(promoted.peer) == {0: 40}
