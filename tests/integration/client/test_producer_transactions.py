"""The producer's side of transactions, over real sockets.

Brokers answer as a test tells them, for what real ones rarely do; Java's and ours are in
``tests/compat/test_transactions_with_java.py`` and ``test_transaction_example.py``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
import trio
import trio.lowlevel
from golden_data import Exchange, exchanges
from scripted_cluster import ScriptedCluster, never, record, refuse, scripted_cluster, sent
from serving import until
from topic_reader import read_topic

from triomq import (
    AlreadySettled,
    BrokerError,
    CheckedMessage,
    ClientSettings,
    Message,
    MessageInvalid,
    MessageQueue,
    NotRunning,
    Producer,
    ProducerSettings,
    SendFailed,
    SendTimeout,
    SettingsError,
    TransactionOutcome,
)
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import decode_frame, request
from triomq.remoting.protocol.headers.send import SendMessageHeader, SendMessageResponseHeader
from triomq.remoting.protocol.headers.transaction import (
    CheckTransactionHeader,
    EndTransactionHeader,
)
from triomq.remoting.protocol.message_properties import parse_properties
from triomq.remoting.server.requests import Request, Response
from triomq.testing import local_cluster

SEND = RequestCode.SEND_MESSAGE_V2
END = RequestCode.END_TRANSACTION
COMMIT, ROLLBACK, UNKNOWN = TransactionOutcome
QUICK = ClientSettings(request_timeout=0.3)


def producer(cluster: ScriptedCluster, **options: Any) -> Producer:
    return Producer(cluster.namesrv.address, group="shop", **options)


def half(cluster: ScriptedCluster) -> SendMessageHeader:
    header = cluster.broker.headers(SEND)[-1]
    assert isinstance(header, SendMessageHeader)
    return header


def ends(cluster: ScriptedCluster) -> list[EndTransactionHeader]:
    found = cluster.broker.headers(END)
    return [header for header in found if isinstance(header, EndTransactionHeader)]


def check(cluster: ScriptedCluster, message_id: str, offset: int = 7) -> None:
    """Ask every client how the transaction of a message ended, which has the message's id."""
    cluster.broker.tell(
        request(
            RequestCode.CHECK_TRANSACTION_STATE,
            CheckTransactionHeader(offset, offset * 100, message_id, None, broker_name="broker-a"),
            record(offset, b"body", message_id=message_id),
            oneway=True,
        )
    )


async def answer(cluster: ScriptedCluster, message_id: str) -> TransactionOutcome:
    """Ask, and return what the client answers."""
    before = len(ends(cluster))
    check(cluster, message_id)
    await until(lambda: len(ends(cluster)) > before)
    header = ends(cluster)[-1]
    assert header.from_check
    assert (header.half_queue_offset, header.log_offset) == (7, 700)
    assert (header.message_id, header.transaction_id) == (message_id, message_id)
    assert (header.producer_group, header.topic, header.broker_name) == ("shop", "T", "broker-a")
    return TransactionOutcome(header.verdict)


async def test_a_normal_end_commits() -> None:
    async with scripted_cluster() as cluster:
        cluster.broker.script[SEND] = lambda request: sent(3)
        async with producer(cluster) as shop:
            block = shop.transaction("T", b"x", tag="paid", keys=["o-1"], flag=5)
            assert repr(block) == "<Transaction: not begun>"
            async with block as transaction:
                assert ends(cluster) == []
                assert transaction.outcome is UNKNOWN
                assert repr(transaction) == f"<Transaction {transaction.id} of T: running>"
            assert transaction.outcome is COMMIT
            assert transaction.confirmed
            assert repr(transaction) == f"<Transaction {transaction.id} of T: commit>"
        header = half(cluster)
        properties = parse_properties(header.properties)
        assert (properties["TRAN_MSG"], properties["PGROUP"]) == ("true", "shop")
        assert (properties["TAGS"], properties["KEYS"], header.flag) == ("paid", "o-1", 5)
        assert properties["UNIQ_KEY"] == transaction.id == transaction.receipt.message_id
        assert header.sys_flag == 4
        (end,) = ends(cluster)
        assert end == EndTransactionHeader(
            producer_group="shop",
            half_queue_offset=3,
            log_offset=0,
            verdict=8,
            message_id=transaction.id,
            transaction_id=transaction.id,
            topic="T",
            broker_name="broker-a",
        )
        assert not [one for one in cluster.broker.asked if one.code == END and one.oneway]


