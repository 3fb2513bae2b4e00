"""Three ways to communicate: a call (RPC), a queue that members share, a topic that all groups
read.

The last two are called point-to-point and publish-subscribe.

NAMESRV_ADDR=127.0.0.1:9876 python examples/models.py
"""

import sys
from collections import Counter
from collections.abc import Awaitable, Callable

import trio

from triomq import Producer, PushConsumer, ReceivedMessage
from triomq.remoting.client.connector import Connector
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.route import GetRouteHeader

COUNT = 40


async def call(namesrv: str) -> None:
    """Call a server (RPC): both sides must run, and the caller must know the address."""
    async with Connector() as connector:
        answer = await connector.invoke(
            namesrv, request(105, GetRouteHeader(topic="Parcels")), timeout=3
        )
    print(f"call: {namesrv.partition(':')[0]} answered with code {answer.code}")


async def consume(namesrv: str, members: dict[str, str]) -> Counter[str]:
    """Return how many messages each member got.

    ``members``: name -> group.
    """
    got: Counter[str] = Counter()
    seen: set[tuple[str, bytes]] = set()
    finished = trio.Event()
    expected = COUNT * len(set(members.values()))

    def handler_of(name: str) -> Callable[[ReceivedMessage], Awaitable[None]]:
        async def handle(message: ReceivedMessage) -> None:
            if (members[name], message.body) not in seen:
                got[name] += 1
            seen.add((members[name], message.body))
            if len(seen) == expected:
                finished.set()
            await trio.lowlevel.checkpoint()

        return handle

    async with trio.open_nursery() as nursery:

        async def member(name: str) -> None:
            async with PushConsumer(
                namesrv,
                group=members[name],
                subscriptions="Parcels",
                consume_from="first",
                handler=handler_of(name),
            ):
                await finished.wait()

        for name in members:
            nursery.start_soon(member, name)
    return got


async def main(namesrv: str) -> None:
    """Use the same topic in three ways."""
    async with Producer(namesrv, group="depot") as producer:
        for number in range(COUNT):
            await producer.send("Parcels", b"parcel %d" % number)
    await call(namesrv)
    shared = await consume(namesrv, {"ann": "couriers", "ben": "couriers"})
    print(f"point-to-point: ann and ben had {shared.total()} between them")
    copies = await consume(namesrv, {"scanner": "tracking", "printer": "labels"})
    print(f"publish-subscribe: scanner had {copies['scanner']}, printer had {copies['printer']}")


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876")
