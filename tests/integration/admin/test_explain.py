"""``mqadmin message explain`` and ``group why`` with real members, and beside silent brokers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import trio
from mqadmin_calls import Done, call, failed, mqadmin
from silent_servers import silent_broker

from triomq import (
    ClientSettings,
    ConsumerSettings,
    Producer,
    ProducerSettings,
    PushConsumer,
    Sql,
    TransactionOutcome,
)
from triomq.client.admin.explain import key_search, message_places
from triomq.testing import InProcessCluster, local_cluster

TRACED = ClientSettings(trace=True)


@pytest.fixture
async def cluster() -> AsyncIterator[InProcessCluster]:
    settings = {"traceTopicEnable": True, "enablePropertyFilter": True}
    async with local_cluster(settings=settings) as running:
        await running.create_topic("orders", queues=1)
        yield running


def consumer(
    cluster: InProcessCluster, group: str, tags: str | Sql = "*", **more: Any
) -> PushConsumer:
    return PushConsumer(
        cluster.namesrv_address,
        group=group,
        subscriptions={"orders": tags},
        consume_from="first",
        **more,
    )


async def explained(cluster: InProcessCluster, *words: object) -> dict[str, Any]:
    """Return the one message of a document."""
    words = (*words, "-n", cluster.namesrv_address, "--json")
    (message,) = (await mqadmin("message", "explain", *words)).document["messages"]
    found: dict[str, Any] = message
    return found


async def states(cluster: InProcessCluster, *words: object) -> dict[str, str]:
    return {row["group"]: row["state"] for row in (await explained(cluster, *words))["groups"]}


async def eventually(cluster: InProcessCluster, wanted: dict[str, str], *words: object) -> None:
    """Wait until the groups are in these states: members commit and send back in the background."""
    found: dict[str, str] = {}
    with trio.move_on_after(20):
        while found != wanted:
            await trio.sleep(0.05)
            found = await states(cluster, *words)
    assert found == wanted


@pytest.mark.feature(183)
async def test_what_each_group_did_with_a_message(cluster: InProcessCluster) -> None:
    producing = ProducerSettings(client=TRACED)
    quick = ConsumerSettings(client=TRACED, offset_interval=0.1)
    async with (
        Producer(cluster.namesrv_address, group="shop", settings=producing) as producer,
        AsyncExitStack() as stack,
    ):
        first = await producer.send("orders", b"1", tag="a", keys=["order-1"])
        receipt = await producer.send(
            "orders", b"2", tag="a", keys=["order-2"], properties={"price": "3"}
        )

        async def member(group: str, tags: str | Sql = "*", **more: Any) -> PushConsumer:
            entered: PushConsumer = await stack.enter_async_context(
                consumer(cluster, group, tags, settings=quick, **more)
            )
            return entered

        done, again, dead, waits = [
            await member(group) for group in ("done", "again", "dead", "waits")
        ]
        await member("filtered", "b || c")
        await member("dear", Sql("price > 10"))
        await member("cheap", Sql("price < 10"))
        await member("all", broadcast=True)
        for group in (done, again, dead, waits):
            earlier, message = await anext(group), await anext(group)
            assert message.message_id == receipt.message_id
            if group is waits:
                continue
            await earlier.ack()
            if group is done:
                await message.ack()
            elif group is again:
                await message.retry(1)
            else:
                await message.dead_letter()
        wanted = {
            "again": "retrying",
            "all": "broadcast",
            "cheap": "waiting",  # its member does not settle what it holds
            "dead": "dead",
            "dear": "filtered",
            "done": "consumed",
            "filtered": "filtered",
            "waits": "waiting",
        }
        await eventually(cluster, wanted, receipt.message_id, "-t", "orders")
        for words in (
            [receipt.message_id],
            [receipt.offset_message_id],
            ["order-2", "-t", "orders"],
        ):
            assert await states(cluster, *words) == wanted

        message_1 = await explained(cluster, receipt.message_id, "-t", "orders")
        rows = {row["group"]: row for row in message_1["groups"]}
        assert (message_1["state"], message_1["brokerName"], message_1["queueOffset"]) == (
            "stored",
            "broker-a",
            1,
        )
        assert rows["waits"]["lag"] == 1
        assert waits.client_id in rows["waits"]["sentence"]
        assert rows["again"]["retries"] == 1
        letter = await explained(cluster, rows["dead"]["deadLetterId"])
        assert letter["topic"] == "%DLQ%dead"
        assert receipt.offset_message_id in letter["sentences"][1]

        # The retry comes after a second, and is consumed.
        repeated = await anext(again)
        assert repeated.message_id == receipt.message_id
        await repeated.ack()
        await eventually(cluster, {"again": "consumed"}, receipt.message_id, "-g", "again")

        text = await call(cluster, "message", "explain", first.message_id, "-t", "orders")
        assert text.code == 0
        assert "It is stored in topic orders: broker-a, queue 0, offset 0" in text.out
        assert "does not select tag 'a'" in text.out
    # Clients send their last traces when they end.
    row = next(
        row
        for row in (await explained(cluster, receipt.message_id))["groups"]
        if row["group"] == "done"
    )
    assert row["state"] == "consumed"
    assert row["consumedTimestamp"] >= message_1["storeTimestamp"]


async def test_messages_that_wait_outside_of_their_topic(cluster: InProcessCluster) -> None:
    async with Producer(
        cluster.namesrv_address, group="shop", check=lambda _: TransactionOutcome.UNKNOWN
    ) as producer:
        timed = await producer.send("orders", b"later", delay=60)
        for word in (timed.message_id, timed.offset_message_id):
            found = await explained(cluster, word)
            assert (found["state"], found["topic"], found["groups"]) == ("timed", "orders", [])
            assert found["dueTimestamp"] > found["bornTimestamp"]
        async with producer.transaction("orders", b"half", keys=["half"]):
            found = await explained(cluster, "half", "-t", "orders")
            assert (found["state"], found["topic"]) == ("prepared", "orders")
        found = await explained(cluster, "half", "-t", "orders")
        assert found["state"] == "stored"
        assert "prepared in a transaction, which was committed" in found["sentences"][1]
        with pytest.raises(ValueError, match="no"):
            async with producer.transaction("orders", b"half", keys=["never"]):
                raise ValueError("no")
        with trio.move_on_after(20):  # the broker notes the end in the background
            while found["state"] != "rolledBack":
                found = await explained(cluster, "never", "-t", "orders")
                await trio.sleep(0.1)
        assert found["state"] == "rolledBack"


async def test_a_message_that_no_broker_has(cluster: InProcessCluster) -> None:
    namesrv = ("-n", cluster.namesrv_address)
    done = await mqadmin("message", "explain", "nothing", "-t", "orders", *namesrv)
    assert failed(done, 4, "'nothing'", "topic orders at broker-a", "delayed messages")
    done = await mqadmin("message", "explain", "nothing", *namesrv)
    assert failed(done, 4, "topics at broker-a", "check the spelling")
    async with Producer(cluster.namesrv_address, group="shop") as producer:
        sent = await producer.send("orders", b"x")
    done = await mqadmin("message", "explain", sent.message_id, "-g", "biling", *namesrv)
    assert failed(done, 4, "no broker knows group 'biling'")
    done = await mqadmin("message", "explain", sent.message_id, *namesrv)
    assert "No group consumes topic orders" in done.out


@pytest.mark.feature(183)
async def test_a_key_needs_no_topic(cluster: InProcessCluster) -> None:
    await cluster.create_topic("refunds", queues=1)
    async with Producer(cluster.namesrv_address, group="shop") as producer:
        await producer.send("orders", b"1", keys=["order-1"])
        later = await producer.send("refunds", b"2", keys=["order-1"])
    words = ("message", "explain", "order-1", "-n", cluster.namesrv_address, "--json")
    done = await mqadmin(*words)
    assert [one["topic"] for one in done.document["messages"]] == ["refunds", "orders"]
    assert done.document["messages"][0]["msgId"] == later.message_id
    assert done.err == "", "few topics need no line of progress"


async def test_a_search_in_many_topics_names_its_limit(
    cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_search, "TURN_TOPICS", 4)
    done = await call(cluster, "message", "explain", "order-1")
    assert done.code == 4
    assert "mqadmin: looking for 'order-1' in topics 1 to 4 of " in done.err
    assert "at most 5000 topics and half of --timeout" in done.err
    monkeypatch.setattr(message_places, "TOPICS_MAX", 5)
    done = await call(cluster, "message", "explain", "order-1")
    assert done.code == 3, "what was not searched may have it"
    assert "topics were not searched" in done.err


async def test_a_slave_is_asked_when_its_master_hangs(cluster: InProcessCluster) -> None:
    broker = cluster.brokers[0]
    async with Producer(cluster.namesrv_address, group="shop") as producer:
        sent = await producer.send("orders", b"x", keys=["order-1"])
    namesrv = ("-n", cluster.namesrv_address, "--timeout", 3, "--json")
    async with silent_broker(
        cluster.namesrv_address, ["orders"], broker.name, slave=broker.address
    ) as silent:
        for word in ("order-1", sent.message_id, sent.offset_message_id):
            done = await mqadmin("message", "explain", word, *namesrv)
            assert done.code == 3
            (message,) = done.document["messages"]
            assert message["msgId"] == sent.message_id
            reason = done.document["failures"][broker.name]
            assert silent in reason
            assert f"its slave {broker.address} was asked instead" in reason


async def why(cluster: InProcessCluster, *words: object) -> tuple[Done, dict[str, str]]:
    """Return the result of ``group why billing``, and check → level."""
    namesrv = ("-n", cluster.namesrv_address, "--json")
    done = await mqadmin("group", "why", "billing", "--seconds", 1, *words, *namesrv)
    findings = json.loads(done.out)["findings"]
    return done, {one["check"]: one["level"] for one in findings}


async def test_what_holds_a_group_back(cluster: InProcessCluster) -> None:
    namesrv = ("-n", cluster.namesrv_address)
    assert failed(await mqadmin("group", "why", "billing", *namesrv), 4, "no broker knows group")
    quick = ConsumerSettings(offset_interval=0.1)
    async with Producer(cluster.namesrv_address, group="shop") as producer:
        async with consumer(cluster, "billing", settings=quick) as member:
            await producer.send("orders", b"x")
            message = await anext(member)
            sent, enough = 0, trio.Event()

            async def more_come() -> None:
                nonlocal sent
                while not enough.is_set():
                    await producer.send("orders", b"y")
                    sent += 1
                    await trio.sleep(0.1)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(more_come)
                done, found = await why(cluster)
                enough.set()
            assert (done.code, found) == (1, {"queue-still": "problem"})
            await message.ack()
            for _ in range(sent):
                await (await anext(member)).ack()
            with trio.move_on_after(20):  # the offset is committed in the background
                while found:
                    done, found = await why(cluster)
            assert (done.code, found) == (0, {})
            async with consumer(cluster, "billing", "b"):
                done, found = await why(cluster)
                assert (done.code, found["subscriptions-differ"]) == (1, "problem")
        done, found = await why(cluster)
        assert (done.code, found) == (0, {}), "no backlog and no member is no problem"
        await producer.send("orders", b"x")
        done, found = await why(cluster)
        assert (done.code, found) == (1, {"no-member": "problem"})
        update = ("group", "update", "-g", "billing", "-c", "DefaultCluster", "-s")
        await mqadmin(*update, "false", *namesrv)
        text = await mqadmin("group", "why", "billing", "--seconds", 1, *namesrv)
        assert "consumeEnable=false" in text.out
        assert text.out.endswith(
            "2 findings; group billing: 0 members, 1 message behind in 2 queues\n"
        )


async def test_a_group_that_gives_up_everything(cluster: InProcessCluster) -> None:
    async with (
        Producer(cluster.namesrv_address, group="shop") as producer,
        consumer(cluster, "billing") as member,
    ):
        for number in range(3):
            sent = await producer.send("orders", b"x", keys=[f"order-{number}"])
        for _ in range(3):
            await (await anext(member)).dead_letter()
    found: dict[str, str] = {}
    with trio.move_on_after(60):  # offsets and dead letters are indexed in the background
        while "dead-letters" not in found:
            done, found = await why(cluster)
    assert (done.code, found) == (1, {"dead-letters": "problem"})
    (finding,) = json.loads(done.out)["findings"]
    assert finding["found"].startswith("3 dead letters in the last hour, of 3 messages that")
    assert f"the last: {sent.message_id} (keys order-2) of orders, given up at" in finding["found"]
    assert "dlq resend billing" in finding["fix"]


async def test_groups_above_a_limit_end_with_exit_code_1(cluster: InProcessCluster) -> None:
    async with Producer(cluster.namesrv_address, group="shop") as producer:
        async with consumer(cluster, "billing") as member:
            await producer.send("orders", b"x")
            await (await anext(member)).ack()
        for _ in range(3):
            await producer.send("orders", b"y")

    async def lag(*words: object) -> Done:
        return await call(cluster, "group", "lag", *words)

    done = await lag("--alert", 2)
    assert (done.code, done.out) == (1, "billing: 3 messages behind, above 2\n")
    done = await lag("--alert", 3)
    assert (done.code, done.out, done.err) == (0, "", "")
    with trio.fail_after(60):
        while (done := await lag("--alert-seconds", 0)).code != 1:
            pass  # less than a second old
    assert done.out.startswith("billing: the oldest waits for ")
    assert (await lag("--alert-seconds", 600, "-g", "billing")).code == 0
    assert failed(await lag("--alert", 3, "-g", "biling"), 4, "no broker knows group 'biling'")


async def test_a_silent_broker_may_have_what_no_other_has(cluster: InProcessCluster) -> None:
    namesrv = ("-n", cluster.namesrv_address, "--timeout", 4)
    async with silent_broker(cluster.namesrv_address, ["orders"]):
        done = await mqadmin("message", "explain", "nothing", "-t", "orders", *namesrv)
        assert (done.code, "No broker that answered has" in done.out) == (3, True)
        assert (await mqadmin("group", "lag", "--alert", 100, *namesrv)).code == 3