async def test_an_exception_rolls_back_and_goes_on() -> None:
    async with scripted_cluster() as cluster, producer(cluster) as shop:
        with pytest.raises(LookupError, match="no stock"):
            async with shop.transaction("T", b"x") as transaction:
                raise LookupError("no stock")
        assert transaction.outcome is ROLLBACK
        assert [end.verdict for end in ends(cluster)] == [12]
        assert await answer(cluster, transaction.id) is ROLLBACK


@pytest.mark.feature("106b")
@pytest.mark.parametrize("code", [ResponseCode.MESSAGE_ILLEGAL, ResponseCode.NO_PERMISSION])
async def test_the_block_is_not_run_if_the_half_message_is_refused(code: int) -> None:
    async with scripted_cluster() as cluster, producer(cluster) as shop:
        cluster.broker.script[SEND] = refuse(code)
        with pytest.raises((BrokerError, SendFailed)):
            async with shop.transaction("T", b"x"):
                pytest.fail("the block was run")
        assert ends(cluster) == []


@pytest.mark.feature("106b")
async def test_a_half_message_without_an_answer_is_rolled_back_when_a_broker_asks() -> None:
    settings = ProducerSettings(send_timeout=0.3)
    async with scripted_cluster() as cluster, producer(cluster, settings=settings) as shop:
        cluster.broker.script[SEND] = never
        message_id = shop.new_message_id()
        with pytest.raises(SendTimeout) as caught:
            async with shop.transaction("T", b"x", message_id=message_id):
                pytest.fail("the block was run")
        assert caught.value.maybe_stored
        assert await answer(cluster, message_id) is ROLLBACK


async def test_a_half_message_that_is_not_safe_is_rolled_back() -> None:
    async with scripted_cluster() as cluster, producer(cluster) as shop:
        cluster.broker.script[SEND] = lambda request: Response(
            ResponseCode.FLUSH_SLAVE_TIMEOUT,
            SendMessageResponseHeader("7F00000100002A9F0000000000000000", 0, 1),
        )
        with pytest.raises(SendFailed, match="stored as FLUSH_SLAVE_TIMEOUT only") as caught:
            async with shop.transaction("T", b"x"):
                pytest.fail("the block was run")
        assert not caught.value.maybe_stored
        assert [end.verdict for end in ends(cluster)] == [12]


async def test_a_cancelled_block_stays_open_for_the_check_handler() -> None:
    asked: list[CheckedMessage] = []

    async def look_up(message: CheckedMessage) -> TransactionOutcome:
        asked.append(message)
        return COMMIT

    async with scripted_cluster() as cluster, producer(cluster, check=look_up) as shop:
        with trio.move_on_after(0.05):
            async with shop.transaction("T", b"x") as transaction:
                await trio.sleep_forever()
        assert transaction.outcome is UNKNOWN
        assert ends(cluster) == []
        assert await answer(cluster, transaction.id) is COMMIT
        (message,) = asked
        assert (message.transaction_id, message.topic, message.body) == (
            transaction.id,
            "T",
            b"body",
        )
        assert message.queue == MessageQueue("T", "broker-a", 0)
        assert (message.checks, message.group, message.settled, message.lost) == (
            0,
            "shop",
            False,
            False,
        )
        assert repr(message) == (
            f"<CheckedMessage {transaction.id!r} of 'T', 4 bytes, checked 0 times before>"
        )


async def test_while_the_block_runs_a_check_is_answered_by_unknown() -> None:
    async with (
        scripted_cluster() as cluster,
        producer(cluster, check=lambda message: ROLLBACK) as shop,
    ):
        async with shop.transaction("T", b"x") as transaction:
            assert await answer(cluster, transaction.id) is UNKNOWN
        assert await answer(cluster, transaction.id) is COMMIT
        assert await answer(cluster, "of-another-process") is ROLLBACK


