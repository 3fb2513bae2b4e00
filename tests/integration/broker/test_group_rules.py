"""What a broker demands of groups, topics and messages, over real sockets: equal subscriptions, a
bounded lag, the type of a topic.
"""

from __future__ import annotations

import errno
import logging
import time
from pathlib import Path

import pytest
import trio
from brokers import BrokerPeer, peer_of, running_broker

from triomq.broker.app import BrokerReady
from triomq.broker.services import slow_consumers
from triomq.broker.store.core.errors import StoreIoError
from triomq.broker.store.store import MessageStore
from triomq.remoting.protocol.batch import encode_batch
from triomq.remoting.protocol.bodies.cluster import KvTable
from triomq.remoting.protocol.bodies.groups import SubscriptionGroupConfig
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.offset import (
    GetMaxOffsetHeader,
    GetMinOffsetHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetHeader,
)
from triomq.remoting.protocol.headers.topic import GroupHeader


async def runtime(peer: BrokerPeer) -> dict[str, str]:
    return dict(KvTable.decode(bytes((await peer.call(Code.GET_BROKER_RUNTIME_INFO)).body)).table)


# Subscriptions


@pytest.mark.feature(85)
async def test_members_that_subscribe_different_things_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as one, peer_of(ready) as two:
        await one.heartbeat("one", group="G", subscriptions={"T": "A || B", "U": "*"})
        await two.heartbeat("two", group="G", subscriptions={"T": "B||A", "U": ""})
        assert warnings(caplog) == [], (
            "the same tags in another order and form are the same subscription"
        )
        await two.heartbeat("two", group="G", subscriptions={"T": "B || C", "U": "*"}, version=2)
        (warning,) = warnings(caplog)
        assert warning.startswith(
            "consumer group G: its members have different subscriptions, so some messages are"
            " skipped, and"
        )
        assert "(one: T [A || B]; two: T [B || C])" in warning
        shown = (await runtime(one))["subscriptionMismatch_G"]
        assert shown.endswith(": one: T [A || B]; two: T [B || C]")
        await one.heartbeat("one", group="G", subscriptions={"T": "A || B", "U": "*"})
        assert len(warnings(caplog)) == 1, "logged once"
        await two.heartbeat("two", group="G", subscriptions={"T": "A || B", "U": "*"}, version=3)
        assert "subscriptionMismatch_G" not in await runtime(one)


@pytest.mark.feature(85)
async def test_a_member_that_leaves_ends_the_difference(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as one:
        await one.heartbeat("one", group="G", subscriptions={"T": "*"})
        async with peer_of(ready) as two:
            await two.heartbeat("two", group="G", subscriptions={"T": "*", "U": "*"})
            assert "(one: nothing more; two: U [*])" in warnings(caplog)[0]
        with trio.fail_after(5):
            while "subscriptionMismatch_G" in await runtime(one):
                await trio.sleep(0.01)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.WARNING and "subscribe" in record.getMessage()
    ]


# Lag


async def fill(peer: BrokerPeer, count: int) -> None:
    for number in range(count):
        await peer.send("T", b"x" * 1000 + b"%d" % number)


@pytest.mark.parametrize("disable", [False, True])
async def test_a_group_that_is_far_behind_is_named_or_disabled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, disable: bool
) -> None:
    monkeypatch.setattr(slow_consumers, "CHECK_SECONDS", 0.05)
    settings = {"consumerFallbehindThreshold": 5000, "disableConsumeIfConsumerReadSlowly": disable}
    async with running_broker(tmp_path, **settings) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", queues=1)
        await fill(peer, 10)
        assert (await peer.pull("T", 0, 8, group="quick")).code == 0
        assert (await peer.pull("T", 0, 0, group="slow", count=2)).code == 0
        with trio.fail_after(5):
            while not (
                found := [
                    record for record in caplog.records if "bytes behind" in record.getMessage()
                ]
            ):
                await trio.sleep(0.01)
        assert "group slow" in found[0].getMessage()
        assert "in topic T, queue 0, it is" in found[0].getMessage()
        assert not any("group quick" in record.getMessage() for record in found)
        config = SubscriptionGroupConfig.decode(
            bytes((await peer.call(Code.GET_SUBSCRIPTIONGROUP_CONFIG, GroupHeader("slow"))).body)
        )
        assert config.consume_enable is not disable
        again = await peer.pull_raw("T", 0, 2, group="slow")
        assert again.code == (ResponseCode.NO_PERMISSION if disable else 0)
        assert (await peer.pull("T", 0, 8, group="quick")).code == 0


