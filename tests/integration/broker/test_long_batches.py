"""Batches with thousands of messages: each is one append, and others have their turn."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from brokers import BrokerPeer, peer_of, running_broker

from triomq.broker.processors.send.drafts import BatchKind
from triomq.broker.store.store import INDEXED_AT_ONCE
from triomq.remoting.protocol.batch import ELEMENTS_MAX, encode_batch
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.send import SendMessageResponseHeader


def batch(count: int, text: bytes = b"long") -> bytes:
    return encode_batch((0, b"%s-%d" % (text, number), b"") for number in range(count))


async def send(peer: BrokerPeer, body: bytes) -> SendMessageResponseHeader:
    answer = await peer.send_raw("T", body, code=Code.SEND_BATCH_MESSAGE, batch=True)
    assert answer.code == 0, answer.remark
    return answer.header(SendMessageResponseHeader)


def slow_reads(monkeypatch: pytest.MonkeyPatch) -> tuple[trio.Event, trio.Event]:
    """Let the first read of a long batch in a thread wait; return "it has begun" and "go on"."""
    begun, go_on = trio.Event(), trio.Event()
    token = trio.lowlevel.current_trio_token()
    read = BatchKind.read

    def slow(self: BatchKind, message: object, count_max: int = ELEMENTS_MAX) -> object:
        if count_max == ELEMENTS_MAX and not begun.is_set():
            token.run_sync_soon(begun.set)
            trio.from_thread.run(go_on.wait)
        return read(self, message, count_max)  # type: ignore[arg-type]

    monkeypatch.setattr(BatchKind, "read", slow)
    return begun, go_on


async def test_a_long_batch_is_one_append(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What others send meanwhile lies before or behind it; everything can be pulled."""
    begun, go_on = slow_reads(monkeypatch)
    async with (
        running_broker(tmp_path) as ready,
        peer_of(ready) as peer,
        peer_of(ready) as other,
        trio.open_nursery() as nursery,
    ):
        await peer.create_topic("T", 1)
        found: list[SendMessageResponseHeader] = []

        async def send_long() -> None:
            found.append(await send(peer, batch(ELEMENTS_MAX)))

        nursery.start_soon(send_long)
        await begun.wait()
        with trio.fail_after(20):
            assert (await send(other, batch(3, b"short"))).queue_offset == 0
        go_on.set()
        with trio.fail_after(60):
            while not found:
                await trio.sleep(0.01)
            assert found[0].queue_offset == 3
            assert len(found[0].message_id.split(",")) == ELEMENTS_MAX
            # Indexed in parts, by the indexer's task.
            places = [3, 3 + INDEXED_AT_ONCE - 1, 3 + INDEXED_AT_ONCE, 2 + ELEMENTS_MAX]
            for place in places:
                pulled = await peer.pull("T", 0, place, count=1, hold_ms=10_000)
                assert pulled.bodies == [b"long-%d" % (place - 3)]
        assert (await send(peer, batch(1))).queue_offset == 3 + ELEMENTS_MAX


async def test_too_long_a_batch_is_refused(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 1)
        body = batch(ELEMENTS_MAX + 1)
        answer = await peer.send_raw("T", body, code=Code.SEND_BATCH_MESSAGE, batch=True)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert f"more than {ELEMENTS_MAX} messages; send them in several batches" in (
            answer.remark or ""
        )
        assert (await send(peer, batch(1))).queue_offset == 0


async def test_long_batches_that_come_together_are_stored_in_order(tmp_path: Path) -> None:
    """Nobody is left out, and each sender hears of its own."""
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 1)
        counts = [1_500, 1_500, 1, 2_500, 1]
        found: dict[int, int] = {}

        async def send_one(number: int) -> None:
            found[number] = (await send(peer, batch(counts[number]))).queue_offset

        async with trio.open_nursery() as nursery:
            for number in range(len(counts)):
                nursery.start_soon(send_one, number)
        taken = sorted((offset, counts[number]) for number, offset in found.items())
        position = 0
        for offset, count in taken:
            assert offset == position
            position += count


async def test_a_queue_that_goes_while_its_batch_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is read once more, and refused as any send to that topic."""
    begun, go_on = slow_reads(monkeypatch)
    async with (
        running_broker(tmp_path) as ready,
        peer_of(ready) as peer,
        peer_of(ready) as other,
        trio.open_nursery() as nursery,
    ):
        await peer.create_topic("T", 2)
        codes: list[int] = []

        async def send_long() -> None:
            body = batch(5_000)
            answer = await peer.send_raw(
                "T", body, queue_id=1, code=Code.SEND_BATCH_MESSAGE, batch=True
            )
            codes.append(answer.code)

        nursery.start_soon(send_long)
        await begun.wait()
        await other.create_topic("T", 1)
        go_on.set()
        with trio.fail_after(30):
            while not codes:
                await trio.sleep(0.01)
        assert codes == [ResponseCode.INVALID_PARAMETER]
        assert (await send(peer, batch(1))).queue_offset == 0
