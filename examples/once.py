"""Book each payment once, however often its message arrives.

NAMESRV_ADDR=127.0.0.1:9876 python examples/once.py

Every payment is sent twice, as a producer does that crashed and began again. ``@once`` keeps in a
database which payments are done. Here that is the bank's own database, so a booking and the note
that it is done are committed together; a receipt goes out by e-mail, where no transaction helps.
"""

import sqlite3
import sys
import tempfile
from pathlib import Path

import trio

from triomq import (
    MessageView,
    OnceHandler,
    OnceTransaction,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SqliteOnceStore,
    once,
)


async def main(namesrv: str | None, directory: Path) -> None:
    """Send five payments twice, book them, and send receipts."""
    path = directory / "bank.db"
    bank = sqlite3.connect(path)
    bank.execute("CREATE TABLE bookings (payment TEXT, amount INTEGER)")
    bank.close()
    sent: list[str] = []
    store = SqliteOnceStore(path)

    def payment_number(message: MessageView) -> str:
        return message.keys[0]

    @once(store, key=payment_number, transaction=True)
    async def book(
        message: ReceivedMessage, transaction: OnceTransaction[sqlite3.Connection]
    ) -> None:
        payment, amount = message.keys[0], int(message.body)
        await transaction.execute("INSERT INTO bookings VALUES (?, ?)", (payment, amount))

    @once(store, key=payment_number)
    async def send_receipt(message: ReceivedMessage) -> None:
        await trio.sleep(0.001)  # stands for the e-mail
        sent.append(message.keys[0])

    async with Producer(namesrv, group="bank") as producer:
        for number in [*range(5)] * 2:
            await producer.send("Payments", b"100", keys=[f"payment-{number}"])

    for group, handler in (("booking", book), ("receipts", send_receipt)):
        async with PushConsumer(
            namesrv, group=group, subscriptions="Payments", consume_from="first"
        ) as consumer:
            while handled(handler) < 10:
                message = await anext(consumer)
                async with message:
                    await handler(message)
        seen = handler.statistics()
        print(f"{group}: {seen.done} done, {seen.duplicates} duplicates")

    store.close()
    bank = sqlite3.connect(path)
    print("booked", bank.execute("SELECT sum(amount) FROM bookings").fetchone()[0])
    bank.close()


def handled(handler: OnceHandler) -> int:
    """Return the number of messages that are done, now or before."""
    seen = handler.statistics()
    return seen.done + seen.duplicates


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        trio.run(main, sys.argv[1] if len(sys.argv) > 1 else None, Path(directory))
