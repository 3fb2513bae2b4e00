"""Message traces end to end: what clients note, what mqadmin tells, and what is not noted."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from mqadmin_calls import Done, mqadmin

from triomq import (
    ConsumerSettings,
    Message,
    Producer,
    ProducerSettings,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
)
from triomq.client.admin.admin import Admin
from triomq.client.core.config import ClientSettings
from triomq.client.core.trace_records import PubRecord, TraceRecord, decode_trace
from triomq.client.trace.dispatcher import BUFFERED_MAX
from triomq.remoting.protocol.compression import plain_body
from triomq.remoting.protocol.names import TRACE_TOPIC
from triomq.testing import InProcessCluster, local_cluster

TRACED = ClientSettings(trace=True)
CONSUMING = ConsumerSettings(client=TRACED)


def producer(cluster: InProcessCluster, client: ClientSettings = TRACED, **more: Any) -> Producer:
    settings = ProducerSettings(client=client, **more)
    return Producer(cluster.namesrv_address, group="shop", settings=settings)


async def stored(cluster: InProcessCluster, topic: str = TRACE_TOPIC) -> list[TraceRecord]:
    """Return all records of a trace topic."""
    found: list[TraceRecord] = []
    async with Admin(cluster.namesrv_address) as admin:
        for queue in await admin.queues(topic):
            for message in await admin.read(queue, 0, count=1000):
                read = decode_trace(plain_body(message.body, message.sys_flag).decode())
                assert read.unreadable == 0
                found += read.records
    return found


async def events(cluster: InProcessCluster, key: str) -> list[dict[str, Any]]:
    done = await mqadmin("queryMsgTraceById", "-i", key, "-n", cluster.namesrv_address, "--json")
    found: list[dict[str, Any]] = done.document["events"]
    return found


@pytest.mark.feature("133a", "133b")
async def test_one_id_tells_who_sent_it_and_how_each_group_fared() -> None:
    """A handler that raises, one that gives the message back, an iteration, and a poll."""
    async with local_cluster(settings={"traceTopicEnable": True}) as cluster:
        address = cluster.namesrv_address
        async with producer(cluster) as sending:
            raised = await sending.send("Orders", b"raise", tag="paid", keys=["o-1", "o-2"])
            returned = await sending.send("Orders", b"return")
        handled: list[tuple[bytes, int]] = []

        async def handle(message: ReceivedMessage) -> None:
            handled.append((message.body, message.reconsume_times))
            if message.body == b"raise":
                raise ValueError("not today")
            if message.reconsume_times == 0:
                await message.retry(1)

        with trio.fail_after(60):
            async with PushConsumer(
                address,
                group="billing",
                subscriptions="Orders",
                consume_from="first",
                handler=handle,
                settings=CONSUMING,
            ):
                while {(b"raise", 0), (b"return", 1)} - {*handled}:
                    await trio.sleep(0.02)
            async with PushConsumer(
                address,
                group="archive",
                subscriptions="Orders",
                consume_from="first",
                settings=CONSUMING,
            ) as consumer:
                for _ in range(2):
                    message = await anext(consumer)
                    if message.body == b"raise":
                        async with message:
                            pass
                    else:
                        await message.ack()
            async with PullConsumer(
                address,
                group="audit",
                subscriptions="Orders",
                consume_from="first",
                settings=CONSUMING,
            ) as polling:
                left = 2
                while left:
                    left -= len(await polling.poll())
        pub, *subs = await events(cluster, raised.message_id)
        assert (pub["type"], pub["group"], pub["topic"], pub["status"], pub["clientHost"]) == (
            "Pub",
            "shop",
            "Orders",
            "success",
            "127.0.0.1",
        )
        assert (pub["tags"], pub["keys"], pub["bodyLength"], pub["offsetMsgId"]) == (
            "paid",
            ["o-1", "o-2"],
            5,
            raised.offset_message_id,
        )
        assert fates(subs) == [
            ("billing", 0, "failed", "RAISED"),
            ("archive", 0, "success", "SUCCESS"),
            ("audit", 0, "success", "SUCCESS"),
        ]
        assert pub["timestamp"] <= subs[0]["timestamp"] <= subs[-1]["timestamp"]
        assert await events(cluster, "o-2") == [pub, *subs]
        _, *subs = await events(cluster, returned.message_id)
        assert fates(subs) == [
            ("billing", 0, "failed", "FAILED"),
            ("billing", 1, "success", "SUCCESS"),
            ("archive", 0, "success", "SUCCESS"),
            ("audit", 0, "success", "SUCCESS"),
        ]
        text = await mqadmin("queryMsgTraceById", "-i", returned.message_id, "-n", address)
        lines = [line.split() for line in text.out.splitlines()]
        assert [line[:2] for line in lines if line and line[0] in ("Pub", "Sub")] == [
            ["Pub", "shop"],
            ["Sub", "billing"],
            ["Sub", "billing"],
            ["Sub", "archive"],
            ["Sub", "audit"],
        ]


def fates(subs: list[dict[str, Any]]) -> list[tuple[str, int, str, str]]:
    return [(sub["group"], sub["retryTimes"], sub["status"], sub["outcome"]) for sub in subs]


async def test_each_message_of_a_batch_is_found() -> None:
    async with local_cluster(settings={"traceTopicEnable": True}) as cluster:
        async with producer(cluster, auto_batch=True) as sending:
            receipts = await sending.send_batch(
                [Message(topic="Rows", body=b"%d" % n, keys=(f"row-{n}",)) for n in range(5)]
            )
            receipts += await sending.send_many(
                Message(topic="Rows", body=b"%d" % n, keys=(f"row-{n}",)) for n in range(5, 9)
            )
        for number, receipt in enumerate(receipts):
            (event,) = await events(cluster, receipt.message_id)
            assert event["keys"] == [f"row-{number}"]
            assert event["offsetMsgId"] == receipt.offset_message_id
            assert event["bodyLength"] == 1
            assert await events(cluster, f"row-{number}") == [event]


async def test_what_is_not_noted() -> None:
    """One-way sends, the trace topic itself, and everything if the broker says traceOn=false."""
    own = ClientSettings(trace=True, trace_topic="OwnTraces")
    async with local_cluster(settings={"traceTopicEnable": True}) as cluster:
        async with producer(cluster, own) as sending:
            await sending.send_oneway("Orders", b"x")
            await sending.send(TRACE_TOPIC, b"x")
            await sending.send("OwnTraces", b"x")
            receipt = await sending.send("Orders", b"x")
        (record,) = [
            record for record in await own_records(cluster) if isinstance(record, PubRecord)
        ]
        assert record.message_id == receipt.message_id
    async with local_cluster(settings={"traceTopicEnable": True, "traceOn": False}) as cluster:
        async with producer(cluster) as sending:
            await sending.send("Orders", b"x")
        async with PushConsumer(
            cluster.namesrv_address,
            group="billing",
            subscriptions="Orders",
            consume_from="first",
            settings=CONSUMING,
        ) as consumer:
            async with await anext(consumer):
                pass
        assert await stored(cluster) == []


async def own_records(cluster: InProcessCluster) -> list[TraceRecord]:
    """Return the records of a topic that has other messages, too."""
    found: list[TraceRecord] = []
    async with Admin(cluster.namesrv_address) as admin:
        for queue in await admin.queues("OwnTraces"):
            for message in await admin.read(queue, 0, count=100):
                found += decode_trace(message.body.decode()).records
    return found


async def test_a_missing_topic_is_said_once_and_costs_no_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with local_cluster(settings={"autoCreateTopicEnable": False}) as cluster:
        await cluster.create_topic("Orders", queues=1)
        with trio.fail_after(30):
            async with producer(cluster) as sending:
                for _ in range(3):
                    for _ in range(12):
                        await sending.send("Orders", b"x")
                    await trio.sleep(0.05)
        warnings = [
            record.message
            for record in caplog.records
            if record.name == "triomq.client.trace.dispatcher"
        ]
        (warning,) = warnings
        assert f"topic {TRACE_TOPIC} does not exist" in warning
        assert "traceTopicEnable=true" in warning
        done = await mqadmin("queryMsgTraceById", "-i", "x", "-n", cluster.namesrv_address)
        assert done.code == 4
        assert "traceTopicEnable=true" in done.err
        assert "set traceTopicEnable=true" in await examined(cluster)
    async with local_cluster(settings={"traceTopicEnable": True}) as cluster:
        assert await examined(cluster) == f"topic {TRACE_TOPIC} exists"


async def examined(cluster: InProcessCluster) -> str:
    """Return what the doctor says of message traces."""
    done = await mqadmin("doctor", "--cluster", "-n", cluster.namesrv_address, "--json")
    (found,) = [one for one in document_of(done) if one["check"] == "message traces"]
    text: str = found["found"]
    return text


def document_of(done: Done) -> list[dict[str, Any]]:
    findings: list[dict[str, Any]] = json.loads(done.out)["findings"]
    return findings


async def test_traces_have_a_producer_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    """With Java's names, and while business sends go on."""
    async with local_cluster(settings={"traceTopicEnable": True}) as cluster:
        async with producer(cluster) as sending:
            for _ in range(10):
                await sending.send("Orders", b"x")
            with trio.fail_after(20):
                while not (found := await trace_producers(cluster)):
                    await trio.sleep(0.02)
        assert found[0][0].startswith("_INNER_TRACE_PRODUCER-shop-PRODUCE-")
        assert f"@PID_CLIENT_INNER_TRACE_PRODUCER_{cluster.namesrv_address}" in found[0][1]
        assert await trace_producers(cluster) == []
        assert len(await stored(cluster)) == 10
    assert [record.message for record in caplog.records if "trace" in record.name] == []


