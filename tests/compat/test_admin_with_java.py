"""Our mqadmin on a cluster of Java RocketMQ: the same commands, the same answers."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from mqadmin_calls import failed, mqadmin

from triomq.client.admin.admin import Admin
from triomq.client.sdk.push_consumer import PushConsumer

pytestmark = [pytest.mark.compat, pytest.mark.feature("169b")]


@pytest.fixture
async def namesrv(java_cluster: str) -> str:
    """Java's broker listens before it registers, and for a moment more it cannot tell its figures
    (NoSuchElementException): wait for all that.
    """
    async with Admin(java_cluster) as admin:
        with trio.fail_after(60):
            while True:
                answers = await admin.statuses(await admin.brokers())
                if answers.values and not answers.failures:
                    return java_cluster
                await trio.sleep(0.1)


@pytest.mark.compatible("admin: topics", peer="java-server-5.5.0")
async def test_topics(namesrv: str) -> None:
    created = await mqadmin(
        "updateTopic",
        "-c",
        "TestCluster",
        "-t",
        "AdminTopic",
        "-r",
        3,
        "-w",
        3,
        "-n",
        namesrv,
        "--json",
    )
    (config,) = created.document["brokers"].values()
    assert (config["readQueueNums"], config["perm"]) == (3, 6)
    assert "AdminTopic" in (await mqadmin("topicList", "-n", namesrv, "--json")).document["topics"]
    (queues,) = (await mqadmin("topicRoute", "-t", "AdminTopic", "-n", namesrv, "--json")).document[
        "queueDatas"
    ]
    assert (queues["brokerName"], queues["readQueueNums"], queues["writeQueueNums"]) == (
        "broker-java",
        3,
        3,
    )
    patched = await mqadmin(
        "updateTopic",
        "-c",
        "TestCluster",
        "-t",
        "AdminTopic",
        "-w",
        4,
        "-a",
        "+message.type=NORMAL",
        "-n",
        namesrv,
        "--json",
    )
    (config,) = patched.document["brokers"].values()
    assert (config["readQueueNums"], config["writeQueueNums"], config["attributes"]) == (
        3,
        4,
        {"message.type": "NORMAL"},
    )
    assert (
        await mqadmin(
            "deleteTopic", "--yes", "-c", "TestCluster", "-t", "AdminTopic", "-n", namesrv
        )
    ).code == 0
    assert failed(await mqadmin("topicRoute", "-t", "AdminTopic", "-n", namesrv), 4, "AdminTopic")


async def test_brokers(namesrv: str) -> None:
    (broker,) = (await mqadmin("clusterList", "-n", namesrv, "--json")).document["brokers"]
    assert (broker["brokerName"], broker["reachable"], broker["active"], broker["version"]) == (
        "broker-java",
        True,
        True,
        "V5_5_0",
    )
    # A broker that has just started has no rates yet: unknown, which is not 0.
    assert None not in [
        broker[key]
        for key in (
            "sendQueueSize",
            "pageCacheLockMs",
            "diskRatio",
            "inTotalToday",
            "timerReadBehind",
        )
    ]
    status = (
        await mqadmin("brokerStatus", "-b", broker["address"], "-n", namesrv, "--json")
    ).document["brokers"][broker["address"]]
    assert status["brokerActive"] == "true"


@pytest.mark.loss
@pytest.mark.compatible(
    "admin: messages",
    "admin: groups",
    "query by key",
    "view by offset id",
    "push",
    peer="java-server-5.5.0",
)
async def test_messages_and_groups(namesrv: str) -> None:
    await mqadmin(
        "updateTopic", "-c", "TestCluster", "-t", "AdminMessages", "-r", 2, "-w", 2, "-n", namesrv
    )
    for number in range(4):
        sent = (
            await mqadmin(
                "sendMessage",
                "-t",
                "AdminMessages",
                "-p",
                f"body {number}",
                "-k",
                f"k{number}",
                "-c",
                "tag",
                "-n",
                namesrv,
                "--json",
            )
        ).document
        assert sent["sendResult"] == "SEND_OK"
    messages = (
        await mqadmin("consumeMessage", "-t", "AdminMessages", "-n", namesrv, "--json")
    ).document["messages"]
    assert {(message["body"], message["tags"]) for message in messages} == {
        (f"body {number}", "tag") for number in range(4)
    }
    status = (await mqadmin("topicStatus", "-t", "AdminMessages", "-n", namesrv, "--json")).document
    assert sum(queue["maxOffset"] for queue in status["queues"]) == 4
    with trio.fail_after(20):  # the index is written a moment after the message
        words = ("queryMsgByKey", "-t", "AdminMessages", "-k", "k3", "-n", namesrv, "--json")
        while (found := await mqadmin(*words)).code == 4:
            await trio.sleep(0.1)
    assert [message["body"] for message in found.document["messages"]] == ["body 3"]
    by_id = await mqadmin(
        "queryMsgById", "-t", "AdminMessages", "-i", sent["offsetMsgId"], "-n", namesrv, "--json"
    )
    assert [message["msgId"] for message in by_id.document["messages"]] == [sent["msgId"]]

    assert failed(
        await mqadmin("consumerProgress", "-g", "admin-nobody", "-n", namesrv), 4, "admin-nobody"
    )
    async with PushConsumer(
        namesrv, group="admin-group", subscriptions="AdminMessages", consume_from="first"
    ) as consumer:
        for _ in range(4):
            await (await anext(consumer)).ack()
        connection = (
            await mqadmin("consumerConnection", "-g", "admin-group", "-n", namesrv, "--json")
        ).document
        assert [client["clientId"] for client in connection["clients"]] == [consumer.client_id]
    progress = (
        await mqadmin(
            "consumerProgress", "-g", "admin-group", "-t", "AdminMessages", "-n", namesrv, "--json"
        )
    ).document
    assert (progress["diffTotal"], sum(row["consumerOffset"] for row in progress["queues"])) == (
        0,
        4,
    )
    assert "admin-group" in [
        row["group"]
        for row in (await mqadmin("consumerProgress", "-n", namesrv, "--json")).document["groups"]
    ]
    changed = await mqadmin(
        "updateSubGroup", "-c", "TestCluster", "-g", "admin-group", "-r", 5, "-n", namesrv, "--json"
    )
    assert [config["retryMaxTimes"] for config in changed.document["brokers"].values()] == [5]


@pytest.mark.compatible("admin: offsets", "admin: settings", peer="java-server-5.5.0")
async def test_offsets_settings_and_permissions(namesrv: str) -> None:
    """What the commands change is read back from Java's broker and name server by other
    requests.
    """

    async def document(*words: object) -> Any:
        return (await mqadmin(*words, "-n", namesrv, "--json")).document

    await document("updateTopic", "-c", "TestCluster", "-t", "AdminOps", "-r", 1, "-w", 1)
    await document("updateSubGroup", "-c", "TestCluster", "-g", "ops")
    for number in range(3):
        await document("sendMessage", "-t", "AdminOps", "-p", f"body {number}")

    async def behind(group: str) -> int:
        return int((await document("consumerProgress", "-g", group, "-t", "AdminOps"))["diffTotal"])

    skipped = await document("skipAccumulatedMessage", "-g", "ops", "-t", "AdminOps")
    assert skipped["queues"] == [{"brokerName": "broker-java", "queueId": 0, "offset": 3}]
    assert await behind("ops") == 0
    (address,) = [broker["address"] for broker in (await document("clusterList"))["brokers"]]
    one = await document(
        "resetOffsetByTime",
        "-g",
        "ops",
        "-t",
        "AdminOps",
        "-s",
        "now",
        "-b",
        address,
        "-q",
        0,
        "-o",
        1,
    )
    assert (one["queues"][0]["offset"], await behind("ops")) == (1, 2)
    await document("cloneGroupOffset", "-s", "ops", "-d", "ops-copy", "-t", "AdminOps")
    assert await behind("ops-copy") == 2
    rows = (await document("brokerConsumeStats", "-b", address))["queues"]
    assert {(row["group"], row["diff"]) for row in rows if row["topic"] == "AdminOps"} == {
        ("ops", 2)
    }, "Java lists groups with settings"

    await document("updateBrokerConfig", "-b", address, "-k", "waitTimeMillsInSendQueue", "-v", 250)
    assert (await document("getBrokerConfig", "-b", address))["brokers"][address][
        "waitTimeMillsInSendQueue"
    ] == "250"
    await document("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true")
    await document("updateOrderConf", "-t", "AdminOps", "-m", "put", "-v", "broker-java:1")
    route = await document("topicRoute", "-t", "AdminOps")
    assert route["orderTopicConf"] == "broker-java:1"
    await document("updateOrderConf", "-t", "AdminOps", "-m", "delete")
    await document("wipeWritePerm", "-b", "broker-java")
    assert [
        data["perm"] for data in (await document("topicRoute", "-t", "AdminOps"))["queueDatas"]
    ] == [4]
    await document("addWritePerm", "-b", "broker-java")
    await document("updateTopicPerm", "-t", "AdminOps", "-p", 4, "-b", address)
    assert [
        data["perm"] for data in (await document("topicRoute", "-t", "AdminOps"))["queueDatas"]
    ] == [4]
    config = (await document("getConsumerConfig", "-g", "ops"))["brokers"][address]
    assert config["groupName"] == "ops"
    await document("deleteSubGroup", "--yes", "-b", address, "-g", "ops", "-r", "true")
    assert failed(
        await mqadmin("getConsumerConfig", "-g", "ops-gone", "-n", namesrv), 4, "ops-gone"
    )
