"""Transactions with ``triomq.sync`` and ``triomq.aio``, through a broker of ours."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from threaded_cluster import cluster_in_a_thread

from triomq import CheckedMessage, Message, SettingsError, TransactionOutcome, aio, sync

COMMIT, ROLLBACK, UNKNOWN = TransactionOutcome
CHECKS = {"transactionTimeOut": 500, "transactionCheckInterval": 300}


@pytest.fixture
def namesrv() -> Iterator[str]:
    with cluster_in_a_thread(settings=CHECKS) as address:
        yield address


def bodies(namesrv: str, count: int) -> list[bytes]:
    """Return the bodies of ``count`` messages, and of further ones within half a second."""
    with sync.PushConsumer(
        namesrv, group="readers", subscriptions="Orders", consume_from="first"
    ) as consumer:
        found: list[bytes] = []
        while len(found) < count:
            messages = consumer.take(timeout=20)
            assert messages, f"only {found}"
            for message in messages:
                message.ack()
            found += [message.body for message in messages]
        return sorted([*found, *[message.body for message in consumer.take(timeout=0.5)]])


@pytest.mark.feature("106a")
def test_blocking_transactions(namesrv: str) -> None:
    asked: list[tuple[str, bool]] = []

    def check(message: CheckedMessage) -> TransactionOutcome:
        asked.append((message.transaction_id, threading.current_thread() is main))
        return COMMIT

    def local(message: Message, argument: object) -> TransactionOutcome:
        assert threading.current_thread() is main
        assert isinstance(argument, TransactionOutcome)
        return argument

    def failing(message: Message, argument: object) -> TransactionOutcome:
        raise LookupError("no database")

    async def asynchronous(message: object, argument: object = None) -> TransactionOutcome:
        return COMMIT

    main = threading.current_thread()
    with sync.Producer(namesrv, group="shop", check=check) as producer:
        with producer.transaction("Orders", b"committed", keys=["o-1"]) as transaction:
            assert repr(transaction).endswith("running>")
        assert (transaction.outcome, transaction.confirmed) == (COMMIT, True)
        assert transaction.id == transaction.receipt.message_id
        with pytest.raises(LookupError):
            with producer.transaction("Orders", b"rolled back") as transaction:
                raise LookupError
        assert transaction.outcome is ROLLBACK
        with pytest.raises(KeyboardInterrupt):
            with producer.transaction("Orders", b"interrupted") as interrupted:
                raise KeyboardInterrupt
        assert interrupted.outcome is UNKNOWN
        with producer.transaction("Orders", b"explicit") as transaction:
            assert transaction.commit(timeout=5)
        with producer.transaction("Orders", b"explicitly not") as transaction:
            assert transaction.rollback()
        with producer.transaction("Orders", b"left open") as left_open:
            left_open.leave_open()
        message = Message(topic="Orders", body=b"ported")
        result = producer.send_in_transaction(message, local, COMMIT, timeout=5)
        assert (result.outcome, result.confirmed) == (COMMIT, True)
        assert producer.send_in_transaction(message, local, ROLLBACK).outcome is ROLLBACK
        failed = producer.send_in_transaction(Message(topic="Orders", body=b"failed"), failing)
        assert failed.outcome is UNKNOWN
        with pytest.raises(SettingsError, match="a plain function"):
            producer.send_in_transaction(message, asynchronous)
        assert bodies(namesrv, 6) == [
            b"committed",
            b"explicit",
            b"failed",
            b"interrupted",
            b"left open",
            b"ported",
        ]
    assert {(found, False) for found in (interrupted.id, left_open.id)} < set(asked)
    with pytest.raises(SettingsError, match="check must be a plain function"):
        sync.Producer(namesrv, group="shop", check=asynchronous)


@pytest.mark.feature("106a")
def test_transactions_under_asyncio(namesrv: str) -> None:
    asked: list[str] = []

    async def check(message: CheckedMessage) -> TransactionOutcome:
        assert asyncio.get_running_loop() is loop
        asked.append(message.transaction_id)
        return COMMIT

    async def local(message: Message, argument: object) -> TransactionOutcome:
        assert asyncio.get_running_loop() is loop
        assert isinstance(argument, TransactionOutcome)
        return argument

    def plain(message: Message, argument: object) -> TransactionOutcome:
        assert threading.current_thread() is not main
        return COMMIT

    async def hang(transaction: aio.Transaction) -> None:
        async with transaction:
            await asyncio.sleep(60)

    async def work() -> None:
        nonlocal loop
        loop = asyncio.get_running_loop()
        async with aio.Producer(namesrv, group="shop", check=check) as producer:
            async with producer.transaction("Orders", b"committed") as transaction:
                pass
            assert (transaction.outcome, transaction.confirmed) == (COMMIT, True)
            with pytest.raises(LookupError):
                async with producer.transaction("Orders", b"rolled back") as transaction:
                    raise LookupError
            assert transaction.outcome is ROLLBACK
            cancelled = producer.transaction("Orders", b"cancelled")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(hang(cancelled), 0.5)
            assert cancelled.outcome is UNKNOWN
            async with producer.transaction("Orders", b"explicit") as transaction:
                assert await transaction.commit()
            async with producer.transaction("Orders", b"explicitly not") as transaction:
                assert await transaction.rollback()
            async with producer.transaction("Orders", b"left open") as transaction:
                await transaction.leave_open()
            message = Message(topic="Orders", body=b"ported")
            for outcome in (COMMIT, ROLLBACK):
                result = await producer.send_in_transaction(message, local, outcome)
                assert result.outcome is outcome
            assert (await producer.send_in_transaction(message, plain)).outcome is COMMIT
            assert await asyncio.to_thread(bodies, namesrv, 6) == [
                b"cancelled",
                b"committed",
                b"explicit",
                b"left open",
                b"ported",
                b"ported",
            ]
        assert {cancelled.id, transaction.id} == set(asked)

    main = threading.current_thread()
    loop: asyncio.AbstractEventLoop | None = None
    asyncio.run(work())
