"""``mqadmin dlq …`` and ``message replay`` on real brokers, and beside silent ones."""

from __future__ import annotations

import os
import pty
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
from mqadmin_calls import call, document, failed
from silent_servers import silent_broker

from triomq import MessageQueue, Producer, PushConsumer
from triomq.client.admin.admin import Admin
from triomq.client.admin.resend import searching
from triomq.client.admin.resend.copy_sender import CopySender
from triomq.client.admin.resend.message_copy import copy_to
from triomq.client.mqadmin.core import resend_command
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.send import SendBackHeader
from triomq.remoting.protocol.record import StoredMessage
from triomq.testing import InProcessCluster, local_cluster

SENT: dict[str, dict[str, Any]] = {
    "one": {"keys": ["k1", "k0"], "tag": "paid", "properties": {"price": "3"}},
    "two": {"keys": ["k2"], "tag": "sent"},
    "three \N{SNOWMAN}\n line": {"keys": ["k3"], "sharding_key": "customer"},
    "four": {"keys": ["k4"], "tag": "paid"},
}


@pytest.fixture
async def cluster() -> AsyncIterator[InProcessCluster]:
    """Two brokers; the group's dead letters "one" and "two" lie at the first, the others at the
    second.
    """
    async with local_cluster(brokers=2) as running, running.admin() as admin:
        await running.create_topic("orders", queues=1)
        await admin.update_group("billing", lambda config: config)
        addresses = {broker.name: broker.address for broker in await admin.brokers()}
        async with Producer(running.namesrv_address, group="shop") as producer:
            for number, (text, more) in enumerate(SENT.items()):
                queue = MessageQueue("orders", "broker-a" if number < 2 else "broker-b", 0)
                where = {} if "sharding_key" in more else {"queue": queue}
                receipt = await producer.send("orders", text.encode(), **more, **where)
                (message,) = await admin.read(receipt.queue, receipt.queue_offset, count=1)
                await bury(admin, addresses[receipt.queue.broker_name], message)
        yield running


async def bury(admin: Admin, address: str, message: StoredMessage) -> None:
    """Make a message a dead letter of the group, as a consumer does."""
    header = SendBackHeader(message.log_offset, "billing", -1, message.message_id, "orders")
    header.failure = "ValueError: late"
    await admin.ask(address, RequestCode.CONSUMER_SEND_MSG_BACK, header)


async def letters(cluster: InProcessCluster, *words: object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await document(cluster, "dlq", "show", *words))["messages"]
    return found


async def copies(cluster: InProcessCluster, topic: str = "orders") -> list[StoredMessage]:
    """Return the messages of a topic that are copies, oldest first."""
    async with cluster.admin() as admin:
        stored = [
            message
            for queue in await admin.queues(topic)
            for message in await admin.read(queue, 0, count=1000)
        ]
    again = [message for message in stored if "RESENT_FROM_MESSAGE_ID" in message.properties]
    return sorted(again, key=lambda message: (message.store_timestamp, message.queue_offset))


def bodies(messages: list[StoredMessage]) -> list[str]:
    return [bytes(message.body).decode() for message in messages]


async def test_the_list_counts_what_lies_at_all_brokers(cluster: InProcessCluster) -> None:
    (row,) = (await document(cluster, "dlq", "list"))["groups"]
    times = [message["storeTimestamp"] for message in await letters(cluster, "billing")]
    assert row == {
        "group": "billing",
        "topic": "%DLQ%billing",
        "messages": 4,
        "oldestTimestamp": min(times),
        "newestTimestamp": max(times),
        "incomplete": False,
    }
    assert (await call(cluster, "dlqList", "%DLQ%billing")).rows[1][:2] == [
        "billing",
        "%DLQ%billing",
    ]
    async with cluster.admin() as admin:
        await admin.update_group("quiet", lambda config: config)
    assert await document(cluster, "dlq", "list", "quiet") == {"groups": [], "failures": {}}
    assert failed(await call(cluster, "dlq", "list", "biling"), 4, "'biling'", "dlq list")


