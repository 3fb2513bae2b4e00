"""Ask a service and wait for its answer: one consumer replies, one producer requests.

NAMESRV_ADDR=127.0.0.1:9876 python examples/requests.py
"""

import json
import sys

import trio

from triomq import Producer, PushConsumer, ReceivedMessage, ReplyTimeout

PRICES = {"tea": 3, "coffee": 4}


async def quote(message: ReceivedMessage) -> None:
    """Answer what an item costs; of other items nothing is known, so there is no answer."""
    item = message.body.decode()
    if item in PRICES:
        await message.reply(json.dumps({"item": item, "price": PRICES[item]}).encode())


async def main(namesrv: str | None) -> None:
    """Ask for three prices."""
    async with (
        PushConsumer(
            namesrv, group="quotes", subscriptions="Quotes", handler=quote, consume_from="first"
        ),
        Producer(namesrv, group="shop") as producer,
    ):
        for item in ("tea", "coffee", "water"):
            try:
                reply = await producer.request("Quotes", item.encode(), timeout=3)
            except ReplyTimeout as error:
                print(f"{item}: no answer, {'stored' if error.receipt else 'perhaps not stored'}")
            else:
                print(f"{item}: {json.loads(reply.body)['price']}")


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else None)
