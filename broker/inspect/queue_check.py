"""All consume queues against the log: a cursor per queue, and what their findings mean for the state the store is in."""

from __future__ import annotations

from collections.abc import Container

import attrs

from triomq.broker.inspect.batch_cursor import BatchCursor
from triomq.broker.inspect.findings import Report
from triomq.broker.inspect.layout import REBUILD_QUEUES, StoreFiles
from triomq.broker.inspect.log_check import LogCheck
from triomq.broker.inspect.queue_cursor import QueueCursor
from triomq.broker.inspect.state import StoreState
from triomq.broker.store.batch_queue import BatchEntry
from triomq.broker.store.config import QUEUE_ENTRY_BYTES
from triomq.broker.store.draft import UNQUEUED, Appended, Batch, Draft
from triomq.broker.store.numbering import batch_place, dispatch_places
from triomq.remoting.protocol.message import (
    DELAY,
    INNER_BATCH,
    TRANSACTION_MASK,
    property_value,
    tags_code,
)
from triomq.remoting.protocol.names import SCHEDULE_TOPIC

BLOCK_BYTES_TOTAL = 64 * 1024 * 1024
"""Memory for the blocks of all queues together."""
BLOCK_ENTRIES_MIN, BLOCK_ENTRIES_MAX = 50, 3_276


