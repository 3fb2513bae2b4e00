"""Transactions of our SDK through Java's brokers: ends, questions, a producer that is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import processes
import pytest
import trio
from serving import until
from topic_reader import read_topic

from triomq import CheckedMessage, Message, Producer, TransactionOutcome
from triomq.client.admin.admin import Admin

pytestmark = [pytest.mark.compat, pytest.mark.timeout(240)]

COMMIT, ROLLBACK, UNKNOWN = TransactionOutcome
SOON = {
    "transactionTimeOut": 1000,
    "transactionCheckInterval": 1000,
    # Java notes ended transactions so much later (default 3000); until then it asks again, and
    # commits again.
    "transactionOpBatchInterval": 100,
}
VICTIM = """
import os, signal, sys
from triomq.sync import Producer

with Producer(sys.argv[1], group="shop") as producer:
    for answer in ("commit", "rollback"):
        producer.transaction("Orders", b"killed, " + answer.encode(), keys=[answer]).__enter__()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.loss
@pytest.mark.compatible("transactions", peer="java-server-{java_version}")
@pytest.mark.feature("106a", "109a", "109b")
async def test_transactions_on_java_s_broker(java_version: str, tmp_path: Path) -> None:
    asked: dict[str, list[TransactionOutcome]] = {}
    answers = {"commit": COMMIT, "rollback": ROLLBACK, "late": UNKNOWN, "failed": COMMIT}

    def look_up(message: CheckedMessage) -> TransactionOutcome:
        key = message.keys[0]
        history = asked.setdefault(key, [])
        history.append(COMMIT if history and key == "late" else answers[key])
        return history[-1]

    async def failing(message: Message, argument: object) -> TransactionOutcome:
        raise LookupError("no database")

    with (
        processes.java_name_server(java_version, tmp_path / "namesrv") as namesrv,
        processes.java_broker(java_version, tmp_path / "broker", "broker-java", namesrv, **SOON),
    ):
        async with Admin(namesrv) as admin:
            await admin.create_topic("Orders", queues=1)
        killed = await trio.run_process(
            [sys.executable, "-c", VICTIM, namesrv], check=False, stdin=subprocess.DEVNULL
        )
        assert killed.returncode == -signal.SIGKILL
        began = time.monotonic()
        async with Producer(namesrv, group="shop", check=look_up) as producer:
            async with producer.transaction("Orders", b"committed", keys=["c"]) as transaction:
                pass
            assert (transaction.outcome, transaction.confirmed) == (COMMIT, True)
            with pytest.raises(LookupError):
                async with producer.transaction("Orders", b"rolled back") as transaction:
                    raise LookupError
            assert (transaction.outcome, transaction.confirmed) == (ROLLBACK, True)
            with trio.CancelScope() as scope:
                async with producer.transaction("Orders", b"late", keys=["late"]):
                    scope.cancel()
                    await trio.sleep_forever()
            ported = Message(topic="Orders", body=b"failed", keys=("failed",))
            assert (await producer.send_in_transaction(ported, failing)).outcome is UNKNOWN
            await until(
                lambda: (
                    {"commit", "rollback", "failed"} <= asked.keys()
                    and asked.get("late", [])[:2] == [UNKNOWN, COMMIT]
                )
            )
            found = await read_topic(namesrv, "Orders", 4)
            count = {key: len(history) for key, history in asked.items()}
            await trio.sleep(1.5)
            assert count == {key: len(history) for key, history in asked.items()}
        print(f"all were settled after {time.monotonic() - began:.1f} s")
    assert sorted(message.body for message in found) == [
        b"committed",
        b"failed",
        b"killed, commit",
        b"late",
    ]
    assert {message.topic for message in found} == {"Orders"}
