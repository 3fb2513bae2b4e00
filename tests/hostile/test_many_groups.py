"""Clients that bring groups without end: the broker stays in its cluster, and others are served."""

from __future__ import annotations

from pathlib import Path

import trio
from brokers import peer_of, running_broker

from triomq.remoting.client.connector import Connector
from triomq.remoting.protocol.bodies.groups import ConsumerIds
from triomq.remoting.protocol.bodies.heartbeat import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.client import ConsumerGroupHeader, ProducerConnectionHeader
from triomq.remoting.protocol.headers.offset import UpdateConsumerOffsetHeader
from triomq.remoting.protocol.headers.route import GetRouteHeader
from triomq.testing import local_cluster


def heartbeat(consumers: range, producers: range = range(0)) -> bytes:
    subscriptions = [SubscriptionData(topic="T", sub_version=1)]
    groups = [ConsumerData(group=f"G{number}", subscriptions=subscriptions) for number in consumers]
    return HeartbeatData(
        client_id="many",
        consumers=groups,
        producers=[ProducerData(f"P{number}") for number in producers],
    ).encode()


async def test_120000_groups_in_a_few_heartbeats(tmp_path: Path) -> None:
    async with local_cluster(dir=tmp_path) as cluster, Connector() as connector:
        broker = cluster.brokers[0]
        for first in range(0, 120_000, 40_000):
            answer = await connector.invoke(
                broker.address,
                request(Code.HEART_BEAT, None, heartbeat(range(first, first + 40_000))),
                timeout=30,
            )
            assert answer.code == ResponseCode.INVALID_PARAMETER
            assert "name fewer groups, topics or queues in one request" in (answer.remark or "")
        for first in range(0, 12_000, 4_000):
            answer = await connector.invoke(
                broker.address,
                request(Code.HEART_BEAT, None, heartbeat(range(first, first + 4_000))),
                timeout=30,
            )
            assert answer.code == ResponseCode.INVALID_PARAMETER
            assert (
                answer.remark
                == "the heartbeat would make its connection a member of 4000 groups: the broker's"
                " limit is 1000; use fewer, or raise groupsPerConnectionMax in its settings"
            )
        many = await connector.invoke(
            broker.address, request(Code.HEART_BEAT, None, heartbeat(range(1000))), timeout=30
        )
        assert many.code == 0
        with trio.fail_after(20):  # else the broker does not register any more
            while (
                await connector.invoke(
                    cluster.namesrv_address,
                    request(Code.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader("%RETRY%G999")),
                    timeout=5,
                )
            ).code:
                await trio.sleep(0.05)


async def test_groups_that_commits_make_end_at_the_limit(tmp_path: Path) -> None:
    async with (
        running_broker(
            tmp_path, groupsMax=30, consumerOffsetsMax=5
        ) as ready,  # one is the broker's
        peer_of(ready) as peer,
    ):
        await peer.create_topic("T", 4)

        async def commit(group: str, queue_id: int) -> tuple[int, str]:
            answer = await peer.call(
                Code.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetHeader(group, "T", queue_id, 1)
            )
            return answer.code, answer.remark or ""

        assert [(await commit("G", queue_id))[0] for queue_id in range(4)] == [0] * 4
        assert await commit("G", 4) == (
            29,
            (
                "queue 4 of topic T does not exist, it has 4 queues: commit offsets of queues that"
                " the route names"
            ),
        )
        assert await commit("G", -1) == (
            29,
            (
                "queue -1 of topic T does not exist, it has 4 queues: commit offsets of queues that"
                " the route names"
            ),
        )
        code, remark = await commit("H", 0)
        assert (code, "consumerOffsetsMax" in remark) == (29, True)
        assert (await commit("G", 3))[0] == 0, "what there is can be changed"
        refusals = [await commit(f"made-by-commit-{number}", 0) for number in range(40)]
        assert any(
            "is not created: the broker's limit is 30; use fewer, or raise groupsMax" in remark
            for _, remark in refusals
        )
        assert (await peer.heartbeat("late", group="G", subscriptions={"T": "*"})).code == 0
        refused = await peer.call(Code.HEART_BEAT, None, heartbeat(range(1)))
        assert (refused.code, "groupsMax" in (refused.remark or "")) == (29, True)


async def test_groups_that_exist_stay_alive_by_a_heartbeat_that_brings_too_many(
    tmp_path: Path,
) -> None:
    """It is refused, and what it says of a group that has its place counts all the same, wherever
    that stands in it.
    """
    async with (
        running_broker(tmp_path, groupsMax=30) as ready,
        peer_of(ready) as peer,
        peer_of(ready) as other,
    ):
        await other.heartbeat("other", group="G35", subscriptions={"T": "*"})
        answer = await peer.call(Code.HEART_BEAT, None, heartbeat(range(40), range(2)))
        assert (answer.code, "groupsMax" in (answer.remark or "")) == (29, True)
        members = await peer.call(Code.GET_CONSUMER_LIST_BY_GROUP, ConsumerGroupHeader("G35"))
        assert ConsumerIds.decode(bytes(members.body)).consumer_ids == ["other", "many"]
        assert (
            await peer.call(Code.GET_PRODUCER_CONNECTION_LIST, ProducerConnectionHeader("P1"))
        ).code == 0
