"""``@once`` with real databases and a real cluster: copies, kills, take-over, transactions."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from databases import postgresql_server, redis_server
from once_databases import Database
from once_victims import groups, make_handler
from serving import until

from triomq import (
    ClaimBusy,
    ClaimLost,
    ConsumerSettings,
    OnceStatistics,
    OnceStoreFailed,
    OnceTransaction,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    aio,
    once,
    sync,
)
from triomq.client.core.config import ClientSettings
from triomq.client.idempotency.claims import Busy, Done
from triomq.remoting.protocol.ids import UniqueIds
from triomq.testing import InProcessCluster, local_cluster

SUPPORT = Path(__file__).resolve().parents[2] / "support"
QUICK = ConsumerSettings(
    retry_delay=0.05, rebalance_retry=0.05, client=ClientSettings(shutdown_timeout=2)
)
SQL = ("sqlite", "postgresql")


def of_kinds(*kinds: str, row: str = "") -> Any:
    """Parametrise ``database``; ``row`` is the feature's clause."""
    marks = (pytest.mark.feature(row),) if row else ()
    return pytest.mark.parametrize(
        "database", [pytest.param(kind, marks=marks) for kind in kinds], indirect=True
    )


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    with postgresql_server() as address:
        yield address


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with redis_server() as url:
        yield url


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """A database without marks, but with the table for effects."""
    kind = request.param
    if kind == "sqlite":
        address = str(tmp_path / "once.db")
    else:
        address = request.getfixturevalue({"redis": "redis_url"}.get(kind, kind))
    made = Database(kind, address)
    made.prepare()
    if kind == "postgresql":
        made.ask("DROP TABLE IF EXISTS triomq_once")
        made.ask("DELETE FROM effects")
    if kind == "redis":
        made.clear()
    return made


def consumer(
    cluster: InProcessCluster, handler: Any, group: str = "billing", **options: Any
) -> PushConsumer:
    return PushConsumer(
        cluster.namesrv_address,
        group=group,
        subscriptions="Orders",
        consume_from="first",
        handler=handler,
        settings=QUICK,
        **options,
    )


async def send_copies(cluster: InProcessCluster, names: list[str], copies: int = 1) -> None:
    """Send each message ``copies`` times with one id, as a producer does that had no answer."""
    async with Producer(cluster.namesrv_address, group="shop") as producer:
        for name in names:
            one_id = producer._active().ids.next(0)
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(UniqueIds, "next", lambda *_, one_id=one_id: one_id)
                for _ in range(copies):
                    await producer.send("Orders", name.encode())


@pytest.mark.parametrize(
    "database",
    [
        pytest.param("sqlite", marks=pytest.mark.feature("193a")),
        pytest.param("postgresql", marks=pytest.mark.feature("193b")),
        pytest.param("redis", marks=pytest.mark.feature("193c")),
    ],
    indirect=True,
)
async def test_copies_have_one_effect(triomq_cluster: InProcessCluster, database: Database) -> None:
    """Copies in different queues reach two members of the group at once."""
    names = [f"order {number}" for number in range(8)]
    await send_copies(triomq_cluster, names, copies=4)

    async def bill(message: ReceivedMessage) -> None:
        await trio.sleep(0.05)  # the copies arrive meanwhile
        await trio.to_thread.run_sync(database.add_effect, message.body.decode())

    with database.store() as first_store, database.store() as second_store:
        first, second = once(first_store)(bill), once(second_store)(bill)
        async with consumer(triomq_cluster, first), consumer(triomq_cluster, second):
            await until(lambda: handled(first, second) >= 32)
        assert [database.effects(name) for name in names] == [1] * 8
        assert first.statistics().done + second.statistics().done == 8
        # Another group has effects of its own.
        other = once(first_store)(bill)
        async with consumer(triomq_cluster, other, group="audit"):
            await until(lambda: handled(other) >= 32)
        assert [database.effects(name) for name in names] == [2] * 8


def handled(*handlers: Any) -> int:
    """Return the number of messages that need not come again."""
    return sum(one.statistics().done + one.statistics().duplicates for one in handlers)


