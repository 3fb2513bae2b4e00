"""A message that is retried without end, under ``kill -9`` of a real broker: kills make no copies.

The consumer gives the message back for a second each time it comes. With the progress of delay
levels some seconds old, every start delivers what the last seconds had delivered already, and each
copy is retried as well: after a few kills there are thousands.
"""

from __future__ import annotations

from pathlib import Path

import attrs
import processes
import pytest
import trio
from brokers import BrokerPeer

from triomq.remoting.client.connector import Connector, ConnectorConfig
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.headers.send import SendBackHeader

KILLS, SECONDS = 3, 3.0
RETRY_TOPIC = "%RETRY%G"


@attrs.define(eq=False)
class Retries:
    """A consumer that gives back whatever comes, and how often something came."""

    deliveries: int = 0
    offset: int = 0

    async def consume(self, peer: BrokerPeer) -> None:
        while True:
            try:
                answer = await peer.pull_raw(RETRY_TOPIC, offset=self.offset, hold_ms=500)
                if answer.code:
                    await trio.sleep(0.02)
                    continue
                pulled = await peer.pull(RETRY_TOPIC, offset=self.offset)
                for message in pulled.messages:
                    await self.give_back(peer, message.log_offset)
                    self.offset = message.queue_offset + 1
                    self.deliveries += 1
            except RemotingError:
                await trio.sleep(0.02)

    async def give_back(self, peer: BrokerPeer, log_offset: int) -> None:
        header = SendBackHeader(log_offset, "G", 1, max_reconsume_times=1_000)
        answer = await peer.call(Code.CONSUMER_SEND_MSG_BACK, header)
        assert answer.code == 0, answer.remark


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    "flush", ["ASYNC_FLUSH", pytest.param("SYNC_FLUSH", marks=pytest.mark.slow)]
)
async def test_kills_do_not_multiply_retries(tmp_path: Path, flush: str) -> None:
    retries, port = Retries(), processes.free_port()
    settings = {
        "storePathRootDir": tmp_path / "store",
        "flushDiskType": flush,
        "messageDelayLevel": "1s",
    }
    with processes.our_name_server(tmp_path / "namesrv") as namesrv:
        for number in range(KILLS + 1):
            with processes.our_broker(
                tmp_path / "broker", "broker-a", namesrv, port, **settings
            ) as (address, process):
                async with Connector(ConnectorConfig()) as connector, trio.open_nursery() as work:
                    peer = BrokerPeer(connector, address)
                    if not number:
                        await peer.create_topic("T", 1)
                        await peer.heartbeat(group="G", subscriptions={"T": "*"})
                        sent = await peer.send("T", b"bad")
                        await retries.give_back(peer, int(sent.message_id[-16:], 16))
                    work.start_soon(retries.consume, peer)
                    before = retries.deliveries
                    await trio.sleep(SECONDS)
                    during = retries.deliveries - before
                    process.kill()
                    process.wait()
                    work.cancel_scope.cancel()
    assert during >= 1, "it still comes"
    # One copy comes once a second; a kill between a delivery and its note may double it.
    assert during <= 2 * SECONDS
    assert retries.deliveries <= (KILLS + 1) * (SECONDS + 1) + 2 * KILLS