@attrs.define(eq=False)
class QueueCheck:
    """``apply`` takes the batches of the log in order, ``finish`` comes last."""

    files: StoreFiles
    report: Report
    log: LogCheck
    state: StoreState
    topics: Container[str] | None
    """Topics of config/topics.json; None if that cannot be read."""
    cursors: dict[tuple[str, int], QueueCursor] = attrs.field(factory=dict, init=False)
    deleted_topics: dict[str, int] = attrs.field(factory=dict, init=False)
    """Topic without queues -> its records in the log."""
    _block_entries: int = attrs.field(default=BLOCK_ENTRIES_MAX, init=False)

    def find_queues(self) -> None:
        """Raises OSError."""
        places = list(self.files.queue_directories())
        share = BLOCK_BYTES_TOTAL // QUEUE_ENTRY_BYTES // max(1, len(places))
        self._block_entries = max(BLOCK_ENTRIES_MIN, min(BLOCK_ENTRIES_MAX, share))
        for topic, queue_id, _ in places:
            self._open(topic, queue_id).find_files()
        for topic, queue_id, _ in self.files.batch_queue_directories():
            self._open(topic, queue_id, batched=True).find_files()

    def _open(self, topic: str, queue_id: int, *, batched: bool = False) -> QueueCursor:
        files = self.files
        cursor = (BatchCursor if batched else QueueCursor)(
            topic,
            queue_id,
            files.root / ("batchconsumequeue" if batched else "consumequeue") / topic / str(queue_id),
            files.disk,
            self.report,
            self.log,
            files.log_start,
            files.batch_queue_file_size if batched else files.queue_file_size,
            self._block_entries,
        )
        self.cursors[topic, queue_id] = cursor
        return cursor

    def apply(self, batch: Batch) -> None:
        """Compare the entries of these records."""
        cursors = self.cursors
        for draft, place in zip(batch.drafts, batch.places):
            if draft.sys_flag & TRANSACTION_MASK in UNQUEUED:
                continue
            cursor = cursors.get((draft.topic, draft.queue_id)) or self._open(draft.topic, draft.queue_id, batched=bool(draft.sys_flag & INNER_BATCH))
            if isinstance(cursor, BatchCursor):
                self._apply_batch(cursor, draft, place)
                continue
            code = tags_code(draft.tags) if draft.topic != SCHEDULE_TOPIC else self._delayed_code(draft)
            cursor.record(place.queue_offset, place.log_offset, place.size, code)
            if b"INNER_MULTI_QUEUE_OFFSET" in draft.properties:
                self._apply_dispatches(draft, place)

    def _apply_batch(self, cursor: BatchCursor, draft: Draft, place: Appended) -> None:
        base, count = batch_place(draft.properties, place.queue_offset)
        expected = BatchEntry(place.log_offset, place.size, tags_code(draft.tags), place.store_timestamp, base, count)
        cursor.record_batch(expected, numbered=b"INNER_BASE\1" in draft.properties)
        if b"INNER_MULTI_QUEUE_OFFSET" in draft.properties:
            self._apply_dispatches(draft, place)

    def _delayed_code(self, draft: Draft) -> int | None:
        """The entry of a delayed message has its time of delivery, which depends on the broker's messageDelayLevel."""
        return None if property_value(draft.properties, DELAY.encode()) not in (None, b"0") else tags_code(draft.tags)

    def _apply_dispatches(self, draft: Draft, place: Appended) -> None:
        """A record with several queues (LMQ): those that exist must have it, too. Source: store/…/LmqDispatch.java."""
        for name, number in dict(dispatch_places(draft.properties)).items():
            cursor = self.cursors.get((name, 0))
            if cursor is not None:
                cursor.record(number, place.log_offset, place.size, tags_code(draft.tags))

    def finish(self) -> None:
        """Look at what is left behind the last record and tell what it means."""
        any_files = any(cursor.bases for cursor in self.cursors.values())
        if not any_files and self.log.records:
            self.report.note(
                "queues-missing", self.files.root / "consumequeue", None, "there are no consume queues", "nothing: the next start makes them again from the log"
            )
        present = {cursor.topic for cursor in self.cursors.values() if cursor.bases}
        made_again = {cursor.topic for cursor in self.cursors.values() if cursor.earlier_life}
        for cursor in self.cursors.values():
            if cursor.bases:
                cursor.finish()
                self._judge(cursor)
            elif any_files and cursor.behind:
                self._judge_missing(cursor, present, made_again)

    def _judge_missing(self, cursor: QueueCursor, present: set[str], made_again: set[str]) -> None:
        """A queue without files whose records are in the log. Deleting a topic leaves just that, and so does making it again without sending to this queue."""
        topic = cursor.topic
        if topic in made_again:
            cursor.earlier_life, cursor.behind = cursor.behind, 0
        elif topic in present:
            self._judge(cursor)
        elif self.topics is None or topic not in self.topics:
            self.deleted_topics[topic] = self.deleted_topics.get(topic, 0) + cursor.behind
        else:
            what = f"topic {topic} exists and the log holds {cursor.behind} messages of its queue {cursor.queue_id}, but it has no consume queues"
            advice = "nothing if the topic was deleted and made again; else " + REBUILD_QUEUES
            self.report.note("topic-without-queues", cursor.directory.parent, None, what, advice)

    def _judge(self, cursor: QueueCursor) -> None:
        name = f"queue {cursor.queue_id} of {cursor.topic}"
        if cursor.lost:
            self.report.note(
                "queue-into-damage",
                cursor.directory,
                None,
                f"{cursor.lost} entries of {name} point into damaged or missing parts of the log",
                "nothing for the queue itself: readers skip what they cannot read; see the finding about the log",
            )
        if cursor.ahead and cursor.ahead_first is not None:
            number, log_offset = cursor.ahead_first
            what = f"{name} is ahead of the log: {cursor.ahead} entries from number {number} on point at {log_offset} and later, the log ends at {self.log.end}"
            self._by_state("queue-ahead", cursor, number, what, log_offset, "recovery cuts them off at the next start")
        if cursor.behind and cursor.behind_first is not None:
            number, log_offset = cursor.behind_first
            what = f"{name} is behind the log: {cursor.behind} messages from number {number} (at {log_offset}) on have no entry"
            self._by_state("queue-behind", cursor, number, what, log_offset, "recovery adds them at the next start")

    def _by_state(self, kind: str, cursor: QueueCursor, number: int, what: str, log_offset: int, later: str) -> None:
        """After a crash, what lies behind the checkpoint's mark is put right by the next start; anywhere else it cannot have come about by itself."""
        offset = None if isinstance(cursor, BatchCursor) else number * QUEUE_ENTRY_BYTES
        if self.state.repairs(log_offset):
            self.report.note(kind, cursor.directory, offset, what, f"nothing: {later}")
        elif kind == "queue-ahead":
            advice = "if the log was cut on purpose, nothing: the next start cuts the queues, too; else restore the log from a copy before any start"
            self.report.damage(kind, cursor.directory, offset, what, advice)
        else:
            self.report.damage(kind, cursor.directory, offset, what, REBUILD_QUEUES)

    @property
    def entries(self) -> int:
        return sum(cursor.entries for cursor in self.cursors.values())

    @property
    def queue_count(self) -> int:
        return sum(bool(cursor.bases) for cursor in self.cursors.values())

    @property
    def batch_queue_count(self) -> int:
        return sum(bool(cursor.bases) for cursor in self.cursors.values() if isinstance(cursor, BatchCursor))
