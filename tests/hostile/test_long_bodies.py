"""Bodies as long as a frame allows: the loop serves others while one is read, and what is beyond a
limit is refused unread.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel
from brokers import BrokerPeer, peer_of, running_broker

from triomq.broker.processors import bodies as broker_bodies
from triomq.broker.processors.bodies import BODY_BYTES_MAX, INLINE_BYTES_MAX
from triomq.namesrv import registration_requests, routed_queues
from triomq.remoting.client.connector import Connector
from triomq.remoting.protocol.bodies import registration
from triomq.remoting.protocol.bodies.registration import RegisterBrokerBody, encode_deflated
from triomq.remoting.protocol.bodies.topics import DataVersion, TopicConfig, TopicTable
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.registration import RegisterBrokerHeader
from triomq.remoting.protocol.headers.route import GetRouteHeader
from triomq.remoting.protocol.headers.topic import TopicHeader
from triomq.testing import local_cluster

WITH_BODY = {
    Code.HEART_BEAT: b'{"clientID":"c","producerDataSet":[%s],"consumerDataSet":[]}'
    % b",".join([b'{"groupName":"P"}'] * 40_000),
    Code.LOCK_BATCH_MQ: b'{"consumerGroup":"G","clientId":"c","mqSet":[%s]}'
    % b",".join(
        b'{"topic":"T","brokerName":"b","queueId":%d}' % number for number in range(24_000)
    ),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: b'{"groupConfigList":[%s]}'
    % b",".join([b'{"groupName":"%"}'] * 40_000),
    Code.UPDATE_AND_CREATE_TOPIC_LIST: b'{"topicConfigList":[%s]}'
    % b",".join([b'{"topicName":"%"}'] * 40_000),
}


@pytest.mark.parametrize("code", list(WITH_BODY), ids=lambda code: code.name)
async def test_a_long_body_is_read_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: Code
) -> None:
    """While its thread stands still, locks and sends are answered."""
    body = WITH_BODY[code]
    assert INLINE_BYTES_MAX < len(body) <= BODY_BYTES_MAX
    begun, go_on = trio.Event(), trio.Event()
    token = trio.lowlevel.current_trio_token()
    read_body = broker_bodies.read_body

    def slow(cls: Any, data: bytes) -> Any:
        if len(data) > INLINE_BYTES_MAX:
            token.run_sync_soon(begun.set)
            trio.from_thread.run(go_on.wait)
        return read_body(cls, data)

    monkeypatch.setattr(broker_bodies, "read_body", slow)
    async with (
        running_broker(tmp_path) as ready,
        peer_of(ready) as hostile,
        peer_of(ready) as peer,
        trio.open_nursery() as nursery,
    ):
        await peer.create_topic("T", 1)
        codes: list[int] = []

        async def send(sender: BrokerPeer) -> None:
            codes.append((await sender.call(code, None, body, timeout=60)).code)

        nursery.start_soon(send, hostile)
        with trio.fail_after(20):
            await begun.wait()
        with trio.fail_after(5):
            await peer.send("T")
            assert (await peer.heartbeat("other", group="G", subscriptions={"T": "*"})).code == 0
        go_on.set()
    assert len(codes) == 1


async def test_a_body_beyond_the_limit_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    monkeypatch.setattr(broker_bodies, "read_body", lambda cls, data: read.append(len(data)))
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        for code in WITH_BODY:
            refused = await peer.call(code, None, b" " * (BODY_BYTES_MAX + 1))
            assert (refused.code, f"takes {BODY_BYTES_MAX}" in (refused.remark or "")) == (
                29,
                True,
            ), code.name
    assert read == []


async def test_a_body_of_too_many_values_is_refused(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        refused = await peer.call(
            Code.HEART_BEAT, None, b'{"clientID":"c","a":[' + b"[]," * 100_000 + b"1]}"
        )
        assert (
            refused.code,
            "values, where 100,000 is the limit; send less in one request"
            in (refused.remark or ""),
        ) == (1, True)


@pytest.mark.parametrize("deflated", [False, True])
async def test_a_registration_of_many_topics_is_read_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deflated: bool
) -> None:
    table = TopicTable(
        {f"T{number}": TopicConfig(topic_name=f"T{number}") for number in range(2_000)},
        DataVersion(0, 1, 1),
    )
    body = (
        encode_deflated(RegisterBrokerBody(table))
        if deflated
        else RegisterBrokerBody(table).encode()
    )
    begun, go_on = trio.Event(), trio.Event()
    token = trio.lowlevel.current_trio_token()
    decode = registration_requests.decode_registration
    monkeypatch.setattr(routed_queues, "STEP_TOPICS", 300)

    def slow(data: bytes, version: int) -> RegisterBrokerBody:
        if len(data) == len(body):
            token.run_sync_soon(begun.set)
            trio.from_thread.run(go_on.wait)
        return decode(data, version)

    async with (
        local_cluster(dir=tmp_path) as cluster,
        Connector() as connector,
        trio.open_nursery() as nursery,
    ):
        monkeypatch.setattr(registration_requests, "decode_registration", slow)

        async def register() -> None:
            header = RegisterBrokerHeader(
                "other",
                "127.0.0.1:1",
                "C",
                "127.0.0.1:2",
                0,
                body_crc=zlib.crc32(body) & 0x7FFFFFFF,
            )
            answer = await connector.invoke(
                cluster.namesrv_address, request(Code.REGISTER_BROKER, header, body), timeout=60
            )
            assert answer.code == 0, answer.remark

        nursery.start_soon(register)
        with trio.fail_after(20):
            await begun.wait()
        with trio.fail_after(5):
            await cluster.create_topic("Orders")
        go_on.set()
        with trio.fail_after(20):
            while (
                await connector.invoke(
                    cluster.namesrv_address,
                    request(Code.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader("T1999")),
                    timeout=5,
                )
            ).code:
                await trio.sleep(0.01)


def test_a_deflated_registration_cannot_stand_for_topics_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registration, "TOPICS_MAX", 10)
    table = TopicTable({f"T{number}": TopicConfig(topic_name=f"T{number}") for number in range(11)})
    with pytest.raises(Exception, match="the registration has 11 topics, at most 10 are read"):
        registration.decode_registration(encode_deflated(RegisterBrokerBody(table)), 479)


@pytest.mark.parametrize("where", ["broker", "name server"])
async def test_long_settings_and_versions_are_refused_unread(tmp_path: Path, where: str) -> None:
    async with local_cluster(dir=tmp_path) as cluster, Connector() as connector:
        requests = (
            [(cluster.brokers[0].address, Code.UPDATE_BROKER_CONFIG)]
            if where == "broker"
            else [
                (cluster.namesrv_address, Code.UPDATE_NAMESRV_CONFIG),
                (cluster.namesrv_address, Code.REGISTER_TOPIC_IN_NAMESRV),
            ]
        )
        for address, code in requests:
            header = TopicHeader("T") if code == Code.REGISTER_TOPIC_IN_NAMESRV else None
            refused = await connector.invoke(
                address, request(code, header, b"a=\\u0041\n" * 100_000), timeout=20
            )
            assert (refused.code, "and this request takes" in (refused.remark or "")) == (
                29,
                True,
            ), code.name