@of_kinds("sqlite", "postgresql", "redis", row="193d")
async def test_a_retried_copy_is_the_same_message(
    triomq_cluster: InProcessCluster, database: Database
) -> None:
    """It has a new offset in the retry topic; a retry before the effect is no effect."""
    await send_copies(triomq_cluster, ["order"])
    seen: list[ReceivedMessage] = []

    with database.store() as store:

        @once(store)
        async def bill(message: ReceivedMessage) -> None:
            seen.append(message)
            if len(seen) == 1:
                await message.retry(1)
                return
            await trio.to_thread.run_sync(database.add_effect, "order")

        async with consumer(triomq_cluster, None) as messages:
            first = await anext(messages)
            await bill(first)
            assert first.given_back
            assert bill.statistics() == OnceStatistics(0, 0, 1, 0, 0)
            second = await anext(messages)
            await bill(second)
            await second.retry(1)  # as if this member had died before the ack
            third = await anext(messages)
            await bill(third)
            await third.ack()
        assert [message.reconsume_times for message in (first, second, third)] == [0, 1, 2]
        assert len({message.offset_message_id for message in (first, second, third)}) == 3
        assert database.effects("order") == 1
        assert bill.statistics() == OnceStatistics(1, 1, 1, 0, 0)


@of_kinds("sqlite", "postgresql", "redis", row="193e")
async def test_a_consumer_is_killed_at_each_step(
    triomq_cluster: InProcessCluster, database: Database
) -> None:
    """With a claim the effect happens at least once, and twice only if the process died between
    effect and mark. In a transaction it happens exactly once.
    """
    await send_copies(triomq_cluster, ["order"])
    lease = 1.5
    address = triomq_cluster.namesrv_address
    command = [
        sys.executable,
        *("-W", "error", str(SUPPORT / "once_victims.py")),
        *(address, "Orders", database.kind, database.address, str(lease)),
    ]
    done = await trio.run_process(command, capture_stdout=True, check=False)
    assert done.returncode == 0, done.stdout
    handlers = {}
    with database.store(lease=lease) as store:
        async with trio.open_nursery() as nursery:
            for mode, step in groups(database):
                group = f"{mode}-{step}"
                handler = handlers[group] = make_handler(database, store, mode, group)
                nursery.start_soon(run_until_handled, triomq_cluster, handler, group)
    effects = {group: database.effects(group) for group in handlers}
    twice = {"claim-effect"}
    assert effects == {group: 2 if group in twice else 1 for group in handlers}
    assert {group for group, made in handlers.items() if made.statistics().duplicates} == {
        group for group in handlers if group.endswith("-marked")
    }


async def run_until_handled(cluster: InProcessCluster, handler: Any, group: str) -> None:
    async with consumer(cluster, handler, group=group):
        await until(lambda: handled(handler) >= 1)


@of_kinds("sqlite", "postgresql", "redis", row="193f")
def test_claims_and_marks_end(database: Database) -> None:
    """The claim of a dead process ends with its lease, a mark with its retention."""
    with database.store(lease=0.4, retention=0.6) as store:
        dead = store.claim("g/t", "key")
        assert store.claim("g/t", "key") == Busy()
        time.sleep(0.5)
        successor = store.claim("g/t", "key")
        assert not isinstance(successor, Busy | Done)
        assert not dead.finish()  # it was too slow, and another consumer has the key
        dead.release()
        assert store.claim("g/t", "key") == Busy()
        assert successor.finish()
        assert successor.finish()  # repeated, as if the answer had been lost
        assert store.claim("g/t", "key") == Done()
        time.sleep(0.7)
        assert not isinstance(store.claim("g/t", "key"), Busy | Done)
        # A handler that is late, and whose key nobody wanted, still marks it.
        late = store.claim("g/t", "late")
        time.sleep(0.5)
        if database.transactional:
            assert store.clean() == 2
        assert late.finish()
        assert store.claim("g/t", "late") == Done()


