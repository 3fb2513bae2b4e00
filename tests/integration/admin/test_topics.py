"""clusterList, brokerStatus and the topic commands against a real cluster of two brokers: tables,
JSON, failures.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from mqadmin_calls import call, failed, mqadmin

from triomq.client.core.errors import OffsetNotFound
from triomq.client.sdk.producer import Producer
from triomq.client.sdk.push_consumer import PushConsumer
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.registration import KvConfigHeader
from triomq.testing import InProcessCluster, local_cluster


@pytest.fixture
async def cluster() -> AsyncIterator[InProcessCluster]:
    async with local_cluster(brokers=2, namesrvs=2) as running:
        yield running


@pytest.mark.feature("2b")
async def test_cluster_list(cluster: InProcessCluster) -> None:
    done = await call(cluster, "clusterList")
    assert done.code == 0, done
    assert done.columns == [
        *(
            "#Cluster Name",
            "#Broker Name",
            "#BID",
            "#Addr",
            "#Version",
            "#InTPS(LOAD)",
            "#OutTPS(LOAD)",
        ),
        *("#Timer(Progress)", "#PCWait(ms)", "#Hour", "#SPACE", "#ACTIVATED"),
    ]
    assert [row[:2] for row in done.rows[1:]] == [
        ["DefaultCluster", "broker-a"],
        ["DefaultCluster", "broker-b"],
    ]
    brokers = (await call(cluster, "cluster-list", "--json")).document["brokers"]
    assert [
        (
            broker["brokerName"],
            broker["brokerId"],
            broker["address"],
            broker["reachable"],
            broker["active"],
        )
        for broker in brokers
    ] == [
        ("broker-a", 0, cluster.broker("broker-a").address, True, True),
        ("broker-b", 0, cluster.broker("broker-b").address, True, True),
    ]
    assert all(
        isinstance(broker["inTps"], float) and broker["version"].startswith("V5")
        for broker in brokers
    )
    totals = await call(cluster, "clusterList", "-m", "-c", "DefaultCluster")
    assert totals.columns == [
        "#Cluster Name",
        "#Broker Name",
        "#InTotalYest",
        "#OutTotalYest",
        "#InTotalToday",
        "#OutTotalToday",
    ]
    assert len(totals.rows) == 3


async def test_cluster_list_of_an_unknown_cluster(cluster: InProcessCluster) -> None:
    done = await call(cluster, "clusterList", "-c", "Nowhere")
    assert failed(done, 4, "there is no cluster 'Nowhere': use one of DefaultCluster")


async def test_broker_status(cluster: InProcessCluster) -> None:
    address = cluster.broker("broker-a").address
    one = await call(cluster, "brokerStatus", "-b", address)
    assert one.columns == ["#Name", "#Value"]
    assert {"brokerActive", "commitLogMaxOffset", "putTps"} <= {row[0] for row in one.rows[1:]}
    both = (await call(cluster, "brokerStatus", "-c", "DefaultCluster", "--json")).document
    assert set(both["brokers"]) == {broker.address for broker in cluster.brokers}
    assert both["brokers"][address]["brokerActive"] == "true"
    assert failed(
        await call(cluster, "brokerStatus"),
        2,
        "one of -b/--brokerAddr and -c/--clusterName is needed",
    )


@pytest.mark.feature("2a", "11a")
async def test_create_change_and_read_a_topic(cluster: InProcessCluster) -> None:
    namesrv = cluster.namesrv_address
    created = await mqadmin(
        "updateTopic", "-c", "DefaultCluster", "-t", "orders", "-r", 4, "-w", 4, "-n", namesrv
    )
    assert created.code == 0, created
    assert [line for line in created.out.splitlines() if line.endswith("success.")] == [
        f"create topic to {broker.address} success." for broker in cluster.brokers
    ]
    assert "readQueueNums=4" in created.out

    route = (await mqadmin("topicRoute", "-t", "orders", "-n", namesrv, "--json")).document
    assert [
        (data["brokerName"], data["readQueueNums"], data["writeQueueNums"], data["perm"])
        for data in route["queueDatas"]
    ] == [("broker-a", 4, 4, 6), ("broker-b", 4, 4, 6)]
    assert route["brokerDatas"] == [
        {
            "cluster": "DefaultCluster",
            "brokerName": broker.name,
            "brokerAddrs": {"0": broker.address},
        }
        for broker in cluster.brokers
    ]
    text = await mqadmin("topicRoute", "-t", "orders", "-n", namesrv)
    assert json.loads(text.out) == route
    table = await mqadmin("topicRoute", "-t", "orders", "-l", "-n", namesrv)
    assert table.columns == [
        "#ClusterName",
        "#BrokerName",
        "#BrokerAddrs",
        "#ReadQueue",
        "#WriteQueue",
        "#Perm",
    ]
    assert [cell.strip() for cell in table.rows[-1]] == ["Total", "2", "-", "8", "8", "-"]

    # Settings that are not named keep their values.
    changed = (
        await mqadmin(
            "updateTopic",
            "-b",
            cluster.broker("broker-a").address,
            "-t",
            "orders",
            "-r",
            2,
            "-n",
            namesrv,
            "--json",
        )
    ).document
    (config,) = changed["brokers"].values()
    assert (config["readQueueNums"], config["writeQueueNums"], config["perm"]) == (2, 4, 6)
    route = (await mqadmin("topicRoute", "-t", "orders", "-n", namesrv, "--json")).document
    assert [(data["readQueueNums"], data["writeQueueNums"]) for data in route["queueDatas"]] == [
        (2, 4),
        (4, 4),
    ]


@pytest.mark.parametrize("words", [(), ("--dry-run",)])
async def test_fewer_queues_are_a_warning(
    cluster: InProcessCluster, words: tuple[str, ...]
) -> None:
    namesrv, address = cluster.namesrv_address, cluster.brokers[0].address
    given = ("updateTopic", "-b", address, "-t", "shrinking", "-n", namesrv)
    assert (await mqadmin(*given, "-r", 8, "-w", 8)).err == ""
    fewer = await mqadmin(*given, "-r", 4, "-w", 4, *words)
    assert "queues 4 to 7 are no longer read of topic shrinking" in fewer.err
    assert (await mqadmin(*given, "-r", 8, "-w", 8, *words)).err == ""


@pytest.mark.feature("9a")
async def test_a_topic_on_one_broker_only(cluster: InProcessCluster) -> None:
    target = cluster.broker("broker-b")
    assert (await call(cluster, "updateTopic", "-b", target.address, "-t", "lonely")).code == 0
    route = (await call(cluster, "topicRoute", "-t", "lonely", "--json")).document
    assert [(data["brokerName"], data["readQueueNums"]) for data in route["queueDatas"]] == [
        ("broker-b", 8)
    ]


@pytest.mark.feature("9b")
async def test_a_send_to_an_unknown_topic_creates_it(cluster: InProcessCluster) -> None:
    sent = (await call(cluster, "sendMessage", "-t", "surprise", "-p", "x", "--json")).document
    route = (await call(cluster, "topicRoute", "-t", "surprise", "--json")).document
    assert [
        (data["brokerName"], data["writeQueueNums"], data["perm"]) for data in route["queueDatas"]
    ] == [(sent["brokerName"], 4, 6)]


@pytest.mark.feature("10a", "10b")
async def test_clients_see_queue_counts_and_permission(cluster: InProcessCluster) -> None:
    namesrv, address = cluster.namesrv_address, cluster.broker("broker-a").address
    assert (
        await mqadmin("updateTopic", "-b", address, "-t", "narrow", "-w", 4, "-r", 2, "-n", namesrv)
    ).code == 0
    async with Producer(namesrv, group="shop") as producer:
        assert [queue.queue_id for queue in await producer.queues("narrow")] == [0, 1, 2, 3]
    async with PushConsumer(namesrv, group="billing", subscriptions="narrow") as consumer:
        await consumer.wait_assigned()
        assert [queue.queue_id for queue in consumer.assignment if queue.topic == "narrow"] == [
            0,
            1,
        ]
    assert (
        await mqadmin("updateTopic", "-b", address, "-t", "narrow", "-p", 4, "-n", namesrv)
    ).code == 0
    assert failed(
        await mqadmin("sendMessage", "-t", "narrow", "-p", "x", "-n", namesrv), 4, "'narrow'"
    )
    assert (await mqadmin("consumeMessage", "-t", "narrow", "-n", namesrv)).code == 0


@pytest.mark.feature("4a")
async def test_both_name_servers_know_the_topic_when_the_command_returns(
    cluster: InProcessCluster,
) -> None:
    assert (
        await call(cluster, "updateTopic", "-c", "DefaultCluster", "-t", "everywhere")
    ).code == 0
    for namesrv in cluster.namesrvs:
        assert (
            "everywhere"
            in (await mqadmin("topicList", "-n", namesrv.address, "--json")).document["topics"]
        )


async def test_topic_list(cluster: InProcessCluster) -> None:
    await cluster.create_topic("orders")
    await cluster.create_topic("audits")
    done = await call(cluster, "topicList")
    names = done.out.splitlines()
    assert {"orders", "audits", "TBW102"} <= set(names)
    assert names == sorted(names)
    with_clusters = await call(cluster, "topicList", "-c")
    assert with_clusters.columns == ["#Cluster Name", "#Topic", "#Consumer Group"]
    assert ["DefaultCluster", "orders", "-"] in [
        [cell.strip() for cell in row] for row in with_clusters.rows
    ]


async def test_topic_status(cluster: InProcessCluster) -> None:
    await cluster.create_topic("orders", queues=2)
    sent = (
        await call(
            cluster, "sendMessage", "-t", "orders", "-p", "x", "-b", "broker-b", "-i", 1, "--json"
        )
    ).document
    assert (sent["brokerName"], sent["queueId"], sent["queueOffset"]) == ("broker-b", 1, 0)
    done = await call(cluster, "topicStatus", "-t", "orders")
    assert done.columns == ["#Broker Name", "#QID", "#Min Offset", "#Max Offset", "#Last Updated"]
    assert "\nTopic Put TPS: " in done.out
    queues: list[dict[str, Any]] = (
        await call(cluster, "topicStatus", "-t", "orders", "--json")
    ).document["queues"]
    assert [
        (queue["brokerName"], queue["queueId"], queue["minOffset"], queue["maxOffset"])
        for queue in queues
    ] == [
        ("broker-a", 0, 0, 0),
        ("broker-a", 1, 0, 0),
        ("broker-b", 0, 0, 0),
        ("broker-b", 1, 0, 1),
    ]
    assert [queue["lastUpdateTimestamp"] > 0 for queue in queues] == [False, False, False, True]


async def test_delete_topic(cluster: InProcessCluster) -> None:
    await cluster.create_topic("orders")
    done = await call(cluster, "deleteTopic", "--yes", "-c", "DefaultCluster", "-t", "orders")
    assert (done.code, done.out) == (
        0,
        "delete topic [orders] from cluster [DefaultCluster] success.\n",
    ), done
    assert failed(
        await call(cluster, "topicRoute", "-t", "orders"), 4, "no broker offers topic 'orders'"
    )
    assert failed(
        await call(cluster, "deleteTopic", "--yes", "-c", "DefaultCluster", "-t", "orders"),
        4,
        "'orders'",
    )


@pytest.mark.parametrize("command", ["topicRoute", "topicStatus", "consumeMessage"])
async def test_an_unknown_topic(cluster: InProcessCluster, command: str) -> None:
    done = await call(cluster, command, "-t", "nope")
    assert failed(done, 4, "no broker offers topic 'nope'", "mqadmin topic create")


async def test_a_broker_that_refuses(cluster: InProcessCluster) -> None:
    done = await call(cluster, "updateTopic", "-c", "DefaultCluster", "-t", "TBW102")
    assert failed(done, 1, "29 INVALID_PARAMETER", "TBW102")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["topicRoute"], "-t/--topic is missing"),
        (["topicRoute", "-t", "x", "--lst"], "there is no option --lst; the nearest is -l/--list"),
        (["updateTopic", "-t", "x"], "one of -b/--brokerAddr and -c/--clusterName is needed"),
        (["updateTopic", "-c", "c", "-t", "a b"], "' ' is not allowed"),
        (["updateTopic", "-c", "c", "-t", "t" * 128], "it has 128 characters; the limit is 127"),
        (
            ["updateTopic", "-c", "c", "-t", "x", "-a", "message.type=FIFO"],
            "neither +key=value nor -key",
        ),
        (["updateTopic", "-c", "c", "-t", "x", "-a", "+a=1,-a"], "'a' occurs twice"),
        (
            ["topicRuote", "-t", "x"],
            "there is no command 'topicRuote'; the nearest is topic route (topicRoute)",
        ),
        (["frobnicate"], "there is no command 'frobnicate'; `mqadmin help` lists the commands"),
        (["-n", "a:1", "topicList"], "-n is not a command"),
        (["topicList", "--timeout", "soon"], "--timeout cannot be 'soon'"),
        (["topicList", "-n", "nonsense"], "name server addresses 'nonsense'"),
    ],
)
async def test_a_command_line_that_cannot_be_understood(words: list[str], complaint: str) -> None:
    assert failed(await mqadmin(*words), 2, complaint)


async def test_name_servers_from_the_environment(
    cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", cluster.namesrv_address)
    assert (await mqadmin("topicList")).code == 0
    monkeypatch.delenv("NAMESRV_ADDR")
    assert failed(await mqadmin("topicList"), 6, "NAMESRV_ADDR")


@pytest.mark.feature("5a")
async def test_a_dead_name_server_does_not_matter_while_another_answers(
    cluster: InProcessCluster,
) -> None:
    addresses = cluster.namesrv_address
    await cluster.stop_namesrv("namesrv-1")
    done = await mqadmin("topicList", "-n", addresses)
    assert (done.code, done.err) == (0, "")
    dead = addresses.split(";", maxsplit=1)[0]
    assert failed(await mqadmin("topicList", "-n", dead), 6, "no name server answered", dead)


async def test_the_port_of_a_broker_is_not_a_name_server(cluster: InProcessCluster) -> None:
    assert failed(
        await mqadmin("topicRoute", "-t", "x", "-n", cluster.broker("broker-a").address),
        6,
        "no name server answered",
    )


async def test_help_and_version() -> None:
    for words in ([], ["help"], ["--help"], ["-h"]):
        done = await mqadmin(*words)
        assert (done.code, done.err) == (0, "")
        assert "clusterList" in done.out
    done = await mqadmin("topicRoute", "--help")
    assert done.out == (await mqadmin("help", "topic-route")).out
    assert "mqadmin topic route -t orders -l" in done.out
    assert (await mqadmin("--version")).out.startswith("mqadmin (TrioMQ ")


async def test_verbose_shows_the_traceback() -> None:
    done = await mqadmin("topicList", "-n", "127.0.0.1:1", "--verbose")
    assert done.code == 6
    assert "Traceback" in done.err
    assert done.err.splitlines()[-1].startswith("mqadmin: no name server answered")


async def test_an_ordered_topic_is_known_to_the_name_servers() -> None:
    async with local_cluster(brokers=2, namesrvs=2) as cluster:
        words = [
            "updateTopic",
            "-t",
            "ordered",
            "-w",
            2,
            "-r",
            2,
            "-o",
            "true",
            "-n",
            cluster.namesrv_address,
        ]
        assert (await mqadmin(*words, "-c", "DefaultCluster")).code == 0
        async with cluster.admin() as admin:
            for namesrv in cluster.namesrvs:
                answer = await admin.ask(
                    namesrv.address,
                    RequestCode.GET_KV_CONFIG,
                    KvConfigHeader(namespace="ORDER_TOPIC_CONFIG", key="ordered"),
                )
                assert set((answer.ext or {})["value"].split(";")) == {"broker-a:2", "broker-b:2"}
            await call(cluster, "deleteTopic", "--yes", "-c", "DefaultCluster", "-t", "ordered")
            with pytest.raises(OffsetNotFound, match="No config item"):
                await admin.ask(
                    namesrv.address,
                    RequestCode.GET_KV_CONFIG,
                    KvConfigHeader(namespace="ORDER_TOPIC_CONFIG", key="ordered"),
                )


async def test_broker_disk(cluster: InProcessCluster) -> None:
    address = cluster.broker("broker-a").address
    words = ("brokerDisk", "-b", address, "-n", cluster.namesrv_address)
    use = (await mqadmin(*words, "--json", "--top", "1000")).document["brokers"][address]
    assert 0 < use["usedRatio"] < 1
    assert use["totalBytes"] > 1 << 30
    assert len(use["topics"]) <= use["topicCount"]
    shown = await mqadmin(*words, "--top", "1")
    assert f"{address}: " in shown.out
    assert "diskSpaceWarningLevelRatio" in shown.out
