"""Sends beyond the simple case, over real sockets.

Slow brokers, back-pressure, automatic batches and compression are tested.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
import trio
import trio.testing
from scripted_cluster import ScriptedCluster, never, refuse, scripted_cluster, sent
from topic_reader import read_topic

from triomq import (
    ConsumerSettings,
    Message,
    MessageInvalid,
    MessageQueue,
    NotRunning,
    Producer,
    ProducerSettings,
    PushConsumer,
    RouteNotFound,
    SendContext,
    SendFailed,
    SendReceipt,
    SendStatus,
    SendTimeout,
    SettingsError,
    select_by_machine_room,
    select_by_random,
)
from triomq.client.core.errors import (
    BrokerFailed,
    ConnectionFailed,
    MessageRefused,
    PermissionDenied,
)
from triomq.remoting.protocol.batch import decode_batch
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.headers.offset import OffsetResponseHeader
from triomq.remoting.server.requests import Request, Response
from triomq.testing import InProcessCluster, local_cluster

SEND = RequestCode.SEND_MESSAGE_V2
BATCH = RequestCode.SEND_BATCH_MESSAGE


def producer(cluster: ScriptedCluster, **settings: object) -> Producer:
    return Producer(cluster.namesrv.address, group="g", settings=ProducerSettings(**settings))  # type: ignore[arg-type]


@pytest.mark.feature("65c")
async def test_a_one_way_send_waits_for_no_answer_and_hears_of_no_refusal() -> None:
    async with scripted_cluster() as cluster, producer(cluster, send_timeout=60) as p:
        broker = cluster.broker
        for number, play in enumerate((never, refuse(ResponseCode.MESSAGE_ILLEGAL))):
            broker.script[SEND] = play
            with trio.fail_after(20):
                await p.send_oneway("T", b"x")
                while broker.count(SEND) == number:
                    await trio.sleep(0.002)
        assert [request.oneway for request in broker.asked if request.code == SEND] == [True, True]


# -- latency fault tolerance
# ------------------------------------------------------------------------------------------------


@pytest.mark.feature("67a", "67b", "68b")
async def test_a_slow_broker_gets_no_messages_for_a_while() -> None:
    """A latency of 0.2 s leaves it out for half a minute, or half a second, here. Without the
    setting both get the same, and so do brokers that are quick enough.
    """
    async with scripted_cluster(2) as cluster:
        slow, quick = cluster.brokers

        async def answer_late(request: Request) -> Response:
            await trio.sleep(0.3)
            return sent()

        slow.script[SEND] = answer_late
        async with producer(cluster) as p:
            counts = Counter([(await p.send("T", b"x")).queue.broker_name for _ in range(4)])
        assert counts == {slow.name: 2, quick.name: 2}
        async with producer(
            cluster, latency_faults=True, latency_max=[0.2], not_available=[30.0]
        ) as p:
            counts = Counter([(await p.send("T", b"x")).queue.broker_name for _ in range(40)])
            assert counts[slow.name] <= 1  # the first message shows that it is slow
            assert (
                await p.send("T", b"x", queue=MessageQueue("T", slow.name, 0))
            ).queue.broker_name == slow.name
        async with producer(
            cluster, latency_faults=True, latency_max=[0.2], not_available=[0.5]
        ) as p:
            await p.send("T", b"x", queue=MessageQueue("T", slow.name, 0))
            slow.script[SEND] = lambda request: sent()
            assert (await p.send("T", b"x")).queue.broker_name == quick.name
            with trio.fail_after(30):
                while (await p.send("T", b"x")).queue.broker_name == quick.name:
                    await trio.sleep(0.01)
        async with producer(
            cluster, latency_faults=True, latency_max=[20.0], not_available=[30.0]
        ) as p:
            counts = Counter([(await p.send("T", b"x")).queue.broker_name for _ in range(8)])
            assert counts == {slow.name: 4, quick.name: 4}


async def test_a_hung_broker_costs_one_send_its_time_and_a_keyed_send_names_it() -> None:
    async with scripted_cluster(2) as cluster:
        hung, good = cluster.brokers
        hung.script[SEND] = never
        async with producer(cluster, send_timeout=1.0) as p:
            for _ in range(20):
                assert (await p.send("T", b"x")).queue.broker_name == good.name
            assert hung.count(SEND) <= 1
            with pytest.raises(
                SendTimeout, match=f"{hung.name}.*did not answer SEND_MESSAGE_V2 within"
            ):
                await p.send("T", b"x", queue=MessageQueue("T", hung.name, 0))
            hung.script[SEND] = lambda request: sent()
            await p.send("T", b"x", queue=MessageQueue("T", hung.name, 0))
            counts = Counter([(await p.send("T", b"x")).queue.broker_name for _ in range(8)])
            assert counts == {hung.name: 4, good.name: 4}, "an answer ends the silence"


async def test_a_refusal_does_not_hide_that_an_earlier_try_may_be_stored() -> None:
    async with scripted_cluster(2) as cluster:
        plays = [refuse(ResponseCode.MESSAGE_ILLEGAL), never]
        for broker in cluster.brokers:
            broker.script[SEND] = lambda request: plays.pop()(request)
        async with producer(cluster, try_timeout=0.1) as p:
            with pytest.raises(SendFailed) as caught:
                await p.send("T", b"x")
        assert caught.value.maybe_stored
        assert isinstance(caught.value.__cause__, MessageRefused)


async def test_a_refusal_with_unknown_outcome_says_so_without_another_try() -> None:
    async with scripted_cluster() as cluster:
        broker = cluster.brokers[0]
        async with producer(cluster, retry_codes=frozenset()) as p:
            broker.script[SEND] = refuse(ResponseCode.SYSTEM_ERROR)
            with pytest.raises(SendFailed) as caught:
                await p.send("T", b"x")
            assert caught.value.maybe_stored
            assert isinstance(caught.value.__cause__, BrokerFailed)
            assert broker.count(SEND) == 1
            broker.script[SEND] = refuse(ResponseCode.MESSAGE_ILLEGAL)
            with pytest.raises(MessageRefused):
                await p.send("T", b"x")


async def test_a_check_that_forbids_says_nothing_about_the_broker() -> None:
    def no_secrets(context: SendContext) -> None:
        if context.body == b"secret":
            raise MessageInvalid("no secrets")

    async with scripted_cluster(2) as cluster:
        async with producer(cluster, latency_faults=True, check_forbidden=[no_secrets]) as p:
            for _ in range(4):
                with pytest.raises(MessageInvalid):
                    await p.send("T", b"secret")
            faults = p._active().faults
            assert faults is not None
            assert all(
                faults.available(broker.name, trio.current_time()) for broker in cluster.brokers
            )


@pytest.mark.feature("68c")
async def test_a_refusing_broker_is_left_out_until_the_detector_finds_it() -> None:
    async with scripted_cluster(2) as cluster:
        bad, good = cluster.brokers
        bad.script[SEND] = refuse(ResponseCode.SYSTEM_BUSY)
        bad.script[RequestCode.GET_MAX_OFFSET] = never
        settings = {
            "latency_faults": True,
            "detect_brokers": True,
            "detect_interval": 0.05,
            "detect_timeout": 0.05,
        }
        async with producer(cluster, **settings) as p:
            for _ in range(6):
                assert (await p.send("T", b"x")).queue.broker_name == good.name
            assert bad.count(SEND) <= 1, "it was asked again though it had refused"
            faults = p._active().faults
            assert faults is not None
            assert bad.count(SEND) == 0 or not faults.reachable(bad.name)
            await p.send("T", b"x", queue=MessageQueue("T", good.name, 0))
            with pytest.raises(SendFailed):
                await p.send("T", b"x", queue=MessageQueue("T", bad.name, 0))
            assert not faults.reachable(bad.name)
            bad.script[RequestCode.GET_MAX_OFFSET] = lambda request: Response(
                0, OffsetResponseHeader(0)
            )
            with trio.fail_after(5):
                while not faults.reachable(bad.name):
                    await trio.sleep(0.02)


# -- back-pressure
# ------------------------------------------------------------------------------------------------


async def test_no_more_messages_are_in_flight_than_allowed() -> None:
    async with scripted_cluster() as cluster:
        under_way = most = 0
        go = trio.Event()

        async def hold(request: Request) -> Response:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await go.wait()
            under_way -= 1
            return sent()

        cluster.broker.script[SEND] = hold
        done: list[SendStatus] = []
        async with producer(cluster, in_flight_messages_max=3) as p, trio.open_nursery() as nursery:

            async def send() -> None:
                done.append((await p.send("T", b"x")).status)

            for _ in range(12):
                nursery.start_soon(send)
            with trio.fail_after(5):
                while under_way < 3:
                    await trio.sleep(0.01)
            await trio.sleep(0.05)
            assert under_way == 3
            go.set()
        assert len(done) == 12
        assert most == 3


async def test_waiting_for_room_counts_towards_the_deadline() -> None:
    async with scripted_cluster() as cluster:
        async with producer(cluster, in_flight_messages_max=1, send_timeout=0.1) as p:
            budget = p._active()._in_flight
            assert budget is not None
            assert await budget.acquire(1, 0)
            with pytest.raises(SendTimeout, match="in_flight_messages_max") as caught:
                await p.send("T", b"x")
            assert not caught.value.maybe_stored
            budget.release(1)
            assert (await p.send("T", b"x")).status is SendStatus.STORED


# -- automatic batches
# ------------------------------------------------------------------------------------------------


async def test_automatic_batches_collect_messages_that_are_sent_together(
    triomq_cluster: InProcessCluster,
) -> None:
    await triomq_cluster.create_topic("Orders", queues=2)
    settings = ProducerSettings(auto_batch=True, auto_batch_hold=0.02)
    receipts: dict[int, tuple[str, MessageQueue, int]] = {}
    async with Producer(triomq_cluster.namesrv_address, group="g", settings=settings) as p:

        async def send(number: int) -> None:
            receipt = await p.send(
                "Orders", b"%d" % number, keys=[f"k{number}"], properties={"n": str(number)}
            )
            receipts[number] = receipt.message_id, receipt.queue, receipt.queue_offset

        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(send, number)
        assert len({queue for _, queue, _ in receipts.values()}) == 1, "one batch has one queue"
        assert sorted(offset for *_, offset in receipts.values()) == list(range(100))
        # Messages that must be sent alone are: a delayed message, a large one.
        alone = await p.send("Orders", b"x" * 40_000)
        assert alone.status is SendStatus.STORED
    found = await read_topic(triomq_cluster.namesrv_address, "Orders", 101)
    by_id = {message.message_id: message for message in found}
    for number, (message_id, _, _) in receipts.items():
        message = by_id[message_id]
        assert (message.body, message.properties["n"], message.keys) == (
            b"%d" % number,
            str(number),
            (f"k{number}",),
        )


async def test_which_messages_may_share_an_automatic_batch() -> None:
    async with scripted_cluster(2) as cluster:
        async with producer(
            cluster, auto_batch=True, auto_batch_hold=0.03, auto_batch_bytes=4000
        ) as p:
            queue = MessageQueue("T", cluster.broker.name, 0)
            await p.queues("T")  # a send that has to look up the route first would be late
            async with trio.open_nursery() as nursery:
                for number in range(4):
                    nursery.start_soon(lambda number=number: p.send("T", b"%d" % number, tag="a"))
                    nursery.start_soon(lambda number=number: p.send("T", b"%d" % number, tag="b"))
                    nursery.start_soon(
                        lambda number=number: p.send("T", b"%d" % number, queue=queue)
                    )
                    nursery.start_soon(
                        lambda number=number: p.send("T", b"%d" % number, wait_stored=False)
                    )
                nursery.start_soon(lambda: p.send("T", b"late", delay_level=1))
            assert sum(broker.count(BATCH) for broker in cluster.brokers) == 4
            assert sum(broker.count(SEND) for broker in cluster.brokers) == 1
            began = trio.current_time()
            async with trio.open_nursery() as nursery:
                for _ in range(9):  # full after five: those leave at once
                    nursery.start_soon(lambda: p.send("T", b"x" * 900, queue=queue))
            assert cluster.broker.count(BATCH) >= 2
            assert trio.current_time() - began < 5


async def test_a_failed_automatic_batch_fails_all_its_senders() -> None:
    async with scripted_cluster() as cluster:
        cluster.broker.script[BATCH] = refuse(ResponseCode.MESSAGE_ILLEGAL, "no batches today")
        errors: list[MessageRefused] = []
        async with producer(cluster, auto_batch=True, auto_batch_hold=0) as p:

            async def send() -> None:
                with pytest.raises(MessageRefused, match="no batches today") as caught:
                    await p.send("T", b"x")
                errors.append(caught.value)

            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(send)
            assert len(set(errors)) == 3
            assert cluster.broker.count(BATCH) == 1
            cluster.broker.script[BATCH] = lambda request: sent()
            assert (await p.send("T", b"x")).status is SendStatus.STORED
            assert p._accumulator is not None
            assert p._accumulator.size_bytes == 0


class HeldBatches:
    """A broker that holds its answers to the first ``count`` automatic batches until it is told to
    send.

    A single message needs no batch.
    """

    def __init__(self, cluster: ScriptedCluster, count: int = 1) -> None:
        self.gate = trio.Event()
        self._broker = cluster.broker
        self._held = count
        cluster.broker.script[BATCH] = cluster.broker.script[SEND] = self._play

    async def _play(self, request: Request) -> Response:
        self._held -= 1
        if self._held >= 0:
            await self.gate.wait()
        return sent()

    async def came(self, count: int) -> None:
        while len(self.bodies) < count:
            await trio.lowlevel.checkpoint()

    async def turns(self) -> None:
        """Let the loop run long enough for new tasks to come to rest."""
        for _ in range(5):
            await trio.lowlevel.checkpoint()

    @property
    def bodies(self) -> list[list[bytes]]:
        """The bodies of each request."""
        return [
            [body for _, body, _ in decode_batch(bytes(request.body))]
            if request.code == BATCH
            else [bytes(request.body)]
            for request in self._broker.asked
            if request.code in (SEND, BATCH)
        ]


async def test_an_automatic_batch_fills_only_while_another_one_is_in_flight() -> None:
    async with scripted_cluster() as cluster:
        held = HeldBatches(cluster)
        async with producer(cluster, auto_batch=True, auto_batch_hold=1000, send_timeout=None) as p:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(p.send, "T", b"alone")
                await held.came(1)
                for number in range(20):
                    nursery.start_soon(p.send, "T", b"%d" % number)
                    await held.turns()
                assert held.bodies == [[b"alone"]]
                held.gate.set()
            assert held.bodies[1:] == [[b"%d" % number for number in range(20)]]
            await p.send("T", b"not held")
            assert p._accumulator is not None
            assert (
                p._accumulator.size_bytes,
                p._accumulator._in_flight,
                p._accumulator._batches,
            ) == (0, {}, set())


async def test_a_cancelled_send_is_dropped_from_its_automatic_batch() -> None:
    async with scripted_cluster() as cluster:
        held = HeldBatches(cluster)
        async with producer(cluster, auto_batch=True, auto_batch_hold=1000, send_timeout=None) as p:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(p.send, "T", b"ahead")
                await held.came(1)
                with trio.move_on_after(0.01):
                    await p.send("T", b"cancelled")
                nursery.start_soon(p.send, "T", b"stays")
                await held.turns()
                held.gate.set()
            assert held.bodies == [[b"ahead"], [b"stays"]]


async def test_each_message_of_an_automatic_batch_has_its_own_deadline(
    mock_clock: trio.testing.MockClock,
) -> None:
    async with scripted_cluster() as cluster:
        held = HeldBatches(cluster, 2)
        outcomes: dict[bytes, SendReceipt | SendTimeout] = {}
        async with producer(cluster, auto_batch=True, auto_batch_hold=2.5, send_timeout=3.0) as p:

            async def send(body: bytes) -> None:
                try:
                    outcomes[body] = await p.send("T", body)
                except SendTimeout as error:
                    outcomes[body] = error

            async with trio.open_nursery() as nursery:
                nursery.start_soon(send, b"ahead")
                await held.came(1)
                nursery.start_soon(send, b"early")
                await held.turns()
                mock_clock.jump(2.0)
                nursery.start_soon(send, b"late")
                await held.turns()
                mock_clock.jump(0.6)  # early has waited for 2.6 s: they leave
                await held.came(2)
                assert held.bodies[1] == [b"early", b"late"]
                mock_clock.jump(0.5)
                while len(outcomes) < 2:
                    await trio.lowlevel.checkpoint()
                assert sorted(outcomes) == [b"ahead", b"early"]
                held.gate.set()
            mock_clock.rate = 1.0  # servers stop in real time
            early = outcomes[b"early"]
            assert isinstance(early, SendTimeout)
            assert early.maybe_stored
            assert "no answer yet" in str(early)
            assert isinstance(outcomes[b"late"], SendReceipt)


async def test_a_message_that_times_out_before_its_automatic_batch_is_dispatched_is_not_sent(
    mock_clock: trio.testing.MockClock,
) -> None:
    async with scripted_cluster() as cluster:
        held = HeldBatches(cluster)
        async with producer(cluster, auto_batch=True, auto_batch_hold=1000, send_timeout=3.0) as p:
            async with trio.open_nursery() as nursery:

                async def send_in_vain(body: bytes) -> None:
                    with pytest.raises(SendTimeout) as caught:
                        await p.send("T", body)
                    assert caught.value.maybe_stored == (body == b"ahead")

                nursery.start_soon(send_in_vain, b"ahead")
                await held.came(1)
                nursery.start_soon(send_in_vain, b"waits")
                await held.turns()
                mock_clock.jump(3.1)
            mock_clock.rate = 1.0  # servers stop in real time
            held.gate.set()
            await p.send("T", b"later")
            assert held.bodies == [[b"ahead"], [b"later"]]


async def test_a_send_that_is_cancelled_before_the_route_is_known_is_not_sent() -> None:
    async with scripted_cluster() as cluster:
        held = HeldBatches(cluster, 0)
        asked, known = trio.Event(), trio.Event()

        async def late(request: Request) -> Response:
            if request.header.topic == "T":
                asked.set()
                await known.wait()
            return cluster.route(request)

        cluster.namesrv.script[RequestCode.GET_ROUTEINFO_BY_TOPIC] = late
        async with producer(cluster, auto_batch=True) as p, trio.open_nursery() as nursery:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as given_up:
                    given_up.start_soon(p.send, "T", b"cancelled")
                    await asked.wait()
                    nursery.start_soon(p.send, "T", b"stays")
                    await held.turns()
                    scope.cancel()
            known.set()
        assert held.bodies == [[b"stays"]]


async def test_an_automatic_batch_is_abandoned_when_no_sender_waits_for_it() -> None:
    async with scripted_cluster() as cluster:
        held = HeldBatches(cluster)
        async with producer(cluster, auto_batch=True, in_flight_messages_max=1) as p:
            pool, room = p._accumulator, p._sender and p._sender._in_flight
            assert pool is not None
            assert room is not None
            async with trio.open_nursery() as nursery:
                nursery.start_soon(p.send, "T", b"ahead")
                await held.came(1)
                with trio.CancelScope() as scope:
                    async with trio.open_nursery() as given_up:
                        for body in (b"1", b"2"):
                            given_up.start_soon(lambda body=body: p.send("T", body, tag="others"))
                        while not room._claims:  # they have left, and wait for room
                            await trio.lowlevel.checkpoint()
                        scope.cancel()
                while room._claims:
                    await trio.lowlevel.checkpoint()
                held.gate.set()
            await p.send("T", b"later")
            assert (pool.size_bytes, pool._in_flight, pool._batches, room.messages) == (
                0,
                {},
                set(),
                0,
            )
        assert held.bodies == [[b"ahead"], [b"later"]]


async def test_an_automatic_batch_does_not_outlive_its_producer() -> None:
    failures: dict[bytes, SendFailed | NotRunning] = {}
    async with scripted_cluster() as cluster, trio.open_nursery() as nursery:
        held = HeldBatches(cluster)
        async with producer(cluster, auto_batch=True, auto_batch_hold=1000) as p:

            async def send(body: bytes) -> None:
                with pytest.raises((SendFailed, NotRunning), match="stopped before") as caught:
                    await p.send("T", body)
                failures[body] = caught.value

            nursery.start_soon(send, b"left")
            with trio.fail_after(30):
                await held.came(1)
            nursery.start_soon(send, b"waits for others")
            await held.turns()
        assert held.bodies == [[b"left"]]
        held.gate.set()
    left, waits = failures[b"left"], failures[b"waits for others"]
    assert isinstance(left, SendFailed)
    assert left.maybe_stored
    assert isinstance(waits, NotRunning)


# -- queues, retries, limits
# ------------------------------------------------------------------------------------------------


@pytest.mark.feature("69a", "69b")
async def test_an_application_s_selector_chooses_the_queue(
    triomq_cluster: InProcessCluster,
) -> None:
    await triomq_cluster.create_topic("Orders", queues=4)

    def by_size(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        return queues[len(message.body) % len(queues)]

    async with Producer(triomq_cluster.namesrv_address, group="g") as p:
        for size in range(1, 9):
            assert (await p.send("Orders", b"x" * size, select=by_size)).queue.queue_id == size % 4
        message = Message(topic="Orders", body=b"12")
        assert (await p.send(message, select=by_size)).queue.queue_id == 2
        batch = await p.send_batch([message, message], select=by_size)
        assert {receipt.queue.queue_id for receipt in batch} == {2}
        keyed = await p.send_batch(
            [Message(topic="Orders", body=b"x")] * 3, sharding_key="order-42"
        )
        assert {receipt.queue.queue_id for receipt in keyed} == {1}
        await p.send_oneway("Orders", b"123", select=by_size)
        assert (await p.send("Orders", b"x", select=select_by_random())).status is SendStatus.STORED
        with pytest.raises(MessageInvalid, match="machine rooms"):
            await p.send("Orders", b"x", select=select_by_machine_room("moon"))
    found = await read_topic(triomq_cluster.namesrv_address, "Orders", 16)
    sharded = [message for message in found if "__SHARDINGKEY" in message.properties]
    assert [(one.properties["__SHARDINGKEY"], one.queue.queue_id) for one in sharded] == [
        ("order-42", 1)
    ] * 3
    assert [one.queue.queue_id for one in found if one.body == b"123"] == [3]


async def test_codes_to_retry_and_the_time_of_a_try_are_settings() -> None:
    async with scripted_cluster(2) as cluster:
        bad, good = cluster.brokers
        bad.script[SEND] = refuse(31337)
        async with producer(cluster, retry_codes={31337}) as p:
            assert {(await p.send("T", b"x")).queue.broker_name for _ in range(4)} == {good.name}
        bad.script[SEND] = never
        began = trio.current_time()
        async with producer(cluster, try_timeout=0.05, send_timeout=30.0) as p:
            assert {(await p.send("T", b"x")).queue.broker_name for _ in range(4)} == {good.name}
        assert trio.current_time() - began < 10


@pytest.mark.feature(71, "76b")
async def test_asynchronous_sends_are_tried_again_after_transport_failures() -> None:
    """Asynchronous sending means many tasks: those whose broker hangs up go to the other one, with
    the same id; refusals are not repeated.
    """
    async with scripted_cluster(2) as cluster:
        bad, good = cluster.brokers

        def hang_up(request: Request) -> None:
            request.connection.close("scripted")

        bad.script[SEND] = hang_up
        receipts: list[SendReceipt] = []
        async with producer(cluster) as p:

            async def send() -> None:
                receipts.append(await p.send("T", b"x"))

            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(send)
            assert {receipt.queue.broker_name for receipt in receipts} == {good.name}
            tried = "".join(header.properties for header in bad.headers(SEND))  # type: ignore[attr-defined]
            assert any(receipt.message_id in tried for receipt in receipts)
            for broker in cluster.brokers:
                broker.script[SEND] = refuse(ResponseCode.MESSAGE_ILLEGAL)
            before = sum(broker.count(SEND) for broker in cluster.brokers)
            with pytest.raises(MessageRefused):
                await p.send("T", b"x")
            assert sum(broker.count(SEND) for broker in cluster.brokers) == before + 1
        async with producer(cluster, retries=0) as p:
            bad.script[SEND] = hang_up
            with pytest.raises(SendFailed) as caught:
                await p.send("T", b"x", queue=MessageQueue("T", bad.name, 0))
            assert len(caught.value.attempts) == 1


@pytest.mark.feature("78a")
async def test_one_producer_serves_many_tasks_over_one_connection(
    triomq_cluster: InProcessCluster,
) -> None:
    await triomq_cluster.create_topic("Orders", queues=4)
    async with Producer(triomq_cluster.namesrv_address, group="g") as p:
        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(p.send, "Orders", b"%d" % number)
        statistics = p._active().session.connector.statistics()
    assert (statistics.opened, statistics.pending) == (2, 0), (
        "one to the name server, one to the broker"
    )


@pytest.mark.feature("79a", "79b")
async def test_a_received_message_is_read_only_and_can_be_copied(
    triomq_cluster: InProcessCluster,
) -> None:
    for topic in ("Orders", "Archive"):
        await triomq_cluster.create_topic(topic, queues=1)
    async with Producer(triomq_cluster.namesrv_address, group="g") as p:
        body = b"large " * 2000
        first = await p.send(
            "Orders", body, tag="paid", keys=["a", "b"], properties={"shop": "7"}, flag=5
        )
        (received,) = await read_topic(triomq_cluster.namesrv_address, "Orders", 1)
        with pytest.raises(AttributeError):
            received.body = b"other"  # type: ignore[misc]
        with pytest.raises(TypeError):
            received.properties["shop"] = "8"  # type: ignore[index]
        copy = received.copy_to("Archive")
        assert copy == Message(
            topic="Archive",
            body=body,
            tag="paid",
            keys=("a", "b"),
            properties={"shop": "7"},
            flag=5,
        )
        second = await p.send(copy)
    assert second.message_id != first.message_id
    (found,) = await read_topic(triomq_cluster.namesrv_address, "Archive", 1)
    assert (found.body, found.properties["shop"], found.tag) == (body, "7", "paid")


@pytest.mark.feature("73a", "73b")
@pytest.mark.parametrize("name", ["zlib", "lz4", "zstd"])
async def test_every_compression_arrives_whole(triomq_cluster: InProcessCluster, name: str) -> None:
    await triomq_cluster.create_topic("Orders", queues=1)
    body = b"0123456789" * 5_000
    settings = ProducerSettings(compression=name)
    async with Producer(triomq_cluster.namesrv_address, group="g", settings=settings) as p:
        await p.send("Orders", body)
        await p.send("Orders", b"short")
    first, second = await read_topic(triomq_cluster.namesrv_address, "Orders", 2)
    assert (first.body, second.body) == (body, b"short")
    assert first.size_bytes < 5_000


# -- errors that name cause and fix
# -----------------------------------------------------------------------------------------


async def test_a_broker_that_announces_an_unreachable_address() -> None:
    """A wrong brokerIP1: the name server's answer leads nowhere. 192.0.2.0/24 is reserved for
    documentation.
    """
    async with scripted_cluster() as cluster:
        play = cluster.namesrv.script[RequestCode.GET_ROUTEINFO_BY_TOPIC]

        def route(request: Request) -> Response:
            answer = play(request)
            assert isinstance(answer, Response)
            if request.header.topic == "T":
                answer.body = bytes(answer.body).replace(
                    cluster.broker.address.encode(), b"192.0.2.1:10911"
                )
            return answer

        cluster.namesrv.script[RequestCode.GET_ROUTEINFO_BY_TOPIC] = route
        async with producer(cluster, send_timeout=0.3) as p:
            with pytest.raises(
                (SendTimeout, SendFailed), match=r"192\.0\.2\.1:10911.*brokerIP1"
            ) as caught:
                await p.send("T", b"x")
    assert not caught.value.maybe_stored
    assert isinstance(caught.value.__cause__, ConnectionFailed)


async def test_a_topic_that_may_not_be_written() -> None:
    """RocketMQ's brokers do not check a topic's write bit: producers do, in its route."""
    async with local_cluster() as cluster, cluster.admin() as admin:
        await admin.create_topic("Orders", queues=1)
        await admin.update_topic("Orders", cluster="DefaultCluster", perm=4)
        async with Producer(cluster.namesrv_address, group="g") as p:
            with pytest.raises(
                RouteNotFound,
                match=(
                    r"^topic 'Orders' has a route, but no writable queue on a master: .*topic route"
                    r" -t Orders.*write bit"
                ),
            ):
                await p.send("Orders", b"x")


async def test_a_refused_permission_names_what_to_check() -> None:
    async with scripted_cluster() as cluster, producer(cluster, retries=0) as p:
        cluster.broker.script[SEND] = refuse(
            ResponseCode.NO_PERMISSION, "the broker[a] sending message is forbidden"
        )
        with pytest.raises(
            SendFailed,
            match=r"16 NO_PERMISSION: .*forbidden.*brokerPermission, and the credentials",
        ) as caught:
            await p.send("T", b"x")
    assert isinstance(caught.value.__cause__, PermissionDenied)


@pytest.mark.parametrize(
    "code", [ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST]
)
async def test_unequal_subscriptions_in_a_group_are_named(
    code: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A consumer keeps trying; its log says, once, what is wrong and how to correct it."""
    async with scripted_cluster() as cluster:
        cluster.broker.script[RequestCode.PULL_MESSAGE] = refuse(
            code, "the consumer's subscription is another one"
        )
        settings = ConsumerSettings(error_delay=0.02)
        async with PushConsumer(
            cluster.namesrv.address, group="g", subscriptions={"T": "a"}, settings=settings
        ):
            with trio.fail_after(10):
                while cluster.broker.count(RequestCode.PULL_MESSAGE) < 5:
                    await trio.sleep(0.01)
    lines = [
        record.getMessage()
        for record in caplog.records
        if "the consumer's subscription" in record.getMessage()
    ]
    assert lines
    assert all(
        "have different" in line and ("or use another group" in line or "make them equal" in line)
        for line in lines
    )
    assert len(lines) <= 3, "not once for every pull"


