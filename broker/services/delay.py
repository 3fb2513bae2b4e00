"""Delayed messages by level: each waits in a queue of SCHEDULE_TOPIC_XXXX until it is due.

A message of level n waits ``messageDelayLevel[n]`` from its store time. The delay is the same for a
whole queue, so the queue is in the order of delivery, and only its head must be watched. The
progress of each level is kept in delayOffset.json, saved every 10 s, and never beyond what the disk
has of the delivered copies: after a power failure some messages may be delivered a second time, as
with Java, but none is lost. ``delay_slots`` keeps what a kill of the process would otherwise
repeat. ``delay_delivery`` has the tasks that deliver. Source:
broker/schedule/ScheduleMessageService.java, broker/util/HookUtils.java.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

import attrs
import trio

from triomq.broker.services.clock_marks import ClockMarks
from triomq.broker.services.delay_slots import DelaySlots
from triomq.broker.services.delay_times import ArrivalTimes
from triomq.broker.services.persisted import PersistedTable, Version, encode_pretty, load_table
from triomq.broker.services.topics import Topics
from triomq.broker.store.core.draft import Draft
from triomq.broker.store.store import MessageStore
from triomq.remoting.protocol.bodies.offsets import DelayOffsetTable
from triomq.remoting.protocol.bodies.schema import write_plain
from triomq.remoting.protocol.message_properties import REAL_QUEUE_ID, REAL_TOPIC, properties_text
from triomq.remoting.protocol.names import SCHEDULE_TOPIC
from triomq.remoting.protocol.record import StoredMessage

SAVE_SECONDS = 10.0
CHANGES_PER_VERSION = 200


@attrs.define(eq=False)
class DelayedMessages(PersistedTable):
    """The progress of each level, and when its messages are due.

    ``offsets``: level -> next entry of its queue to deliver. ``forward_only``: ignore progress of
    the master that is behind this broker's; set on a slave that may act for its master.
    ``replicated``: the messages come from a master. ``marks``: since when those count that were
    stored before the start, at a time that the clock has not reached.
    """

    store: MessageStore
    slots: DelaySlots
    topics: Topics
    version: Version
    clock_ms: Callable[[], int]
    forward_only: bool = False
    replicated: bool = False
    marks: ClockMarks | None = None
    offsets: dict[int, int] = attrs.field(factory=dict)
    _times: dict[int, ArrivalTimes] = attrs.field(factory=dict, init=False)
    _arrivals: dict[int, trio.Event] = attrs.field(factory=dict, init=False)
    """Level -> event of its next arrival, for a task whose queue is empty."""
    _unflushed: dict[int, deque[tuple[int, int]]] = attrs.field(factory=dict, init=False)
    """Level -> (next entry to deliver, end of the log with the copies of all before it), ascending.
    """
    _durable: dict[int, int] = attrs.field(init=False)
    """Level -> next entry to deliver as far as the disk has the copies. Only this is saved."""
    _changes: int = attrs.field(default=0, init=False)

    @_durable.default
    def _loaded_offsets(self) -> dict[int, int]:
        return dict(self.offsets)

    @property
    def levels_ms(self) -> tuple[int, ...]:
        return self.store.config.delay_levels_ms

    def schedule(self, draft: Draft, level: int) -> None:
        """Turn a draft into one that waits. A level beyond the last counts as the last."""
        level = min(level, len(self.levels_ms))
        separator = b"" if not draft.properties or draft.properties.endswith(b"\x02") else b"\x02"
        real = properties_text(
            {REAL_TOPIC: draft.topic, REAL_QUEUE_ID: str(draft.queue_id)}
        ).encode()
        draft.properties += separator + real
        draft.topic, draft.queue_id = SCHEDULE_TOPIC, level - 1

    def start_clock(self) -> None:
        """Start the due times. Messages in the queues now count as stored before the start."""
        for level, delay_ms in enumerate(self.levels_ms, 1):
            end = self.store.max_offset(SCHEDULE_TOPIC, level - 1)
            self._times[level] = ArrivalTimes(
                delay_ms / 1000, end, self.clock_ms(), trio.current_time(), self.replicated
            )

    def arrived(self, arrivals: Iterable[tuple[str, int, int, int]]) -> None:
        """Wake the levels whose messages have become readable. Checkpoint: never.

        ``arrivals``: (topic, queue id, end offset, tags code) each.
        """
        for topic, queue_id, end_offset, _ in arrivals:
            if topic == SCHEDULE_TOPIC:
                level = queue_id + 1
                times = self._times.get(level)
                if times is not None:
                    times.note(end_offset, trio.current_time())
                waiting = self._arrivals.pop(level, None)
                if waiting is not None:
                    waiting.set()

    def next_arrival(self, level: int) -> trio.Event:
        """Return the event of a level's next arrival.

        Call this before reading the queue, so that no arrival is missed.
        """
        return self._arrivals.setdefault(level, trio.Event())

    def wait_of(self, level: int, message: StoredMessage) -> float:
        """Return the seconds until a message of a level is due; 0 or less: it is due."""
        times, stored_ms = self._times[level], message.store_timestamp
        if self.marks is not None and message.queue_offset < times.known_from:
            stored_ms = self.marks.since(stored_ms, message.log_offset, times.wall_ms)
        return times.wait(message.queue_offset, stored_ms, self.clock_ms(), trio.current_time())

    def advance(self, level: int, offset: int, log_end: int = 0) -> None:
        """Record that the entries below ``offset`` are delivered.

        ``log_end``: end of the copies in this broker's log; 0 if there are none.
        """
        self.offsets[level] = offset
        self.slots.write({level: offset}, log_end)
        waiting = self._unflushed.setdefault(level, deque())
        if log_end or waiting:
            waiting.append((offset, log_end))
        else:
            self._durable[level] = offset
        times = self._times.get(level)
        if times is not None:
            times.forget(offset)
        self._changes += 1
        if self._changes % CHANGES_PER_VERSION == 0:
            self.version.bump()
        self.touch()

    def replace(self, table: DelayOffsetTable) -> None:
        """Take over the master's progress: this slave may become the master."""
        offsets = dict(table.offset_table)
        if self.forward_only:
            offsets = _farther(offsets, self.offsets)
        if offsets != self.offsets:
            self._set(offsets)
            self.version.load(table.data_version)
            self.touch()

    def take_back(self, table: DelayOffsetTable) -> int:
        """Take over the progress of a slave that delivered in place of this master.

        Returns: the number of levels that advanced.
        """
        offsets = _farther(self.offsets, dict(table.offset_table))
        changed = sum(offsets[level] != self.offsets.get(level) for level in offsets)
        if changed:
            self._set(offsets)
            self.version.bump()
            self.touch()
        return changed

    def clamp(self) -> int:
        """Lower progress beyond the end of a queue to that end; return the number of such levels.

        New messages will have these offsets.
        """
        ends = {level: self.store.max_offset(SCHEDULE_TOPIC, level - 1) for level in self.offsets}
        beyond = [level for level, offset in self.offsets.items() if offset > ends[level]]
        if beyond:
            self._set({level: min(offset, ends[level]) for level, offset in self.offsets.items()})
            self.version.bump()
            self.touch()
        return len(beyond)

    def _set(self, offsets: dict[int, int]) -> None:
        self.offsets = offsets
        self.slots.write(offsets, self.store.appended.value)
        self._durable = dict(offsets)
        self._unflushed.clear()

    def progress(self) -> dict[int, tuple[int, int]]:
        """Return level -> (next entry to deliver, end of its queue) of levels in use."""
        found = {}
        for level in range(1, len(self.levels_ms) + 1):
            end = self.store.max_offset(SCHEDULE_TOPIC, level - 1)
            if end:
                found[level] = (self.offsets.get(level, 0), end)
        return found

    def encode(self) -> bytes:
        """Return the file's content: progress up to the copies that the disk has.

        The rest stays for the next save.
        """
        flushed = self.store.flushed.value
        for level, waiting in self._unflushed.items():
            while waiting and waiting[0][1] <= flushed:
                self._durable[level] = waiting.popleft()[0]
        if any(self._unflushed.values()):
            self.touch()
        return encode_pretty(
            write_plain(DelayOffsetTable(dict(sorted(self._durable.items())), self.version.current))
        )


