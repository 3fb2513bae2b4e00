"""Send every flight as one message, with many sends at a time through one producer."""

from collections.abc import Iterator

import attrs
import trio

from examples.demo.dataset import Flight
from triomq import ClientSettings, Producer, ProducerSettings

IN_FLIGHT = 256
"""Number of sends at a time."""


@attrs.define(eq=False)
class Sent:
    """The messages sent so far; the progress display reads it."""

    messages: int = 0
    payload_bytes: int = 0
    keys: set[str] = attrs.field(factory=set, repr=False)
    """keys of all messages; a key that comes twice would be an error of the data"""


async def produce(
    namesrv: str, group: str, topic: str, flights: Iterator[Flight], sent: Sent
) -> None:
    """Send ``flights``, keyed and tagged with the carrier; return when all are acknowledged.

    A send may take long on a busy machine, so its time limit is generous: a repeated send could
    store a message twice.
    """
    settings = ProducerSettings(send_timeout=60.0, client=ClientSettings(request_timeout=60.0))
    async with (
        Producer(namesrv, group=group, settings=settings) as producer,
        trio.open_nursery() as nursery,
    ):

        async def send_some() -> None:
            for flight in flights:
                await producer.send(topic, flight.body, tag=flight.carrier, keys=[flight.key])
                sent.messages += 1
                sent.payload_bytes += len(flight.body)
                sent.keys.add(flight.key)

        for _ in range(IN_FLIGHT):
            nursery.start_soon(send_some)
