"""Compress large bodies; the consumer gets the original, however its producer compressed it.

pip install 'triomq[lz4,zstd]'                     # zlib needs nothing
NAMESRV_ADDR=127.0.0.1:9876 python examples/compressed_bodies.py
"""

import json
import sys

import trio

from triomq import Producer, ProducerSettings, PullConsumer, SettingsError


async def main(namesrv: str | None) -> None:
    """Send one document in three ways and read all of them back."""
    document = json.dumps([{"reading": number, "unit": "kWh"} for number in range(2000)]).encode()
    sent = 0
    for name in ("zlib", "lz4", "zstd"):
        try:
            settings = ProducerSettings(compression=name)  # of bodies from 4096 bytes on
        except SettingsError as error:
            print(error)  # names the extra to install
            continue
        async with Producer(namesrv, group="archive", settings=settings) as producer:
            await producer.send("Documents", document, keys=[name], queue=0)
            sent += 1

    async with PullConsumer(namesrv, group="readers", consume_from="first") as consumer:
        await consumer.assign((await consumer.queues("Documents"))[:1])
        while sent:
            for message in await consumer.poll():
                assert message.body == document
                print(
                    f"{message.keys[0]}: {len(message.body)} bytes, stored in {message.size_bytes}"
                )
                sent -= 1


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else None)
