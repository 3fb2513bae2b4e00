"""How many messages a group may have in flight, and what the broker tells of them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from brokers import BrokerPeer, peer_of, running_broker
from monitor_pages import get, value
from mqadmin_calls import mqadmin
from pop_peer import acknowledge, pop
from processes import free_port

from triomq.remoting.client.connector import Connector, ConnectorConfig
from triomq.remoting.protocol.bodies.offsets import ConsumeStats
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.admin import ConsumeStatsHeader
from triomq.remoting.protocol.headers.pop import PopMessageHeader
from triomq.testing import local_cluster

HIDDEN_MS = 60_000


async def fill(peer: BrokerPeer, count: int) -> None:
    await peer.create_topic("T", 1)
    for number in range(count):
        await peer.send("T", b"%d" % number)


async def refusal(peer: BrokerPeer) -> tuple[int, str]:
    """Return code and remark of a pop."""
    now = int(time.time() * 1000)
    header = PopMessageHeader("G", "T", -1, 2, HIDDEN_MS, 0, 0, now)
    answer = await peer.call(Code.POP_MESSAGE, header)
    return answer.code, answer.remark or ""


async def test_a_group_with_too_many_messages_in_flight_is_refused(tmp_path: Path) -> None:
    port = free_port()
    settings = {"popInFlightPerGroupMax": 4, "monitorPort": port}
    async with running_broker(tmp_path, **settings) as ready, peer_of(ready) as peer:
        await fill(peer, 10)
        taken = []
        for _ in range(2):
            taken += (await pop(peer, count=2, invisible_ms=HIDDEN_MS))[1]
        code, remark = await refusal(peer)
        assert code == ResponseCode.INVALID_PARAMETER
        assert "limit is 4" in remark
        assert "popInFlightPerGroupMax" in remark
        assert (await pop(peer, consumer_group="H", count=2))[0] == 0
        _, _, page = await get(port, "/metrics")
        refused = value(page, "triomq_limit_refusals_total", limit="popInFlightPerGroupMax")
        assert refused == 1
        await acknowledge(peer, taken[0])
        assert len((await pop(peer, count=1))[1]) == 1


async def test_a_full_topic_is_refused_with_the_limit_that_a_java_broker_has(
    tmp_path: Path,
) -> None:
    settings = {"enablePopMessageThreshold": True, "popInflightMessageThreshold": 2}
    async with running_broker(tmp_path, **settings) as ready, peer_of(ready) as peer:
        await fill(peer, 10)
        _, taken = await pop(peer, count=2, invisible_ms=HIDDEN_MS)
        code, remark = await refusal(peer)
        assert code == ResponseCode.SYSTEM_BUSY
        assert "popInflightMessageThreshold" in remark
        await acknowledge(peer, taken[0])
        assert len((await pop(peer, count=1))[1]) == 1


async def test_what_is_in_flight_is_told(tmp_path: Path) -> None:
    """On the page for Prometheus, and in the lag of the group."""
    port = free_port()
    async with running_broker(tmp_path, monitorPort=port) as ready, peer_of(ready) as peer:
        await fill(peer, 10)
        _, taken = await pop(peer, count=6, invisible_ms=HIDDEN_MS)
        await acknowledge(peer, taken[0])
        _, _, page = await get(port, "/metrics")
        labels = {"topic": "T", "consumer_group": "G"}
        assert value(page, "rocketmq_consumer_inflight_messages", **labels) == 5
        assert value(page, "triomq_pops_total", outcome="popped") == 6
        assert value(page, "triomq_pops_total", outcome="acknowledged") == 1
        kinds = {"put_status": "PUT_OK"}
        name = "rocketmq_pop_revive_in_message_total"
        assert value(page, name, revive_message_type="CK", **kinds) == 1
        assert value(page, name, revive_message_type="ACK", **kinds) == 1
        answer = await peer.call(Code.GET_CONSUME_STATS, ConsumeStatsHeader("G", "T"))
        (offsets,) = ConsumeStats.decode(bytes(answer.body)).offset_table.values()
        assert (offsets.consumer_offset, offsets.pull_offset) == (6, 11)


async def test_operators_see_what_is_in_flight(tmp_path: Path) -> None:
    async with local_cluster(dir=tmp_path) as cluster, Connector(ConnectorConfig()) as connector:
        peer = BrokerPeer(connector, cluster.broker("broker-a").address)
        await fill(peer, 5)
        await pop(peer, count=3, invisible_ms=HIDDEN_MS)
        progress = await document(cluster.namesrv_address, "consumerProgress", "-g", "G")
        assert progress["inflightTotal"] == 3
        assert progress["diffTotal"] == 2
        (row,) = (await document(cluster.namesrv_address, "statsAll", "-t", "T"))["topics"]
        assert (row["group"], row["accumulation"], row["inflight"]) == ("G", 2, 3)


async def document(namesrv: str, *words: str) -> Any:
    return (await mqadmin(*words, "-n", namesrv, "--json")).document