async def test_a_queue_that_cannot_be_read_does_not_end_the_check(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_consumers, "CHECK_SECONDS", 0.05)
    found = MessageStore.entries

    async def entries(store: MessageStore, topic: str, *rest: int) -> list[tuple[int, int, int]]:
        if topic == "Broken":
            raise StoreIoError(tmp_path, OSError(errno.EIO, "Input/output error"))
        return await found(store, topic, *rest)

    monkeypatch.setattr(MessageStore, "entries", entries)
    async with (
        running_broker(tmp_path, consumerFallbehindThreshold=5000) as ready,
        peer_of(ready) as peer,
    ):
        for topic in ("Broken", "T"):
            await peer.create_topic(topic, queues=1)
            await peer.send(topic)
            assert (await peer.pull(topic, 0, 0, group="slow")).code == 0
        await fill(peer, 10)
        with trio.fail_after(5):
            while not any(
                "in topic T, queue 0, it is" in record.getMessage() for record in caplog.records
            ):
                await trio.sleep(0.01)
        assert any(
            "the distance of consumer group slow in topic Broken is not known"
            in record.getMessage()
            for record in caplog.records
        )


# Types of topics and messages


async def typed(ready: BrokerReady, peer: BrokerPeer, topic: str, message_type: str) -> None:
    assert (
        await peer.create_topic(topic, queues=1, attributes=f"+message.type={message_type}")
    ).code == 0


PROPERTIES = {
    "NORMAL": {"KEYS": "k"},
    "FIFO": {"__SHARDINGKEY": "order-1"},
    "DELAY": {"DELAY": "1"},
}


@pytest.mark.feature(141)
async def test_types_are_checked_where_that_is_wanted(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path, enforceMessageType=True, enableMixedMessageType=True) as ready,
        peer_of(ready) as peer,
    ):
        for topic in (*PROPERTIES, "MIXED"):
            await typed(ready, peer, f"T-{topic}", topic)
        for topic in (*PROPERTIES, "MIXED"):
            for kind, properties in PROPERTIES.items():
                answer = await peer.send_raw(f"T-{topic}", properties=properties)
                right = topic in (kind, "MIXED")
                assert answer.code == (0 if right else ResponseCode.MESSAGE_ILLEGAL), (
                    topic,
                    kind,
                    answer.remark,
                )
                if not right:
                    wanted = (
                        f"topic T-{topic} takes {topic} messages (attribute message.type), this one"
                        f" is {kind}"
                    )
                    assert wanted in (answer.remark or "")
        batch = encode_batch([(0, b"a", b""), (0, b"b", b"")])
        assert (
            await peer.send_raw("T-NORMAL", batch, code=Code.SEND_BATCH_MESSAGE, batch=True)
        ).code == 0
        assert (
            await peer.send_raw("T-FIFO", batch, code=Code.SEND_BATCH_MESSAGE, batch=True)
        ).code == ResponseCode.MESSAGE_ILLEGAL
        assert (await peer.send_raw("%RETRY%G", properties=PROPERTIES["FIFO"])).code == 0, (
            "retries keep what they are"
        )