@pytest.mark.feature("17b")
async def test_a_body_that_only_the_broker_finds_too_large() -> None:
    async with local_cluster(settings={"maxMessageSize": 1000}) as cluster:
        await cluster.create_topic("Orders", queues=1)
        async with Producer(cluster.namesrv_address, group="g") as p:
            with pytest.raises(MessageRefused, match=r"13 MESSAGE_ILLEGAL.*send a smaller"):
                await p.send("Orders", b"x" * 2000)


@pytest.mark.feature(119)
async def test_tags_and_properties_that_no_consumer_could_use() -> None:
    async with scripted_cluster() as cluster, producer(cluster) as p:
        for tag in (" ", "a ", "a||b", "x" * 129, "a\nb"):
            with pytest.raises(MessageInvalid, match="128 visible characters"):
                await p.send("T", b"x", tag=tag)
        for other in (["x"], [], {"x"}, 1, 0, b"x"):  # some of which no dict takes
            with pytest.raises(MessageInvalid, match="tag must be a text, not"):
                await p.send("T", b"x", tag=other)  # type: ignore[arg-type]
            with pytest.raises(MessageInvalid, match="tag must be a text, not"):
                await p.send("T", b"x", tag=other, keys=["k"])  # type: ignore[arg-type]
        await p.send("T", b"x", tag="x" * 128)
        await p.send("T", b"x", tag="标签 1")
        with pytest.raises(MessageInvalid, match="must be a text"):
            await p.send("T", b"x", properties={"n": 1})  # type: ignore[dict-item]
        with pytest.raises(MessageInvalid, match="32 bits"):
            await p.send("T", b"x", flag=1 << 31)
        with pytest.raises(MessageInvalid, match="retry topic takes no batches"):
            await p.send_batch([Message(topic="%RETRY%g", body=b"x")])
        with pytest.raises(SettingsError, match="use zlib, lz4 or zstd"):
            ProducerSettings(compression="gzip")
        with pytest.raises(MessageInvalid, match="cannot be compressed with ZLIB at level 99"):
            async with producer(cluster, compress_level=99) as bad:
                await bad.send("T", b"x" * 5000)


