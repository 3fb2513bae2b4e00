"""Transactions in a simulated history: producers that commit, roll back or leave open, a database
that knows every outcome, and what was promised.

The database is a dict that no fault reaches: what a block decides is in it before the block ends,
as a row that is committed. A clerk answers the checks of brokers from it until the end.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import attrs
import trio
from history import Stored
from simulated_cluster import SimulatedCluster

from triomq.client import (
    BrokerError,
    CheckedMessage,
    NoNameServer,
    Producer,
    RouteNotFound,
    SendError,
    TransactionOutcome,
)
from triomq.client.core.config import ClientSettings, ProducerSettings
from triomq.client.core.errors import TrioMQError

TRANSACTION_TOPIC, GROUP = "X", "PX"
BROKER_SETTINGS = {"transactionTimeOut": 1000, "transactionCheckInterval": 2000}
"""Histories are short."""


class Undone(Exception):
    """A block rolls back."""


@attrs.frozen
class Begun:
    """A transaction whose block was entered: its half was acknowledged."""

    key: str
    time: float
    ended: bool
    """Whether the producer decided it; otherwise it was left open."""


@attrs.define(eq=False)
class TransactionTraffic:
    """``sending``: whether the producers go on. ``client``: settings for a client of this name."""

    cluster: SimulatedCluster
    seed: int
    retries: int
    sending: Callable[[], bool]
    client: Callable[[str], ClientSettings]
    begun: list[Begun] = attrs.field(factory=list)
    database: dict[str, bool] = attrs.field(factory=dict)
    """Key -> whether its row was committed."""
    tried: dict[str, float] = attrs.field(factory=dict)
    """Key -> when its half was sent first."""
    senders: int = 0

    async def sell(self, name: str) -> None:
        """A producer: one transaction after the other."""
        choose = random.Random(f"{self.seed} {name} transactions")
        self.senders += 1
        number = 0
        while self.sending():
            try:
                async with self._producer(name) as producer:
                    while self.sending():
                        number += 1
                        await self._transact(producer, f"{name}.x{number}", choose)
                        await trio.sleep(choose.choice((0.1, 0.3, 1.0)))
            except TrioMQError:
                await trio.sleep(0.5)
        self.senders -= 1

    async def answer_checks(self, name: str) -> None:
        """The clerk: a producer of the group that sends nothing and lives until the end."""
        while True:
            try:
                async with self._producer(name):
                    await trio.sleep_forever()
            except TrioMQError:
                await trio.sleep(0.5)

    def _producer(self, name: str) -> Producer:
        settings = ProducerSettings(
            retries=self.retries, client=self.client(f"{name}-transactions")
        )
        return Producer(
            self.cluster.namesrv_address, group=GROUP, settings=settings, check=self._check
        )

    async def _check(self, message: CheckedMessage) -> TransactionOutcome:
        key = message.body.decode().partition(":")[0]
        outcome = {
            None: TransactionOutcome.UNKNOWN,  # its block has not decided yet
            True: TransactionOutcome.COMMIT,
            False: TransactionOutcome.ROLLBACK,
        }[self.database.get(key)]
        self.cluster.simulation.trace.note(f"check of {key}: {outcome.name}")
        return outcome

    async def _transact(self, producer: Producer, key: str, choose: random.Random) -> None:
        self.tried[key] = trio.current_time()
        commit, leave, seconds = (
            choose.random() < 0.6,
            choose.random() < 0.3,
            choose.choice((0.0, 0.05, 2.5)),
        )
        how = "left open" if leave else "ended"
        try:
            async with producer.transaction(TRANSACTION_TOPIC, f"{key}:".encode()) as transaction:
                await trio.sleep(seconds)
                self.database[key] = commit
                self.begun.append(Begun(key, trio.current_time(), not leave))
                if leave:
                    await transaction.leave_open()
                elif not commit:
                    raise Undone
        except Undone:
            pass
        except (SendError, BrokerError, RouteNotFound, NoNameServer) as error:
            how = f"not begun: {type(error).__name__}"
        finally:
            self.database.setdefault(key, False)  # a half without a block is rolled back
        self.cluster.simulation.trace.note(f"{key}: {'commit' if commit else 'roll back'}, {how}")

    def violations(self, stored: Sequence[Stored]) -> Iterator[str]:
        """Broken promises, in words. ``stored``: what the topic has in the end."""
        counts = Counter(one.key for one in stored)
        for one in self.begun:
            if self.database[one.key] and not counts[one.key]:
                yield f"transaction {one.key} was committed, and its message is not there"
        for key, count in counts.items():
            if not self.database.get(key):
                known = "rolled back" if key in self.database else "never begun"
                yield f"transaction {key} was {known}, and its message is there"
                continue
            crashes = sum(start.time >= self.tried[key] for start in self.cluster.starts)
            if count > 1 + self.retries + crashes:
                yield f"transaction {key} was delivered {count} times, with {crashes} crashes since"