async def test_types_are_not_checked_by_default_and_the_check_can_be_switched_on(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await typed(ready, peer, "T", "FIFO")
        assert (await peer.send_raw("T")).code == 0
        assert (
            await peer.call(Code.UPDATE_BROKER_CONFIG, body=b"enforceMessageType=true\n")
        ).code == 0
        assert (await peer.send_raw("T")).code == ResponseCode.MESSAGE_ILLEGAL
        mixed = await peer.create_topic("M", attributes="+message.type=MIXED")
        assert (mixed.code, mixed.remark) == (
            ResponseCode.INVALID_PARAMETER,
            (
                "MIXED message type is not supported. Set enableMixedMessageType=true on the broker"
                " first (`mqadmin broker set`)"
            ),
        )
        assert (
            await peer.call(Code.UPDATE_BROKER_CONFIG, body=b"enableMixedMessageType=true\n")
        ).code == 0
        assert (await peer.create_topic("M", attributes="+message.type=MIXED")).code == 0


# Who may pull, who may send


async def test_pulls_that_the_configuration_forbids(tmp_path: Path) -> None:
    async with (
        running_broker(
            tmp_path, litePullMessageEnable=False, rejectPullConsumerEnable=True
        ) as ready,
        peer_of(ready) as peer,
    ):
        await peer.create_topic("T", queues=1)
        lite = await peer.pull_raw("T", code=Code.LITE_PULL_MESSAGE)
        assert (lite.code, lite.remark) == (
            ResponseCode.NO_PERMISSION,
            "the broker[127.0.0.1] for lite pull consumer is forbidden",
        )
        outsider = await peer.pull_raw("T")
        assert outsider.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
        assert (outsider.remark or "").startswith(
            "the consumer's group info not exist, or the pull consumer is rejected by server."
        )
        await peer.heartbeat(
            "one", group="G", subscriptions={"T": "*"}, consume_type="CONSUME_ACTIVELY"
        )
        assert (await peer.pull_raw("T")).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
        await peer.heartbeat("one", group="G", subscriptions={"T": "*"})
        assert (await peer.pull_raw("T")).code == ResponseCode.PULL_NOT_FOUND


async def test_sends_are_refused_until_the_time_that_is_set(tmp_path: Path) -> None:
    opens = int(time.time() * 1000) + 3_600_000
    async with (
        running_broker(tmp_path, startAcceptSendRequestTimeStamp=opens) as ready,
        peer_of(ready) as peer,
    ):
        refused = await peer.send_raw("T")
        assert (
            refused.code,
            (refused.remark or "").startswith("broker unable to service, until 20"),
        ) == (1, True)
        assert (await runtime(peer))["startAcceptSendRequestTimeStamp"] == str(opens)
        assert (
            await peer.call(Code.UPDATE_BROKER_CONFIG, body=b"startAcceptSendRequestTimeStamp=0\n")
        ).code == 0
        assert (await peer.send_raw("T")).code == 0


# Where a new group begins


async def test_a_new_group_on_an_empty_queue_skips_nothing_that_comes_between_its_first_requests(
    tmp_path: Path,
) -> None:
    """A client whose offset is unknown asks for the end of the queue next, and would skip messages
    that were stored between the two requests.
    """

    async def first_offset(peer: BrokerPeer, group: str) -> int:
        answer = await peer.call(
            Code.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetHeader(group, "T", 0)
        )
        assert answer.code == 0, "the broker names the offset, the client need not find it"
        return answer.header(OffsetResponseHeader).offset

    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", queues=1)
        begin = await first_offset(peer, "new")
        await fill(peer, 1)
        assert begin == 0
        assert len((await peer.pull("T", 0, begin, group="new")).messages) == 1
    # The same when everything that the queue had has expired: its numbers go on, so the beginning
    # is no longer 0.
    expiring = {
        "mappedFileSizeCommitLog": 16 * 1024,
        "fileReservedTime": 0,
        "deleteWhen": ";".join(f"{hour:02}" for hour in range(24)),
        "cleanResourceInterval": 20,
    }
    async with running_broker(tmp_path / "expired", **expiring) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", queues=1)
        await fill(peer, 10)
        await peer.create_topic("other", queues=1)
        for _ in range(40):
            await peer.send("other", b"x" * 1000)
        with trio.fail_after(10):
            while (await peer.call(Code.GET_MIN_OFFSET, GetMinOffsetHeader("T", 0))).header(
                OffsetResponseHeader
            ).offset < 10:
                await trio.sleep(0.02)
        begin = await first_offset(peer, "late")
        end = (
            (await peer.call(Code.GET_MAX_OFFSET, GetMaxOffsetHeader("T", 0)))
            .header(OffsetResponseHeader)
            .offset
        )
        assert begin == end == 10
        await fill(peer, 1)
        assert len((await peer.pull("T", 0, begin, group="late")).messages) == 1