def _farther(one: dict[int, int], other: dict[int, int]) -> dict[int, int]:
    return {
        level: max(one.get(level, 0), other.get(level, 0)) for level in one.keys() | other.keys()
    }


def open_delayed_messages(
    directory: Path,
    store: MessageStore,
    topics: Topics,
    version: Version,
    clock_ms: Callable[[], int],
    *,
    forward_only: bool = False,
    replicated: bool = False,
    marks: ClockMarks | None = None,
) -> DelayedMessages:
    """Load the progress, or begin with each level's first message. Raises: DamagedTable, OSError.

    A Java broker may have gone on with delayOffset.json alone, so the farther progress counts.
    """
    path = directory / "delayOffset.json"
    loaded = load_table(path, DelayOffsetTable.decode) or DelayOffsetTable()
    version.load(loaded.data_version)
    slots = DelaySlots(store.disk, directory / "delayDelivered")
    opened = DelayedMessages(
        path,
        store,
        slots,
        topics,
        version,
        clock_ms,
        forward_only,
        replicated,
        marks,
        dict(loaded.offset_table),
        gather_seconds=SAVE_SECONDS,
    )
    log_end = store.appended.value
    for level, offset in slots.load(log_end).items():
        if offset > opened.offsets.get(level, 0):
            opened.advance(level, offset, log_end)
    return opened
