"""Transactions of several producers while brokers crash, in virtual time: a row and its message, or
neither.
"""

from __future__ import annotations

from collections import Counter

import attrs
import pytest
import trio

from triomq import (
    CheckedMessage,
    Producer,
    ProducerSettings,
    PushConsumer,
    ReceivedMessage,
    TransactionOutcome,
    TrioMQError,
)
from triomq.client.core.config import ClientSettings
from triomq.testing import InProcessCluster, Simulation, local_cluster, simulate

COMMIT, ROLLBACK, UNKNOWN = TransactionOutcome
SETTINGS = ProducerSettings(client=ClientSettings(heartbeat_interval=2, route_interval=2))
ORDERS = 12
"""of each producer"""


class NoStock(Exception):
    """The local work failed."""


@attrs.define
class Database:
    """The rows of orders, as every process sees them, and the orders whose blocks run."""

    rows: set[str] = attrs.field(factory=set)
    running: set[str] = attrs.field(factory=set)
    checks: Counter[TransactionOutcome] = attrs.field(factory=Counter)

    async def look_up(self, message: CheckedMessage) -> TransactionOutcome:
        await trio.sleep(0.01)
        (order,) = message.keys
        outcome = COMMIT if order in self.rows else UNKNOWN if order in self.running else ROLLBACK
        self.checks[outcome] += 1
        return outcome


async def place_order(
    simulation: Simulation, producer: Producer, database: Database, order: str
) -> None:
    """Run one block, which ends, fails or is cancelled, before or after its row is written."""
    chance = simulation.random
    fate = chance.choice(["fine", "fine", "fails", "cancelled", "left open"])
    database.running.add(order)
    try:
        with trio.CancelScope() as scope:
            async with producer.transaction("Orders", order.encode(), keys=[order]) as transaction:
                await trio.sleep(chance.expovariate(0.5))
                if fate == "fails":
                    raise NoStock
                if fate == "cancelled" and chance.random() < 0.5:
                    scope.cancel()
                    await trio.sleep_forever()
                database.rows.add(order)  # the database commits
                if fate == "cancelled":
                    scope.cancel()
                    await trio.sleep_forever()
                if fate == "left open":
                    await transaction.leave_open()
    except (NoStock, TrioMQError):
        pass
    finally:
        database.running.discard(order)


async def sell(
    simulation: Simulation, cluster: InProcessCluster, database: Database, name: str
) -> None:
    """Run a producer, and after its end another one of the same group."""
    for life in range(2):
        async with Producer(
            cluster.namesrv_address, group="shop", check=database.look_up, settings=SETTINGS
        ) as producer:
            with trio.move_on_after(30):  # what still runs then is cancelled
                async with trio.open_nursery() as nursery:
                    for number in range(ORDERS // 2):
                        order = f"{name}-{life}-{number}"
                        nursery.start_soon(place_order, simulation, producer, database, order)
                        await trio.sleep(simulation.random.expovariate(0.5))


async def trouble(simulation: Simulation, cluster: InProcessCluster) -> None:
    """Crash and start brokers."""
    for _ in range(4):
        await trio.sleep(simulation.random.uniform(2, 10))
        broker = simulation.random.choice(cluster.brokers).name
        await cluster.crash_broker(broker)
        await trio.sleep(simulation.random.uniform(0, 10))
        await cluster.start_broker(broker)


async def shop(simulation: Simulation) -> tuple[Database, Counter[str]]:
    database, got = Database(), Counter[str]()

    async def handle(message: ReceivedMessage) -> None:
        got[message.body.decode()] += 1

    checks = {"transactionTimeOut": 2000, "transactionCheckInterval": 5000}
    async with local_cluster(brokers=2, settings=checks) as cluster:
        await cluster.create_topic("Orders", queues=2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trouble, simulation, cluster)
            for name in ("ann", "ben"):
                nursery.start_soon(sell, simulation, cluster, database, name)
        async with (
            Producer(
                cluster.namesrv_address, group="shop", check=database.look_up, settings=SETTINGS
            ),
            PushConsumer(
                cluster.namesrv_address,
                group="stock",
                subscriptions="Orders",
                handler=handle,
                consume_from="first",
            ),
        ):
            await trio.sleep(120)
    return database, got


@pytest.mark.parametrize("seed", range(3))
def test_every_row_has_its_message_and_no_other_order_has_one(seed: int) -> None:
    database, got = simulate(seed, shop)
    assert set(got) == database.rows
    assert 0 < len(database.rows) < 2 * ORDERS
    assert database.checks[COMMIT] + database.checks[ROLLBACK] > 0
