"""A registration in two ways: by calls to four services, and by one call and one message.

Each service takes 50 ms. In the second way only the users' service is called; the three others read
the message.

NAMESRV_ADDR=127.0.0.1:9876 python examples/registration.py
"""

import sys
import time
from collections import Counter

import trio

from triomq import Producer, PushConsumer, ReceivedMessage

CALL_SECONDS = 0.05
OTHERS = ("mail", "sms", "coupons")


class Services:
    """Each call takes 50 ms."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.all_done = trio.Event()

    async def call(self, service: str) -> None:
        await trio.sleep(CALL_SECONDS)
        self.done[service] += 1
        if all(self.done[name] for name in OTHERS):
            self.all_done.set()

    def reader(self, service: str, namesrv: str | None) -> PushConsumer:
        """Return a consumer for a service that reads registrations, with a group of its own."""

        async def handle(message: ReceivedMessage) -> None:
            await self.call(service)

        return PushConsumer(
            namesrv,
            group=service,
            subscriptions="Registrations",
            consume_from="first",
            handler=handle,
        )


async def main(namesrv: str | None) -> None:
    """Register one user each way; print how long the user waits."""
    services = Services()
    begin = time.perf_counter()
    for service in ("users", *OTHERS):
        await services.call(service)
    print(f"four calls: {(time.perf_counter() - begin) * 1000:.0f} ms")

    services = Services()
    async with Producer(namesrv, group="website") as producer:
        await producer.send("Registrations", b"ada")  # finds the route and opens the connection
        begin = time.perf_counter()
        await services.call("users")
        await producer.send("Registrations", b"bob", keys=["bob"])
        print(f"one call and one send: {(time.perf_counter() - begin) * 1000:.0f} ms")
    async with (
        services.reader("mail", namesrv),
        services.reader("sms", namesrv),
        services.reader("coupons", namesrv),
    ):
        await services.all_done.wait()
    print(f"afterwards: {', '.join(sorted(name for name in OTHERS if services.done[name]))}")


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else None)
