"""Pops: takes messages for a group, and takes acknowledgements; see docs/architecture/pop.md.

What a pop takes is on its way before anybody else can take it: the check point is appended and the
group's position moves in one step, in which no other task runs. A position is first *ahead* (the
disk lacks its check point), then *committed* (in the table of offsets), and *unsafe* if it was
committed after ``SAFE_SECONDS`` though a slave lacks the check point.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import NamedTuple

import attrs
import trio

from triomq.broker.services.offsets import ConsumerOffsets
from triomq.broker.services.pop.in_flight import PopsInFlight
from triomq.broker.services.pop.order_table import OrderTable
from triomq.broker.services.pop.ordered_pop import OrderedPop, Refused
from triomq.broker.services.pop.pop_log import PopLog, PopRecord, QueueKey
from triomq.broker.services.pop.pop_settings import PopSettings
from triomq.broker.services.pop.revive_records import (
    POSITION_GROUP,
    REVIVE_GROUP,
    read_revive_record,
)
from triomq.broker.services.timers.timers import Timers
from triomq.broker.store.store import MessageStore
from triomq.remoting.protocol.bodies.check_point import LEAD_MS, Ack, CheckPoint, Key
from triomq.remoting.protocol.message_properties import REAL_TOPIC
from triomq.remoting.protocol.names import TIMER_TOPIC
from triomq.remoting.protocol.record import StoredMessage

SAFE_SECONDS = 3.0
"""Longest wait of a position for the slaves of a SYNC_MASTER. From then on it is committed, but no
slave is told before it has the check point: as a master it would leave out the messages.
"""
COVERED = (POSITION_GROUP, TIMER_TOPIC, 0)
"""Where the table of offsets has up to which timed message positions are committed."""
TAKING_OVER = "the master is about to take over what its slaves have done: try again in a moment"
NOT_ACTING = (
    "this broker is a slave that does not act for its master: ask the master, or set"
    " enableSlaveActingMaster=true on all brokers of the group and on the name servers"
)


class AckPart(NamedTuple):
    """Acknowledged messages of one check point. ``visible_at``: when they would come again (ms)."""

    offsets: Sequence[int]
    key: Key
    visible_at: int
    revive_queue: int


class TimeChange(NamedTuple):
    """Another invisible time of one message. ``visible_at``: when it would come again (ms)."""

    key: Key
    offset: int
    visible_at: int
    revive_queue: int
    invisible_ms: int


class Move(NamedTuple):
    """A position that waits for its records."""

    end: int
    """End of the records that must be safe."""
    made_at: float
    """By the steady clock, in seconds."""
    key: QueueKey
    position: int | None
    """None: it was reset meanwhile, or its topic or group is deleted."""
    timed_end: int
    """With this move, the positions cover the check points below it in the topic of timers."""


@attrs.define(eq=False)
class Pops:
    """The state of POP of this broker: a master, or a slave that can act for it."""

    log: PopLog
    store: MessageStore
    timers: Timers
    offsets: ConsumerOffsets
    orders: OrderTable
    settings: PopSettings
    clock_ms: Callable[[], int]
    broker_name: str
    revive_topic: str
    closed: str = ""
    """Why no client may pop now."""
    steady: Callable[[], float] = trio.current_time
    decided_to_ms: int = attrs.field(default=0, init=False)
    """Check points from before the start that ended before this time are decided: a late
    acknowledgement of others still counts.
    """
    in_flight: PopsInFlight = attrs.field(factory=PopsInFlight, init=False)
    on_uncovered: Callable[[], None] = attrs.field(default=lambda: None, init=False)
    """Called when a position waits for the disk."""
    popped: int = attrs.field(default=0, init=False)
    acknowledged: int = attrs.field(default=0, init=False)
    _ahead: dict[QueueKey, int] = attrs.field(factory=dict, init=False)
    """Positions that are ahead of the committed offsets, since the disk has not what they cover."""
    _uncovered: deque[Move] = attrs.field(factory=deque, init=False)
    """In the order in which they were made."""
    _unsafe: dict[QueueKey, tuple[int | None, int]] = attrs.field(factory=dict, init=False)
    """Positions that were committed too early for slaves: the one before, end of the records."""
    _revive_queue: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.offsets.on_forget.append(self.forget)
        self.offsets.unknown_to_slaves = self.unsafe

    # Positions

    def position(self, key: QueueKey) -> int | None:
        """Return the next offset of a queue to pop; None if the group never popped it."""
        committed, ahead = self.offsets.committed_offset(*key), self._ahead.get(key)
        if committed is None or ahead is None:
            return committed if ahead is None else ahead
        return max(committed, ahead)

    def move(self, key: QueueKey, offset: int, end: int = 0) -> None:
        """Move a position; it is committed once the records up to ``end`` are safe."""
        # Nothing of this queue waits, and the move needs no record: the order of commits is kept.
        if key not in self._ahead and not end:
            self.offsets.commit(*key, offset)
            return
        self._ahead[key] = offset
        self._uncovered.append(Move(end, self.steady(), key, offset, self.log.timed_end))
        self.commit_covered()
        if self._uncovered:
            self.on_uncovered()

    def reset(self, key: QueueKey, offset: int) -> None:
        """Set a position, whatever is on its way."""
        self._forget({key})
        self.offsets.commit(*key, offset)

    def _forget(self, keys: Set[QueueKey]) -> None:
        """Forget positions, and the moves that wait for their records."""
        if not keys.isdisjoint(self._ahead):
            self._uncovered = deque(
                # A move stays in its place without its position: its `timed_end` still counts.
                move._replace(position=None) if move.key in keys else move
                for move in self._uncovered
            )
        for key in keys:
            self._ahead.pop(key, None)
            self._unsafe.pop(key, None)
            self.log.forget_position(key)

    def moved(self, group: str, topic: str, wanted: Mapping[int, int]) -> None:
        """Set the positions that an operator wants. Checkpoint: never.

        Ordered queues give messages at once. Messages in flight are not counted any more; they come
        again unless they are acknowledged.
        """
        self.in_flight.forget(group=group, topic=topic, queue_ids=wanted)
        for queue_id, offset in wanted.items():
            key = group, topic, queue_id
            self.orders.forget(key)
            self.reset(key, offset)

    def forget(self, *, topic: str | None = None, group: str | None = None) -> None:
        """Forget positions of a topic, or of a group, that is deleted. Checkpoint: never."""
        known = {*self._ahead, *self._unsafe, *self.orders.pops, *self.log.positions}
        gone = {key for key in known if topic == key[1] or group == key[0]}
        self._forget(gone)
        for key in gone:
            self.orders.forget(key)
        self.in_flight.forget(group=group, topic=topic)

    @property
    def uncovered(self) -> int:
        """The number of moves of positions that wait for the disk, or for a slave."""
        return len(self._uncovered)

    @property
    def has_uncovered(self) -> bool:
        """Whether positions wait for the disk."""
        return bool(self._uncovered)

    def commit_covered(self, *, ending: bool = False) -> None:
        """Commit the positions whose records are safe. Checkpoint: never.

        ``ending``: the broker stops, and no slave can report any more.
        """
        # A slave that lags must not hold a position back for ever: each start would give all
        # messages since then once more.
        before = self.steady() - SAFE_SECONDS
        while self._uncovered:
            end, made_at, key, offset, timed_end = self._uncovered[0]
            safe = self.log.is_safe(end)
            late = (ending or made_at < before) and self.log.on_disk(end)
            # In the order in which they were made: a later position covers the earlier ones, so
            # committing it first would let a crash lose the check points in between.
            if not late and not safe:
                return
            self._uncovered.popleft()
            if timed_end:
                self._note_safety(COVERED, end, safe=safe)
                self.offsets.commit(*COVERED, timed_end)
            ahead = self._ahead.get(key)
            # It was reset or deleted after this move, or a takeover has committed it.
            if offset is None or ahead is None:
                continue
            self._note_safety(key, end, safe=safe)
            self.offsets.commit(*key, offset)
            # The last move of this queue that waited; an earlier one leaves the newer position
            # ahead.
            if ahead == offset:
                del self._ahead[key]

    def note_covered(self) -> None:
        """Commit the end of the timed messages, 0 too: without one, Java has written the table."""
        self.offsets.commit(*COVERED, self.store.max_offset(TIMER_TOPIC, 0))

    def _note_safety(self, key: QueueKey, end: int, *, safe: bool) -> None:
        """Note whether slaves may know the position that is committed next."""
        known = self._unsafe.pop(key, None)
        if not safe:
            # What slaves know is the position before the first unsafe one, however many follow it.
            before = known[0] if known is not None else self.offsets.committed_offset(*key)
            self._unsafe[key] = before, end

    def unsafe(self) -> dict[QueueKey, int | None]:
        """Return what slaves may know of positions whose records they may lack."""
        for key in [key for key, (_, end) in self._unsafe.items() if self.log.is_safe(end)]:
            del self._unsafe[key]
        return {key: before for key, (before, _) in self._unsafe.items()}

    def commit_ahead(self) -> None:
        """Commit all positions: another broker keeps the records now. Checkpoint: never."""
        self._uncovered.clear()
        ahead, self._ahead = self._ahead, {}
        for key, offset in ahead.items():
            self.offsets.commit(*key, offset)

    def next_revive_queue(self) -> int:
        """Return the revive queue of a pop: each in turn."""
        self._revive_queue = (self._revive_queue + 1) % self.settings.revive_queues
        return self._revive_queue

    def has_room(self, group: str, topic: str) -> bool:
        """Return whether a group may have more messages of a topic in flight."""
        return (
            not self.settings.in_flight_checked
            or self.in_flight.count(group, topic) < self.settings.in_flight_max
        )

    def waiting(self, key: QueueKey) -> int:
        """Return how many messages of a queue are popped and not acknowledged."""
        info = self.orders.pops.get(key)
        ordered = info.open_count(info.now_ms(self.steady())) if info is not None else 0
        return self.in_flight.of_queue(key) + ordered

    # Taking and giving back

    def take(
        self,
        key: QueueKey,
        offsets: Sequence[int],
        following: int,
        pop_time: int,
        invisible_ms: int,
        revive_queue: int,
        begun: float,
    ) -> None:
        """Take messages of a queue, and move on to ``following``.

        ``begun``: the steady clock at ``pop_time``.

        Raises: StoreUnavailable, StoreIoError; then nothing is taken. Checkpoint: never.
        """
        group, topic, queue_id = key
        point = CheckPoint(
            start_offset=offsets[0],
            pop_time=pop_time,
            invisible_ms=invisible_ms,
            count=len(offsets),
            queue_id=queue_id,
            topic=topic,
            group=group,
            differences=[offset - offsets[0] for offset in offsets],
            broker_name=self.broker_name,
            log_end=self.store.appended.value,
        )
        due_ms = point.visible_at - LEAD_MS
        # Append the check point before the position moves: a failed append must take no message.
        end = self.log.append([PopRecord(point, revive_queue, due_ms)])
        self.in_flight.begin(point, begun, revive_queue)
        self.move(key, following, end)
        self.popped += len(offsets)

    def take_ordered(
        self,
        key: QueueKey,
        offsets: Sequence[int],
        pop_time: int,
        invisible_ms: int,
        attempt_id: str | None,
        begun: float,
    ) -> dict[int, int]:
        """Take messages of a queue for an orderly group, which begins there again until it has
        acknowledged them.

        Returns: how often each was popped before, of those that were.
        Checkpoint: never.
        """
        before = self.orders.pops.get(key)
        if before is None:
            before = OrderedPop(0, 0, [])
        info = before.next(pop_time, invisible_ms, offsets, attempt_id)
        info.begun = begun
        self.orders.put(key, info)
        self.popped += len(offsets)
        return info.counts

    def acknowledge_ordered(self, key: QueueKey, offset: int, pop_time: int) -> bool:
        """Acknowledge a message of an orderly group; return False if its last pop has none such.

        Checkpoint: never.
        """
        position, info = self.position(key), self.orders.pops.get(key)
        if position is None:
            return False  # the group has never popped this queue
        # Acknowledged before: a client that got no answer asks again.
        if offset < position:
            return True
        if info is None and self.offsets.moved_at(*key):
            return True  # late: of a pop from before an operator moved the group
        following = info.acknowledge(offset, pop_time) if info is not None else offset + 1
        if isinstance(following, Refused):
            return following is Refused.LATE
        self.acknowledged += 1
        self.reset(key, following)
        self.orders.touch()
        return True

    def acknowledge(self, parts: Iterable[AckPart]) -> tuple[int, Sequence[tuple[Key, int]]]:
        """Store acknowledgements with one append, those of one check point in one record.

        Returns: the end of the records, which must be durable before the answer, 0 if nothing had
        to be stored; and how many messages of each check point were not acknowledged before.
        Raises: StoreUnavailable, StoreIoError; then nothing is acknowledged. Checkpoint: never.
        """
        merged: dict[tuple[Key, int, int], list[int]] = {}
        for part in parts:
            # Otherwise too late: they come again.
            if part.key in self.in_flight or part.visible_at >= self.decided_to_ms:
                merged.setdefault(part[1:], []).extend(part.offsets)
        fresh = [
            (key, offsets, visible_at, revive_queue)
            for (key, visible_at, revive_queue), asked in merged.items()
            if (offsets := self.in_flight.unacknowledged(key, asked))
        ]
        if not fresh:
            return 0, ()
        end = self.log.append(
            [
                PopRecord(make_ack(key, offsets), revive_queue, visible_at)
                for key, offsets, visible_at, revive_queue in fresh
            ]
        )
        counts = [
            (key, len(self.in_flight.acknowledge(key, offsets))) for key, offsets, *_ in fresh
        ]
        self.acknowledged += sum([count for _, count in counts])
        return end, counts

    def change(self, changes: Iterable[TimeChange]) -> list[int | None]:
        """Give messages other invisible times, from now on, with one append.

        Returns: for each the time of its new check point (ms); None: too late, it comes again.
        Raises: StoreUnavailable, StoreIoError; then nothing is changed. Checkpoint: never.
        """
        now, begun, log_end = self.clock_ms(), self.steady(), self.store.appended.value
        times: list[int | None] = []
        made: dict[Key, tuple[TimeChange, CheckPoint]] = {}
        records: list[PopRecord] = []
        for change in changes:
            key, offset, ends = change.key, change.offset, self.in_flight.ends(change.key)
            if change.visible_at <= now if ends is None else ends <= begun:
                times.append(None)
                continue
            point = CheckPoint(
                start_offset=offset,
                pop_time=now,
                invisible_ms=change.invisible_ms,
                count=1,
                queue_id=key[2],
                topic=key[0],
                group=key[1],
                differences=[0],
                broker_name=self.broker_name,
                log_end=log_end,
            )
            # Popped or changed in this millisecond: that one's acknowledgement is not for this one.
            while point.key in self.in_flight or point.key in made:
                point = attrs.evolve(point, pop_time=point.pop_time + 1)
            times.append(point.pop_time)
            made[point.key] = change, point
            records += (
                PopRecord(point, change.revive_queue, point.visible_at - LEAD_MS),
                PopRecord(make_ack(key, [offset]), change.revive_queue, change.visible_at),
            )
        if records:
            self.log.append(records)
        for change, point in made.values():
            self.in_flight.begin(point, begun, change.revive_queue)
            self.in_flight.acknowledge(change.key, [change.offset])
        return times

    # Timers

    def is_settled(self, message: StoredMessage) -> bool:
        """Return whether a timed message need not go to the revive topic: all is acknowledged."""
        if message.properties.get(REAL_TOPIC) != self.revive_topic:
            return False
        record = read_revive_record(message)
        if isinstance(record, CheckPoint):
            return self.in_flight.drops(record.key)
        return record is not None and self.in_flight.dropped(record.key)

    # How far the revive topic is done

    def revived_to(self, queue_id: int) -> int:
        """Return the offset of the last record of a revive queue that is done; -1: none."""
        position = self.position((REVIVE_GROUP, self.revive_topic, queue_id))
        return -1 if position is None else position


def make_ack(key: Key, offsets: Sequence[int]) -> Ack:
    """Return the record that acknowledges messages of one check point."""
    topic, group, queue_id, start, pop_time, broker_name = key
    single = len(offsets) == 1
    return Ack(
        offset=offsets[0] if single else -1,
        start_offset=start,
        group=group,
        topic=topic,
        queue_id=queue_id,
        pop_time=pop_time,
        broker_name=broker_name,
        more=None if single else list(offsets),
    )


def position_point(key: QueueKey, position: int) -> CheckPoint:
    """Return a check point whose only message is acknowledged.

    It says in the log how far a queue is popped: a commit may be only in the memory of a broker
    that is killed.
    """
    group, topic, queue_id = key
    return CheckPoint(
        start_offset=position - 1,
        pop_time=0,
        invisible_ms=LEAD_MS,
        bits=1,
        count=1,
        queue_id=queue_id,
        topic=topic,
        group=group,
        differences=[0],
    )
