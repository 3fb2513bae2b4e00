"""POP with one rule broken: the simulation must find each of them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

import pytest

from triomq.broker import service_set
from triomq.broker.services.pop.in_flight import Flight, PopsInFlight
from triomq.broker.services.pop.pop_log import PopRecord, RevivePopLog
from triomq.broker.services.pop.pops import Pops
from triomq.broker.services.pop.revive_queue import Decided, ReviveQueue
from triomq.remoting.protocol.bodies.check_point import Ack, Key


def a_start_does_not_restore_positions(patch: pytest.MonkeyPatch) -> None:
    """What was popped since the offsets were saved is popped again."""

    async def nothing(pops: Pops) -> int:
        return 0

    patch.setattr(service_set, "restore_positions", nothing)


def messages_come_again_before_their_time(patch: pytest.MonkeyPatch) -> None:
    over = PopsInFlight.over

    def hasty(self: PopsInFlight, now: float) -> Flight | None:
        return over(self, now + 0.9)

    patch.setattr(PopsInFlight, "over", hasty)


def acknowledgements_are_kept_in_memory(patch: pytest.MonkeyPatch) -> None:
    append = RevivePopLog.append

    def forgetful(self: RevivePopLog, records: Sequence[PopRecord]) -> int:
        kept = [each for each in records if not isinstance(each.record, Ack)]
        return append(self, kept) if kept else 0

    patch.setattr(RevivePopLog, "append", forgetful)


def invisible_times_end_by_the_wall_clock(patch: pytest.MonkeyPatch) -> None:
    """What is in flight comes again at once when the clock is set ahead."""
    due = ReviveQueue.due

    def by_the_wall_clock(
        self: ReviveQueue, complete_to_ms: int, in_flight: Container[Key]
    ) -> list[Decided]:
        return due(self, complete_to_ms)

    patch.setattr(ReviveQueue, "due", by_the_wall_clock)


def positions_are_saved_before_their_check_points(patch: pytest.MonkeyPatch) -> None:
    """What the disk has of the offsets is ahead of the log."""
    patch.setattr(RevivePopLog, "is_safe", lambda self, end: True)


def a_check_point_ends_with_its_first_acknowledgement(patch: pytest.MonkeyPatch) -> None:
    acknowledge = PopsInFlight.acknowledge

    def careless(self: PopsInFlight, key: Key, offsets: Iterable[int]) -> list[int]:
        fresh, flight = acknowledge(self, key, offsets), self._flights.get(key)
        if flight is not None:
            self._leave(key, flight, flight.left)
        return fresh

    patch.setattr(PopsInFlight, "acknowledge", careless)


def progress_of_the_revive_topic_is_what_was_read(patch: pytest.MonkeyPatch) -> None:
    """Check points that wait for their end count as done."""

    def hasty(self: ReviveQueue) -> None:
        self.done = max(self.done, self._read)

    patch.setattr(ReviveQueue, "_advance", hasty)


BROKEN_POPS = (
    a_start_does_not_restore_positions,
    messages_come_again_before_their_time,
    acknowledgements_are_kept_in_memory,
    invisible_times_end_by_the_wall_clock,
    positions_are_saved_before_their_check_points,
    a_check_point_ends_with_its_first_acknowledgement,
    progress_of_the_revive_topic_is_what_was_read,
)
