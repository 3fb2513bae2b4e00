"""Compare all consume queues with the log: a cursor per queue, findings by the store's state."""

from __future__ import annotations

from collections.abc import Container

import attrs

from triomq.broker.inspect.batch_cursor import BatchCursor
from triomq.broker.inspect.layout import (
    AHEAD_ADVICE,
    BATCH_QUEUES,
    QUEUES,
    REBUILD_QUEUES,
    RECOVERY_CUTS,
    StoreFiles,
)
from triomq.broker.inspect.log_check import LogCheck
from triomq.broker.inspect.queue_cursor import QueueCursor
from triomq.broker.inspect.report import Report
from triomq.broker.inspect.state import StoreState
from triomq.broker.store.core.config import QUEUE_ENTRY_BYTES
from triomq.broker.store.core.draft import UNQUEUED, Appended, Draft
from triomq.broker.store.core.numbering import batch_place, dispatch_places
from triomq.broker.store.queues.batch import Batch
from triomq.broker.store.queues.batch_queue import BatchEntry
from triomq.remoting.core.findings import Level
from triomq.remoting.protocol.java_hash import tags_code
from triomq.remoting.protocol.message_properties import DELAY, property_value
from triomq.remoting.protocol.names import SCHEDULE_TOPIC
from triomq.remoting.protocol.sys_flags import INNER_BATCH, TRANSACTION_MASK

BLOCK_BYTES_TOTAL = 64 * 1024 * 1024
"""memory for the blocks of all queues together"""
BLOCK_ENTRIES_MIN, BLOCK_ENTRIES_MAX = 50, 3_276


