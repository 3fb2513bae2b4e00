"""Request and reply in ``triomq.sync`` and ``triomq.aio``."""

from __future__ import annotations

import asyncio

import pytest

from triomq import ReplyTimeout, aio, sync


@pytest.mark.feature("162a", "162c", 192)
def test_blocking_requests_and_replies(namesrv: str) -> None:
    def handler(message: sync.ReceivedMessage) -> None:
        if message.body != b"silence":
            message.reply(b"re: " + message.body, properties={"by": "sync"})

    with (
        sync.PushConsumer(
            namesrv, group="sync", subscriptions="Numbers", handler=handler, consume_from="first"
        ),
        sync.Producer(namesrv, group="p") as producer,
    ):
        reply = producer.request("Numbers", b"1", timeout=10)
        assert (reply.body, reply.properties["by"]) == (b"re: 1", "sync")
        with pytest.raises(ReplyTimeout, match=r"within 0\.5 s; the request is stored"):
            producer.request("Numbers", b"silence", timeout=0.5)
        statistics = producer.request_statistics()
        assert (statistics.answered, statistics.timed_out) == (1, 1)


@pytest.mark.feature("162a", 191)
def test_requests_and_replies_in_asyncio(namesrv: str) -> None:
    async def handler(message: aio.ReceivedMessage) -> None:
        await message.reply(b"re: " + message.body)

    async def main() -> list[bytes]:
        async with (
            aio.PushConsumer(
                namesrv, group="aio", subscriptions="Others", handler=handler, consume_from="first"
            ),
            aio.Producer(namesrv, group="p") as producer,
        ):
            asked = [producer.request("Others", b"%d" % number, timeout=20) for number in range(20)]
            return [reply.body for reply in await asyncio.gather(*asked)]

    assert asyncio.run(main()) == [b"re: %d" % number for number in range(20)]
