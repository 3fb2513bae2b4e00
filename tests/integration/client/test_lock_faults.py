"""Ordered consumers and new groups when a broker misbehaves: real sockets, scripted servers."""

from __future__ import annotations

import logging

import pytest
import trio
from scripted_cluster import ScriptedCluster, never, pulled, record, refuse, scripted_cluster
from serving import until

from triomq import ConsumerSettings, MessageQueue, PushConsumer, ReceivedMessage
from triomq.client.core.config import ClientSettings
from triomq.remoting.protocol.bodies.locks import LockRequest, LockResponse
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.headers.offset import (
    OffsetResponseHeader,
    QueryConsumerOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from triomq.remoting.protocol.headers.pull import PullMessageHeader
from triomq.remoting.server.requests import Request, Response

LOCK, UNLOCK, PULL = (
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ,
    RequestCode.PULL_MESSAGE,
)
QUICK = ConsumerSettings(
    error_delay=0.02, rebalance_retry=0.02, lock_retry=0.02, lock_interval=0.05, lock_timeout=0.2,
    offset_interval=5,
    client=ClientSettings(shutdown_timeout=0.1),
)  # fmt: skip


def ordered(cluster: ScriptedCluster, seen: list[int], **more: object) -> PushConsumer:
    async def handle(message: ReceivedMessage) -> None:
        await trio.lowlevel.checkpoint()
        seen.append(message.queue_offset)

    arguments: dict[str, object] = {"handler": handle, "settings": QUICK, "ordered": True, **more}
    return PushConsumer(cluster.namesrv.address, group="g", subscriptions="T", **arguments)  # type: ignore[arg-type]


def granted(request: Request) -> Response:
    return Response(0, body=LockResponse(LockRequest.decode(request.body).queues).encode())


def held_by_another(request: Request) -> Response:
    return Response(0, body=LockResponse([]).encode())


def feed(cluster: ScriptedCluster, *offsets: int) -> None:
    """Answer one pull with these messages, and later pulls not at all."""
    answers = [pulled(0, offsets[-1] + 1, b"".join(record(offset) for offset in offsets))]
    cluster.broker.script[PULL] = lambda request: answers.pop() if answers else never(request)


async def test_a_queue_is_not_pulled_before_it_is_locked() -> None:
    async with scripted_cluster() as cluster:
        cluster.broker.script[LOCK] = held_by_another
        seen: list[int] = []
        feed(cluster, 0, 1)
        async with ordered(cluster, seen) as consumer:
            await until(lambda: cluster.broker.count(LOCK) > 3)
            assert cluster.broker.count(PULL) == 0
            assert consumer.assignment == ()
            cluster.broker.script[LOCK] = granted
            await until(lambda: seen == [0, 1])
            asked = LockRequest.decode(
                next(request for request in cluster.broker.asked if request.code == LOCK).body
            )
            assert (asked.consumer_group, asked.client_id) == ("g", consumer.client_id)
            assert asked.queues == [MessageQueue("T", "broker-a", 0)]
        codes = [request.code for request in cluster.broker.asked]
        # The last requests: store the offset, release the lock, unregister.
        last = [
            code
            for code in codes
            if code in (RequestCode.UPDATE_CONSUMER_OFFSET, UNLOCK, RequestCode.UNREGISTER_CLIENT)
        ]
        assert last[-3:] == [
            RequestCode.UPDATE_CONSUMER_OFFSET,
            UNLOCK,
            RequestCode.UNREGISTER_CLIENT,
        ]
        stored = cluster.broker.headers(RequestCode.UPDATE_CONSUMER_OFFSET)[-1]
        assert isinstance(stored, UpdateConsumerOffsetHeader)
        assert stored.commit_offset == 2


@pytest.mark.feature("89a", "100b")
async def test_a_lock_that_another_member_got_ends_the_ownership(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with scripted_cluster() as cluster:
        begun = trio.Event()
        go_on = trio.Event()
        acks: list[bool] = []

        async def handle(message: ReceivedMessage) -> None:
            begun.set()
            await go_on.wait()
            acks.append(await message.ack())

        feed(cluster, 0, 1)
        with caplog.at_level(logging.WARNING):
            async with ordered(cluster, [], handler=handle) as consumer:
                await begun.wait()
                cluster.broker.script[LOCK] = held_by_another
                await until(lambda: consumer.assignment == ())
                go_on.set()
                await until(lambda: acks == [False])  # another member gets the message
        assert any("belongs to another member" in line for line in caplog.messages)


async def test_without_answers_a_lock_expires_and_messages_wait_until_it_is_renewed() -> None:
    async with scripted_cluster() as cluster:
        seen: list[int] = []
        settings = ConsumerSettings(
            error_delay=0.02, rebalance_retry=0.02, lock_interval=0.05, lock_timeout=0.05,
            lock_life=0.3,
        )  # fmt: skip
        async with ordered(cluster, seen, settings=settings) as consumer:
            await until(lambda: len(consumer.assignment) == 1 and cluster.broker.count(LOCK) > 1)
            cluster.broker.script[LOCK] = never
            await trio.sleep(0.5)
            feed(cluster, 0, 1)  # for the pull that begins next
            cluster.broker.script[LOCK] = never
            consumer.pause()
            consumer.resume()
            await until(lambda: consumer.statistics().waiting == 2)
            await trio.sleep(0.1)
            assert seen == []
            cluster.broker.script[LOCK] = granted
            await until(lambda: seen == [0, 1])


async def test_messages_of_a_queue_whose_lock_expired_and_was_lost_are_dropped() -> None:
    async with scripted_cluster() as cluster:
        settings = ConsumerSettings(
            error_delay=0.02, rebalance_retry=0.02, lock_interval=0.05, lock_timeout=0.05,
            lock_life=0.3,
        )  # fmt: skip
        async with ordered(cluster, [], settings=settings) as consumer:
            await until(lambda: len(consumer.assignment) == 1 and cluster.broker.count(LOCK) > 1)
            cluster.broker.script[LOCK] = never
            await trio.sleep(0.5)
            feed(cluster, 0, 1)
            consumer.pause()
            consumer.resume()
            await until(lambda: consumer.statistics().waiting == 2)
            await trio.sleep(0.1)  # a handler has looked, and found no lock
            cluster.broker.script[LOCK] = held_by_another
            await until(lambda: consumer.assignment == ())
            await until(lambda: consumer.statistics().waiting == 0)


async def test_a_broker_that_does_not_know_locks(caplog: pytest.LogCaptureFixture) -> None:
    async with scripted_cluster() as cluster:
        cluster.broker.script[LOCK] = refuse(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        with caplog.at_level(logging.WARNING):
            async with ordered(cluster, []) as consumer:
                await until(lambda: cluster.broker.count(LOCK) > 3)
                assert consumer.assignment == ()
        assert (
            len(
                [
                    line
                    for line in caplog.messages
                    if line.startswith("locking queues of broker broker-a")
                ]
            )
            == 1
        )


@pytest.mark.parametrize("knows", [True, False], ids=["5.x", "4.x"])
async def test_a_message_stored_between_the_first_questions_is_not_skipped(knows: bool) -> None:
    """At every question about the group's offset a message is stored. Where the group begins is
    fixed before the application can send.
    """
    async with scripted_cluster() as cluster:
        end = [3]

        def unknown(request: Request) -> Response:
            end[0] += 1
            header = request.header
            assert isinstance(header, QueryConsumerOffsetHeader)
            # A broker that answers 0 for a young queue; the queue is old after its first answer.
            if header.set_zero_if_not_found is False and not knows:
                return Response(0, OffsetResponseHeader(0))
            return refuse(ResponseCode.QUERY_NOT_FOUND)(request)  # type: ignore[return-value]

        cluster.broker.script[RequestCode.GET_MAX_OFFSET] = lambda request: Response(
            0, OffsetResponseHeader(end[0])
        )
        cluster.broker.script[RequestCode.QUERY_CONSUMER_OFFSET] = unknown
        async with ordered(cluster, [], ordered=False):
            await until(lambda: cluster.broker.count(PULL) == 1)
            await until(lambda: cluster.broker.count(RequestCode.UPDATE_CONSUMER_OFFSET) >= 1)
        header = cluster.broker.headers(PULL)[0]
        assert isinstance(header, PullMessageHeader)
        # Asked once for the group as a whole, then the end; the second question about its offset
        # comes after that.
        assert header.queue_offset == 4
        # The start is stored at once: a member that takes over must not find the group without
        # offset and begin later.
        first = cluster.broker.headers(RequestCode.UPDATE_CONSUMER_OFFSET)[0]
        assert isinstance(first, UpdateConsumerOffsetHeader)
        assert first.commit_offset == 4
