"""mqadmin's commands that move offsets, change settings and permissions, and print groups, on a
cluster with real clients.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio
from mqadmin_calls import call, document, failed

from triomq.client.receiving.received import ReceivedMessage
from triomq.client.sdk.producer import Producer
from triomq.client.sdk.push_consumer import PushConsumer
from triomq.testing import InProcessCluster


async def consume(cluster: InProcessCluster, group: str, count: int) -> None:
    async with PushConsumer(
        cluster.namesrv_address, group=group, subscriptions="orders", consume_from="first"
    ) as consumer:
        for _ in range(count):
            await (await anext(consumer)).ack()


async def produce(cluster: InProcessCluster, count: int) -> None:
    async with Producer(cluster.namesrv_address, group="shop") as producer:
        for number in range(count):
            await producer.send("orders", str(number).encode())


@pytest.mark.feature("169a")
async def test_a_group_is_moved_back_and_forward_and_its_offsets_are_copied(
    cluster: InProcessCluster,
) -> None:
    await produce(cluster, 8)
    await consume(cluster, "billing", 8)

    async def behind(group: str) -> int:
        return int(
            (await document(cluster, "consumerProgress", "-g", group, "-t", "orders"))["diffTotal"]
        )

    assert await behind("billing") == 0
    back = await document(cluster, "resetOffsetByTime", "-g", "billing", "-t", "orders", "-s", 0)
    assert [(row["brokerName"], row["queueId"], row["offset"]) for row in back["queues"]] == [
        (b, q, 0) for b in ("broker-a", "broker-b") for q in (0, 1)
    ]
    assert await behind("billing") == 8
    await consume(cluster, "billing", 8)
    assert await behind("billing") == 0, "all of them came again"
    address = cluster.broker("broker-a").address
    one = await document(
        cluster,
        "resetOffsetByTime",
        "-g",
        "billing",
        "-t",
        "orders",
        "-s",
        "now",
        "-b",
        address,
        "-q",
        0,
        "-o",
        0,
    )
    assert one["queues"] == [{"brokerName": "broker-a", "queueId": 0, "offset": 0}]
    left = await behind("billing")
    assert left > 0
    await document(cluster, "cloneGroupOffset", "-s", "billing", "-d", "copy", "-t", "orders")
    assert await behind("copy") == left
    await document(cluster, "skipAccumulatedMessage", "-g", "billing", "-t", "orders")
    assert (await behind("billing"), await behind("copy")) == (0, left)
    assert failed(
        await call(cluster, "resetOffsetByTime", "-g", "billing", "-t", "orders", "-s", 0, "-o", 3),
        2,
        "-q/--queue",
    )
    assert failed(
        await call(cluster, "resetOffsetByTime", "-g", "billing", "-t", "nowhere", "-s", 0),
        4,
        "nowhere",
    )
    outside = await call(
        cluster,
        "resetOffsetByTime",
        "-g",
        "billing",
        "-t",
        "orders",
        "-s",
        0,
        "-b",
        address,
        "-q",
        0,
        "-o",
        99,
    )
    assert failed(outside, 1, "not in consume queue range")


@pytest.mark.feature("169a")
async def test_settings_of_brokers_and_name_servers(cluster: InProcessCluster) -> None:
    address = cluster.broker("broker-a").address
    shown = (await document(cluster, "getBrokerConfig", "-b", address))["brokers"][address]
    assert (shown["brokerName"], shown["enableMixedMessageType"]) == ("broker-a", "false")
    changed = await document(
        cluster,
        "updateBrokerConfig",
        "-c",
        "DefaultCluster",
        "-k",
        "enableMixedMessageType",
        "-v",
        "true",
    )
    assert len(changed["brokers"]) == 2
    both = (await document(cluster, "getBrokerConfig", "-c", "DefaultCluster"))["brokers"]
    assert [settings["enableMixedMessageType"] for settings in both.values()] == ["true", "true"]
    assert failed(
        await call(cluster, "updateBrokerConfig", "-b", address, "-k", "brokerPermision", "-v", 4),
        1,
        "did you mean brokerPermission?",
    )
    assert failed(
        await call(cluster, "updateBrokerConfig", "-k", "brokerPermission", "-v", 4),
        2,
        "-b/--brokerAddr",
    )
    await document(cluster, "updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true")
    (settings,) = (await document(cluster, "getNamesrvConfig"))["nameServers"].values()
    assert settings["orderMessageEnable"] == "true"
    await document(
        cluster, "updateKvConfig", "-s", "ORDER_TOPIC_CONFIG", "-k", "orders", "-v", "broker-b:1"
    )
    assert (await document(cluster, "updateOrderConf", "-t", "orders", "-m", "get"))[
        "orderConf"
    ] == "broker-b:1"
    assert (await document(cluster, "topicRoute", "-t", "orders"))["orderTopicConf"] == "broker-b:1"
    await document(
        cluster, "updateOrderConf", "-t", "orders", "-m", "put", "-v", "broker-a:2;broker-b:2"
    )
    assert (await document(cluster, "topicRoute", "-t", "orders"))[
        "orderTopicConf"
    ] == "broker-a:2;broker-b:2"
    await document(cluster, "deleteKvConfig", "--yes", "-s", "ORDER_TOPIC_CONFIG", "-k", "orders")
    assert (await call(cluster, "updateOrderConf", "-t", "orders", "-m", "get")).code != 0
    assert failed(
        await call(cluster, "updateOrderConf", "-t", "orders", "-m", "put"), 2, "-v/--orderConf"
    )


@pytest.mark.feature("10b", "169a")
async def test_permissions_of_topics_and_brokers(cluster: InProcessCluster) -> None:
    async def perms() -> dict[str, int]:
        route = await document(cluster, "topicRoute", "-t", "orders")
        return {data["brokerName"]: data["perm"] for data in route["queueDatas"]}

    wiped = await document(cluster, "wipeWritePerm", "-b", "broker-a")
    assert min(wiped["nameServers"].values()) > 1
    assert await perms() == {"broker-a": 4, "broker-b": 6}
    async with Producer(cluster.namesrv_address, group="shop") as producer:
        assert {(await producer.send("orders", b"x")).queue.broker_name for _ in range(6)} == {
            "broker-b"
        }
    await document(cluster, "addWritePerm", "-b", "broker-a")
    assert await perms() == {"broker-a": 6, "broker-b": 6}
    assert failed(await call(cluster, "wipeWritePerm", "-b", "broker-x"), 4, "broker-a, broker-b")
    changed = await document(
        cluster,
        "updateTopicPerm",
        "-t",
        "orders",
        "-p",
        4,
        "-b",
        cluster.broker("broker-b").address,
    )
    assert list(changed["brokers"].values()) == [{"before": 6, "perm": 4}]
    assert await perms() == {"broker-a": 6, "broker-b": 4}
    assert failed(
        await call(cluster, "updateTopicPerm", "-t", "orders", "-p", 7, "-c", "DefaultCluster"),
        2,
        "2 (write)",
    )
    assert failed(
        await call(cluster, "updateTopicPerm", "-t", "nowhere", "-p", 4, "-c", "DefaultCluster"),
        4,
        "nowhere",
    )


@pytest.mark.feature("169a")
async def test_groups_and_their_state(cluster: InProcessCluster) -> None:
    await produce(cluster, 8)
    address = cluster.broker("broker-a").address
    async with (
        Producer(cluster.namesrv_address, group="shop") as producer,
        PushConsumer(
            cluster.namesrv_address, group="billing", subscriptions="orders", consume_from="first"
        ) as consumer,
    ):
        await producer.send("orders", b"last")
        for _ in range(9):
            await (await anext(consumer)).ack()
        with trio.fail_after(10):
            while not (
                groups := (await document(cluster, "producer", "-b", address))["groups"]
            ).get("shop"):
                await trio.sleep(0.05)
        assert [row["clientId"] for row in groups["shop"]] == [producer.client_id]
        status = await document(cluster, "consumerStatus", "-g", "billing")
        assert (list(status["clients"]), status["sameSubscriptions"], status["sharedQueues"]) == (
            [consumer.client_id],
            True,
            {},
        )
        assert {
            (row["topic"], row["brokerName"])
            for row in status["clients"][consumer.client_id]["queues"]
        } >= {("orders", "broker-a"), ("orders", "broker-b")}
        report = await call(cluster, "consumerStatus", "-g", "billing", "-i", consumer.client_id)
        assert "#Consumer Properties#" in report.out
        assert failed(
            await call(cluster, "consumerStatus", "-g", "billing", "-i", "nobody"),
            2,
            consumer.client_id,
        )
    stats = await document(cluster, "brokerConsumeStats", "-b", address)
    assert {(row["topic"], row["group"]) for row in stats["queues"]} >= {("orders", "billing")}
    (row,) = (await document(cluster, "statsAll", "-t", "orders"))["topics"]
    assert (row["group"], row["accumulation"]) == ("billing", 0)
    assert (await document(cluster, "topicClusterList", "-t", "orders"))["clusters"] == [
        "DefaultCluster"
    ]
    configs = (await document(cluster, "getConsumerConfig", "-g", "billing"))["brokers"]
    assert {config["groupName"] for config in configs.values()} == {"billing"}
    await document(
        cluster, "deleteSubGroup", "--yes", "-c", "DefaultCluster", "-g", "billing", "-r", "true"
    )
    assert failed(await call(cluster, "consumerProgress", "-g", "billing"), 4, "billing")
    assert "%RETRY%billing" not in (await document(cluster, "topicList"))["topics"]


@pytest.mark.feature("169a")
async def test_lists_of_settings_and_entries_of_an_index(
    cluster: InProcessCluster, tmp_path: Path
) -> None:
    topics, groups, wrong = (
        tmp_path / "topics.json",
        tmp_path / "groups.json",
        tmp_path / "wrong.json",
    )
    topics.write_text(
        json.dumps(
            [
                {"topicName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
                for name in ("one", "two")
            ]
        )
    )
    groups.write_text(
        json.dumps([{"groupName": name, "retryMaxTimes": 3} for name in ("g1", "g2")])
    )
    wrong.write_text(
        json.dumps(
            [
                {"topicName": "fine", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6},
                {"topicName": "not fine", "perm": 6},
            ]
        )
    )
    address = cluster.broker("broker-a").address
    assert (await document(cluster, "updateTopicList", "-b", address, "-f", topics))["names"] == [
        "one",
        "two",
    ]
    assert (
        len(
            (await document(cluster, "updateSubGroupList", "-c", "DefaultCluster", "-f", groups))[
                "brokers"
            ]
        )
        == 2
    )
    listed = (await document(cluster, "topicList"))["topics"]
    assert {"one", "two", "%RETRY%g1", "%RETRY%g2"} <= set(listed)
    assert (await document(cluster, "getConsumerConfig", "-g", "g2"))["brokers"][address][
        "retryMaxTimes"
    ] == 3
    assert failed(
        await call(cluster, "updateTopicList", "-b", address, "-f", wrong), 1, "illegal characters"
    )
    assert "fine" not in (await document(cluster, "topicList"))["topics"], (
        "all of a list or nothing of it"
    )
    assert (
        await call(cluster, "updateTopicList", "-b", address, "-f", tmp_path / "missing.json")
    ).code != 0

    await document(cluster, "sendMessage", "-t", "one", "-p", "x", "-c", "paid")
    await document(cluster, "sendMessage", "-t", "one", "-p", "y", "-c", "open")
    async with PushConsumer(
        cluster.namesrv_address, group="picky", subscriptions={"one": "open"}, consume_from="first"
    ) as consumer:
        await (await anext(consumer)).ack()
        page = (await document(cluster, "queryCq", "-t", "one", "-q", 0, "-i", 0, "-g", "picky"))[
            "brokers"
        ][address]
        assert (page["minIndex"], page["maxIndex"]) == (0, 2)
        assert [(entry["index"], entry["matches"]) for entry in page["entries"]] == [
            (0, False),
            (1, True),
        ]


@pytest.mark.feature("169a")
async def test_a_message_is_given_to_one_client_again(cluster: InProcessCluster) -> None:
    sent = await document(cluster, "sendMessage", "-t", "orders", "-p", "again", "-k", "k")
    got: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        got.append(message.body)

    async with (
        PushConsumer(
            cluster.namesrv_address, group="billing", subscriptions="orders", consume_from="first"
        ) as consumer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(consumer.run, handle)
        with trio.fail_after(10):
            while not got:
                await trio.sleep(0.01)
        words = ("queryMsgById", "-t", "orders", "-i", sent["msgId"], "-g", "billing")
        (message,) = (await document(cluster, *words, "-d", consumer.client_id))["messages"]
        assert (message["consumed"]["consumeResult"], got) == ("CR_SUCCESS", [b"again", b"again"])
        assert failed(await call(cluster, *words), 2, "-d/--clientId")
        assert failed(await call(cluster, *words, "-d", "nobody"), 1, "<nobody> not online")
        nursery.cancel_scope.cancel()