@of_kinds(*SQL, row="193f")
def test_what_has_ended_is_removed(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triomq.client.idempotency.sql_store._CLAIMS_BETWEEN_CLEANINGS", 10)
    with database.store(lease=0.001, retention=0.001) as store:
        for number in range(60):
            store.claim("g/t", f"key {number}").finish()
        [(rows,)] = database.ask("SELECT count(*) FROM triomq_once")
        assert rows < 20
        time.sleep(0.01)
        assert store.clean() == rows


@of_kinds("redis", row="193f")
def test_redis_removes_what_has_ended(database: Database) -> None:
    with database.store(lease=0.2, retention=0.2) as store:
        for number in range(20):
            store.claim("g/t", f"key {number}").finish()
        assert database.keys() == 20
        time.sleep(0.5)
        assert database.keys() == 0


@of_kinds("sqlite")
async def test_failed_and_cancelled_handlers_give_the_key_up(database: Database) -> None:
    calls = []

    with database.store() as store:

        @once(store)
        async def handle(message: Any) -> None:
            calls.append(message)
            if len(calls) == 1:
                raise KeyError("no such customer")
            if len(calls) == 2:
                await trio.sleep_forever()

        message = await one_message()
        with pytest.raises(KeyError):
            await handle(message)
        with trio.move_on_after(0.2) as scope:
            await handle(message)
        assert scope.cancelled_caught
        await handle(message)
        await handle(message)
        assert len(calls) == 3
        assert handle.statistics() == OnceStatistics(1, 1, 2, 0, 0)


@of_kinds("sqlite")
async def test_a_handler_that_is_too_slow_is_cancelled(database: Database) -> None:
    """So its successor does not work at the same time; nothing waits for longer than ``wait``."""
    message = await one_message()
    with database.store(lease=0.5) as store:

        @once(store, wait=0.1)
        async def handle(message: Any) -> None:
            await trio.sleep_forever()

        with pytest.raises(ClaimLost, match=r"longer than the lease of 0\.5 s"):
            await handle(message)
        assert handle.statistics() == OnceStatistics(0, 0, 1, 0, 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(handle, message)
            await trio.sleep(0.1)
            with pytest.raises(ClaimBusy, match=r"another consumer has worked on it for 0\.1 s"):
                await handle(message)
            nursery.cancel_scope.cancel()
        assert handle.statistics().busy == 1


async def one_message() -> Any:
    """Return a message that a consumer has received."""
    async with local_cluster() as cluster:
        await send_copies(cluster, ["order"])
        async with consumer(cluster, None) as messages:
            return await anext(messages)


@of_kinds(*SQL)
async def test_a_transaction_has_all_or_nothing(database: Database) -> None:
    statement = database.in_dialect("INSERT INTO effects VALUES (?)")
    message = await one_message()
    ends: list[str] = ["error", "cancelled", "retry", "commit"]
    settled: list[str] = []

    with database.store() as store:

        @once(store, transaction=True)
        async def handle(message: Any, transaction: OnceTransaction[Any]) -> None:
            await transaction.execute(statement, ("first",))
            await transaction.run(lambda connection: connection.execute(statement, ("second",)))
            found = await transaction.execute("SELECT count(*) FROM effects")
            assert found == [(2,)]
            end = ends.pop(0)
            settled.append(end)
            if end == "error":
                raise KeyError(end)
            if end == "cancelled":
                await trio.sleep_forever()

        with pytest.raises(KeyError):
            await handle(message)
        with trio.move_on_after(0.3):
            await handle(message)
        assert database.effects("first") == 0
        message._settled = message._given_back = True
        await handle(message)
        message._settled = message._given_back = False
        assert database.effects("first") == 0
        await handle(message)
        await handle(message)
        assert database.effects("first") == database.effects("second") == 1
        assert settled == ["error", "cancelled", "retry", "commit"]


@of_kinds(*SQL)
async def test_a_transaction_that_the_handler_ended_is_an_error(database: Database) -> None:
    statement = database.in_dialect("INSERT INTO effects VALUES (?)")
    message = await one_message()
    with database.store() as store:

        @once(store, transaction=True)
        async def commits(message: Any, transaction: OnceTransaction[Any]) -> None:
            await transaction.execute(statement, ("committed",))
            await transaction.execute("COMMIT")

        with pytest.raises(ClaimLost, match="the handler ended it"):
            await commits(message)
        await commits(message)  # the mark was committed with it, so it stays one effect
        assert database.effects("committed") == 1


@of_kinds("postgresql")
async def test_a_hidden_error_of_a_statement_is_found(database: Database) -> None:
    """PostgreSQL turns the COMMIT of a failed transaction into a ROLLBACK, without an error."""
    message = await one_message()
    with database.store() as store:

        @once(store, transaction=True)
        async def handle(message: Any, transaction: OnceTransaction[Any]) -> None:
            await transaction.execute("INSERT INTO effects VALUES ('hidden')")
            with pytest.raises(Exception, match="no_such_table"):
                await transaction.execute("SELECT * FROM no_such_table")

        with pytest.raises(ClaimLost, match="hid an error"):
            await handle(message)
        assert database.effects("hidden") == 0
        again = store.begin("billing/Orders", message.message_id)
        assert not isinstance(again, Done)
        again.release()


@of_kinds("postgresql")
def test_connections_that_ended_while_idle_are_replaced(database: Database) -> None:
    with database.store() as store:
        store.claim("g/t", "key").finish()
        ended = database.ask(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'triomq-once'"
        )
        assert (True,) in ended
        assert store.claim("g/t", "key") == Done()


@of_kinds("postgresql")
def test_the_server_ends_a_transaction_that_takes_too_long(database: Database) -> None:
    """A consumer that lost its network does not hold its successor up for longer."""
    with database.store(lease=0.8) as store:
        lost = store.begin("g/t", "key")
        assert store.begin("g/t", "key") == Busy()
        successor = store.begin("g/t", "key")
        assert not isinstance(successor, Busy | Done)
        assert successor.finish()
        with pytest.raises(OnceStoreFailed, match="idle-in-transaction timeout"):
            lost.finish()


@of_kinds(*SQL)
async def test_many_handlers_share_the_threads(
    triomq_cluster: InProcessCluster, database: Database
) -> None:
    """There are more handlers than threads; those that wait do not stop the one that works."""
    await send_copies(triomq_cluster, [f"order {number}" for number in range(60)])
    statement = database.in_dialect("INSERT INTO effects VALUES (?)")
    with database.store() as store:

        @once(store, transaction=True)
        async def handle(message: ReceivedMessage, transaction: OnceTransaction[Any]) -> None:
            await transaction.execute(statement, ("each",))

        async with consumer(triomq_cluster, handle, concurrency=60):
            await until(lambda: handled(handle) >= 60)
        assert database.effects("each") == 60
        assert handle.statistics() == OnceStatistics(60, 0, 0, 0, 0)


@of_kinds("postgresql")
async def test_a_pull_loop(triomq_cluster: InProcessCluster, database: Database) -> None:
    await send_copies(triomq_cluster, ["one", "two"], copies=3)
    with database.store() as store:

        @once(store, key=lambda message: message.body.decode())
        async def handle(message: Any) -> None:
            await trio.to_thread.run_sync(database.add_effect, message.body.decode())

        async with PullConsumer(
            triomq_cluster.namesrv_address,
            group="reports",
            subscriptions="Orders",
            consume_from="first",
            settings=QUICK,
        ) as messages:
            while handled(handle) < 6:
                for message in await messages.poll():
                    await handle(message)
        assert (database.effects("one"), database.effects("two")) == (1, 1)


@of_kinds(*SQL)
def test_blocking_handlers(triomq_server: str, database: Database) -> None:
    topic = f"Sync{database.kind}"
    statement = database.in_dialect("INSERT INTO effects VALUES (?)")
    with database.store() as store:

        @sync.once(store, key=lambda message: message.body.decode(), transaction=True)
        def handle(message: sync.ReceivedMessage, transaction: sync.OnceTransaction[Any]) -> None:
            if not message.reconsume_times:
                transaction.execute(statement, ("sync",))
                raise KeyError("the first time")
            transaction.execute(statement, ("sync",))
            transaction.run(lambda connection: connection.execute(statement, ("run",)))

        @sync.once(store, key=lambda message: message.body.decode())
        def claimed(message: sync.ReceivedMessage) -> None:
            database.add_effect("claimed")

        with sync.Producer(triomq_server, group="shop") as producer:
            for _ in range(3):
                producer.send(topic, b"order")
        with sync.PushConsumer(
            triomq_server, group="sync", subscriptions=topic, consume_from="first"
        ) as messages:
            taken = [next(messages) for _ in range(3)]
            with pytest.raises(KeyError):
                handle(taken[0])
            for message_taken in taken:
                claimed(message_taken)
        assert database.effects("sync") == 0
        assert database.effects("claimed") == 1
        assert claimed.statistics() == OnceStatistics(1, 2, 0, 0, 0)
        with sync.PushConsumer(
            triomq_server, group="other", subscriptions=topic, consume_from="first", handler=claimed
        ):
            wait_handled(claimed, 6)
        assert database.effects("claimed") == 2


def wait_handled(handler: Any, count: int) -> None:
    end = time.monotonic() + 30
    while handled(handler) < count:
        assert time.monotonic() < end, handler.statistics()
        time.sleep(0.01)


@of_kinds(*SQL)
async def test_asyncio_handlers(triomq_server: str, database: Database) -> None:
    topic = f"Aio{database.kind}"
    statement = database.in_dialect("INSERT INTO effects VALUES (?)")

    async def main() -> None:
        calls = []
        with database.store(lease=1.0) as store:

            @aio.once(store, key=lambda message: message.body.decode(), transaction=True)
            async def handle(
                message: aio.ReceivedMessage, transaction: aio.OnceTransaction[Any]
            ) -> None:
                calls.append(message)
                await transaction.execute(statement, ("aio",))
                if len(calls) == 1:
                    raise KeyError("the first time")
                if len(calls) < 4:
                    await asyncio.sleep(60)
                await transaction.run(lambda connection: connection.execute(statement, ("run",)))

            async with aio.Producer(triomq_server, group="shop") as producer:
                await asyncio.gather(*(producer.send(topic, b"order") for _ in range(3)))
            async with aio.PushConsumer(
                triomq_server, group="aio", subscriptions=topic, consume_from="first"
            ) as messages:
                taken = [await anext(messages) for _ in range(3)]
                with pytest.raises(KeyError):
                    await handle(taken[0])
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.3):
                        await handle(taken[0])
                with pytest.raises(ClaimLost):
                    await handle(taken[0])
                await asyncio.gather(*(handle(one) for one in taken))
            assert database.effects("aio") == database.effects("run") == 1
            assert handle.statistics() == OnceStatistics(1, 2, 3, 0, 1)
            async with aio.PushConsumer(
                triomq_server,
                group="other",
                subscriptions=topic,
                consume_from="first",
                handler=handle,
            ):
                await asyncio.to_thread(wait_handled, handle, 6)
            assert database.effects("aio") == 2

    await trio.to_thread.run_sync(asyncio.run, main())


async def test_a_database_that_is_away_is_an_error_that_names_it(tmp_path: Path) -> None:
    """The handler is not called, so the message comes again later."""
    message = await one_message()
    nowhere = tmp_path / "none"
    for kind, address, said in (
        ("sqlite", str(nowhere / "once.db"), "SQLite .*unable to open database file"),
        ("postgresql", f"host={nowhere} dbname=shop", "PostgreSQL host=.* dbname=shop"),
        ("redis", f"unix://{nowhere}/redis.sock", "Redis"),
    ):
        with Database(kind, address).store() as store:

            @once(store)
            async def handle(message: Any) -> None:
                pytest.fail("called without a claim")

            with pytest.raises(OnceStoreFailed, match=f"{said}.*comes again"):
                await handle(message)
