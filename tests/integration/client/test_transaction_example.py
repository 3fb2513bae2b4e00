"""Transactions with a real database: the example, and the page's lines for PostgreSQL.

A process that is killed at any step leaves the row and the message, or neither.
"""

from __future__ import annotations

import importlib.util
import signal
import sqlite3
import subprocess
import sys
import time
import types
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import trio
from databases import postgresql_server
from pages import one
from serving import until
from topic_reader import read_topic

from triomq import CheckedMessage, Producer, TransactionOutcome, sync
from triomq.testing import InProcessCluster, local_cluster

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
CHECKS = {"transactionTimeOut": 500, "transactionCheckInterval": 300}
COMMIT, ROLLBACK, UNKNOWN = TransactionOutcome
STEPS = ("before-half", "after-half", "after-row", "after-end")
VICTIM = """
import os, signal, sys
import transactions as example
from triomq.sync import Producer

namesrv, path, step = sys.argv[1:]
insert = example.insert

def die(at):
    if at == step:
        os.kill(os.getpid(), signal.SIGKILL)

def dying_insert(*arguments):
    die("after-half")
    insert(*arguments)
    die("after-row")

example.insert = dying_insert
with Producer(namesrv, group="shop") as producer:
    die("before-half")
    example.place_order(producer, path, step, 1)
    die("after-end")
"""


def load_example() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("transactions", EXAMPLES / "transactions.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@asynccontextmanager
async def asking_cluster() -> AsyncIterator[InProcessCluster]:
    """Run a cluster that asks about transactions after half a second."""
    async with local_cluster(settings=CHECKS) as cluster:
        await cluster.create_topic("Orders", queues=1)
        yield cluster


async def kill(cluster: InProcessCluster, path: Path, step: str) -> None:
    """Place an order that is named after the step at which its process is killed."""
    command = [sys.executable, "-c", VICTIM, cluster.namesrv_address, str(path), step]
    with trio.fail_after(60):
        done = await trio.run_process(
            command, check=False, cwd=EXAMPLES, stdin=subprocess.DEVNULL, capture_stderr=True
        )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


def rows(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as database:
        return {order for (order,) in database.execute("SELECT id FROM orders")}


@pytest.mark.feature("159c")
@pytest.mark.feature("106a", "109a", "109b")
async def test_a_killed_process_leaves_the_row_and_the_message_or_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = load_example()
    monkeypatch.setattr(example, "BLOCK_SECONDS", 1.0)
    path = tmp_path / "orders.db"
    answers: list[tuple[str, TransactionOutcome]] = []

    def look_up(message: CheckedMessage) -> TransactionOutcome:
        outcome: TransactionOutcome = example.look_up(str(path), message)
        answers.append((message.keys[0], outcome))
        return outcome

    async with asking_cluster() as cluster:
        async with trio.open_nursery() as nursery:
            for step in STEPS:
                nursery.start_soon(kill, cluster, path, step)
        assert rows(path) == {"after-row", "after-end"}
        (message,) = await read_topic(cluster.namesrv_address, "Orders", 1)
        assert message.keys == ("after-end",)

        async with Producer(cluster.namesrv_address, group="shop", check=look_up):
            await until(lambda: {("after-half", ROLLBACK), ("after-row", COMMIT)} <= set(answers))
            asked = len(answers)
            await trio.sleep(1.5)
            assert len(answers) == asked, "what is settled is not asked again"
        found = [message, *await read_topic(cluster.namesrv_address, "Orders", 1)]
    assert sorted(message.keys[0] for message in found) == sorted(rows(path))
    assert {order for order, _ in answers} == {"after-half", "after-row"}


@pytest.mark.feature("109a")
async def test_a_row_that_may_still_come_is_not_rolled_back(tmp_path: Path) -> None:
    """The handler's answer is UNKNOWN while the block of another process may run."""
    example = load_example()
    path = str(tmp_path / "orders.db")
    answers: list[TransactionOutcome] = []

    def look_up(message: CheckedMessage) -> TransactionOutcome:
        answers.append(example.look_up(path, message))
        return answers[-1]

    async with (
        asking_cluster() as cluster,
        Producer(cluster.namesrv_address, group="shop", check=look_up) as producer,
    ):
        with trio.CancelScope() as scope:
            async with producer.transaction("Orders", b"late", keys=["late"]):
                scope.cancel()
                await trio.sleep_forever()
        await until(lambda: answers == [UNKNOWN])
        example.insert(path, "late", 1)
        await until(lambda: answers[-1] is COMMIT)
        (message,) = await read_topic(cluster.namesrv_address, "Orders", 1)
        assert message.keys == ("late",)


def block_until(condition: Callable[[], bool]) -> None:
    """Wait, in a thread."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.feature("106a")
async def test_the_page_s_lines_for_postgresql() -> None:
    async with asking_cluster() as cluster:
        with postgresql_server() as connection_string:
            await trio.to_thread.run_sync(
                use_postgresql, cluster.namesrv_address, connection_string
            )
        messages = await read_topic(cluster.namesrv_address, "Orders", 2)
    assert sorted(message.keys[0] for message in messages) == ["after-row", "order-1"]


def use_postgresql(namesrv: str, connection_string: str) -> None:
    """Run the page's lines, then interrupt a transaction before and after its rows."""
    names: dict[str, Any] = {"namesrv": namesrv, "connection_string": connection_string}
    exec(one("docs/sdk/transactions.md", "psycopg"), names)
    answers: dict[str, TransactionOutcome] = {}

    def look_up(message: CheckedMessage) -> TransactionOutcome:
        answers[message.keys[0]] = names["look_up"](message)
        return answers[message.keys[0]]

    with sync.Producer(namesrv, group="shop", check=look_up) as producer:
        with pytest.raises(KeyboardInterrupt):
            with producer.transaction("Orders", b"x", keys=["before-row"]) as early:
                raise KeyboardInterrupt
        late = producer.transaction("Orders", b"x", keys=["after-row"]).__enter__()
        with psycopg.connect(connection_string) as database:
            database.execute("INSERT INTO outcomes VALUES (%s, true)", [late.id])
        late.leave_open()
        block_until(lambda: len(answers) == 2)
        assert answers == {"before-row": ROLLBACK, "after-row": COMMIT}
        with psycopg.connect(connection_string) as database:
            with pytest.raises(psycopg.errors.UniqueViolation):  # the block comes too late
                database.execute("INSERT INTO outcomes VALUES (%s, true)", [early.id])
