"""Servers that hang, refuse, contradict themselves or go away: real sockets, scripted servers."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from itertools import pairwise

import attrs
import pytest
import trio
from scripted_cluster import (
    ScriptedCluster,
    ScriptedServer,
    never,
    pulled,
    record,
    refuse,
    scripted_cluster,
    sent,
)
from serving import until

from triomq import (
    BatchIncomplete,
    BrokerError,
    BusyBackoff,
    ConsumerSettings,
    Message,
    MessageQueue,
    NoNameServer,
    Producer,
    ProducerSettings,
    PushConsumer,
    ReceivedMessage,
    RouteNotFound,
    SendFailed,
    SendStatus,
    SendTimeout,
)
from triomq.client.core.config import ClientSettings
from triomq.client.core.errors import (
    BrokerBusy,
    ConnectionLost,
    MessageRefused,
    PermissionDenied,
    ProtocolBroken,
    RequestTimeout,
)
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.headers.pull import PullMessageHeader
from triomq.remoting.protocol.headers.send import SendBackHeader, SendMessageHeader
from triomq.remoting.protocol.refused_sends import TOO_FEW
from triomq.remoting.server.requests import Request, Response

SEND = RequestCode.SEND_MESSAGE_V2
PULL = RequestCode.PULL_MESSAGE
QUICK = ConsumerSettings(
    retry_delay=0.05, error_delay=0.05, rebalance_retry=0.05, offset_interval=0.05
)


def producer(cluster: ScriptedCluster, **settings: object) -> Producer:
    return Producer(cluster.namesrv.address, group="g", settings=ProducerSettings(**settings))  # type: ignore[arg-type]


def consumer(cluster: ScriptedCluster, **more: object) -> PushConsumer:
    arguments: dict[str, object] = {"settings": QUICK, "subscriptions": "T", **more}
    return PushConsumer(cluster.namesrv.address, group="g", **arguments)  # type: ignore[arg-type]


def queue_of(server: ScriptedServer) -> MessageQueue:
    return MessageQueue("T", server.name, 0)


# -- sending
# ------------------------------------------------------------------------------------------------


@pytest.mark.feature("70a", "76b")
async def test_a_hanging_broker_leaves_time_for_another() -> None:
    async with scripted_cluster(2) as cluster:
        hanging, good = cluster.brokers
        hanging.script[SEND] = never
        async with producer(cluster, send_timeout=1.0) as p:
            receipts = [await p.send("T", b"x") for _ in range(2)]
        assert {receipt.queue.broker_name for receipt in receipts} == {good.name}
        tried = [
            header.properties or ""
            for header in hanging.headers(SEND)
            if isinstance(header, SendMessageHeader)
        ]
        assert 1 <= len(tried) <= 2
        assert all(any(receipt.message_id in text for receipt in receipts) for text in tried)


async def test_when_the_only_broker_hangs_it_gets_the_whole_time_limit() -> None:
    async with scripted_cluster() as cluster:
        cluster.broker.script[SEND] = never
        async with producer(cluster, send_timeout=0.3) as p:
            with pytest.raises(SendTimeout, match="send_timeout") as caught:
                await p.send("T", b"x")
    assert caught.value.maybe_stored
    assert len(caught.value.attempts) == 1
    assert isinstance(caught.value.attempts[0].error, RequestTimeout)
    assert caught.value.attempts[0].error.__cause__ is not None
    assert isinstance(caught.value.__cause__, RequestTimeout)


async def test_a_late_answer_is_dropped_and_the_connection_stays_usable() -> None:
    async with scripted_cluster() as cluster:
        late = trio.Event()

        async def answer_late(request: Request) -> Response:
            await late.wait()
            return sent(1)

        async with producer(cluster, send_timeout=0.2) as p:
            cluster.broker.script[SEND] = answer_late
            with pytest.raises(SendTimeout):
                await p.send("T", b"x")
            cluster.broker.script[SEND] = lambda request: sent(2)
            late.set()
            assert (await p.send("T", b"x")).queue_offset == 2
        assert cluster.broker.count(RequestCode.UNREGISTER_CLIENT) == 1


@pytest.mark.feature("17b", "70b", 136)
async def test_a_busy_answer_is_tried_again_and_named_in_the_error() -> None:
    async with scripted_cluster(2) as cluster:
        busy, good = cluster.brokers
        busy.script[SEND] = refuse(ResponseCode.SYSTEM_BUSY, "[TIMEOUT_CLEAN_QUEUE]broker busy")
        async with producer(cluster) as p:
            assert {(await p.send("T", b"x")).queue.broker_name for _ in range(4)} == {good.name}
            good.script[SEND] = busy.script[SEND]
            with pytest.raises(SendFailed, match="TIMEOUT_CLEAN_QUEUE") as caught:
                await p.send("T", b"x")
    assert not caught.value.maybe_stored
    assert [type(attempt.error) for attempt in caught.value.attempts] == [BrokerBusy] * 3
    assert len({attempt.broker for attempt in caught.value.attempts}) == 2


@pytest.mark.feature("138a")
async def test_after_busy_answers_a_send_waits_longer_each_time() -> None:
    policy = BusyBackoff(first=0.1, factor=1.6, jitter=0.2, longest=120)
    async with scripted_cluster(2) as cluster:
        for broker in cluster.brokers:
            broker.script[SEND] = refuse(ResponseCode.SYSTEM_BUSY, "[OVERLOAD]system busy")
        async with producer(cluster, retries=4, send_timeout=60, busy_backoff=policy) as p:
            with pytest.raises(SendFailed, match="OVERLOAD"):
                await p.send("T", b"x")
    arrived = sorted(
        request.arrived
        for broker in cluster.brokers
        for request in broker.asked
        if request.code == SEND
    )
    gaps = [after - before for before, after in pairwise(arrived)]
    assert len(gaps) == 4
    for gap, least in zip(gaps, [0.08, 0.128, 0.2048, 0.32768], strict=True):
        assert gap >= least - 0.001, gaps


@pytest.mark.feature("138b")
async def test_other_failures_are_tried_again_at_once_and_no_wait_exceeds_the_time_limit() -> None:
    async with scripted_cluster(2) as cluster:
        bad, good = cluster.brokers
        never_fits = BusyBackoff(first=1000, longest=1000)
        async with producer(cluster, send_timeout=60, busy_backoff=never_fits) as p:
            bad.script[SEND] = refuse(ResponseCode.SERVICE_NOT_AVAILABLE)
            with trio.fail_after(30):
                while bad.count(SEND) < 2:
                    assert (await p.send("T", b"x")).queue.broker_name == good.name
                bad.script[SEND] = good.script[SEND] = refuse(ResponseCode.SYSTEM_BUSY)
                with pytest.raises(SendFailed) as caught:
                    await p.send("T", b"x")
            assert [type(attempt.error) for attempt in caught.value.attempts] == [BrokerBusy]


async def test_a_refusal_that_no_retry_can_change_is_raised_at_once() -> None:
    async with scripted_cluster(2) as cluster:
        for broker in cluster.brokers:
            broker.script[SEND] = refuse(ResponseCode.MESSAGE_ILLEGAL, "the message is illegal")
        async with producer(cluster) as p:
            with pytest.raises(MessageRefused, match="the message is illegal"):
                await p.send("T", b"x")
            assert sum(broker.count(SEND) for broker in cluster.brokers) == 1
            cluster.brokers[0].script[SEND] = cluster.brokers[1].script[SEND] = refuse(31337)
            with pytest.raises(BrokerError, match="31337 unknown code"):
                await p.send("T", b"x")


async def test_a_directed_send_has_one_try_only() -> None:
    async with scripted_cluster(2) as cluster:
        busy, _ = cluster.brokers
        busy.script[SEND] = refuse(ResponseCode.NO_PERMISSION)
        async with producer(cluster) as p:
            with pytest.raises(SendFailed) as caught:
                await p.send("T", b"x", queue=queue_of(busy))
    assert isinstance(caught.value.__cause__, PermissionDenied)
    assert len(caught.value.attempts) == 1


@pytest.mark.feature("64a", "64b", "72a", "72b")
@pytest.mark.parametrize("status", [SendStatus.FLUSH_DISK_TIMEOUT, SendStatus.FLUSH_SLAVE_TIMEOUT])
async def test_a_message_stored_less_safely_than_wanted(status: SendStatus) -> None:
    async with scripted_cluster(2) as cluster:
        slow, good = cluster.brokers

        def not_safe(request: Request) -> Response:
            answer = sent(5)
            answer.code = ResponseCode[status.name]
            return answer

        slow.script[SEND] = not_safe
        async with producer(cluster) as p:
            statuses = {(await p.send("T", b"x")).status for _ in range(2)}
            assert statuses == {SendStatus.STORED, status}
        async with producer(cluster, retry_not_stored=True) as p:
            assert {(await p.send("T", b"x")).queue.broker_name for _ in range(2)} == {good.name}
            good.script[SEND] = not_safe
            assert (await p.send("T", b"x")).status is status


async def test_a_connection_that_breaks_during_a_send_leaves_the_outcome_unknown() -> None:
    async with scripted_cluster() as cluster:

        def hang_up(request: Request) -> None:
            request.connection.close("scripted")

        cluster.broker.script[SEND] = hang_up
        async with producer(cluster, retries=0) as p:
            with pytest.raises(SendFailed) as caught:
                await p.send("T", b"x")
            assert caught.value.maybe_stored
            assert isinstance(caught.value.__cause__, ConnectionLost)
            cluster.broker.script[SEND] = lambda request: sent()
            assert (await p.send("T", b"x")).status is SendStatus.STORED


async def test_an_answer_without_its_header_is_an_error_not_a_crash() -> None:
    async with scripted_cluster() as cluster:
        cluster.broker.script[SEND] = lambda request: Response(0, ext={"queueId": "what"})
        async with producer(cluster) as p:
            with pytest.raises(SendFailed) as caught:
                await p.send("T", b"x")
    assert isinstance(caught.value.__cause__, ProtocolBroken)


async def test_a_broker_that_sends_go_away_is_left_and_found_again() -> None:
    async with scripted_cluster() as cluster:
        answers = [
            refuse(ResponseCode.GO_AWAY),
            refuse(ResponseCode.GO_AWAY),
            lambda request: sent(3),
        ]
        cluster.broker.script[SEND] = lambda request: answers.pop(0)(request)
        async with producer(cluster) as p:
            assert (await p.send("T", b"x")).queue_offset == 3


@pytest.mark.parametrize(
    ("code", "remark"),
    [
        (ResponseCode.SYSTEM_ERROR, f"{TOO_FEW} (1 in the sync state set)"),
        (ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]system busy"),
    ],
)
@pytest.mark.parametrize("queue", [None, 0])
async def test_a_send_waits_for_the_next_master_of_its_group(
    code: int, remark: str, queue: int | None
) -> None:
    """The old master answers, longer than all retries at once would take; then the route changes.

    Batches and half messages take the same way.
    """
    async with scripted_cluster(2) as cluster:
        old, new = cluster.brokers
        new.name = ""
        refused = 0

        def refuse_for_now(request: Request) -> Response:
            nonlocal refused
            refused += 1
            if refused == 5:
                new.name, old.name = old.name, ""
            return Response(code, remark=remark)

        old.script[SEND] = refuse_for_now
        async with producer(cluster, send_timeout=60, retries=1) as p:
            receipt = await p.send("T", b"x", queue=queue)
        assert receipt.status is SendStatus.STORED
        assert refused >= 5
        assert new.count(SEND) == 1


@pytest.mark.parametrize("queue", [None, 0])
async def test_a_send_goes_to_the_next_master_as_soon_as_its_route_is_known(
    monkeypatch: pytest.MonkeyPatch, queue: int | None
) -> None:
    """Whatever is left of its wait; and not once more to the old one."""
    slow = BusyBackoff(first=3600, longest=3600)
    monkeypatch.setattr("triomq.client.core.back_off.CONNECT_BACKOFF", slow)
    async with scripted_cluster(2) as cluster:
        old, new = cluster.brokers
        new.name = ""

        def refuse_for_now(request: Request) -> Response:
            new.name, old.name = old.name, ""
            return Response(ResponseCode.SYSTEM_BUSY, remark="[REJECTREQUEST]system busy")

        old.script[SEND] = refuse_for_now
        async with producer(cluster, send_timeout=10_000) as p:
            with trio.fail_after(60):
                await p.send("T", b"x", queue=queue)
        assert (old.count(SEND), new.count(SEND)) == (1, 1)


async def test_a_batch_that_stops_half_way_says_what_is_stored() -> None:
    async with scripted_cluster() as cluster:
        answers = [lambda request: sent(0), refuse(ResponseCode.MESSAGE_ILLEGAL)]
        cluster.broker.script[RequestCode.SEND_BATCH_MESSAGE] = lambda request: answers.pop(0)(
            request
        )
        messages = [Message(topic="T", body=b"x" * 100) for _ in range(4)]
        async with producer(cluster, batch_bytes_max=500) as p:
            with pytest.raises(
                BatchIncomplete, match="first 2 messages are stored, the last 2"
            ) as caught:
                await p.send_batch(messages)
    assert [receipt.queue_offset for receipt in caught.value.receipts] == [0, 1]  # type: ignore[attr-defined]
    assert isinstance(caught.value.__cause__, MessageRefused)


async def test_a_name_server_that_hangs_or_answers_nonsense_is_skipped() -> None:
    async with scripted_cluster() as good, scripted_cluster() as bad:
        both = f"{bad.namesrv.address};{good.namesrv.address}"
        settings = ProducerSettings(client=ClientSettings(route_timeout=0.5))
        for play in (
            never,
            lambda request: Response(0, body=b"{nonsense"),
            refuse(ResponseCode.SYSTEM_ERROR),
        ):
            bad.namesrv.script[RequestCode.GET_ROUTEINFO_BY_TOPIC] = play
            async with Producer(both, group="g", settings=settings) as p:
                assert (await p.send("T", b"x")).queue.broker_name == "broker-a"
        bad.namesrv.script[RequestCode.GET_ROUTEINFO_BY_TOPIC] = never
        with pytest.raises(NoNameServer, match="did not answer GET_ROUTEINFO_BY_TOPIC"):
            async with Producer(bad.namesrv.address, group="g", settings=settings):
                raise AssertionError("must not start")


async def test_a_slow_broker_does_not_hold_up_the_end() -> None:
    async with scripted_cluster() as cluster:
        cluster.broker.script[RequestCode.UNREGISTER_CLIENT] = never
        with trio.fail_after(5):
            async with producer(cluster) as p:
                await p.send("T", b"x")
                await p._active().session.heartbeats.ensure_all()
        assert cluster.broker.count(RequestCode.UNREGISTER_CLIENT) == 1


# -- consuming
# ------------------------------------------------------------------------------------------------


async def test_heartbeat_member_list_offset_pull_in_this_order() -> None:
    async with scripted_cluster() as cluster:
        async with consumer(cluster):
            await until(lambda: cluster.broker.count(PULL))
        codes = [request.code for request in cluster.broker.asked]
        wanted = [
            RequestCode.HEART_BEAT,
            RequestCode.QUERY_CONSUMER_OFFSET,  # whether the group is new
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            # before the group's offset: what is stored between the two is not skipped
            RequestCode.GET_MAX_OFFSET,
            RequestCode.QUERY_CONSUMER_OFFSET,
            PULL,
        ]
        assert codes[:6] == wanted
        assert codes[-1] == RequestCode.UNREGISTER_CLIENT
        header = cluster.broker.headers(PULL)[0]
        assert isinstance(header, PullMessageHeader)
        assert (header.message_count_max, header.message_bytes_max, header.sys_flag) == (
            32,
            262144,
            2,
        )
        assert (header.suspend_timeout_ms, header.commit_offset, header.subscription) == (
            15000,
            0,
            None,
        )


async def test_pulls_carry_the_committed_offset() -> None:
    async with scripted_cluster() as cluster:
        answers = [pulled(0, 3, record(0) + record(1) + record(2))]
        cluster.broker.script[PULL] = lambda request: (
            answers.pop() if answers else pulled(19, request.header.queue_offset)
        )
        async with consumer(cluster) as c:
            for _ in range(2):
                await (await anext(c)).ack()
            await until(lambda: cluster.broker.headers(PULL)[-1].commit_offset == 2)  # type: ignore[attr-defined]
            await until(lambda: cluster.broker.count(RequestCode.UPDATE_CONSUMER_OFFSET))
        stored = [
            header.commit_offset
            for header in cluster.broker.headers(RequestCode.UPDATE_CONSUMER_OFFSET)
        ]  # type: ignore[attr-defined]
        assert stored[-1] == 2
        assert stored == sorted(stored)


async def test_an_offset_that_moved_is_followed_and_stored() -> None:
    async with scripted_cluster() as cluster:

        def play(request: Request) -> Response:
            offset = request.header.queue_offset
            if offset < 70:
                return pulled(ResponseCode.PULL_OFFSET_MOVED, 70)
            return pulled(0, 71, record(70)) if offset == 70 else pulled(19, offset)

        cluster.broker.script[PULL] = play
        async with consumer(cluster) as c:
            with trio.fail_after(5):
                message = await anext(c)
            assert message.queue_offset == 70
            await message.ack()
        stored = [
            header.commit_offset
            for header in cluster.broker.headers(RequestCode.UPDATE_CONSUMER_OFFSET)
        ]  # type: ignore[attr-defined]
        assert stored[-1] == 71


async def test_a_move_backwards_makes_earlier_messages_lost() -> None:
    """After a reset of the group's offset at the broker, settling the messages in hand has no
    effect, and all of them come again.
    """
    async with scripted_cluster() as cluster:
        answers = [
            pulled(0, 8, record(7)),
            pulled(ResponseCode.PULL_OFFSET_MOVED, 2),
            pulled(0, 3, record(2)),
        ]
        cluster.broker.script[PULL] = lambda request: (
            answers.pop(0) if answers else pulled(19, request.header.queue_offset)
        )
        async with consumer(cluster) as c:
            with trio.fail_after(5):
                first, second = await anext(c), await anext(c)
                assert (first.queue_offset, second.queue_offset) == (7, 2)
                assert first.lost
                assert not second.lost
                assert await first.ack() is False
                assert await second.ack() is True
        stored = [
            header.commit_offset
            for header in cluster.broker.headers(RequestCode.UPDATE_CONSUMER_OFFSET)
        ]  # type: ignore[attr-defined]
        assert stored[-1] == 3


@pytest.mark.parametrize(
    "failure",
    [
        refuse(ResponseCode.SYSTEM_ERROR),
        refuse(ResponseCode.FLOW_CONTROL),
        refuse(ResponseCode.SUBSCRIPTION_NOT_LATEST),
        refuse(ResponseCode.SUBSCRIPTION_NOT_EXIST),
        lambda request: Response(0, ext={"nextBeginOffset": "?"}),
        lambda request: pulled(0, 1, b"these are no records"),
        lambda request: request.connection.close("scripted"),
    ],
    ids=["error", "flow control", "outdated", "unknown", "bad header", "bad records", "hang-up"],
)
async def test_pulling_continues_after_failures(
    failure: Callable[[Request], Response | None], caplog: pytest.LogCaptureFixture
) -> None:
    async with scripted_cluster() as cluster:
        left = 3

        def play(request: Request) -> Response | None:
            nonlocal left
            left -= 1
            if left >= 0:
                return failure(request)
            offset = request.header.queue_offset
            return pulled(0, 1, record(0)) if offset == 0 else pulled(19, offset)

        cluster.broker.script[PULL] = play
        with caplog.at_level(logging.INFO, logger="triomq"):
            async with consumer(cluster) as c:
                with trio.fail_after(10):
                    assert (await anext(c)).body == b"0"
    # three failures, a line when they begin and a line when they end; flow control is not a
    # failure
    lines = [text for text in caplog.messages if "pull from T broker-a:0" in text]
    assert len(lines) in (0, 2)


async def test_a_broker_that_forgot_the_client_gets_a_heartbeat_first() -> None:
    async with scripted_cluster() as cluster:
        answers = [refuse(ResponseCode.SUBSCRIPTION_NOT_EXIST)]
        cluster.broker.script[PULL] = lambda request: (
            answers.pop()(request) if answers else pulled(19, 0)
        )
        async with consumer(cluster):
            await until(lambda: cluster.broker.count(PULL) > 2)
        codes = [request.code for request in cluster.broker.asked]
        first = codes.index(PULL)
        assert RequestCode.HEART_BEAT in codes[first + 1 : codes.index(PULL, first + 1)]


async def test_a_message_that_the_broker_takes_back_is_done_here() -> None:
    async with scripted_cluster() as cluster:
        answers = [pulled(0, 2, record(0) + record(1))]
        cluster.broker.script[PULL] = lambda request: answers.pop() if answers else pulled(19, 2)
        async with consumer(cluster) as c:
            with trio.fail_after(5):
                assert await (await anext(c)).retry(5)
                assert await (await anext(c)).dead_letter()
            assert c.statistics().unsettled == 0
        backs = cluster.broker.headers(RequestCode.CONSUMER_SEND_MSG_BACK)
        assert [
            (back.offset, back.group, back.delay_level)
            for back in backs
            if isinstance(back, SendBackHeader)
        ] == [(0, "g", 5), (100, "g", -1)]
        back = backs[0]
        assert isinstance(back, SendBackHeader)
        assert (back.origin_message_id, back.origin_topic, back.max_reconsume_times) == (
            "ID0",
            "T",
            None,
        )


async def test_a_message_that_is_sent_back_says_which_error_was_handled() -> None:
    async with scripted_cluster() as cluster:
        answers = [pulled(0, 3, record(0) + record(1) + record(2))]
        cluster.broker.script[PULL] = lambda request: answers.pop() if answers else pulled(19, 3)
        async with consumer(cluster) as c:
            with trio.fail_after(30):
                with contextlib.suppress(ValueError):
                    async with await anext(c):
                        raise ValueError("late\n " + "x" * 300)
                try:
                    raise UnreadableError
                except UnreadableError:
                    await (await anext(c)).dead_letter()
                await (await anext(c)).retry()
        backs = cluster.broker.headers(RequestCode.CONSUMER_SEND_MSG_BACK)
        assert [back.failure for back in backs if isinstance(back, SendBackHeader)] == [
            ("ValueError: late " + "x" * 300)[:200],
            f"{__name__}.UnreadableError: <exception str() failed>",
            None,
        ]


class UnreadableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


async def test_a_message_that_the_broker_does_not_take_back_is_kept() -> None:
    async with scripted_cluster() as cluster:
        cluster.broker.script[RequestCode.CONSUMER_SEND_MSG_BACK] = refuse(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        )
        answers = [pulled(0, 3, record(0) + record(1) + record(2))]
        cluster.broker.script[PULL] = lambda request: answers.pop() if answers else pulled(19, 3)
        seen: list[tuple[int, int]] = []

        async def handle(message: ReceivedMessage) -> None:
            await trio.lowlevel.checkpoint()
            seen.append((message.queue_offset, message.reconsume_times))
            if message.queue_offset == 1 and message.reconsume_times < 2:
                raise ValueError("not yet")

        async with consumer(cluster, handler=handle) as c:
            await until(lambda: len(seen) == 5)
            await until(lambda: c.statistics().unsettled == 0)
    assert sorted(seen) == [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0)]


async def test_a_cancelled_retry_leaves_the_message_unsettled() -> None:
    async with scripted_cluster() as cluster:
        cluster.broker.script[RequestCode.CONSUMER_SEND_MSG_BACK] = never
        answers = [pulled(0, 1, record(0))]
        cluster.broker.script[PULL] = lambda request: answers.pop() if answers else pulled(19, 1)
        async with consumer(cluster) as c:
            with trio.fail_after(5):
                message = await anext(c)
            with trio.move_on_after(0.05):
                await message.retry()
            assert not message.settled
            assert await message.ack()


async def test_a_notification_of_the_broker_starts_a_rebalance_at_once() -> None:
    async with scripted_cluster() as cluster:
        async with consumer(cluster) as c:
            await until(lambda: cluster.broker.count(PULL))
            before = cluster.broker.count(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
            cluster.broker.notify_group("another group")
            cluster.broker.notify_group("g")
            await until(
                lambda: cluster.broker.count(RequestCode.GET_CONSUMER_LIST_BY_GROUP) > before
            )
            assert c.assignment == (queue_of(cluster.broker),)


async def test_a_crashed_background_task_raises_from_the_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with scripted_cluster() as cluster:
        with pytest.raises(ZeroDivisionError):  # noqa: PT012  (the block is what is tested)
            async with consumer(cluster) as c:
                monkeypatch.setattr(
                    type(c._member().fetcher), "_header", lambda *_arguments, **_more: 1 / 0
                )
                await trio.sleep_forever()
        assert cluster.broker.count(RequestCode.UNREGISTER_CLIENT) == 1


async def test_storing_offsets_and_unregistering_at_a_hanging_broker_do_not_delay_the_end() -> None:
    async with scripted_cluster() as cluster:
        answers = [pulled(0, 1, record(0))]
        cluster.broker.script[PULL] = lambda request: answers.pop() if answers else pulled(19, 1)
        for code in (RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.UNREGISTER_CLIENT):
            cluster.broker.script[code] = never
        with trio.fail_after(5):
            async with consumer(cluster) as c:
                await (await anext(c)).ack()
        assert cluster.broker.count(RequestCode.UNREGISTER_CLIENT) == 1


async def test_many_senders_of_an_unknown_topic_share_one_answer() -> None:
    async with scripted_cluster() as cluster:
        errors: list[RouteNotFound] = []
        async with producer(cluster) as p:
            before = cluster.namesrv.count(RequestCode.GET_ROUTEINFO_BY_TOPIC)

            async def send() -> None:
                try:
                    await p.send("Nowhere", b"x")
                except RouteNotFound as error:
                    errors.append(error)

            async with trio.open_nursery() as nursery:
                for _ in range(50):
                    nursery.start_soon(send)
            asked = cluster.namesrv.count(RequestCode.GET_ROUTEINFO_BY_TOPIC) - before
            await send()
        assert len(errors) == 51
        assert len({id(error) for error in errors}) == 51
        assert {str(error) for error in errors} == {str(errors[0])}
        assert asked == 2  # the topic, and the creation template
        assert cluster.namesrv.count(RequestCode.GET_ROUTEINFO_BY_TOPIC) - before == 4


async def test_a_send_may_wait_for_ever() -> None:
    async with scripted_cluster() as cluster:
        cluster.broker.script[SEND] = never
        async with producer(cluster, send_timeout=None) as p:
            with trio.move_on_after(0.1) as scope:
                await p.send("T", b"x")
            assert scope.cancelled_caught
            cluster.broker.script[SEND] = lambda request: sent(1)
            assert (await p.send("T", b"x")).queue_offset == 1


async def test_a_consumer_asks_for_the_route_when_a_broker_has_become_a_slave() -> None:
    async with scripted_cluster(2) as cluster:
        old, new = cluster.brokers
        new.name = ""

        def refuse_pull(request: Request) -> Response:
            new.name, old.name = "broker-a", ""
            return Response(ResponseCode.SYSTEM_BUSY, remark="[REJECTREQUEST]system busy")

        old.script[PULL] = refuse_pull
        rarely = attrs.evolve(QUICK, client=ClientSettings(route_interval=1000))
        async with consumer(cluster, settings=rarely):
            await until(lambda: new.count(PULL) > 0)
