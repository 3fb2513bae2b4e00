"""Open halves against a plain table: whatever arrives, ends and is checked in which order, the same
halves are open, each is due once in its time, and what is saved is enough to find them again.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from triomq.broker.services.transactions.open_halves import OpenHalves, Progress

TIMEOUT, INTERVAL = 6.0, 30.0


class OpenHalvesAgainstATable(RuleBasedStateMachine):
    """The model keeps the half queue and the op queue as a broker has them on its disk."""

    @initialize(half=st.integers(0, 3), op=st.integers(0, 3))
    def start(self, half: int, op: int) -> None:
        self.real = OpenHalves(half, op)
        self.first_half, self.first_op = half, op
        self.due: dict[int, float] = {}
        """Open half -> time of its next check; all others have ended."""
        self.end = half
        self.ops: list[list[int]] = []
        self.first: dict[int, int] = {}
        self.now = 0.0

    @rule(count=st.integers(1, 4))
    def arrive(self, count: int) -> None:
        for offset in range(self.end, self.end + count):
            self.due[offset] = self.now + TIMEOUT
        self.end += count
        self.real.arrived(self.end, self.now)

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        if self.due:
            chosen = data.draw(st.lists(st.sampled_from(sorted(self.due)), min_size=1, unique=True))
            self._end(chosen)

    def _end(self, chosen: list[int]) -> None:
        self.real.op_record(self.first_op + len(self.ops), chosen)
        self.ops.append(chosen)
        self.real.finish(chosen)
        for offset in chosen:
            del self.due[offset]

    @rule(seconds=st.sampled_from([0.0, 1.0, 6.0, 20.0, 31.0]), count=st.integers(1, 9))
    def check(self, seconds: float, count: int) -> None:
        """Ask about what is due: each becomes a copy, or is postponed."""
        self.now += seconds
        found = self.real.due(self.now, TIMEOUT, count)
        assert len(set(found)) == len(found) <= count
        expected = {offset for offset, due in self.due.items() if due <= self.now}
        assert set(found) <= expected
        assert len(found) == min(count, len(expected))
        for offset in found:
            if offset % 3 == 0:
                self.real.postpone(offset, self.now + 10)
                self.due[offset] = self.now + 10
            else:
                self._move(offset)

    def _move(self, offset: int) -> None:
        copy, first = self.end, self.first.get(offset, offset)
        self._end([offset])
        self.first[copy] = first
        arrives_first = copy % 2
        if arrives_first:
            self.real.arrived(copy + 1, self.now)
        self.real.note_copy(first, copy, self.now + INTERVAL)
        self.real.arrived(copy + 1, self.now)
        self.end = copy + 1
        self.due[copy] = self.now + INTERVAL

    @rule()
    def restart(self) -> None:
        """Begin again with what was saved and what lies behind it."""
        saved = self.real.progress()
        again = OpenHalves(saved.half, saved.op)
        finished: list[int] = []
        for number in range(saved.op - self.first_op, len(self.ops)):
            again.op_record(self.first_op + number, self.ops[number])
            finished += self.ops[number]
        again.arrived(self.end, self.now)
        again.finish(finished)
        self.real = again
        self.first = {}
        self.due = dict.fromkeys(self.due, self.now + TIMEOUT)

    @invariant()
    def the_same_is_open(self) -> None:
        assert self.real.open == set(self.due)
        for copy, first in self.first.items():
            if copy in self.due:
                assert self.real.current(first) == copy
        for offset in range(self.first_half, self.end):
            if offset not in self.due and offset not in self.first.values():
                assert self.real.current(offset) is None

    @invariant()
    def what_is_done_is_done(self) -> None:
        half = min(self.due, default=self.end)
        waiting = [number for number, named in enumerate(self.ops) if max(named) >= half]
        op = self.first_op + (waiting[0] if waiting else len(self.ops))
        assert self.real.progress() == Progress(half, op)

    @invariant()
    def it_wakes_in_time(self) -> None:
        wakes = self.real.next_due(TIMEOUT)
        assert (wakes is None) <= (not self.due)
        if self.due and wakes is not None:
            assert wakes <= min(self.due.values())


TestOpenHalves = OpenHalvesAgainstATable.TestCase
