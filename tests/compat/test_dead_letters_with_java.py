"""``mqadmin dlq …``, ``topic tail`` and ``message replay`` at Java's broker."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from mqadmin_calls import Done, mqadmin

from triomq import Producer, PushConsumer
from triomq.client.admin.admin import Admin

pytestmark = pytest.mark.compat
TOPIC, GROUP = "DeadTopic", "DeadGroup"


@pytest.fixture
async def namesrv(java_cluster: str) -> str:
    """The name server of a broker that has opened its stores, with two dead letters."""
    async with Admin(java_cluster) as admin:
        with trio.fail_after(60):
            while (answers := await admin.statuses(await admin.brokers())).failures:
                await trio.sleep(0.1)
        assert answers.values
        await admin.create_topic(TOPIC, queues=1)
        await admin.update_group(GROUP, lambda config: config)
    async with (
        Producer(java_cluster, group="shop") as producer,
        PushConsumer(
            java_cluster, group=GROUP, subscriptions=TOPIC, consume_from="first"
        ) as consumer,
    ):
        for number in range(2):
            await producer.send(
                TOPIC, b"%d" % number, keys=[f"k{number}"], tag="t", properties={"price": "3"}
            )
        with trio.fail_after(60):
            for _ in range(2):
                await (await anext(consumer)).dead_letter()
            while len(await letters(java_cluster)) < 2:
                await trio.sleep(0.1)
    return java_cluster


async def call(namesrv: str, *words: object) -> Done:
    return await mqadmin(*words, "-n", namesrv)


async def letters(namesrv: str, *words: object) -> list[dict[str, Any]]:
    done = await call(namesrv, "dlq", "show", GROUP, *words, "--json")
    found: list[dict[str, Any]] = done.document["messages"]
    return found


async def tailed(namesrv: str, count: int, *words: object) -> list[dict[str, Any]]:
    """Return the first messages of the topic."""
    with trio.fail_after(60):
        done = await call(
            namesrv, "topic", "tail", TOPIC, "--from", 0, "--limit", count, *words, "--json"
        )
    assert done.code == 0, done
    return [json.loads(line) for line in done.out.splitlines()]


@pytest.mark.loss
async def test_dead_letters_of_java_s_broker(namesrv: str) -> None:
    (row,) = (await call(namesrv, "dlq", "list", GROUP, "--json")).document["groups"]
    found = await letters(namesrv)
    assert (row["messages"], row["oldestTimestamp"], row["newestTimestamp"]) == (
        2,
        found[0]["storeTimestamp"],
        found[1]["storeTimestamp"],
    )
    first = await tailed(namesrv, 2)
    assert [(one["originTopic"], one["originMessageId"]) for one in found] == [
        (TOPIC, message["offsetMsgId"]) for message in first
    ]
    assert [one["body"] for one in await letters(namesrv, "--key", "k1")] == ["1"]

    words = ("dlq", "resend", GROUP, "--key", "k1")
    tried = await call(namesrv, *words, "--dry-run", "--json")
    assert [change["after"]["topic"] for change in tried.document["changes"]] == [TOPIC]
    sent = (await call(namesrv, *words, "--yes", "--json")).document
    assert (sent["found"], len(sent["sent"]), sent["failed"], sent["left"]) == (1, 1, [], 0)
    copy = (await tailed(namesrv, 3))[2]
    assert (copy["body"], copy["msgId"], copy["keys"], copy["tags"]) == (
        "1",
        first[1]["msgId"],
        ["k1"],
        "t",
    )
    assert copy["properties"]["RESENT_FROM_MESSAGE_ID"] == first[1]["offsetMsgId"]
    assert copy["properties"]["price"] == "3"
    assert "RETRY_TOPIC" not in copy["properties"]
    assert copy["offsetMsgId"] == sent["sent"][0]["newOffsetMsgId"]

    replay = ("message", "replay", "-t", TOPIC, "--from", "-1h", "--key", "k0", "--yes", "--json")
    assert len((await call(namesrv, *replay)).document["sent"]) == 1
    assert (await tailed(namesrv, 4))[3]["body"] == "0"

    purged = (await call(namesrv, "dlq", "purge", GROUP, "--yes", "--json")).document
    assert purged["messages"] == 2
    assert (await call(namesrv, "dlq", "list", GROUP, "--json")).document["groups"] == []


async def test_only_the_group_of_java_s_broker_gets_copies(namesrv: str) -> None:
    words = ("dlq", "resend", GROUP, "--only-group", "--limit", 1, "--yes")
    async with PushConsumer(namesrv, group=GROUP, subscriptions=TOPIC) as consumer:
        assert (await call(namesrv, *words)).code == 0
        with trio.fail_after(60):
            message = await anext(consumer)
        await message.ack()
    assert (message.topic, message.body) == (TOPIC, b"0")