async def test_dead_letters_tell_where_they_came_from(cluster: InProcessCluster) -> None:
    found = await letters(cluster, "billing")
    assert [letter["body"] for letter in found] == list(SENT)
    async with cluster.admin() as admin:
        (first,) = await admin.read(MessageQueue("orders", "broker-a", 0), 0, count=1)
    letter = found[0]
    assert (letter["originTopic"], letter["originMessageId"], letter["msgId"]) == (
        "orders",
        first.offset_message_id,
        first.message_id,
    )
    assert (letter["keys"], letter["tags"], letter["reconsumeTimes"]) == (["k1", "k0"], "paid", 1)
    text = await call(cluster, "dlq", "show", "billing")
    assert text.columns[1:4] == ["#MsgId", "#Origin Topic", "#Origin MsgId"]
    assert text.columns[7] == "#Failure"
    assert "ValueError: late" in text.out
    assert text.rows[3][-1] == "three \N{SNOWMAN} line"


async def test_filters_choose_dead_letters(cluster: InProcessCluster) -> None:
    found = await letters(cluster, "billing")
    ids = {letter["body"].split()[0]: letter for letter in found}
    calls: list[tuple[tuple[object, ...], set[str]]] = [
        (("--key", "k0"), {"one"}),
        (("--tag", "paid"), {"one", "four"}),
        (("--tag", "sent || paid"), {"one", "two", "four"}),
        (("--id", ids["two"]["msgId"]), {"two"}),
        (("--id", ids["two"]["offsetMsgId"]), {"two"}),
        (("--id", ids["two"]["originMessageId"]), {"two"}),
        (("-b", "broker-a"), {letter["body"].split()[0] for letter in found[:2]}),
        (("--limit", 1), {"one"}),
        (("--from", "now"), set()),
        (("--from", 0, "--to", "-1d"), set()),
    ]
    for words, wanted in calls:
        shown = {letter["body"].split()[0] for letter in await letters(cluster, "billing", *words)}
        if words[0] == "-b":
            assert wanted <= shown < set(ids)
        else:
            assert shown == wanted, words
    missing = await call(cluster, "dlq", "show", "billing", "--id", "nothing")
    assert failed(missing, 4, "%DLQ%billing", "nothing")
    turned = await call(cluster, "dlq", "show", "billing", "--from", "now", "--to", 0)
    assert failed(turned, 2, "--from is after --to")
    assert failed(await call(cluster, "dlq", "show", "biling"), 4, "'biling'")


async def test_dead_letters_are_sent_to_their_topic_again(cluster: InProcessCluster) -> None:
    sent = await document(cluster, "dlq", "resend", "billing", "--yes")
    assert (sent["found"], len(sent["sent"]), sent["failed"], sent["left"]) == (4, 4, [], 0)
    again = await copies(cluster)
    assert sorted(bodies(again)) == sorted(SENT)
    found = {letter["body"]: letter for letter in await letters(cluster, "billing")}
    for message in again:
        letter = found[bytes(message.body).decode()]
        assert message.message_id == letter["msgId"]
        assert (list(message.keys), message.tag) == (letter["keys"], letter["tags"])
        assert message.properties["RESENT_FROM_MESSAGE_ID"] == letter["originMessageId"]
        assert "RETRY_TOPIC" not in message.properties
        assert message.reconsume_times == 0
    assert {row["newOffsetMsgId"] for row in sent["sent"]} == {
        message.offset_message_id for message in again
    }
    assert len(found) == 4, "dead letters stay"


async def test_one_dead_letter_and_another_topic(cluster: InProcessCluster) -> None:
    await cluster.create_topic("other", queues=1)
    (letter,) = await letters(cluster, "billing", "--key", "k2")
    words = ("dlq", "resend", "billing", "--id", letter["msgId"], "--topic", "other", "--yes")
    text = await call(cluster, *words)
    assert (text.code, text.out.splitlines()[-1]) == (0, "1 of 1 sent")
    assert (bodies(await copies(cluster, "other")), await copies(cluster)) == (["two"], [])


