"""Consumers under ``@once`` that kill themselves with SIGKILL, one at each step of a message.

    python once_victims.py NAMESRV TOPIC KIND ADDRESS LEASE

For each step, with a claim and (where the store has them) with a transaction, a process forks that
joins the group ``<mode>-<step>`` and dies. The parent ends with 0 when all are dead.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import attrs
import trio
from once_databases import Database

from triomq import OnceTransaction, PushConsumer, ReceivedMessage, once
from triomq.client.idempotency.claims import Busy, Done

STEPS = ("unclaimed", "claimed", "effect", "marked")
SECONDS_MAX = 40


def groups(database: Database) -> list[tuple[str, str]]:
    """Return mode and step of each victim."""
    modes = ("claim", "transaction") if database.transactional else ("claim",)
    return [(mode, step) for mode in modes for step in STEPS]


@attrs.define
class DeadlyStore:
    """A store whose process dies before or after a step."""

    store: Any
    step: str

    @property
    def lease(self) -> float:
        return float(self.store.lease)

    def at(self, step: str) -> None:
        if step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)

    def claim(self, scope: str, key: str) -> Any:
        return self.deadly(self.store.claim, scope, key)

    def begin(self, scope: str, key: str) -> Any:
        return self.deadly(self.store.begin, scope, key)

    def deadly(self, claim: Any, scope: str, key: str) -> Any:
        self.at("unclaimed")
        held = claim(scope, key)
        if isinstance(held, Busy | Done):
            return held
        self.at("claimed")
        return DeadlyHeld(self, held)

    def close(self) -> None:
        self.store.close()


@attrs.define
class DeadlyHeld:
    store: DeadlyStore
    held: Any

    @property
    def connection(self) -> Any:
        return self.held.connection

    def finish(self) -> bool:
        self.store.at("effect")
        marked = bool(self.held.finish())
        self.store.at("marked")
        return marked

    def release(self) -> None:
        self.held.release()


def make_handler(database: Database, store: Any, mode: str, group: str) -> Any:
    """Return the handler of a group, whose effect has the group's name."""
    if mode == "claim":

        @once(store)
        async def handle(message: ReceivedMessage) -> None:
            await trio.to_thread.run_sync(database.add_effect, group)

        return handle

    @once(store, transaction=True)
    async def handle_in_transaction(
        message: ReceivedMessage, transaction: OnceTransaction[Any]
    ) -> None:
        statement = database.in_dialect("INSERT INTO effects VALUES (?)")
        await transaction.execute(statement, (group,))

    return handle_in_transaction


async def consume(
    namesrv: str, topic: str, database: Database, lease: float, mode: str, step: str
) -> None:
    group = f"{mode}-{step}"
    store = DeadlyStore(database.store(lease=lease), step)
    async with PushConsumer(
        namesrv,
        group=group,
        subscriptions=topic,
        consume_from="first",
        handler=make_handler(database, store, mode, group),
    ):
        await trio.sleep(SECONDS_MAX)


def main(namesrv: str, topic: str, kind: str, address: str, lease: str) -> int:
    database = Database(kind, address)
    children = {}
    for mode, step in groups(database):
        child = os.fork()
        if child == 0:
            trio.run(consume, namesrv, topic, database, float(lease), mode, step)
            os._exit(3)
        children[child] = f"{mode}-{step}"
    survived = []
    for child, group in children.items():
        _, status = os.waitpid(child, 0)
        if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
            survived.append(f"{group}: {status}")
    print("survived", survived)
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
