"""Messages for later: one after a while, one at a time, one taken back.

NAMESRV_ADDR=127.0.0.1:9876 python examples/timed.py

The broker needs ``recallMessageEnable=true``.
"""

import sys
from datetime import UTC, datetime, timedelta

import trio

from triomq import Producer


async def main(namesrv: str | None) -> None:
    evening = datetime.now(UTC) + timedelta(hours=9)
    async with Producer(namesrv, group="reminders") as producer:
        receipt = await producer.send("Reminders", b"stand up", delay=timedelta(minutes=30))
        await producer.send("Reminders", b"go home", deliver_at=evening)
        await producer.recall(receipt)
        print("one reminder waits, the other is taken back")


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else None)
