"""Our mqadmin on a cluster of Java RocketMQ: the same commands, the same answers."""

from __future__ import annotations

import pytest
import trio
from mqadmin_calls import failed, mqadmin

from triomq.client.admin.admin import Admin
from triomq.client.consumer.push import PushConsumer

pytestmark = [pytest.mark.compat, pytest.mark.feature(169)]


@pytest.fixture
async def namesrv(java_cluster: str) -> str:
    """Java's broker listens before it registers, and for a moment more it cannot tell its figures (NoSuchElementException): wait for all that."""
    async with Admin(java_cluster) as admin:
        with trio.fail_after(60):
            while True:
                answers = await admin.statuses(await admin.brokers())
                if answers.values and not answers.failures:
                    return java_cluster
                await trio.sleep(0.1)


async def test_topics(namesrv: str) -> None:
    created = await mqadmin(
        "updateTopic", "-c", "TestCluster", "-t", "AdminTopic", "-r", 3, "-w", 3, "-n", namesrv, "--json"
    )
    (config,) = created.document["brokers"].values()
    assert (config["readQueueNums"], config["perm"]) == (3, 6)
    assert "AdminTopic" in (await mqadmin("topicList", "-n", namesrv, "--json")).document["topics"]
    (queues,) = (await mqadmin("topicRoute", "-t", "AdminTopic", "-n", namesrv, "--json")).document["queueDatas"]
    assert (queues["brokerName"], queues["readQueueNums"], queues["writeQueueNums"]) == ("broker-java", 3, 3)
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
    assert (await mqadmin("deleteTopic", "-c", "TestCluster", "-t", "AdminTopic", "-n", namesrv)).code == 0
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
        broker[key] for key in ("sendQueueSize", "pageCacheLockMs", "diskRatio", "inTotalToday", "timerReadBehind")
    ]
    status = (await mqadmin("brokerStatus", "-b", broker["address"], "-n", namesrv, "--json")).document["brokers"][
        broker["address"]
    ]
    assert status["brokerActive"] == "true"


async def test_messages_and_groups(namesrv: str) -> None:
    await mqadmin("updateTopic", "-c", "TestCluster", "-t", "AdminMessages", "-r", 2, "-w", 2, "-n", namesrv)
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
    messages = (await mqadmin("consumeMessage", "-t", "AdminMessages", "-n", namesrv, "--json")).document["messages"]
    assert {(message["body"], message["tags"]) for message in messages} == {
        (f"body {number}", "tag") for number in range(4)
    }
    status = (await mqadmin("topicStatus", "-t", "AdminMessages", "-n", namesrv, "--json")).document
    assert sum(queue["maxOffset"] for queue in status["queues"]) == 4
    with trio.fail_after(20):  # the index is written a moment after the message
        words = ("queryMsgByKey", "-t", "AdminMessages", "-k", "k3", "-n", namesrv, "--json")
        while (found := await mqadmin(*words)).code == 4:  # noqa: ASYNC110
            await trio.sleep(0.1)
    assert [message["body"] for message in found.document["messages"]] == ["body 3"]
    by_id = await mqadmin("queryMsgById", "-t", "AdminMessages", "-i", sent["offsetMsgId"], "-n", namesrv, "--json")
    assert [message["msgId"] for message in by_id.document["messages"]] == [sent["msgId"]]

    assert failed(await mqadmin("consumerProgress", "-g", "admin-nobody", "-n", namesrv), 4, "admin-nobody")
    async with PushConsumer(
        namesrv, group="admin-group", subscriptions="AdminMessages", consume_from="first"
    ) as consumer:
        for _ in range(4):
            await (await anext(consumer)).ack()
        connection = (await mqadmin("consumerConnection", "-g", "admin-group", "-n", namesrv, "--json")).document
        assert [client["clientId"] for client in connection["clients"]] == [consumer.client_id]
    progress = (
        await mqadmin("consumerProgress", "-g", "admin-group", "-t", "AdminMessages", "-n", namesrv, "--json")
    ).document
    assert (progress["diffTotal"], sum(row["consumerOffset"] for row in progress["queues"])) == (0, 4)
    assert "admin-group" in [
        row["group"] for row in (await mqadmin("consumerProgress", "-n", namesrv, "--json")).document["groups"]
    ]
    changed = await mqadmin(
        "updateSubGroup", "-c", "TestCluster", "-g", "admin-group", "-r", 5, "-n", namesrv, "--json"
    )
    assert [config["retryMaxTimes"] for config in changed.document["brokers"].values()] == [5]