async def test_an_end_without_an_answer_is_settled_by_the_check(
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = ProducerSettings(client=QUICK)
    async with scripted_cluster() as cluster, producer(cluster, settings=settings) as shop:
        cluster.broker.script[END] = never
        with trio.fail_after(5):
            async with shop.transaction("T", b"x") as transaction:
                pass
        assert transaction.outcome is COMMIT
        assert not transaction.confirmed
        assert repr(transaction).endswith("commit, not confirmed>")
        cluster.broker.script[END] = lambda request: Response()
        assert await answer(cluster, transaction.id) is COMMIT
    assert "ends of transactions at broker-a: " in caplog.text


@pytest.mark.parametrize("script", [refuse(ResponseCode.SYSTEM_ERROR), refuse(604)])
async def test_a_refused_end_is_not_confirmed(script: Callable[[Request], Response]) -> None:
    async with scripted_cluster() as cluster, producer(cluster) as shop:
        cluster.broker.script[END] = script
        async with shop.transaction("T", b"x") as transaction:
            assert not await transaction.commit()
        assert transaction.outcome is COMMIT
        assert len(ends(cluster)) == 1


async def test_a_cancelled_caller_still_gets_the_end_out() -> None:
    async with scripted_cluster() as cluster, producer(cluster) as shop:
        with trio.CancelScope() as scope:
            async with shop.transaction("T", b"x") as transaction:
                scope.cancel()
        assert transaction.outcome is COMMIT
        assert transaction.confirmed


async def test_explicit_ends() -> None:
    async with scripted_cluster() as cluster, producer(cluster) as shop:
        with pytest.raises(LookupError):
            async with shop.transaction("T", b"x") as transaction:
                raise LookupError if await transaction.commit() else AssertionError
        assert transaction.outcome is COMMIT
        with pytest.raises(AlreadySettled, match="as COMMIT: call commit"):
            await transaction.rollback()
        async with shop.transaction("T", b"x") as transaction:
            assert await transaction.rollback()
        assert transaction.outcome is ROLLBACK
        async with shop.transaction("T", b"x") as transaction:
            with pytest.raises(SettingsError, match="not with the bool True"):
                await transaction.end(True)  # type: ignore[arg-type]
            await transaction.leave_open()
        assert transaction.outcome is UNKNOWN
        assert [end.verdict for end in ends(cluster)] == [8, 12]
        assert await answer(cluster, transaction.id) is UNKNOWN
        with pytest.raises(NotRunning, match="begun before"):
            await transaction.__aenter__()
        fresh = shop.transaction("T", b"x")
        with pytest.raises(NotRunning, match=r"async with producer\.transaction"):
            await fresh.commit()
        with pytest.raises(NotRunning, match="has not begun"):
            _ = fresh.receipt
    with pytest.raises(NotRunning, match="producer is not running"):
        async with shop.transaction("T", b"x"):
            pass


async def refused(shop: Producer, *arguments: Any, **options: Any) -> None:
    async with shop.transaction(*arguments, **options):
        pytest.fail("the block was run")


async def test_arguments_that_cannot_be() -> None:
    async with scripted_cluster() as cluster, producer(cluster) as shop:
        for when in ({"delay_level": 3}, {"delay": 0.5}, {"deliver_at": datetime.now(UTC)}):
            with pytest.raises(MessageInvalid, match="a transaction cannot be delayed"):
                await refused(shop, "T", b"x", **when)
        with pytest.raises(MessageInvalid, match="needs a body"):
            await refused(shop, "T")
        with pytest.raises(SettingsError, match="check_after must be"):
            await refused(shop, "T", b"x", check_after=0)
        with pytest.raises(SettingsError, match="local must be a function"):
            await shop.send_in_transaction(Message(topic="T", body=b"x"), "local")  # type: ignore[arg-type]
        assert cluster.broker.count(SEND) == 0
    with pytest.raises(SettingsError, match="check must be a function"):
        producer(cluster, check="handler")


async def test_a_broker_may_be_told_to_ask_later() -> None:
    async with scripted_cluster() as cluster, producer(cluster) as shop:
        async with shop.transaction(Message(topic="T", body=b"x"), queue=0, check_after=90.2):
            pass
        properties = parse_properties(half(cluster).properties)
        assert properties["CHECK_IMMUNITY_TIME_IN_SECONDS"] == "91"


async def test_the_group_of_a_tenant_has_its_full_name() -> None:
    settings = ProducerSettings(client=ClientSettings(namespace="red"))
    async with scripted_cluster() as cluster:
        cluster.topics.add("red%T")
        seen: list[str] = []

        def look_up(message: CheckedMessage) -> TransactionOutcome:
            seen.append(message.topic)
            return COMMIT

        async with producer(cluster, settings=settings, check=look_up) as shop:
            async with shop.transaction("T", b"x"):
                pass
            assert parse_properties(half(cluster).properties)["PGROUP"] == "red%shop"
            assert (ends(cluster)[0].producer_group, ends(cluster)[0].topic) == (
                "red%shop",
                "red%T",
            )
            header = CheckTransactionHeader(7, 700, "other", "other", broker_name="broker-a")
            cluster.broker.tell(
                request(
                    RequestCode.CHECK_TRANSACTION_STATE,
                    header,
                    record(7, b"body", message_id="other", topic="red%T"),
                    oneway=True,
                )
            )
            await until(lambda: len(ends(cluster)) > 1)
        assert seen == ["T"]
        assert (ends(cluster)[1].producer_group, ends(cluster)[1].topic) == ("red%shop", "red%T")


# The check handler


async def test_without_a_handler_the_answer_is_unknown(caplog: pytest.LogCaptureFixture) -> None:
    async with scripted_cluster() as cluster, producer(cluster) as shop:
        await shop.send("T", b"x")
        for _ in range(3):
            assert await answer(cluster, "other") is UNKNOWN
    assert caplog.text.count("has no check handler") == 1


@pytest.mark.parametrize("kind", ["plain", "async", "partial", "object"])
async def test_kinds_of_handlers(kind: str) -> None:
    def plain(message: CheckedMessage) -> TransactionOutcome:
        assert not trio.lowlevel.in_trio_task()  # it may block
        return COMMIT

    async def asynchronous(message: CheckedMessage) -> TransactionOutcome:
        await trio.lowlevel.checkpoint()
        return COMMIT

    class Handler:
        async def __call__(self, message: CheckedMessage) -> TransactionOutcome:
            return await asynchronous(message)

    handlers = {
        "plain": plain,
        "async": asynchronous,
        "partial": functools.partial(asynchronous),
        "object": Handler(),
    }
    async with scripted_cluster() as cluster, producer(cluster, check=handlers[kind]) as shop:
        await shop.send("T", b"x")
        assert await answer(cluster, "other") is COMMIT


async def test_a_handler_that_fails_leaves_the_message_open(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def look_up(message: CheckedMessage) -> TransactionOutcome:
        if message.transaction_id == "wrong":
            return True  # type: ignore[return-value]
        raise LookupError("no database")

    async with scripted_cluster() as cluster, producer(cluster, check=look_up) as shop:
        await shop.send("T", b"x")
        assert await answer(cluster, "other") is UNKNOWN
        assert await answer(cluster, "wrong") is UNKNOWN
    assert "LookupError: no database" in caplog.text
    assert "must return TransactionOutcome.COMMIT, ROLLBACK or UNKNOWN" in caplog.text


async def test_questions_beyond_the_limit_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    going_on = trio.Event()

    async def look_up(message: CheckedMessage) -> TransactionOutcome:
        await going_on.wait()
        return COMMIT

    settings = ProducerSettings(check_concurrency=1, check_waiting_max=2)
    async with (
        scripted_cluster() as cluster,
        producer(cluster, check=look_up, settings=settings) as shop,
    ):
        await shop.send("T", b"x")
        for number in range(6):
            check(cluster, f"m{number}")
        transactions = shop._transactions
        assert transactions is not None
        await until(lambda: transactions.checks.dropped >= 3)
        going_on.set()
        await until(lambda: len(ends(cluster)) == 3)
    assert "check_waiting_max=2 others wait" in caplog.text


async def test_a_check_that_waited_is_answered_by_what_is_decided_by_then() -> None:
    going_on, asked = trio.Event(), list[str]()

    async def look_up(message: CheckedMessage) -> TransactionOutcome:
        asked.append(message.message_id)
        await going_on.wait()
        return ROLLBACK

    settings = ProducerSettings(check_concurrency=1)
    async with (
        scripted_cluster() as cluster,
        producer(cluster, check=look_up, settings=settings) as shop,
    ):
        await shop.send("T", b"x")
        assert shop._transactions is not None
        checks = shop._transactions.checks
        check(cluster, "first")
        await until(lambda: asked == ["first"])
        check(cluster, "second")
        await until(lambda: checks._waiting.statistics().current_buffer_used == 1)
        checks.outcomes.decide("second", COMMIT)
        going_on.set()
        await until(lambda: len(ends(cluster)) == 2)
        verdicts = {each.message_id: TransactionOutcome(each.verdict) for each in ends(cluster)}
    assert verdicts == {"first": ROLLBACK, "second": COMMIT}
    assert asked == ["first"]


async def test_a_check_that_cannot_be_read_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with scripted_cluster() as cluster, producer(cluster) as shop:
        await shop.send("T", b"x")
        header = CheckTransactionHeader(7, 700)
        for body in (b"", b"garbage" * 20, record(1) + record(2)):
            cluster.broker.tell(
                request(RequestCode.CHECK_TRANSACTION_STATE, header, body, oneway=True)
            )
        await until(lambda: caplog.text.count("cannot be read") == 3)
        await shop.send("T", b"x")
        assert ends(cluster) == []


async def test_a_producer_that_has_sent_nothing_is_known_to_the_brokers() -> None:
    """A process that was started anew can be asked about the transactions of the old one."""
    async with scripted_cluster() as cluster:
        cluster.topics.add("RMQ_SYS_TRANS_HALF_TOPIC")
        async with producer(cluster, check=lambda message: ROLLBACK):
            await until(lambda: cluster.broker.count(RequestCode.HEART_BEAT) > 0)
            assert await answer(cluster, "of-the-old-process") is ROLLBACK


def golden_checks() -> list[Exchange]:
    return [one for one in exchanges() if one.code == RequestCode.CHECK_TRANSACTION_STATE]


@pytest.mark.parametrize("exchange", golden_checks(), ids=str)
async def test_checks_of_java_s_brokers(exchange: Exchange) -> None:
    """What Java's brokers were seen to send is read, and its places come back in the answer."""
    command = decode_frame(exchange.request[4:])
    asked: list[CheckedMessage] = []

    def look_up(message: CheckedMessage) -> TransactionOutcome:
        asked.append(message)
        return ROLLBACK

    async with scripted_cluster() as cluster, producer(cluster, check=look_up) as shop:
        await shop.send("T", b"x")
        cluster.broker.tell(command)
        await until(lambda: ends(cluster) != [])
    (end,) = ends(cluster)
    (message,) = asked
    question = command.header(CheckTransactionHeader)
    assert (end.half_queue_offset, end.log_offset) == (
        question.half_queue_offset,
        question.log_offset,
    )
    assert end.message_id == question.message_id == message.message_id
    assert message.topic == end.topic == "GoldTx"
    assert message.log_offset == question.log_offset


def golden_ends() -> list[Exchange]:
    return [one for one in exchanges() if one.code == END]


@pytest.mark.parametrize("exchange", golden_ends(), ids=str)
def test_ends_have_the_fields_of_java_s(exchange: Exchange) -> None:
    command = decode_frame(exchange.request[4:])
    header = command.header(EndTransactionHeader)
    assert header.verdict in (8, 12)
    assert request(END, header).ext == command.ext


# Java's form


async def test_java_s_form() -> None:
    async with scripted_cluster() as cluster, producer(cluster) as shop:
        seen: list[tuple[Message, object]] = []
        message = Message(topic="T", body=b"x")

        def local(message: Message, argument: object) -> TransactionOutcome:
            seen.append((message, argument))
            assert isinstance(argument, TransactionOutcome)
            return argument

        async def failing(message: Message, argument: object) -> TransactionOutcome:
            raise LookupError("no database")

        for outcome in (COMMIT, ROLLBACK, UNKNOWN):
            result = await shop.send_in_transaction(message, local, outcome)
            assert (result.outcome, result.confirmed) == (outcome, outcome is not UNKNOWN)
            assert seen.pop() == (message, outcome)
        result = await shop.send_in_transaction(message, failing)
        assert result.outcome is UNKNOWN
        assert result.receipt.queue == MessageQueue("T", "broker-a", 0)
        assert [end.verdict for end in ends(cluster)] == [8, 12]


# Through a broker of ours


async def test_a_broker_that_restarts_gets_the_outcome_when_it_asks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is down at the end of one block; another block begins before the restart and ends after
    it.
    """
    client = ClientSettings(heartbeat_interval=0.2, request_timeout=0.5, route_interval=0.2)
    settings = ProducerSettings(client=client)
    checks = {"transactionTimeOut": 500, "transactionCheckInterval": 300}
    async with local_cluster(settings=checks) as cluster:
        await cluster.create_topic("Orders", queues=1)
        async with Producer(cluster.namesrv_address, group="shop", settings=settings) as shop:
            async with shop.transaction("Orders", b"across") as across:
                async with shop.transaction("Orders", b"unheard") as unheard:
                    await cluster.stop_broker("broker-a")
                assert (unheard.outcome, unheard.confirmed) == (COMMIT, False)
                await cluster.start_broker("broker-a")
                await shop.queues("Orders")
            found = await read_topic(cluster.namesrv_address, "Orders", 2)
    assert sorted(message.body for message in found) == [b"across", b"unheard"]
    assert across.outcome is COMMIT
    assert "ends of transactions at broker-a: " in caplog.text
