"""When positions of POP are committed, and which of them slaves are told; what acknowledgements of
one step store.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from triomq.broker.processors.offsets import GroupOffsetRequests
from triomq.broker.services.offsets import ConsumerOffsets, open_consumer_offsets
from triomq.broker.services.persisted import Version
from triomq.broker.services.pop.order_table import open_order_table
from triomq.broker.services.pop.ordered_pop import OrderedPop
from triomq.broker.services.pop.pop_log import PopRecord, QueueKey
from triomq.broker.services.pop.pop_settings import PopSettings
from triomq.broker.services.pop.pops import COVERED, SAFE_SECONDS, AckPart, Pops, TimeChange
from triomq.broker.store.core.errors import StoreUnavailable
from triomq.broker.store.log.durability import OnDurable
from triomq.remoting.protocol.bodies.check_point import Ack
from triomq.remoting.protocol.bodies.offsets import ConsumerOffsetTable

KEY = ("G", "T", 0)


@attrs.define(eq=False)
class Log:
    """Records are numbered; ``disk`` and ``slaves`` have those up to a number."""

    end: int = 0
    disk: int = 0
    slaves: int = 0
    timed_end: int = 0
    positions: dict[QueueKey, int] = attrs.field(factory=dict)
    appends: list[Sequence[PopRecord]] = attrs.field(factory=list)
    full: bool = False

    def append(self, records: Sequence[PopRecord]) -> int:
        if self.full:
            raise StoreUnavailable("the disk is full")
        self.appends.append(records)
        self.end += len(records)
        self.timed_end = 100 + self.end
        return self.end

    def on_disk(self, end: int) -> bool:
        return end <= self.disk

    def is_safe(self, end: int) -> bool:
        return end <= min(self.disk, self.slaves)

    def durable_now(self, end: int) -> bool:
        return self.is_safe(end)

    def when_durable(self, end: int, on_durable: OnDurable) -> None:
        pass

    def forget_position(self, key: QueueKey) -> None:
        self.positions.pop(key, None)


@attrs.define(eq=False)
class Scene:
    log: Log
    offsets: ConsumerOffsets
    pops: Pops
    now: list[int]
    """The wall clock and the steady one, in ms."""

    def take(self, first: int) -> None:
        self.pops.take(KEY, [first], first + 1, self.now[0], 60_000, 0, self.now[1] / 1000)

    def told(self) -> dict[str, dict[int, int]]:
        """Return the table that a slave gets."""
        nothing: Any = None
        handler = GroupOffsetRequests(nothing, nothing, nothing, self.offsets, nothing, nothing)
        answer = trio.run(handler.all, nothing)
        return dict(ConsumerOffsetTable.decode(bytes(answer.body)).offset_table)


def scene(folder: Path) -> Scene:
    log, now = Log(), [1_000_000, 0]
    offsets = open_consumer_offsets(folder, Version(lambda: 1))
    nothing: Any = None
    orders = open_order_table(folder, lambda: now[0], lambda: now[1] / 1000)
    store: Any = SimpleNamespace(appended=SimpleNamespace(value=0))
    pops = Pops(
        log,
        store,
        nothing,
        offsets,
        orders,
        PopSettings(),
        lambda: now[0],
        "broker-a",
        "R",
        steady=lambda: now[1] / 1000,
    )
    return Scene(log, offsets, pops, now)


def test_a_position_is_committed_when_its_check_point_is_safe(tmp_path: Path) -> None:
    it = scene(tmp_path)
    it.take(0)
    it.take(1)
    assert (it.pops.position(KEY), it.offsets.committed_offset(*KEY)) == (2, None)
    it.log.disk = 2
    it.log.slaves = 1
    it.pops.commit_covered()
    assert it.offsets.committed_offset(*KEY) == 1
    assert it.offsets.committed_offset(*COVERED) == 101
    it.log.slaves = 2
    it.pops.commit_covered()
    assert it.offsets.committed_offset(*KEY) == 2
    assert it.told() == {"T@G": {0: 2}, f"{COVERED[1]}@{COVERED[0]}": {0: 102}}


def test_slaves_are_not_told_positions_whose_check_points_they_lack(tmp_path: Path) -> None:
    """Without a slave a position is committed after a while, for a restart of this broker."""
    it = scene(tmp_path)
    it.take(0)
    it.log.disk = it.log.slaves = 1
    it.pops.commit_covered()
    it.take(1)
    it.take(2)
    it.log.disk = 3
    it.now[0] -= 40 * 86_400_000  # the wall clock does not count
    it.now[1] += int(SAFE_SECONDS * 1000) + 1
    it.pops.commit_covered()
    assert it.offsets.committed_offset(*KEY) == 3
    assert it.told() == {"T@G": {0: 1}, f"{COVERED[1]}@{COVERED[0]}": {0: 101}}
    it.log.slaves = 3
    assert it.told() == {"T@G": {0: 3}, f"{COVERED[1]}@{COVERED[0]}": {0: 103}}


def test_the_first_position_is_not_told_either(tmp_path: Path) -> None:
    it = scene(tmp_path)
    it.take(0)
    it.log.disk = 1
    it.pops.commit_covered(ending=True)
    assert it.offsets.committed_offset(*KEY) == 1
    assert it.told() == {"T@G": {}, f"{COVERED[1]}@{COVERED[0]}": {}}


@pytest.mark.parametrize("event", ["reset", "topic is deleted", "group is deleted"])
def test_moves_from_before_a_reset_do_not_count(tmp_path: Path, event: str) -> None:
    """Not either when the group has popped again, before the disk has the older check points."""
    it = scene(tmp_path)
    it.take(99)
    it.pops.take_ordered(KEY, [99], it.now[0], 60_000, None, 0.0)
    it.log.positions[KEY] = 100
    if event == "reset":
        it.pops.reset(KEY, 0)
    elif event == "topic is deleted":
        it.offsets.forget_topic("T")
    else:
        it.offsets.forget_group("G")
    assert it.pops.position(KEY) == (0 if event == "reset" else None)
    assert KEY not in it.log.positions
    assert (KEY in it.pops.orders.pops) == (event == "reset")
    assert it.pops.in_flight.count("G", "T") == (event == "reset")
    it.take(3)
    it.log.disk = it.log.slaves = 1
    it.pops.commit_covered()
    assert it.pops.position(KEY) == 4
    assert it.offsets.committed_offset(*COVERED) == 101
    assert it.told().get("T@G", {}) == ({0: 0} if event == "reset" else {})
    it.log.disk = it.log.slaves = 2
    it.pops.commit_covered()
    assert it.offsets.committed_offset(*KEY) == it.pops.position(KEY) == 4


@pytest.mark.parametrize("event", ["topic is deleted", "group is deleted"])
def test_a_position_that_only_the_log_knows_is_forgotten(tmp_path: Path, event: str) -> None:
    it = scene(tmp_path)
    it.log.positions[KEY] = 100
    if event == "topic is deleted":
        it.offsets.forget_topic("T")
    else:
        it.offsets.forget_group("G")
    assert it.log.positions == {}


@pytest.mark.parametrize("ending", [False, True])
def test_no_position_is_ahead_of_the_disk(tmp_path: Path, ending: bool) -> None:
    """However long it waits: a start would leave out messages whose check point is gone."""
    it = scene(tmp_path)
    it.take(0)
    it.take(1)
    it.now[1] += 100 * int(SAFE_SECONDS * 1000)
    it.log.disk = 1
    it.pops.commit_covered(ending=ending)
    assert it.offsets.committed_offset(*KEY) == 1
    assert it.offsets.committed_offset(*COVERED) == 101


@pytest.mark.parametrize("event", ["reset", "moved", "topic is deleted"])
def test_slaves_are_told_a_position_that_was_set(tmp_path: Path, event: str) -> None:
    """Although they lack the check point that the position before it needs."""
    it = scene(tmp_path)
    it.take(7)
    it.log.disk = 1
    it.pops.commit_covered(ending=True)
    assert it.told()["T@G"] == {}
    if event == "reset":
        it.pops.reset(KEY, 3)
    elif event == "moved":
        it.pops.moved("G", "T", {0: 3})
    else:
        it.offsets.forget_topic("T")
        it.offsets.commit(*KEY, 3)
    assert it.told()["T@G"] == {0: 3}


def acked(it: Scene) -> list[tuple[int, list[int]]]:
    """Return what the log has of acknowledgements: start of the check point, and offsets."""
    return [
        (one.record.start_offset, list(one.record.more or [one.record.offset]))
        for records in it.log.appends
        for one in records
        if isinstance(one.record, Ack)
    ]


def part(it: Scene, start: int, *offsets: int, visible_in_ms: int = 60_000) -> AckPart:
    key = ("T", "G", 0, start, it.now[0], "broker-a")
    return AckPart(offsets, key, it.now[0] + visible_in_ms, 0)


def test_acknowledgements_of_one_step_are_one_append(tmp_path: Path) -> None:
    """One record for each check point, and each message once."""
    it = scene(tmp_path)
    it.pops.take(KEY, [0, 1, 2], 3, it.now[0], 60_000, 0, 0.0)
    it.pops.take(KEY, [5, 6], 7, it.now[0], 60_000, 0, 0.0)
    before = len(it.log.appends)
    parts = [part(it, 0, 1), part(it, 5, 6), part(it, 0, 0), part(it, 0, 1, 9), part(it, 5, 6)]
    end, counts = it.pops.acknowledge(parts)
    assert len(it.log.appends) == before + 1
    assert end == it.log.end
    assert acked(it) == [(0, [1, 0]), (5, [6])]
    assert [(key[3], count) for key, count in counts] == [(0, 2), (5, 1)]
    assert it.pops.acknowledged == 3
    assert it.pops.in_flight.of_queue(KEY) == 2
    assert it.pops.acknowledge(parts) == (0, ())


def test_what_cannot_be_stored_is_not_acknowledged(tmp_path: Path) -> None:
    it = scene(tmp_path)
    it.pops.take(KEY, [0, 1], 2, it.now[0], 60_000, 0, 0.0)
    it.log.full = True
    with pytest.raises(StoreUnavailable):
        it.pops.acknowledge([part(it, 0, 0, 1)])
    assert (it.pops.acknowledged, it.pops.in_flight.of_queue(KEY)) == (0, 2)
    it.log.full = False
    it.pops.acknowledge([part(it, 0, 0, 1)])
    assert acked(it) == [(0, [0, 1])]
    assert (it.pops.acknowledged, it.pops.in_flight.of_queue(KEY)) == (2, 0)


def test_late_and_unknown_check_points(tmp_path: Path) -> None:
    it = scene(tmp_path)
    it.pops.decided_to_ms = it.now[0] + 1
    end, _ = it.pops.acknowledge([part(it, 0, 0, visible_in_ms=0), part(it, 7, 8, 8)])
    assert acked(it) == [(7, [8])], "one that this broker does not know goes its way"
    assert end == it.log.end == 1


def test_what_is_popped_after_the_clock_was_set_back_is_not_late(tmp_path: Path) -> None:
    """The reviver has decided up to a time that lies ahead now, and does not know that yet."""
    it = scene(tmp_path)
    it.pops.decided_to_ms = it.now[0] + 120_000
    it.take(0)
    it.pops.acknowledge([part(it, 0, 0)])
    assert acked(it) == [(0, [0])]


def change(it: Scene, start: int, offset: int, visible_in_ms: int = 60_000) -> TimeChange:
    key = ("T", "G", 0, start, it.now[0], "broker-a")
    return TimeChange(key, offset, it.now[0] + visible_in_ms, 0, 5_000)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([0, 5, 9]), st.integers(0, 6), st.sampled_from([-1, 0, 1, 9])),
        max_size=6,
    )
)
def test_changes_of_one_step_are_those_of_one_at_a_time(
    tmp_path_factory: pytest.TempPathFactory, wanted: list[tuple[int, int, int]]
) -> None:
    """But for the number of appends: a step has one, and none without a change that is in time."""
    found = []
    for steps in ([wanted], [[one] for one in wanted]):
        it = scene(tmp_path_factory.mktemp("pops"))
        it.pops.take(KEY, [0, 1, 2], 3, it.now[0], 60_000, 0, 0.0)
        it.pops.take(KEY, [5, 6], 7, it.now[0], 60_000, 0, 0.0)
        appends = len(it.log.appends)
        times = [
            time for step in steps for time in it.pops.change([change(it, *one) for one in step])
        ]
        # Of a check point from before the start the handle says how long it lasts.
        in_time = [[one for one in step if one[2] > 0 or one[0] != 9] for step in steps]
        assert len(it.log.appends) - appends == len([step for step in in_time if step])
        records = [record for each in it.log.appends for record in each]
        counts = list(it.pops.in_flight.by_topic()), it.pops.in_flight.of_group("G")
        while (over := it.pops.in_flight.over(3_600.0)) is not None:
            it.pops.in_flight.acknowledge(over.point.key, over.offsets)
        assert (len(it.pops.in_flight), it.pops.in_flight.of_group("G")) == (0, 0)
        found.append((times, records, counts))
    assert found[0] == found[1]


def test_a_time_that_cannot_be_stored_is_not_changed(tmp_path: Path) -> None:
    it = scene(tmp_path)
    it.pops.take(KEY, [0, 1], 2, it.now[0], 60_000, 0, 0.0)
    it.log.full = True
    with pytest.raises(StoreUnavailable):
        it.pops.change([change(it, 0, 0), change(it, 0, 1)])
    assert (len(it.pops.in_flight), it.pops.in_flight.of_queue(KEY)) == (1, 2)


def test_a_time_that_is_changed_in_the_millisecond_of_the_pop_has_a_check_point_of_its_own(
    tmp_path: Path,
) -> None:
    it = scene(tmp_path)
    it.take(0)
    key = ("T", "G", 0, 0, it.now[0], "broker-a")
    (made,) = it.pops.change([TimeChange(key, 0, it.now[0] + 60_000, 0, 1)])
    assert made == it.now[0] + 1
    assert it.pops.in_flight.of_queue(KEY) == 1
    over = it.pops.in_flight.over(1.0)
    assert over is not None
    assert over.point.pop_time == made


@pytest.mark.parametrize("jump_ms", [-3_600_000, 59_999, 3_600_000])
def test_invisible_times_are_those_of_the_steady_clock(tmp_path: Path, jump_ms: int) -> None:
    it = scene(tmp_path)
    it.take(0)
    key, visible_at = ("T", "G", 0, 0, it.now[0], "broker-a"), it.now[0] + 60_000
    it.now[0] += jump_ms
    it.now[1] += 59_999
    assert it.pops.in_flight.over(it.pops.steady()) is None
    (made,) = it.pops.change([TimeChange(key, 0, visible_at, 0, 10_000)])
    assert made == it.now[0]
    it.now[1] += 10_000
    assert it.pops.in_flight.over(it.pops.steady()) is not None
    late = ("T", "G", 0, 0, made, "broker-a")
    assert it.pops.change([TimeChange(late, 0, made + 10_000, 0, 60_000)]) == [None]


def test_an_ordered_queue_that_was_reset_is_saved(tmp_path: Path) -> None:
    """Else a start finds its last pop, and the queue gives nothing for its invisible time."""
    orders = open_order_table(tmp_path, lambda: 1_000, lambda: 1.0)
    orders.pops[KEY] = OrderedPop(1_000, 60_000, [5])
    orders.forget(KEY)
    assert orders.dirty
    assert not orders.pops
