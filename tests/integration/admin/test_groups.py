"""consumerProgress, consumerConnection, producerConnection and updateSubGroup with real members,
and clusters in which some brokers do not answer.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from mqadmin_calls import call, failed, mqadmin
from silent_servers import silent_broker

from triomq.client.mqadmin.commands.progress import queue_rows
from triomq.client.sdk.producer import Producer
from triomq.client.sdk.push_consumer import PushConsumer
from triomq.remoting.protocol.bodies.offsets import ConsumeOffset, ConsumeStats
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.testing import InProcessCluster, local_cluster


async def produce(cluster: InProcessCluster, count: int) -> None:
    async with Producer(cluster.namesrv_address, group="shop") as producer:
        for number in range(count):
            await producer.send("orders", str(number).encode())


async def progress(cluster: InProcessCluster, *words: object) -> Any:
    return (await call(cluster, "consumerProgress", *words, "--json")).document


@pytest.mark.feature("14d")
async def test_progress_of_a_group_with_a_member_and_after_it_left(
    cluster: InProcessCluster,
) -> None:
    await produce(cluster, 8)
    async with PushConsumer(
        cluster.namesrv_address, group="billing", subscriptions="orders", consume_from="first"
    ) as consumer:
        for _ in range(8):
            await (await anext(consumer)).ack()
        online = await progress(cluster, "-g", "billing")
        assert online["online"] is True
        (summary,) = [
            row for row in (await progress(cluster))["groups"] if row["group"] == "billing"
        ]
        assert (summary["count"], summary["type"], summary["model"]) == (1, "PUSH", "CLUSTERING")
    await produce(cluster, 4)

    document = await progress(cluster, "-g", "billing", "-t", "orders")
    assert (document["online"], document["diffTotal"]) == (False, 4)
    assert [(row["brokerName"], row["queueId"]) for row in document["queues"]] == [
        ("broker-a", 0),
        ("broker-a", 1),
        ("broker-b", 0),
        ("broker-b", 1),
    ]
    assert sum(row["brokerOffset"] for row in document["queues"]) == 12
    assert sum(row["consumerOffset"] for row in document["queues"]) == 8
    assert all(
        row["diff"] == row["brokerOffset"] - row["consumerOffset"] for row in document["queues"]
    )

    done = await call(cluster, "consumerProgress", "-g", "billing", "-t", "orders")
    assert done.columns == [
        "#Topic",
        "#Broker Name",
        "#QID",
        "#Broker Offset",
        "#Consumer Offset",
        "#Diff",
        "#Inflight",
        "#LastTime",
    ]
    assert done.out.splitlines()[-3:] == [
        "Consume TPS: 0.00",
        "Consume Diff Total: 4",
        f"Consume Inflight Total: {document['inflightTotal']}",
    ]

    table = await call(cluster, "consumerProgress")
    assert table.columns == [
        "#Group",
        "#Count",
        "#Version",
        "#Type",
        "#Model",
        "#TPS",
        "#Diff Total",
    ]
    (row,) = [row for row in table.rows if row[0] == "billing"]
    assert [cell.strip() for cell in row][1:3] == ["0", "OFFLINE"]


def test_no_messages_are_in_flight_if_a_broker_does_not_report_the_pull_offset() -> None:
    table = {
        MessageQueue("T", "broker-a", 0): ConsumeOffset(9, 5),
        MessageQueue("T", "broker-a", 1): ConsumeOffset(9, 5, 0, 7),
    }
    assert [
        row["inflight"] for row in queue_rows({"127.0.0.1:10911": ConsumeStats(table)}, {})
    ] == [0, 2]


async def test_progress_with_client_addresses(cluster: InProcessCluster) -> None:
    await produce(cluster, 4)
    async with PushConsumer(
        cluster.namesrv_address, group="billing", subscriptions="orders", consume_from="first"
    ) as consumer:
        for _ in range(4):
            await (await anext(consumer)).ack()
        done = await call(cluster, "consumerProgress", "-g", "billing", "-s", "true")
        assert done.code == 0, done
        assert "#Client IP" in done.columns


@pytest.mark.parametrize(
    "words",
    [
        ("resetOffsetByTime", "-g", "biling", "-s", "-1h"),
        ("skipAccumulatedMessage", "-g", "biling"),
        ("cloneGroupOffset", "-s", "biling", "-d", "other"),
    ],
)
async def test_a_move_of_an_unknown_group_names_the_nearest(
    cluster: InProcessCluster, words: tuple[str, ...]
) -> None:
    await cluster.create_topic("t", queues=1)
    given = (*words, "-t", "t", "-n", cluster.namesrv_address)
    for group in ("billing", "other"):
        created = ("updateSubGroup", "-c", "DefaultCluster", "-g", group)
        assert (await call(cluster, *created)).code == 0
    assert failed(
        await mqadmin(*given), 4, "a group 'biling'", "the nearest: billing", "mqadmin group create"
    )
    created = ("updateSubGroup", "-c", "DefaultCluster", "-g", "biling")
    assert (await call(cluster, *created)).code == 0
    assert (await mqadmin(*given)).err == ""


async def test_progress_of_an_unknown_group(cluster: InProcessCluster) -> None:
    assert failed(
        await call(cluster, "consumerProgress", "-g", "nobody"),
        4,
        "no broker knows group 'nobody'",
        "mqadmin group create",
    )


async def test_progress_of_a_group_that_never_consumed(cluster: InProcessCluster) -> None:
    await call(cluster, "updateSubGroup", "-c", "DefaultCluster", "-g", "newcomer")
    done = await call(cluster, "consumerProgress", "-g", "newcomer")
    assert (done.code, done.err) == (
        0,
        "mqadmin: warning: group newcomer has no offsets yet: it is offline\n",
    )
    (row,) = [row for row in (await progress(cluster))["groups"] if row["group"] == "newcomer"]
    assert (row["count"], row["diffTotal"]) == (0, 0), (
        "a new group has its retry topic at once, by which it is found"
    )


@pytest.mark.feature("14c", "14d")
async def test_connections(cluster: InProcessCluster) -> None:
    namesrv = cluster.namesrv_address
    assert failed(
        await mqadmin("consumerConnection", "-g", "billing", "-n", namesrv),
        4,
        "206 CONSUMER_NOT_ONLINE",
        "start a consumer of the group",
    )
    async with (
        Producer(namesrv, group="shop") as producer,
        PushConsumer(
            namesrv, group="billing", subscriptions={"orders": "paid || open"}
        ) as consumer,
    ):
        await producer.send("orders", b"x")
        await consumer.wait_assigned()
        document = (
            await mqadmin("consumerConnection", "-g", "billing", "-n", namesrv, "--json")
        ).document
        (client,) = document["clients"]
        assert (client["clientId"], client["language"]) == (consumer.client_id, "PYTHON")
        assert set(client["brokers"]) == {broker.address for broker in cluster.brokers}
        assert document["subscriptions"]["orders"] == "paid || open"
        assert (document["consumeType"], document["messageModel"]) == (
            "CONSUME_PASSIVELY",
            "CLUSTERING",
        )
        text = await mqadmin("consumerConnection", "-g", "billing", "-n", namesrv)
        assert text.columns == ["#ClientId", "#ClientAddr", "#Language", "#Version"]
        assert "ConsumeType: CONSUME_PASSIVELY" in text.out.splitlines()
        with trio.fail_after(10):
            words = ("producerConnection", "-g", "shop", "-t", "orders", "-n", namesrv, "--json")
            while (done := await mqadmin(*words)).code == 1:
                await trio.sleep(0.01)
        assert [client["clientId"] for client in done.document["clients"]] == [producer.client_id]
    assert failed(
        await mqadmin("producerConnection", "-g", "shop", "-t", "orders", "-n", namesrv), 1, "shop"
    )


async def test_create_and_change_a_group(cluster: InProcessCluster) -> None:
    namesrv = cluster.namesrv_address
    done = await mqadmin(
        "updateSubGroup",
        "-c",
        "DefaultCluster",
        "-g",
        "billing",
        "-r",
        3,
        "-d",
        "false",
        "-n",
        namesrv,
    )
    assert done.code == 0, done
    assert done.out.splitlines()[:2] == [
        f"create subscription group to {broker.address} success." for broker in cluster.brokers
    ]
    policy = {
        "type": "EXPONENTIAL",
        "exponentialRetryPolicy": {"initial": 1000, "max": 9000, "multiplier": 3},
    }
    address = cluster.broker("broker-a").address
    changed = (
        await mqadmin(
            "updateSubGroup",
            "-b",
            address,
            "-g",
            "billing",
            "-p",
            json.dumps(policy),
            "-n",
            namesrv,
            "--json",
        )
    ).document
    (config,) = changed["brokers"].values()
    assert (
        config["retryMaxTimes"],
        config["consumeBroadcastEnable"],
        config["consumeEnable"],
        config["groupRetryPolicy"],
    ) == (3, False, True, policy)
    assert failed(
        await mqadmin("updateSubGroup", "-b", address, "-g", "billing", "-p", "{", "-n", namesrv),
        2,
        "-p/--groupRetryPolicy cannot be '{'",
    )
    assert failed(
        await mqadmin("updateSubGroup", "-g", "billing", "-n", namesrv),
        2,
        "one of -b/--brokerAddr and -c/--clusterName is needed",
    )


async def test_an_incomplete_answer_is_marked(cluster: InProcessCluster) -> None:
    """One of three registered brokers cannot be reached: rows of the others, a warning, exit code
    3.
    """
    async with silent_broker(
        cluster.namesrv_address, ["orders", "ghost-topic"], refuses=True
    ) as gone:
        done = await call(cluster, "clusterList")
        assert done.code == 3, done
        assert done.err.startswith(
            f"mqadmin: warning: 2 of 3 answered, the output is incomplete: {gone}: cannot connect"
            f" to {gone}"
        )
        assert done.err.count("\n") == 1
        assert [row[4].strip() for row in done.rows if row[1] == "ghost"] == ["no answer"]
        status = (await call(cluster, "topicStatus", "-t", "orders", "--json")).document
        assert {queue["brokerName"] for queue in status["queues"]} == {"broker-a", "broker-b"}
        assert list(status["failures"]) == ["ghost"]
        nobody = await call(cluster, "topicStatus", "-t", "ghost-topic")
        assert failed(nobody, 1, f"ghost: cannot connect to {gone}", "brokerIP1")


async def test_sums_say_what_they_lack_and_answers_count_brokers(cluster: InProcessCluster) -> None:
    namesrv = ("-n", cluster.namesrv_address)
    for group in ("one", "two"):
        await mqadmin("group", "create", "-c", "DefaultCluster", "-g", group, *namesrv)
        await mqadmin("group", "skip", "-g", group, "-t", "orders", *namesrv)
    topics = ["orders", "%RETRY%one", "%RETRY%two"]
    async with silent_broker(cluster.namesrv_address, topics):
        done = await mqadmin("topic", "stats", *namesrv, "--timeout", 3)
        assert done.code == 3
        assert done.err.startswith("mqadmin: warning: 2 of 3 answered, the output is"), done
        done = await mqadmin("group", "lag", *namesrv, "--timeout", 3)
        assert {row[0].strip(): row[-1].strip() for row in done.rows}["one"] == "0+"
        done = await mqadmin("group", "lag", "-g", "one", *namesrv, "--timeout", 3)
        assert "Consume Diff Total: 0+\n" in done.out


async def test_a_broker_that_accepts_and_does_not_answer(cluster: InProcessCluster) -> None:
    async with silent_broker(cluster.namesrv_address, ["orders"]) as silent:
        done = await call(cluster, "clusterList", "--timeout", 3, "--json")
        reason = (
            f"{silent} did not answer GET_BROKER_RUNTIME_INFO within 1 s: it is overloaded,"
            " stopped, or cut off"
        )
        assert (done.code, done.document["failures"]) == (3, {silent: reason})
        rows = {
            row["brokerName"]: (row["reachable"], row["active"], row["inTps"], row["error"])
            for row in done.document["brokers"]
        }
        assert rows["ghost"] == (False, None, None, reason)
        assert rows["broker-a"][:2] == (True, True)


@pytest.mark.feature("77a", "77b")
async def test_all_producers_of_a_group_are_listed(cluster: InProcessCluster) -> None:
    namesrv = cluster.namesrv_address
    async with (
        Producer(namesrv, group="shop") as one,
        Producer(namesrv, group="shop") as two,
        Producer(namesrv, group="other") as other,
    ):
        for producer in (one, two, other):
            await producer.send("orders", b"x")

        async def listed() -> list[str]:
            done = await mqadmin(
                "producerConnection", "-g", "shop", "-t", "orders", "-n", namesrv, "--json"
            )
            return (
                sorted(client["clientId"] for client in done.document["clients"])
                if done.code == 0
                else []
            )

        with trio.fail_after(10):
            while await listed() != sorted([one.client_id, two.client_id]):
                await trio.sleep(0.02)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["consumerConnection", "-g", "billing"], "no broker is registered"),
        (["consumerStatus", "-g", "billing"], "no broker is registered"),
        (["message", "explain", "order-17"], "none is registered; start one"),
    ],
)
async def test_a_cluster_without_brokers_says_so(words: list[str], reason: str) -> None:
    async with local_cluster(brokers=0) as cluster:
        done = await call(cluster, *words)
    assert failed(done, 4, reason)