@attrs.define(eq=False)
class QueueCheck:
    """Call ``apply`` with the batches of the log in order, then ``finish``."""

    files: StoreFiles
    report: Report
    log: LogCheck
    state: StoreState
    topics: Container[str] | None
    """topics of config/topics.json; None if the file cannot be read"""
    cursors: dict[tuple[str, int], QueueCursor] = attrs.field(factory=dict, init=False)
    deleted_topics: dict[str, int] = attrs.field(factory=dict, init=False)
    """topic without queues -> number of its records in the log"""
    _block_entries: int = attrs.field(default=BLOCK_ENTRIES_MAX, init=False)

    def find_queues(self) -> None:
        """Open a cursor for each queue.

        Raises: OSError.
        """
        places = list(self.files.queues(QUEUES))
        share = BLOCK_BYTES_TOTAL // QUEUE_ENTRY_BYTES // max(1, len(places))
        self._block_entries = max(BLOCK_ENTRIES_MIN, min(BLOCK_ENTRIES_MAX, share))
        for topic, queue_id, _ in places:
            self._open(topic, queue_id).find_files()
        for topic, queue_id, _ in self.files.queues(BATCH_QUEUES):
            self._open(topic, queue_id, batched=True).find_files()

    def _open(self, topic: str, queue_id: int, *, batched: bool = False) -> QueueCursor:
        cursor = self.cursors[topic, queue_id] = (BatchCursor if batched else QueueCursor)(
            self.files, self.log, self.report, topic, queue_id, self._block_entries
        )
        return cursor

    def apply(self, batch: Batch) -> None:
        """Compare the entries of these records."""
        cursors = self.cursors
        for draft, place in zip(batch.drafts, batch.places):
            if draft.sys_flag & TRANSACTION_MASK in UNQUEUED:
                continue
            cursor = cursors.get((draft.topic, draft.queue_id)) or self._open(
                draft.topic, draft.queue_id, batched=bool(draft.sys_flag & INNER_BATCH)
            )
            if isinstance(cursor, BatchCursor):
                self._apply_batch(cursor, draft, place)
            else:
                code = (
                    tags_code(draft.tags)
                    if draft.topic != SCHEDULE_TOPIC
                    else self._delayed_code(draft)
                )
                cursor.record(place.queue_offset, place.log_offset, place.size, code)
            if b"INNER_MULTI_QUEUE_OFFSET" in draft.properties:
                self._apply_dispatches(draft, place)

    def _apply_batch(self, cursor: BatchCursor, draft: Draft, place: Appended) -> None:
        base, count = batch_place(draft.properties, place.queue_offset)
        expected = BatchEntry(
            place.log_offset, place.size, tags_code(draft.tags), place.store_timestamp, base, count
        )
        cursor.record_batch(expected, numbered=b"INNER_BASE\1" in draft.properties)

    def _delayed_code(self, draft: Draft) -> int | None:
        """Return the tags code of the entry; None for a delayed message.

        Its entry has the time of delivery, which depends on the broker's messageDelayLevel.
        """
        return (
            None
            if property_value(draft.properties, DELAY.encode()) not in (None, b"0")
            else tags_code(draft.tags)
        )

    def _apply_dispatches(self, draft: Draft, place: Appended) -> None:
        """Compare a record with several queues (LMQ) with those that exist.

        Source: store/…/LmqDispatch.java.
        """
        for name, number in dict(dispatch_places(draft.properties)).items():
            cursor = self.cursors.get((name, 0))
            if cursor is not None:
                cursor.record(number, place.log_offset, place.size, tags_code(draft.tags))

    def finish(self) -> None:
        """Check the entries behind the last record, and report all queues."""
        any_files = any(cursor.bases for cursor in self.cursors.values())
        if not any_files and self.log.records:
            self.report.note(
                "queues-missing",
                self.files.root / QUEUES,
                "the store has no consume queues",
                "nothing: the next start rebuilds them from the log",
            )
        present = {cursor.topic for cursor in self.cursors.values() if cursor.bases}
        recreated = {cursor.topic for cursor in self.cursors.values() if cursor.earlier_incarnation}
        for cursor in self.cursors.values():
            if cursor.bases:
                cursor.finish()
                self._report(cursor)
            elif any_files and cursor.behind:
                self._report_missing(cursor, present, recreated)

    def _report_missing(self, cursor: QueueCursor, present: set[str], recreated: set[str]) -> None:
        """Report a queue without files whose records are in the log.

        Its topic was deleted, or deleted and created again, and no message was sent to this queue
        since then.
        """
        topic = cursor.topic
        if topic in recreated:
            cursor.earlier_incarnation, cursor.behind = cursor.behind, 0
        elif topic in present:
            self._report(cursor)
        elif self.topics is None or topic not in self.topics:
            self.deleted_topics[topic] = self.deleted_topics.get(topic, 0) + cursor.behind
        else:
            what = (
                f"topic {topic} exists and the log holds {cursor.behind} messages of its queue"
                f" {cursor.queue_id}, but it has no consume queues"
            )
            advice = (
                "nothing if the topic was deleted and created again; otherwise " + REBUILD_QUEUES
            )
            self.report.note("topic-without-queues", cursor.directory.parent, what, advice)

    def _report(self, cursor: QueueCursor) -> None:
        name = f"queue {cursor.queue_id} of {cursor.topic}"
        if cursor.lost:
            self.report.note(
                "queue-into-damage",
                cursor.directory,
                f"{cursor.lost} entries of {name} point into damaged or missing parts of the log",
                "nothing for the queue itself: readers skip what they cannot read; see the finding"
                " about the log",
            )
        if cursor.ahead and cursor.ahead_first is not None:
            number, log_offset = cursor.ahead_first
            level = self.state.level_at(log_offset)
            self.report.add(
                level,
                "queue-ahead",
                cursor.directory,
                f"{name} is ahead of the log: {cursor.ahead} entries from number {number} on point"
                f" at {log_offset} and later, the log ends at {self.log.end}",
                RECOVERY_CUTS if level is Level.ADVICE else AHEAD_ADVICE,
                at=cursor.position(number),
            )
        if cursor.behind and cursor.behind_first is not None:
            number, log_offset = cursor.behind_first
            level = self.state.level_at(log_offset)
            self.report.add(
                level,
                "queue-behind",
                cursor.directory,
                f"{name} is behind the log: {cursor.behind} messages from number {number} (at"
                f" {log_offset}) on have no entry",
                "nothing: recovery adds them at the next start"
                if level is Level.ADVICE
                else REBUILD_QUEUES,
                at=cursor.position(number),
            )

    @property
    def entries(self) -> int:
        return sum(cursor.entries for cursor in self.cursors.values())

    @property
    def queue_count(self) -> int:
        return sum(bool(cursor.bases) for cursor in self.cursors.values())

    @property
    def batch_queue_count(self) -> int:
        return sum(
            bool(cursor.bases)
            for cursor in self.cursors.values()
            if isinstance(cursor, BatchCursor)
        )