@pytest.mark.feature("68a", "68b")
@pytest.mark.parametrize(("latency", "seconds"), [(0.5, 0), (0.56, 30), (1.01, 60)])
async def test_the_latency_table_of_4_x_leaves_out_a_slow_broker(
    latency: float, seconds: float
) -> None:
    assert not ProducerSettings().latency_faults
    table = {"latency_faults": True, "latency_max": (0.55, 1.0), "not_available": (30.0, 60.0)}
    async with scripted_cluster() as cluster, producer(cluster, **table) as p:

        async def answer_late(request: Request) -> Response:
            await trio.sleep(latency)
            return sent()

        cluster.broker.script[SEND] = answer_late
        began = trio.current_time()
        await p.send("T", b"x")
        faults, now = p._active().faults, trio.current_time()
        assert faults is not None
        if now - began < 0.99:  # a busy machine may make it slower than it was told to be
            assert faults.available(
                cluster.broker.name, now + max(seconds, 30 * (now > began + 0.55))
            )
        assert not seconds or not faults.available(cluster.broker.name, now + seconds - 5)


@pytest.mark.feature("97c")
async def test_a_sharding_key_decides_the_queue_and_message_keys_do_not(
    triomq_cluster: InProcessCluster,
) -> None:
    await triomq_cluster.create_topic("Orders", queues=4)
    async with Producer(triomq_cluster.namesrv_address, group="g") as p:
        keyed = [
            (await p.send(Message(topic="Orders", body=b"x", keys=["o-1"]))).queue.queue_id
            for _ in range(8)
        ]
        sharded = [
            (await p.send(Message(topic="Orders", body=b"x"), sharding_key="o-1")).queue.queue_id
            for _ in range(8)
        ]
    assert sorted(keyed) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert len(set(sharded)) == 1
