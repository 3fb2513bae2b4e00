"""In flight and revive queue, against a list: what was acknowledged never comes again, the rest
comes once.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from triomq.broker.services.pop import in_flight, revive_queue
from triomq.broker.services.pop.in_flight import KEEP_SECONDS, PopsInFlight
from triomq.broker.services.pop.revive_queue import ReviveQueue
from triomq.remoting.protocol.bodies.check_point import LEAD_MS, Ack, CheckPoint


@attrs.define(eq=False)
class Broker:
    """A broker with one revive queue; timers deliver in the order of their times."""

    now: int = 0
    """The wall clock, in ms."""
    steady: int = 0
    jumps: bool = False
    """Whether the wall clock jumps."""
    flights: PopsInFlight = attrs.field(factory=PopsInFlight)
    timers: list[tuple[int, int, CheckPoint | Ack]] = attrs.field(factory=list)
    topic: list[CheckPoint | Ack] = attrs.field(factory=list)
    """The revive queue."""
    done: int = -1
    """The saved offset of the revive group."""
    queue: ReviveQueue = attrs.field(factory=lambda: ReviveQueue(-1, 0))
    popped: dict[int, CheckPoint] = attrs.field(factory=dict)
    """Offset -> its check point."""
    ends: dict[int, int] = attrs.field(factory=dict)
    """Offset -> when it comes again, by the steady clock."""
    acknowledged: dict[int, int] = attrs.field(factory=dict)
    """Offset -> when."""
    again: list[int] = attrs.field(factory=list)
    written: int = 0

    def pop(self, choose: random.Random) -> None:
        start = max(self.popped, default=-1) + 1
        offsets = sorted(choose.sample(range(start, start + 5), choose.randint(1, 4)))
        point = CheckPoint(
            start_offset=offsets[0],
            pop_time=self.now,
            invisible_ms=choose.randint(LEAD_MS + 1, 4 * LEAD_MS),
            count=len(offsets),
            queue_id=0,
            topic="T",
            group="G",
            differences=[offset - offsets[0] for offset in offsets],
        )
        self.popped |= dict.fromkeys(offsets, point)
        self.put(point.visible_at - LEAD_MS, point)
        self.flights.begin(point, self.steady / 1000)
        self.ends |= dict.fromkeys(offsets, self.steady + point.invisible_ms)

    def acknowledge(self, choose: random.Random) -> None:
        offsets = choose.sample(list(self.popped), min(len(self.popped), choose.randint(1, 3)))
        for offset in offsets:
            point = self.popped[offset]
            if self.ends[offset] <= self.steady:
                continue
            fresh = self.flights.acknowledge(point.key, [offset])
            self.acknowledged.setdefault(offset, self.now)
            if fresh:
                self.put(point.visible_at, ack_of(point, offset))

    def put(self, due: int, record: CheckPoint | Ack) -> None:
        self.timers.append((due, len(self.timers) + self.written, record))

    def pass_time(self, choose: random.Random) -> None:
        passed = choose.randint(1, 1500)
        self.now, self.steady = self.now + passed, self.steady + passed
        if self.jumps and choose.random() < 0.2:
            self.now += choose.choice((-1, 1)) * choose.choice((2_000, 5_000, 3_600_000))
        due = sorted(timer[:2] for timer in self.timers if timer[0] <= self.now)
        records = {timer[:2]: timer[2] for timer in self.timers}
        self.timers = [timer for timer in self.timers if timer[0] > self.now]
        for place in due:
            record = records[place]
            self.written += 1
            if isinstance(record, CheckPoint):
                if not self.flights.drops(record.key):
                    self.topic.append(record)
            elif not self.flights.dropped(record.key):
                self.topic.append(record)
        self.revive()

    def revive(self) -> None:
        self.read()
        for point, offsets in self.queue.due(self.now, self.flights):
            self.bring(point, offsets)
            self.queue.finish(point)
        while (flight := self.flights.over(self.steady / 1000)) is not None:
            self.bring(flight.point, self.flights.acknowledge(flight.point.key, flight.offsets))
        self.done = self.queue.done

    def bring(self, point: CheckPoint, offsets: list[int]) -> None:
        """Let messages come again; after a restart their acknowledgements say so."""
        self.again += offsets
        for ack in [ack_of(point, offset) for offset in offsets]:
            if point.visible_at > self.now:
                self.put(point.visible_at, ack)
            else:
                self.topic.append(ack)

    def read(self) -> None:
        for offset in range(self.queue.next_offset, len(self.topic)):
            record = self.topic[offset]
            if isinstance(record, CheckPoint):
                self.queue.check_point(offset, record)
            else:
                self.queue.acknowledged(offset, record)

    def restart(self, choose: random.Random) -> None:
        """After a crash the timers deliver again what they delivered last."""
        self.flights, self.queue = PopsInFlight(), ReviveQueue(self.done, 0)
        self.topic += self.topic[len(self.topic) - choose.randint(0, min(8, len(self.topic))) :]

    def check(self) -> None:
        assert len(set(self.again)) == len(self.again)
        assert not self.acknowledged.keys() & set(self.again)
        assert all(self.ends[offset] <= self.steady for offset in self.again)
        over = {offset for offset, ends in self.ends.items() if ends < self.steady}
        assert over - self.acknowledged.keys() <= set(self.again)


def ack_of(point: CheckPoint, offset: int) -> Ack:
    return Ack(
        offset=offset,
        start_offset=point.start_offset,
        group="G",
        topic="T",
        queue_id=0,
        pop_time=point.pop_time,
    )


def play(seed: int, *, jumps: bool = False) -> Broker:
    choose, broker = random.Random(seed), Broker(jumps=jumps)
    for _ in range(200):
        action = choose.random()
        if action < 0.35:
            broker.pop(choose)
        elif action < 0.75:
            broker.acknowledge(choose)
        elif action < 0.98:
            broker.pass_time(choose)
            broker.check()
        elif not jumps:  # after a start the wall clock counts
            broker.restart(choose)
    for _ in range(20):
        broker.pass_time(choose)
    broker.check()
    return broker


@pytest.mark.parametrize("seed", range(60))
def test_the_rest_comes_again_once(seed: int) -> None:
    broker = play(seed)
    assert broker.again
    assert broker.acknowledged
    broker.steady += 100_000
    for _ in range(2):
        broker.steady += int(KEEP_SECONDS * 1000)
        assert broker.flights.over(broker.steady / 1000) is None
    assert len(broker.flights) == 0
    assert broker.flights.count("G", "T") == 0
    assert broker.done == len(broker.topic) - 1


@pytest.mark.parametrize("seed", range(60))
def test_a_wall_clock_that_jumps_changes_nothing(seed: int) -> None:
    broker = play(seed, jumps=True)
    assert broker.again
    assert broker.acknowledged


def test_most_records_of_acknowledged_messages_are_written_once() -> None:
    choose, broker = random.Random(1), Broker()
    for _ in range(50):
        broker.pop(choose)
        for point in {point.key: point for point in broker.popped.values()}.values():
            broker.flights.acknowledge(point.key, point.offsets)
        broker.acknowledged |= dict.fromkeys(broker.popped, broker.now)
        broker.pass_time(choose)
    assert broker.topic == []


def drops_anything(self: PopsInFlight, key: Any) -> bool:
    flight = self._flights.get(key)
    if flight is not None:
        flight.dropped = True
    return flight is not None


def keeps_nothing(self: PopsInFlight, key: Any) -> bool:
    return True


def early(self: ReviveQueue, complete_to_ms: int, in_flight: Any = ()) -> Any:
    return DUE(self, complete_to_ms + LEAD_MS, in_flight)


def by_the_wall_clock(self: ReviveQueue, complete_to_ms: int, in_flight: Any = ()) -> Any:
    return DUE(self, complete_to_ms)


def too_soon(self: PopsInFlight, now: float) -> Any:
    return OVER(self, now + 0.9)


def done_to_the_end(self: ReviveQueue) -> None:
    self.done = self._read


DUE, OVER = ReviveQueue.due, PopsInFlight.over


@pytest.mark.parametrize(
    ("where", "name", "broken"),
    [
        (in_flight.PopsInFlight, "drops", drops_anything),
        (in_flight.PopsInFlight, "dropped", keeps_nothing),
        (revive_queue.ReviveQueue, "due", early),
        (revive_queue.ReviveQueue, "due", by_the_wall_clock),
        (in_flight.PopsInFlight, "over", too_soon),
        (revive_queue.ReviveQueue, "_advance", done_to_the_end),
    ],
)
def test_broken_rules_are_found(
    where: type, name: str, broken: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, broken)
    found = 0
    for seed in range(20):
        try:
            play(seed)
            play(seed, jumps=True)
        except AssertionError:
            found += 1
    assert found > 0


def test_acknowledgements_that_come_before_their_check_point_count() -> None:
    """Those of a slave that acted, reported before the timers of the master that is back bring the
    check point; until all that was due then is in the queue, they are not done.
    """
    queue = ReviveQueue(-1, 0)
    point = CheckPoint(
        start_offset=5, pop_time=1_000, invisible_ms=500, count=2, queue_id=0, topic="T", group="G"
    )
    ack = Ack(offset=5, start_offset=5, group="G", topic="T", queue_id=0, pop_time=1_000)
    other = attrs.evolve(ack, start_offset=9, offset=9)
    queue.acknowledged(0, ack, 9_000)
    queue.acknowledged(1, other, 8_000)
    assert (queue.done, queue.is_open) == (-1, True)
    queue.check_point(2, point)
    assert queue.due(8_000) == [(point, [6])]
    queue.finish(point)
    assert queue.done == 0
    assert queue.due(8_001) == []
    assert (queue.done, queue.is_open) == (2, False)