async def test_only_the_group_gets_copies_in_its_retry_topic(cluster: InProcessCluster) -> None:
    before = await call(cluster, "message", "explain", "k1", "-t", "orders", "-g", "billing")
    assert "dlq resend billing --id" in before.out
    words = ("dlq", "resend", "billing", "--tag", "paid", "--only-group", "--yes")
    assert (await call(cluster, *words)).code == 0
    assert await copies(cluster) == []
    after = await call(cluster, "message", "explain", "k1", "-t", "orders", "-g", "billing")
    assert "sent again to the group at" in after.out
    assert "dlq resend" not in after.out
    async with PushConsumer(
        cluster.namesrv_address, group="billing", subscriptions="orders", consume_from="last"
    ) as member:
        with trio.fail_after(20):
            got = [await anext(member) for _ in range(2)]
        for message in got:
            await message.ack()
    assert {(message.topic, message.body) for message in got} == {
        ("orders", b"one"),
        ("orders", b"four"),
    }


async def test_without_a_yes_nothing_is_sent(
    cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("dlq", "resend", "billing", "--limit", 2)
    assert failed(await call(cluster, *words), 2, "sends a copy of each", "--yes", "--dry-run")
    tried = await call(cluster, *words, "--rate", 1, "--dry-run")
    assert tried.code == 0
    assert tried.out.splitlines()[-1] == "2 messages would be sent"
    assert "+ topic = orders" in tried.out
    assert "there are more than the 2 messages" in tried.err
    ours, theirs = pty.openpty()
    with os.fdopen(theirs) as terminal:
        os.write(ours, b"n\n")
        monkeypatch.setattr("sys.stdin", terminal)
        refused = await call(cluster, *words)
    os.close(ours)
    assert refused.code == 1
    counted, _, rest = refused.err.partition("2 messages would be sent\n")
    assert counted
    assert "there are more than the 2 messages" in rest
    assert "\nThis sends a copy of each of these dead letters." in rest
    assert await copies(cluster) == []


async def test_a_pace_that_does_not_fit_is_refused_before_the_first_message(
    cluster: InProcessCluster,
) -> None:
    words = ("dlq", "resend", "billing", "--rate", 1, "--yes", "--timeout", 2)
    assert failed(await call(cluster, *words), 2, "take 3 s", "give --timeout 33")
    assert await copies(cluster) == []
    paced = ("dlq", "resend", "billing", "--rate", 50, "--yes", "--timeout", 2)
    assert (await call(cluster, *paced)).code == 0
    assert len(await copies(cluster)) == 4


async def test_a_part_that_was_sent_ends_with_3_and_says_where_to_go_on(
    cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.admin() as admin:
        (message,) = await admin.read(MessageQueue("orders", "broker-a", 0), 0, count=1)
        await CopySender(admin).send(copy_to(message, "%DLQ%billing"))  # it names no topic
    done = await call(cluster, "dlq", "resend", "billing", "--yes", "--json")
    assert (done.code, len(done.document["sent"]), done.document["left"]) == (3, 4, 0)
    (problem,) = done.document["failed"]
    assert "to which topic it was sent first" in problem["reason"]
    assert f"1 message cannot be sent, {message.message_id} because: it does not say" in done.err
    monkeypatch.setattr(searching, "EXAMINED_MAX", 2)
    cut = await call(cluster, "dlq", "show", "billing", "--json")
    assert (cut.code, cut.document["looked"]) == (0, 2)
    assert f"the limit of one call; go on with --from {cut.document['goOnTimestamp']}" in cut.err


async def test_nothing_sent_is_a_failure(cluster: InProcessCluster) -> None:
    words = ("dlq", "resend", "billing", "--topic", "nowhere", "--yes", "--json")
    done = await call(cluster, *words)
    assert done.code == 1
    assert "3 in a row failed" in done.err
    assert "not tried: 1 message" in done.err
    assert "nowhere" in done.err


async def test_dead_letters_that_cannot_be_read_are_counted(cluster: InProcessCluster) -> None:
    """Old brokers create their topic for writing only."""
    closed = ("updateTopicPerm", "-c", "DefaultCluster", "-t", "%DLQ%billing", "-p", 2)
    assert (await call(cluster, *closed)).code == 0
    assert failed(await call(cluster, "dlq", "show", "billing"), 1, "topic permission -p 6")
    assert (await call(cluster, "dlq", "list")).rows[1][2] == "4"


async def test_a_silent_broker_is_left_out_and_named(cluster: InProcessCluster) -> None:
    topics = ["%DLQ%billing", "orders"]
    async with silent_broker(cluster.namesrv_address, topics) as ghost:
        listed = await call(cluster, "dlq", "list", "--timeout", 3)
        assert (listed.code, listed.rows[1][2:3]) == (3, ["4"])
        assert "ghost  failed: " in listed.out
        sent = await call(cluster, "dlq", "resend", "billing", "--yes", "--timeout", 6, "--json")
        assert (sent.code, len(sent.document["sent"])) == (3, 4)
        assert ghost in sent.document["failures"]["ghost"]
        assert "go on with -b ghost" in sent.err
        purged = await call(cluster, "dlq", "purge", "billing", "--yes", "--timeout", 3, "--json")
        assert (purged.code, purged.document["messages"]) == (3, 4)
        assert ghost in purged.document["failures"]


async def test_a_purge_says_what_it_deletes(cluster: InProcessCluster) -> None:
    asked = await call(cluster, "dlq", "purge", "billing")
    assert failed(asked, 2, "deletes all dead letters of the group", "--yes")
    tried = await call(cluster, "dlq", "purge", "billing", "--dry-run")
    assert tried.out.count("topic %DLQ%billing (deleted)") == 2
    assert len(await letters(cluster, "billing")) == 4
    done = await call(cluster, "dlq", "purge", "billing", "--yes")
    assert (done.code, done.out) == (0, "deleted topic %DLQ%billing with 4 dead letters\n")
    assert (await document(cluster, "dlq", "list", "billing"))["groups"] == []
    again = await call(cluster, "dlq", "purge", "billing", "--yes")
    assert (again.code, "no dead letters" in again.out) == (0, True)
    assert failed(await call(cluster, "dlq", "purge", "biling", "--yes"), 4, "'biling'")
    async with cluster.admin() as admin:
        (broker, *_) = await admin.brokers()
        (message,) = await admin.read(MessageQueue("orders", broker.name, 0), 0, count=1)
        await bury(admin, broker.address, message)
        with trio.fail_after(20):  # the route comes with the broker's next registration
            while len(await letters(cluster, "billing")) != 1:
                await trio.sleep(0.02)


async def test_a_time_range_is_replayed(cluster: InProcessCluster) -> None:
    await cluster.create_topic("other", queues=1)
    replay = ("message", "replay", "-t", "orders", "--from", "-1h")
    assert failed(await call(cluster, *replay[:4], "--yes"), 2, "--from is missing")
    sent = await document(cluster, *replay, "--tag", "paid", "--to-topic", "other", "--yes")
    assert {row["topic"] for row in sent["sent"]} == {"other"}
    assert sorted(bodies(await copies(cluster, "other"))) == ["four", "one"]
    sent = await document(cluster, *replay, "--limit", 3, "--yes")
    assert (sent["found"], len(sent["sent"])) == (3, 3)
    assert sorted(bodies(await copies(cluster))) == sorted(list(SENT)[:3]), "none is sent twice"
    of_letters = ("message", "replay", "-t", "%DLQ%billing", "--from", "-1h", "--key", "k4")
    assert (await document(cluster, *of_letters, "--yes"))["sent"][0]["topic"] == "orders"
    assert failed(await call(cluster, *replay[:2], "-t", "nowhere", "--from", 0, "--yes"), 4)


def test_one_call_sends_a_limited_number() -> None:
    (limit,) = (option for option in resend_command.SENDING if option.name == "limit")
    with pytest.raises(ValueError, match="10000"):
        limit.kind(str(resend_command.SENT_MAX + 1))
