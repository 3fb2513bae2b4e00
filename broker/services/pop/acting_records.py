"""ActingRecords: what happened to POP messages at a slave that acts for its master.

The slave's log takes nothing but its master's, so check points and acknowledgements have a file of
their own, ``popActing.json``, until the master that is back has taken them over. A broker that was
a slave and starts as a master takes them over itself. Java's slave stores them at another master,
where no check point of its own master finds its acknowledgements.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs
import msgspec

from triomq.broker.services.persisted import PersistedTable, load_table
from triomq.broker.services.pop.pop_log import PopRecord, QueueKey
from triomq.broker.store.log.durability import DurabilityResult, OnDurable
from triomq.remoting.protocol.bodies.check_point import Ack, CheckPoint, Key


@attrs.define(eq=False)
class ActingPoint:
    """A check point whose messages are not all acknowledged."""

    point: CheckPoint
    left: set[int]
    """Offsets that are not acknowledged."""
    revive_queue: int
    own: bool = False
    """Whether it was made here: the master's log has none of it."""
    read: bool = False
    """Whether it is from the revive topic, where the master finds it itself."""
    over: bool = False
    """Whether it was made here, and its time is over by the steady clock."""


@attrs.define(eq=False)
class ActingAcks:
    """Acknowledged messages of one check point of the master, and those that went elsewhere."""

    visible_at: int
    revive_queue: int
    offsets: set[int] = attrs.field(factory=set)


@attrs.define(eq=False)
class ActingRecords(PersistedTable):
    """The records; the ``PopLog`` of an acting slave. An end is a number of changes."""

    points: dict[Key, ActingPoint] = attrs.field(factory=dict)
    acks: dict[Key, ActingAcks] = attrs.field(factory=dict)
    positions: dict[QueueKey, int] = attrs.field(factory=dict)
    """How far queues are popped here: the table of offsets is saved later."""
    _waiting: deque[tuple[int, OnDurable]] = attrs.field(factory=deque, init=False)
    """Acknowledgements that are answered when the file has them."""
    decided: set[Key] = attrs.field(factory=set, init=False)
    """Check points that the master has decided: the timers of a slave, whose progress is a little
    behind, bring some of them again.
    """

    # The log of an acting slave

    def append(self, records: Sequence[PopRecord]) -> int:
        for record, revive_queue, due_ms in records:
            if isinstance(record, Ack):
                self.acknowledge(record.key, record.offsets, due_ms, revive_queue)
                continue
            offsets = record.offsets
            self.points[record.key] = ActingPoint(record, set(offsets), revive_queue, own=True)
            key = record.group, record.topic, record.queue_id
            self.positions[key] = max(self.positions.get(key, 0), offsets[-1] + 1)
        self.touch()
        return self.changes

    def on_disk(self, end: int) -> bool:
        return self.changes_saved >= end

    def is_safe(self, end: int) -> bool:
        return self.on_disk(end)

    def durable_now(self, end: int) -> bool:
        return self.on_disk(end)

    def when_durable(self, end: int, on_durable: OnDurable) -> None:
        self._waiting.append((end, on_durable))

    def note_saved(self, changes: int) -> None:
        super().note_saved(changes)
        while self._waiting and self._waiting[0][0] <= changes:
            self._waiting.popleft()[1](DurabilityResult.DURABLE)

    @property
    def timed_end(self) -> int:
        """The log has none of the records."""
        return 0

    def forget_position(self, key: QueueKey) -> None:
        self.positions.pop(key, None)

    # What the slave finds in its log, and decides

    def find_point(self, point: CheckPoint, revive_queue: int, *, read: bool) -> None:
        """Take a check point of the master, unless all of it is acknowledged."""
        if point.key in self.points or point.key in self.decided:
            return
        offsets, acks = point.offsets, self.acks.get(point.key)
        left = {each for place, each in enumerate(offsets) if not point.bits >> place & 1}
        if acks is not None:
            left -= acks.offsets
        if left:
            self.points[point.key] = ActingPoint(point, left, revive_queue, read=read)
            self.touch()

    def find_ack(self, ack: Ack) -> None:
        """Take an acknowledgement from the revive topic, where the master finds it itself."""
        known = self.points.get(ack.key)
        if known is not None:
            self._leave(known, ack.offsets)

    def acknowledge(
        self, key: Key, offsets: Iterable[int], visible_at: int, revive_queue: int
    ) -> None:
        """Note messages that need not come again."""
        offsets = list(offsets)
        known = self.points.get(key)
        if known is not None:
            self._leave(known, offsets)
        if known is None or not known.own:
            acks = self.acks.setdefault(key, ActingAcks(visible_at, revive_queue))
            acks.offsets.update(offsets)
        self.touch()

    def _leave(self, known: ActingPoint, offsets: Iterable[int]) -> None:
        known.left.difference_update(offsets)
        if not known.left:
            del self.points[known.point.key]
            if known.read:
                self.decided.add(known.point.key)
        self.touch()

    def due_points(self, complete_to_ms: int, in_flight: Container[Key]) -> list[ActingPoint]:
        """Return the check points whose messages come again.

        Those that are not ``in_flight`` are the master's, or from before the start.
        """
        return [
            each
            for key, each in self.points.items()
            if each.over or (each.point.visible_at < complete_to_ms and key not in in_flight)
        ]

    def forget(self, points: Iterable[Key], acks: Iterable[Key]) -> None:
        """Forget what the master has."""
        for key in points:
            self.points.pop(key, None)
        for key in acks:
            self.acks.pop(key, None)
        self.touch()

    def encode(self) -> bytes:
        return msgspec.json.encode(
            {
                "points": [
                    [
                        each.point.encode().decode(),
                        sorted(each.left),
                        each.revive_queue,
                        each.own,
                        each.read,
                    ]
                    for each in self.points.values()
                ],
                "acks": [
                    [*key, each.visible_at, each.revive_queue, sorted(each.offsets)]
                    for key, each in self.acks.items()
                ],
                "positions": [[*key, offset] for key, offset in self.positions.items()],
            }
        )


class SavedRecords(msgspec.Struct):
    """The file."""

    points: list[tuple[str, list[int], int, bool, bool]]
    acks: list[tuple[str, str, int, int, int, str, int, int, list[int]]]
    positions: list[tuple[str, str, int, int]]


def _decode(data: bytes) -> dict[str, Any]:
    """Return the fields of the table. Raises: ValueError, RemoteProtocolError."""
    found = msgspec.json.decode(data, type=SavedRecords)
    points = [
        ActingPoint(CheckPoint.decode(text.encode()), set(left), queue, own, read)
        for text, left, queue, own, read in found.points
    ]
    return {
        "points": {each.point.key: each for each in points},
        "acks": {tuple(row[:6]): ActingAcks(row[6], row[7], set(row[8])) for row in found.acks},
        "positions": {(group, topic, queue): at for group, topic, queue, at in found.positions},
    }


def records_path(directory: Path) -> Path:
    """Return the file of the records in a config directory."""
    return directory / "popActing.json"


def open_acting_records(directory: Path) -> ActingRecords:
    """Load the records. Raises: DamagedTable."""
    path = records_path(directory)
    return ActingRecords(path, **(load_table(path, _decode) or {}))
