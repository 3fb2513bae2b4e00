"""An order and its message: both appear, or neither, whatever is killed in between.

The orders are in a SQLite file. A message belongs to the row of its key.

NAMESRV_ADDR=127.0.0.1:9876 python examples/transactions.py 127.0.0.1:9876 orders.db
"""

import sqlite3
import sys
import time
from contextlib import closing
from functools import partial

from triomq.sync import CheckedMessage, Producer, PushConsumer, TransactionOutcome

BLOCK_SECONDS = 10.0
"""Longer than any order takes: a row that is missing for longer will not come."""
TABLE = "CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, pieces INTEGER CHECK (pieces > 0))"


def insert(path: str, order: str, pieces: int) -> None:
    """Write the row of an order: the local transaction."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(TABLE)
        database.execute("INSERT INTO orders VALUES (?, ?)", (order, pieces))


def place_order(producer: Producer, path: str, order: str, pieces: int) -> None:
    """Write an order's row and send its message, or do neither."""
    with producer.transaction("Orders", order.encode(), keys=[order]):
        insert(path, order, pieces)


def has_row(path: str, order: str) -> bool:
    """Return whether an order is in the database."""
    with closing(sqlite3.connect(path)) as database:
        database.execute(TABLE)
        found = database.execute("SELECT 1 FROM orders WHERE id = ?", (order,)).fetchone()
    return found is not None


def look_up(path: str, message: CheckedMessage) -> TransactionOutcome:
    """Return how the transaction of a message ended, also one of a process that was killed."""
    if has_row(path, message.keys[0]):
        return TransactionOutcome.COMMIT
    if time.time() - message.born_at.timestamp() < BLOCK_SECONDS:
        return TransactionOutcome.UNKNOWN  # its row may still come
    return TransactionOutcome.ROLLBACK


def main(namesrv: str | None, path: str) -> None:
    """Place two orders, of which the database refuses one; read the messages."""
    with Producer(namesrv, group="shop", check=partial(look_up, path)) as producer:
        try:
            place_order(producer, path, "order-1", pieces=0)
        except sqlite3.IntegrityError as error:
            print("order-1:", error)
        place_order(producer, path, "order-2", pieces=3)
    with PushConsumer(
        namesrv, group="stock", subscriptions="Orders", consume_from="first"
    ) as consumer:
        message = next(consumer)
        with message:
            print(message.body.decode(), "has a row:", has_row(path, message.keys[0]))
        if not consumer.take(timeout=1):
            print("there is no other message")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None, *(sys.argv[2:] or ["orders.db"]))
