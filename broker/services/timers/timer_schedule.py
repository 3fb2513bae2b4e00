"""Which slots are open, which messages are due, how far all is delivered. SANS-IO.

A slot is *open* when its records are in memory. Laws:

- ``read_ms`` < ``open_ms``: the slot at ``read_ms`` is always open. All slots before it are done,
  and no record is put there any more: a message that comes too late gets the slot ``read_ms``.
- A record of an open slot is in memory, from the chain or because it was added later.
- A record is in the slot of its time or, if it came too late, in the one that was ``read_ms`` then,
  and ``read_ms`` stays there while it waits. So once that slot is read, all records of times before
  the first slot that is not open are in memory or delivered.
- A message that is due is taken, then stored in its topic, then done. Until then it counts as not
  delivered.

Messages due at the same time keep the order of the log. One integer for each, 52 bytes with its
place in the list: a million in one second must fit into memory.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import NamedTuple

import attrs

from triomq.broker.services.timers.timer_rules import TimerRules
from triomq.broker.store.timer.timer_check import OLDER_BOUNDS_MAX, DeliveredBound
from triomq.broker.store.timer.timer_record import TimerRecord

SIZE_BITS, OFFSET_BITS = 31, 50
RECALLED_CLEAN = 1_000
"""Recalls in memory from which on finished ones are looked for."""


class DueMessage(NamedTuple):
    """A message of the timer topic: when it is due (ms), where it is, whether it waits again."""

    due_ms: int
    log_offset: int
    size: int
    rolls: bool


@attrs.define(eq=False)
class TimerSchedule:
    """``read_ms``: the first slot that is not done; 0 before ``start``."""

    rules: TimerRules
    read_ms: int = 0
    open_ms: int = attrs.field(default=0, init=False)
    """The first slot that is not open."""
    opening_ms: int | None = attrs.field(default=None, init=False)
    """The slot whose chain is being read."""
    passed_ms: int = 0
    """Messages whose own slot lies before it are delivered: a slave may leave them out. It lies
    before ``read_ms`` while a message waits there that came too late for its own slot.
    """
    bounds: list[DeliveredBound] = attrs.field(factory=list)
    """What is delivered: all that lies within one of them. A bound holds for ever, as records are
    only appended behind it. There is one, but for a clock that was set back: what came since then
    is delivered up to an earlier time than what came before.
    """
    latest_ms: int = attrs.field(init=False)
    """Latest time up to which messages were delivered: a clock that was set back does not bring
    them back.
    """
    recalled: dict[str, int] = attrs.field(factory=dict, init=False)
    """What names a recalled message (its id, or ``topic+id``) -> its slot."""
    taken: list[int] = attrs.field(factory=list, init=False)
    _heap: list[int] = attrs.field(factory=list, init=False)
    _recalled_clean: int = attrs.field(default=RECALLED_CLEAN, init=False)

    @latest_ms.default
    def _delivered_before(self) -> int:
        return self.bounds[0].due_ms if self.bounds else 0

    def start(self, now_ms: int) -> None:
        """Begin at ``read_ms``; without progress from before, now."""
        if self.read_ms <= 0:
            self.read_ms = self.rules.floor(now_ms)
        self.read_ms = self.rules.floor(self.read_ms)
        self.open_ms = self.read_ms

    @property
    def waiting(self) -> int:
        """The number of messages in memory."""
        return len(self._heap) + len(self.taken)

    def close_all(self) -> None:
        """Forget what is in memory: another broker delivers it."""
        self._heap.clear()
        self.taken.clear()
        self.recalled.clear()
        self.open_ms, self.opening_ms = 0, None

    # Opening slots

    def next_slot(self, until_ms: int) -> int | None:
        """Open the next slot if it begins by ``until_ms``, or if none is open; return its time.

        The caller loads its records and then calls ``opened``.
        """
        if self.open_ms > until_ms and self.open_ms > self.read_ms:
            return None
        self.opening_ms = self.open_ms
        self.open_ms += self.rules.precision_ms
        return self.opening_ms

    def skip_to(self, slot_ms: int) -> None:
        """Go on with a later slot: those in between have no records."""
        self.open_ms = max(self.open_ms, slot_ms)

    def delivered(self, position: int, record: TimerRecord) -> bool:
        """Return whether a record of a slot was delivered before the start."""
        due = self.rules.due_of(record.slot_ms, record.due_ms)
        return any(position < bound.below and due <= bound.due_ms for bound in self.bounds)

    def key(self, slot_ms: int, due_ms: int, log_offset: int, size: int, *, rolls: bool) -> int:
        due = self.rules.due_of(slot_ms, due_ms)
        return (((due << OFFSET_BITS | log_offset) << SIZE_BITS | size) << 1) | rolls

    def load(self, keys: Iterable[int]) -> None:
        """Take messages of a slot that is being opened."""
        heap = self._heap
        for key in keys:
            heapq.heappush(heap, key)

    def opened(self) -> None:
        """End the opening of a slot."""
        self.opening_ms = None

    def slot_for(self, slot_ms: int) -> int:
        """Return the slot of a message that is added now: never one that is done."""
        return max(slot_ms, self.read_ms)

    def fits(self, slot_ms: int, round_ms: int) -> bool:
        """Return whether a slot cannot meet one of the round before that is not done."""
        return slot_ms - self.read_ms < round_ms

    def add(self, slot_ms: int, key: int) -> bool:
        """Take a message that was added to a slot; return whether it is the first one due."""
        if slot_ms >= self.open_ms:
            return False
        heapq.heappush(self._heap, key)
        return self._heap[0] == key

    def recall(self, slot_ms: int, victim: str) -> None:
        """Drop a message of an open slot; of a later slot the chain tells it when it is opened.

        A clock that was set back may have messages wait whose slots are done long ago.
        """
        if slot_ms < self.open_ms:
            self.recalled[victim] = slot_ms

    # Delivering

    def wait_ms(self, now_ms: int) -> int | None:
        """Return the time until the first message is due, 0 if it is; None if there is none.

        Also None while it waits for its slot: ``opened`` comes first.
        """
        if not self._heap or self._is_opening(self._due(self._heap[0])):
            return None
        return max(0, self._due(self._heap[0]) - now_ms)

    def take(self, now_ms: int, count_max: int, bytes_max: int) -> list[DueMessage]:
        """Take due messages in order, at most ``count_max`` with ``bytes_max`` (but one).

        The caller calls ``done`` or ``put_back`` before it takes more.
        """
        self.latest_ms = max(self.latest_ms, now_ms)
        heap, taken = self._heap, self.taken
        found: list[DueMessage] = []
        while heap and len(found) < count_max and bytes_max > 0:
            message = self._message(heap[0])
            if message.due_ms > now_ms or self._is_opening(message.due_ms):
                break
            taken.append(heapq.heappop(heap))
            bytes_max -= message.size
            found.append(message)
        return found

    def _is_opening(self, due_ms: int) -> bool:
        """Return whether recalls of messages due then may still have to be read.

        A message that is added to a slot while it is being opened comes before them.
        """
        return self.opening_ms is not None and due_ms > self.opening_ms

    def done(self) -> None:
        """Note that the taken messages are stored in their topics."""
        self.taken.clear()

    def put_back(self) -> None:
        """Undo ``take``."""
        self.load(self.taken)
        self.taken.clear()

    def is_recalled(self, names: Iterable[str], slot_ms: int) -> bool:
        """Return whether a message of this slot was recalled by one of its names."""
        return any(self.recalled.get(name) == slot_ms for name in names)

    def _message(self, key: int) -> DueMessage:
        return DueMessage(
            self._due(key),
            key >> (SIZE_BITS + 1) & ((1 << OFFSET_BITS) - 1),
            key >> 1 & ((1 << SIZE_BITS) - 1),
            bool(key & 1),
        )

    @staticmethod
    def _due(key: int) -> int:
        return key >> (OFFSET_BITS + SIZE_BITS + 1)

    # Progress

    def _first_due(self) -> int | None:
        firsts = [keys[0] for keys in (self._heap, self.taken) if keys]
        return self._due(min(firsts)) if firsts else None

    def advance(self, now_ms: int) -> int:
        """Move ``read_ms`` as far as everything is delivered, and return it."""
        rules = self.rules
        last_open = self.open_ms - rules.precision_ms
        goal = min(rules.floor(now_ms), last_open)
        if self.opening_ms is not None:
            goal = min(goal, self.opening_ms)
        first = self._first_due()
        if first is not None:
            goal = min(goal, rules.slot_of(first))
        self.read_ms = max(self.read_ms, goal)
        if len(self.recalled) > self._recalled_clean:
            needed = self.read_ms if first is None else min(self.read_ms, rules.slot_of(first))
            self.recalled = {
                victim: slot for victim, slot in self.recalled.items() if slot >= needed
            }
            self._recalled_clean = max(RECALLED_CLEAN, 2 * len(self.recalled))
        return self.read_ms

    def note_delivered(self, now_ms: int, log_end: int) -> None:
        """Note in ``bounds`` and ``passed_ms`` what of the timer log up to now is delivered.

        The caller does so before it adds records, too: one that is due before the time of a bound
        is not within it.
        """
        open_to = self.open_ms if self.opening_ms is None else self.opening_ms
        if open_to <= self.read_ms:
            return  # messages that came too late may wait in this slot, whatever their times
        first = self._first_due()
        due = min(max(now_ms, self.latest_ms), open_to)
        self.passed_ms = self.read_ms
        if first is not None:
            due = min(due, first - 1)
            self.passed_ms = min(self.read_ms, self.rules.slot_of(first))
        bounds = self.bounds
        while bounds and bounds[-1].due_ms <= due:
            bounds.pop()
        if not bounds or bounds[-1].below < log_end:
            bounds.append(DeliveredBound(due, log_end))
        if len(bounds) > 1 + OLDER_BOUNDS_MAX:
            del bounds[-2]  # what lies only within this one comes again after a start
