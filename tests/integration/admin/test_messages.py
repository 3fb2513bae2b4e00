"""sendMessage, consumeMessage and the message queries against a real cluster: tables, JSON,
failures.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
from mqadmin_calls import call, failed, mqadmin

from triomq import MessageQueue
from triomq.client.sdk.producer import Producer
from triomq.testing import InProcessCluster, local_cluster


@pytest.fixture
async def cluster() -> AsyncIterator[InProcessCluster]:
    async with local_cluster(brokers=2) as running:
        await running.create_topic("orders", queues=2)
        yield running


async def send(cluster: InProcessCluster, *words: object) -> Any:
    return (await call(cluster, "sendMessage", "-t", "orders", *words, "--json")).document


async def consume(cluster: InProcessCluster, *words: object) -> Any:
    return (await call(cluster, "consumeMessage", "-t", "orders", *words, "--json")).document


@pytest.mark.feature("1a", "65a")
async def test_send_and_consume(cluster: InProcessCluster) -> None:
    done = await call(
        cluster, "sendMessage", "-t", "orders", "-p", "Grüße, 世界", "-k", "k1 k2", "-c", "paid"
    )
    assert done.code == 0, done
    assert done.columns == ["#Broker Name", "#QID", "#Send Result", "#MsgId"]
    (row,) = done.rows[1:]
    assert row[2].strip() == "SEND_OK"
    table = await call(cluster, "consumeMessage", "-t", "orders")
    assert table.columns == [
        "#Broker Name",
        "#QID",
        "#Offset",
        "#Store Time",
        "#Tags",
        "#Keys",
        "#MsgId",
        "#Body",
    ]
    assert [[cell.strip() for cell in row][4:] for row in table.rows[1:]] == [
        ["paid", "k1 k2", row[3].strip(), "Grüße, 世界"]
    ]
    (message,) = (await consume(cluster))["messages"]
    assert (
        message["topic"],
        message["tags"],
        message["keys"],
        message["body"],
        message["bodyBase64"],
    ) == ("orders", "paid", ["k1", "k2"], "Grüße, 世界", None)
    assert message["msgId"] == row[3].strip()
    assert message["properties"]["UNIQ_KEY"] == message["msgId"]
    assert message["storeHost"] == cluster.broker(message["brokerName"]).address
    assert message["bornTimestamp"] <= message["storeTimestamp"]


async def test_send_to_a_broker_and_a_queue(cluster: InProcessCluster) -> None:
    assert [
        (sent := await send(cluster, "-p", n, "-b", "broker-b", "-i", 1))["queueOffset"]
        for n in range(3)
    ] == [0, 1, 2]
    assert (sent["brokerName"], sent["queueId"], sent["sendResult"]) == ("broker-b", 1, "SEND_OK")
    assert (await send(cluster, "-p", "x", "-b", "broker-a"))["brokerName"] == "broker-a"
    namesrv = cluster.namesrv_address
    assert failed(
        await mqadmin("sendMessage", "-t", "orders", "-p", "x", "-i", 1, "-n", namesrv),
        2,
        "-i/--qid needs -b/--broker",
    )
    assert failed(
        await mqadmin("sendMessage", "-t", "orders", "-p", "x", "-b", "broker-z", "-n", namesrv),
        4,
        "there is no broker 'broker-z'",
        "broker-a, broker-b",
    )


async def test_send_to_a_broker_whose_queues_are_not_readable(cluster: InProcessCluster) -> None:
    name = cluster.namesrv_address
    words = ("-c", "DefaultCluster", "-t", "orders", "-p", 2, "-n", name)
    assert (await mqadmin("updateTopic", *words)).code == 0
    assert (await send(cluster, "-p", "x", "-b", "broker-b"))["brokerName"] == "broker-b"


@pytest.mark.feature(94)
async def test_consume_from_an_offset(cluster: InProcessCluster) -> None:
    for number in range(50):
        await send(cluster, "-p", number, "-b", "broker-a", "-i", 0)
    got = await consume(cluster, "-b", "broker-a", "-i", 0, "-o", 5, "-c", 40)
    assert [message["body"] for message in got["messages"]] == [
        str(number) for number in range(5, 45)
    ]
    assert got["queues"] == [
        {"brokerName": "broker-a", "queueId": 0, "minOffset": 0, "maxOffset": 50, "read": 40}
    ]
    assert len((await consume(cluster))["messages"]) == 50
    # No offset changed: the same call returns the same messages.
    assert await consume(cluster, "-b", "broker-a", "-i", 0, "-o", 5, "-c", 40) == got


async def test_consume_between_two_times(cluster: InProcessCluster) -> None:
    await send(cluster, "-p", "a", "-b", "broker-a", "-i", 0)
    await send(cluster, "-p", "b", "-b", "broker-b", "-i", 1)
    stored = {
        message["body"]: message["storeTimestamp"]
        for message in (await consume(cluster))["messages"]
    }
    assert set(stored) == {"a", "b"}
    assert {
        m["body"]
        for m in (await consume(cluster, "-s", min(stored.values()), "-e", max(stored.values())))[
            "messages"
        ]
    } == {"a", "b"}
    nothing = await call(
        cluster, "consumeMessage", "-t", "orders", "-s", max(stored.values()) + 60_000
    )
    assert (nothing.code, len(nothing.rows)) == (0, 1)
    assert (
        nothing.err
        == "mqadmin: warning: no message of topic orders matches; 2 are stored in these queues\n"
    )
    assert (await consume(cluster, "-e", min(stored.values()) - 1))["messages"] == []


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (["-i", 0], 2, "-i/--queueId needs -b/--brokerName"),
        (["-o", 0], 2, "-o/--offset needs -b/--brokerName and -i/--queueId"),
        (["-b", "broker-a", "-i", 9], 2, "has no queue 9 on broker 'broker-a'"),
        (["-b", "broker-z"], 4, "there is no broker 'broker-z' with topic 'orders'"),
        (["-s", "2", "-e", "1"], 2, "is after"),
        (["-s", "tomorrow"], 2, "use now, a time ago (-90s, -1h"),
        (["-c", 0], 2, "use a whole number from 1 up"),
    ],
)
async def test_consume_refuses(
    cluster: InProcessCluster, words: list[object], code: int, complaint: str
) -> None:
    assert failed(await call(cluster, "consumeMessage", "-t", "orders", *words), code, complaint)


async def test_bodies_that_are_binary_or_compressed(cluster: InProcessCluster) -> None:
    async with Producer(cluster.namesrv_address, group="shop") as producer:
        await producer.send("orders", b"\xff\x00", keys=["binary"])
        await producer.send("orders", b"long " * 2000, keys=["long"])
    bodies = {
        message["keys"][0]: (message["body"], message["bodyBase64"])
        for message in (await consume(cluster))["messages"]
    }
    assert bodies == {"binary": (None, "/wA="), "long": ("long " * 2000, None)}
    assert "base64:/wA=" in (await call(cluster, "consumeMessage", "-t", "orders")).out


@pytest.mark.feature("132a")
async def test_query_by_key(cluster: InProcessCluster) -> None:
    first = await send(cluster, "-p", "one", "-k", "o-1 customer-7", "-b", "broker-a")
    second = await send(cluster, "-p", "two", "-k", "o-2 customer-7", "-b", "broker-b")
    namesrv = cluster.namesrv_address
    done = await mqadmin("queryMsgByKey", "-t", "orders", "-k", "customer-7", "-n", namesrv)
    assert done.columns == ["#Message ID", "#Broker Name", "#QID", "#Offset"]
    assert {row[0] for row in done.rows[1:]} == {first["msgId"], second["msgId"]}
    (message,) = (
        await mqadmin("queryMsgByKey", "-t", "orders", "-k", "o-2", "-n", namesrv, "--json")
    ).document["messages"]
    assert (message["body"], message["brokerName"]) == ("two", "broker-b")
    tagged = await send(cluster, "-p", "three", "-k", "o-4", "-c", "paid", "-b", "broker-b")
    by_tag = ("queryMsgByKey", "-t", "orders", "-k", "paid", "-n", namesrv)
    assert [row[0] for row in (await mqadmin(*by_tag, "-p", "t")).rows[1:]] == [tagged["msgId"]]
    assert failed(await mqadmin(*by_tag), 4, "has no message with key 'paid'")
    assert failed(await mqadmin(*by_tag, "-p", "tag"), 2, "use K or T")
    assert failed(
        await mqadmin("queryMsgByKey", "-t", "orders", "-k", "o-3", "-n", namesrv),
        4,
        "has no message with key 'o-3'",
    )
    assert failed(
        await mqadmin("queryMsgByKey", "-t", "orders", "-k", "o-2", "-e", 1000, "-n", namesrv),
        4,
        "has no message with key 'o-2'",
    )


@pytest.mark.feature("132a", "132b")
async def test_a_query_by_key_respects_topic_range_and_number(cluster: InProcessCluster) -> None:
    namesrv = cluster.namesrv_address
    await cluster.create_topic("other", queues=1)

    async def found(*words: object) -> list[tuple[str, int]]:
        done = await mqadmin(
            "queryMsgByKey", "-t", "orders", "-k", "often", *words, "-n", namesrv, "--json"
        )
        return [
            (message["body"], message["storeTimestamp"]) for message in done.document["messages"]
        ]

    queue = MessageQueue("orders", "broker-a", 0)
    async with Producer(namesrv, group="shop") as producer:
        await producer.send("orders", b"first", keys=["often"], queue=queue)
        await trio.sleep(1.05)  # an index entry has its time in seconds since the first one
        await producer.send("orders", b"second", keys=["often"], queue=queue)
        await producer.send("other", b"of another topic", keys=["often"])
        first, second = sorted(await found())
        assert (first[0], second[0]) == ("first", "second")
        between = first[1] + 500
        assert await found("-e", between) == [first]
        assert await found("-b", between) == [second]
        for number in range(70):
            await producer.send("orders", b"more %d" % number, keys=["often"], queue=queue)
    assert len(await found("-m", 1000)) == 64


@pytest.mark.feature(131)
async def test_query_by_id(cluster: InProcessCluster) -> None:
    namesrv = cluster.namesrv_address
    sent = await send(cluster, "-p", "one", "-k", "k", "-b", "broker-b")
    for message_id in (
        sent["offsetMsgId"],
        sent["msgId"],
        f"{sent['msgId']},{sent['offsetMsgId']}",
    ):
        messages = (
            await mqadmin("queryMsgById", "-t", "orders", "-i", message_id, "-n", namesrv, "--json")
        ).document["messages"]
        assert {
            (message["body"], message["brokerName"], message["offsetMsgId"]) for message in messages
        } == {("one", "broker-b", sent["offsetMsgId"])}
    text = (
        await mqadmin("queryMsgById", "-t", "orders", "-i", sent["offsetMsgId"], "-n", namesrv)
    ).out.splitlines()
    assert f"OffsetID:            {sent['offsetMsgId']}" in text
    assert text[-1] == "Body:                one"
    latin = await mqadmin(
        "queryMsgById",
        "-t",
        "orders",
        "-i",
        sent["msgId"],
        "-f",
        "latin-1",
        "-n",
        namesrv,
        "--json",
    )
    assert latin.document["messages"][0]["body"] == "one"
    missing = sent["msgId"][:-4] + "FFFF"
    assert failed(
        await mqadmin("queryMsgById", "-t", "orders", "-i", missing, "-n", namesrv),
        4,
        f"has no message with id {missing}",
    )
    beyond = sent["offsetMsgId"][:-4] + "FFFF"
    assert failed(
        await mqadmin("queryMsgById", "-t", "orders", "-i", beyond, "-n", namesrv),
        4,
        f"has no message with id {beyond}",
    )
    assert failed(
        await mqadmin("queryMsgById", "-t", "orders", "-i", "x", "-f", "klingon", "-n", namesrv),
        2,
        "unknown character set",
    )


async def test_query_by_unique_key(cluster: InProcessCluster) -> None:
    async with Producer(cluster.namesrv_address, group="shop") as producer:
        receipt = await producer.send("orders", b"first")
        await producer.send("orders", b"again", message_id=receipt.message_id)
    words = [
        "queryMsgByUniqueKey",
        "-t",
        "orders",
        "-i",
        receipt.message_id,
        "-n",
        cluster.namesrv_address,
        "--json",
    ]
    assert len((await mqadmin(*words)).document["messages"]) == 1
    assert {message["body"] for message in (await mqadmin(*words, "-a")).document["messages"]} == {
        "first",
        "again",
    }
    words[4] = "0" * 32
    assert failed(await mqadmin(*words), 4, "has no message with id")