async def trace_producers(cluster: InProcessCluster) -> list[tuple[str, str]]:
    (broker,) = cluster.brokers
    done = await mqadmin("producer", "-b", broker.address, "-n", cluster.namesrv_address, "--json")
    return [
        (group, client["clientId"])
        for group, clients in done.document["groups"].items()
        for client in clients
        if group.startswith("_INNER")
    ]


async def test_a_full_buffer_drops_records_and_never_waits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with local_cluster() as cluster:
        async with producer(cluster) as sending:
            trace = sending._active().trace
            assert trace is not None
            for number in range(BUFFERED_MAX + 500):  # no checkpoint: nothing leaves meanwhile
                trace.recall(topic="T", message_id=f"{number}", success=True)
        assert len(await stored(cluster)) == BUFFERED_MAX
    (warning,) = [record.message for record in caplog.records if "is full" in record.message]
    assert "1 were dropped" in warning


async def test_send_message_of_mqadmin_can_be_traced() -> None:
    async with local_cluster() as cluster:
        await cluster.create_topic("Orders", queues=1)
        sent = await mqadmin(
            *("sendMessage", "-t", "Orders", "-p", "x", "-m", "true"),
            *("-n", cluster.namesrv_address, "--json"),
        )
        (event,) = await events(cluster, sent.document["msgId"])
        assert event["group"] == "TOOLS_PRODUCER"


