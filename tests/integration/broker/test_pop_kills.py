"""POP under ``kill -9`` of a real broker: what was acknowledged never comes again, the rest comes,
and no message is given out twice at the same time.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import attrs
import processes
import pytest
import trio
from brokers import BrokerPeer
from pop_peer import acknowledge, pop

from triomq.remoting.client.connector import Connector, ConnectorConfig
from triomq.remoting.core.errors import RemotingError

KILLS, INVISIBLE_MS = 3, 2_000


@attrs.define(eq=False)
class Consumers:
    """What producers and consumers of a topic have seen."""

    choose: random.Random
    sent: set[bytes] = attrs.field(factory=set)
    acknowledged: set[bytes] = attrs.field(factory=set)
    unclear: set[bytes] = attrs.field(factory=set)
    """Acknowledgements without an answer."""
    hidden_to: dict[bytes, float] = attrs.field(factory=dict)
    wrong: list[str] = attrs.field(factory=list)
    number: int = 0

    async def produce(self, peer: BrokerPeer) -> None:
        while True:
            self.number += 1
            body = b"%d" % self.number
            try:
                await peer.send("T", body, queue_id=self.number % 3)
                self.sent.add(body)
            except RemotingError:
                await trio.sleep(0.05)
            await trio.sleep(0.005)

    async def consume(self, peer: BrokerPeer, share: float) -> None:
        """Acknowledge a share of what comes."""
        while True:
            try:
                asked = time.time()
                _, taken = await pop(peer, count=8, poll_ms=300, invisible_ms=INVISIBLE_MS)
            except RemotingError:
                await trio.sleep(0.05)
                continue
            for each in taken:
                if each.body in self.acknowledged:
                    self.wrong.append(f"{each.body!r} was acknowledged")
                if time.time() < self.hidden_to.get(each.body, 0):
                    self.wrong.append(f"{each.body!r} is given out twice")
                self.hidden_to[each.body] = asked + INVISIBLE_MS / 1000
                if self.choose.random() < share:
                    self.unclear.add(each.body)
                    try:
                        await acknowledge(peer, each)
                        self.acknowledged.add(each.body)
                    except RemotingError:
                        continue


@pytest.mark.timeout(120)
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_kills_bring_nothing_back_and_lose_nothing(tmp_path: Path, flush: str) -> None:
    seen, port = Consumers(random.Random(7)), processes.free_port()
    with processes.our_name_server(tmp_path / "namesrv") as namesrv:
        for number in range(KILLS + 1):
            settings = {"storePathRootDir": tmp_path / "store", "flushDiskType": flush}
            with processes.our_broker(
                tmp_path / "broker", "broker-a", namesrv, port, **settings
            ) as (address, process):
                async with Connector(ConnectorConfig()) as connector, trio.open_nursery() as work:
                    peer = BrokerPeer(connector, address)
                    last = number == KILLS
                    if not number:
                        await peer.create_topic("T", 3)
                    if not last:
                        work.start_soon(seen.produce, peer)
                    for _ in range(3):
                        work.start_soon(seen.consume, peer, 1.0 if last else 0.7)
                    if last:
                        with trio.move_on_after(20):
                            while seen.sent - seen.unclear:
                                await trio.sleep(0.1)
                    else:
                        await trio.sleep(seen.choose.uniform(1.0, 2.5))
                        process.kill()
                        process.wait()
                    work.cancel_scope.cancel()
    assert seen.wrong == []
    assert seen.sent - seen.unclear == set()
    assert len(seen.acknowledged) > 20
