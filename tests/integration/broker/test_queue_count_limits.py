"""A topic with 2**31 - 1 queues, by whatever way it is asked for, is refused or cut, and stops
neither servers nor clients.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import trio
from brokers import peer_of, running_broker
from scripted_cluster import scripted_cluster

from triomq import Producer, TrioMQError
from triomq.namesrv.broker_registration import BrokerRegistration
from triomq.namesrv.routes import RouteTable
from triomq.remoting.core.errors import RemoteProtocolError
from triomq.remoting.protocol.bodies.groups import SubscriptionGroupConfig
from triomq.remoting.protocol.bodies.route import (
    QUEUES_MAX,
    ROUTE_QUEUES_MAX,
    BrokerData,
    QueueData,
    TopicRoute,
)
from triomq.remoting.protocol.bodies.topics import (
    DataVersion,
    TopicConfig,
    TopicConfigList,
    TopicTable,
)
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.server.requests import Request, Response

HUGE = 2**31 - 1


async def test_a_broker_refuses_it_and_goes_on(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        body = TopicConfigList([TopicConfig(topic_name="T", read_queue_count=HUGE)]).encode()
        group = SubscriptionGroupConfig(group_name="G", retry_queue_count=HUGE).encode()
        with trio.fail_after(10):
            answers = [
                await peer.create_topic("T", HUGE),
                await peer.call(Code.UPDATE_AND_CREATE_TOPIC_LIST, None, body),
                await peer.call(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, group),
            ]
            assert {answer.code for answer in answers} == {ResponseCode.INVALID_PARAMETER}
            for answer in answers:
                assert str(QUEUES_MAX) in (answer.remark or "")
            assert (await peer.create_topic("T", QUEUES_MAX)).code == 0
            await peer.send("T", b"x", queue_id=QUEUES_MAX - 1)


async def test_a_table_on_the_disk_that_has_it_is_cut(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "config").mkdir()
    row = {"topicName": "T", "readQueueNums": HUGE, "writeQueueNums": HUGE, "perm": 6}
    (tmp_path / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": {"T": row}}))
    with trio.fail_after(30):
        async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
            table = TopicTable.decode(bytes((await peer.call(Code.GET_ALL_TOPIC_CONFIG)).body))
    assert table.topic_config_table["T"].read_queue_count == QUEUES_MAX
    assert (
        f"topic T has {HUGE} queues, more than the limit; this broker gives it {QUEUES_MAX}"
        in caplog.text
    )


def test_a_name_server_tells_of_the_most_at_most() -> None:
    routes = RouteTable()
    configs = {
        "b": TopicConfig(topic_name="b"),
        "T": TopicConfig(topic_name="T", read_queue_count=HUGE, write_queue_count=8),
    }
    table = TopicTable(configs, DataVersion(0, 0, 1))
    routes.register(
        BrokerRegistration(
            cluster="c", broker_name="b", broker_id=0, address="a:1", ha_address="", table=table
        ),
        object(),
        0,
    )
    route = routes.route("T")
    assert route is not None
    assert (route.queue_datas[0].read_queue_count, route.queue_datas[0].write_queue_count) == (
        QUEUES_MAX,
        8,
    )


async def test_a_client_refuses_a_route_that_has_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    async with scripted_cluster() as cluster:

        def route(request: Request) -> Response:
            if request.header.topic != "T":
                return cluster.route(request)
            found = TopicRoute(
                [QueueData("broker-a", HUGE, HUGE)],
                [BrokerData("c", "broker-a", {0: cluster.broker.address})],
            )
            return Response(0, body=found.encode_standard())

        cluster.namesrv.script[Code.GET_ROUTEINFO_BY_TOPIC] = route
        with trio.fail_after(20):
            async with Producer(cluster.namesrv.address, group="g") as producer:
                with pytest.raises(
                    TrioMQError,
                    match=(
                        rf"2,147,483,647 queues of the topic on broker broker-a, and {QUEUES_MAX:,}"
                        r" is the limit"
                    ),
                ):
                    await producer.send("T", b"x")


def test_every_reader_of_routes_refuses_it() -> None:
    """Spark, mqadmin and brokers read routes by the same decoder."""
    many = TopicRoute(
        [
            QueueData(f"b{number}", QUEUES_MAX, 1)
            for number in range(ROUTE_QUEUES_MAX // QUEUES_MAX + 1)
        ]
    )
    with pytest.raises(
        RemoteProtocolError, match="queues on all brokers, and 1,000,000 is the limit"
    ):
        TopicRoute.decode(many.encode())
    TopicRoute.decode(TopicRoute(many.queue_datas[1:]).encode())