async def test_ends_of_transactions_and_recalls_are_noted() -> None:
    async with local_cluster(settings={"recallMessageEnable": True}) as cluster:
        async with producer(cluster) as sending:
            async with sending.transaction("Orders", b"x", tag="t", keys=["o-1"]) as committed:
                pass
            async with sending.transaction("Orders", b"x") as rolled_back:
                await rolled_back.rollback()
            timed = await sending.send("Orders", b"x", delay=60)
            await sending.recall(timed)
        half, end = await events(cluster, committed.id)
        assert (half["type"], half["msgType"], half["topic"]) == ("Pub", "HALF", "Orders")
        assert (end["type"], end["msgType"], end["status"]) == (
            "EndTransaction",
            "COMMIT",
            "COMMIT_MESSAGE",
        )
        assert (end["tags"], end["keys"], end["topic"], end["group"], end["fromCheck"]) == (
            "t",
            ["o-1"],
            "Orders",
            "shop",
            False,
        )
        assert (end["transactionId"], end["storeHost"]) == (committed.id, half["storeHost"])
        assert (await events(cluster, rolled_back.id))[1]["status"] == "ROLLBACK_MESSAGE"
        sent, recalled = await events(cluster, timed.message_id)
        assert (sent["msgType"], recalled["type"]) == ("DELAY", "Recall")
        assert (recalled["topic"], recalled["group"], recalled["status"]) == (
            "Orders",
            "shop",
            "success",
        )


async def test_tenants_find_their_own_names_in_traces() -> None:
    """Records have the short names, as Java's; the trace topic belongs to all tenants."""
    red = ClientSettings(trace=True, namespace="red")
    async with local_cluster(settings={"traceTopicEnable": True}) as cluster:
        async with producer(cluster, red) as sending:
            receipt = await sending.send("Orders", b"x")
        async with PushConsumer(
            cluster.namesrv_address,
            group="billing",
            subscriptions="Orders",
            consume_from="first",
            settings=ConsumerSettings(client=red),
        ) as consumer:
            async with await anext(consumer):
                pass
        pub, sub = await events(cluster, receipt.message_id)
        assert (pub["topic"], pub["group"], sub["group"]) == ("Orders", "shop", "billing")
