"""POP with one rule broken: the simulation must find each of them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from triomq.broker import service_set
from triomq.broker.services.pop.in_flight import PopsInFlight
from triomq.broker.services.pop.pop_log import PopRecord, RevivePopLog
from triomq.broker.services.pop.pops import Pops
from triomq.broker.services.pop.revive_queue import Decided, ReviveQueue
from triomq.broker.services.timers.timers import Timers
from triomq.remoting.protocol.bodies.check_point import Ack, Key


def a_start_does_not_restore_positions(patch: pytest.MonkeyPatch) -> None:
    """What was popped since the offsets were saved is popped again."""

    async def nothing(pops: Pops) -> int:
        return 0

    patch.setattr(service_set, "restore_positions", nothing)


def messages_come_again_before_their_time(patch: pytest.MonkeyPatch) -> None:
    due = ReviveQueue.due

    def hasty(self: ReviveQueue, complete_to_ms: int) -> list[Decided]:
        return due(self, complete_to_ms + 900)

    patch.setattr(ReviveQueue, "due", hasty)


def acknowledgements_are_kept_in_memory(patch: pytest.MonkeyPatch) -> None:
    append = RevivePopLog.append

    def forgetful(self: RevivePopLog, records: Sequence[PopRecord]) -> int:
        kept = [each for each in records if not isinstance(each.record, Ack)]
        return append(self, kept) if kept else 0

    patch.setattr(RevivePopLog, "append", forgetful)


def what_is_decided_stays_so_when_the_clock_goes_back(patch: pytest.MonkeyPatch) -> None:
    """What is popped until the clock has caught up is over at once, whoever acknowledges it."""
    complete_to_ms, latest = Timers.complete_to_ms, dict[Timers, int]()

    def never_back(self: Timers) -> int:
        latest[self] = max(latest.get(self, 0), complete_to_ms(self))
        return latest[self]

    patch.setattr(Timers, "complete_to_ms", never_back)


def positions_are_saved_before_their_check_points(patch: pytest.MonkeyPatch) -> None:
    """What the disk has of the offsets is ahead of the log."""
    patch.setattr(RevivePopLog, "is_safe", lambda self, end: True)


def a_check_point_ends_with_its_first_acknowledgement(patch: pytest.MonkeyPatch) -> None:
    def careless(self: PopsInFlight, key: Key) -> bool:
        flight = self._flights.get(key)
        if flight is None or not flight.acknowledged:
            return False
        flight.dropped = True
        return True

    patch.setattr(PopsInFlight, "drops", careless)


def progress_of_the_revive_topic_is_what_was_read(patch: pytest.MonkeyPatch) -> None:
    """Check points that wait for their end count as done."""

    def hasty(self: ReviveQueue) -> None:
        self.done = max(self.done, self._read)

    patch.setattr(ReviveQueue, "_advance", hasty)


BROKEN_POPS = (
    a_start_does_not_restore_positions,
    messages_come_again_before_their_time,
    acknowledgements_are_kept_in_memory,
    what_is_decided_stays_so_when_the_clock_goes_back,
    positions_are_saved_before_their_check_points,
    a_check_point_ends_with_its_first_acknowledgement,
    progress_of_the_revive_topic_is_what_was_read,
)
