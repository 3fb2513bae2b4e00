"""Java's settings for what is solved in another way: accepted, named in a warning, harmless."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from processes import free_port, our_broker, our_name_server

from triomq import Producer, PullConsumer, Sql

SETTINGS = {
    "transientStorePoolEnable": "true",
    "transientStorePoolSize": "1",
    "fastFailIfNoBufferInStorePool": "true",
    "enablePropertyFilter": "true",
    "enableCalcFilterBitMap": "true",
    "maxErrorRateOfBloomFilter": "10",
    "warmMapedFileEnable": "true",
    "flushLeastPagesWhenWarmMapedFile": "1024",
}


@pytest.mark.feature("35b", "54a", "122a")
async def test_a_pool_of_buffers_and_bit_maps_of_filters_and_warm_files(tmp_path: Path) -> None:
    """Unlike with Java's pool, all that was acknowledged is there after a kill."""
    port = free_port()
    with our_name_server(tmp_path) as namesrv:
        with our_broker(tmp_path, "broker-a", namesrv, port, **SETTINGS) as (_, process):
            async with Producer(namesrv, group="shop") as producer:
                async with trio.open_nursery() as nursery:
                    for number in range(200):
                        nursery.start_soon(offer, producer, number)
                process.kill()
                await trio.to_thread.run_sync(process.wait)
        with our_broker(tmp_path, "broker-a", namesrv, port, **SETTINGS):
            filtered = {"Offers": Sql("price BETWEEN 10 AND 11")}
            assert await bodies(namesrv, "buyers", filtered, 2) == [b"10", b"11"]
            everything = await bodies(namesrv, "audit", {"Offers": "*"}, 200)
            assert everything == [b"%02d" % number for number in range(200)]
    log = (tmp_path / "broker-a.log").read_text()
    assert (
        "ignored, no meaning here: enableCalcFilterBitMap, fastFailIfNoBufferInStorePool,"
        " flushLeastPagesWhenWarmMapedFile, maxErrorRateOfBloomFilter, transientStorePoolEnable,"
        " transientStorePoolSize, warmMapedFileEnable" in log
    )


async def offer(producer: Producer, number: int) -> None:
    await producer.send("Offers", b"%02d" % number, properties={"price": str(number)})


async def bodies(
    namesrv: str, group: str, subscriptions: dict[str, str | Sql], count: int
) -> list[bytes]:
    """Return the bodies that a group gets, sorted by number."""
    found: list[bytes] = []
    with trio.fail_after(30):
        async with PullConsumer(
            namesrv, group=group, subscriptions=subscriptions, consume_from="first"
        ) as consumer:
            while len(found) < count:
                found += [message.body for message in await consumer.poll()]
            with trio.move_on_after(0.3):
                found += [message.body for message in await consumer.poll()]
    return sorted(found, key=int)
