"""Delivery at low load: it comes by the arrival of the message and by no interval; how long it
takes is measured, and printed, not judged.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from brokers import BrokerPeer, peer_of, running_broker

from triomq.broker.services.held_pulls import HeldPull, HeldPulls

TOPIC = "Quiet"
MESSAGES = 60
AN_HOUR_MS = 3_600_000
SETTINGS = {"longPollingEnable": True, "shortPollingTimeMills": AN_HOUR_MS}
"""Nothing that the broker does now and then is due within the test."""


@pytest.fixture
def when_held(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], trio.Event]:
    """Return the event that is set when a number of pulls were held since the broker began."""
    events: dict[int, trio.Event] = {}
    holds = 0
    original = HeldPulls.hold

    def hold(self: HeldPulls, pull: HeldPull) -> bool:
        nonlocal holds
        holds += 1
        events.setdefault(holds, trio.Event()).set()
        return original(self, pull)

    monkeypatch.setattr(HeldPulls, "hold", hold)
    return lambda number: events.setdefault(number, trio.Event())


async def delivered(peer: BrokerPeer, sender: BrokerPeer, held: trio.Event, offset: int) -> float:
    """Seconds from just before a send until the pull that was held for it has the message."""
    took = 0.0
    begun = 0.0

    async def wait_for_it() -> None:
        nonlocal took
        pulled = await peer.pull(TOPIC, 0, offset, hold_ms=AN_HOUR_MS)
        took = time.perf_counter() - begun
        assert pulled.bodies == [b"message %d" % offset]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_for_it)
        await held.wait()  # the broker has it, and has nothing to say
        begun = time.perf_counter()
        await sender.send(TOPIC, b"message %d" % offset)
    return took


@pytest.mark.feature("154a")
async def test_a_message_comes_by_its_arrival_and_by_no_interval(
    tmp_path: Path,
    when_held: Callable[[int], trio.Event],
    record_property: Callable[[str, object], None],
) -> None:
    async with (
        running_broker(tmp_path, **SETTINGS) as ready,
        peer_of(ready) as peer,
        peer_of(ready) as sender,
    ):
        await sender.create_topic(TOPIC, queues=1)
        with trio.fail_after(60):  # of the hour after which anything else would happen
            times = sorted(
                [
                    await delivered(peer, sender, when_held(number + 1), number)
                    for number in range(MESSAGES)
                ]
            )
    assert not when_held(MESSAGES + 1).is_set()  # one pull for each message: no client polls
    p50, largest = times[MESSAGES // 2] * 1000, times[-1] * 1000
    record_property("delivery_ms", {"p50": p50, "largest": largest})
    print(f"from send to delivery: p50 {p50:.2f} ms, largest {largest:.2f} ms")


async def test_without_arrivals_nothing_comes(
    tmp_path: Path, when_held: Callable[[int], trio.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the test above sees would not come about by anything else in the broker."""
    monkeypatch.setattr(HeldPulls, "arrived", lambda *_: None)
    async with (
        running_broker(tmp_path, **SETTINGS) as ready,
        peer_of(ready) as peer,
        peer_of(ready) as sender,
    ):
        await sender.create_topic(TOPIC, queues=1)
        with trio.move_on_after(0.5) as waiting:
            await delivered(peer, sender, when_held(1), 0)
        assert waiting.cancelled_caught
        assert (await sender.pull(TOPIC, 0, 0)).bodies == [b"message 0"]  # there it is
