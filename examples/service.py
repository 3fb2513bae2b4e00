"""A service: it runs until SIGTERM or Ctrl-C, ends in order, and answers probes.

NAMESRV_ADDR=127.0.0.1:9876 python examples/service.py 8081

The same from the command line: ``triomq run service:consumer --port 8081`` in this directory.
"""

import sys

import trio

import triomq


async def handle(message: triomq.ReceivedMessage) -> None:
    """Bill an order; a signal lets this end."""
    await trio.sleep(0.01)  # stands for the real work
    print(f"billed {message.body.decode()}", flush=True)


consumer = triomq.PushConsumer(
    group="invoices", subscriptions="Invoices", consume_from="first", handler=handle
)


async def main(port: int) -> None:
    """Handle messages until a signal comes."""
    async with consumer, triomq.Probes(consumer, port=port, host="0.0.0.0"):
        await trio.sleep_forever()


if __name__ == "__main__":
    triomq.run(main, int(sys.argv[1]))
    print("ended in order")
