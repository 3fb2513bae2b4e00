"""``verify``: one pass over the log, with queues and key index read in step, and the result."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import attrs

from triomq.broker.inspect.batch_cursor import BatchCursor
from triomq.broker.inspect.index_check import IndexCheck
from triomq.broker.inspect.layout import BATCH_QUEUES, QUEUES, Sizes, StoreFiles
from triomq.broker.inspect.log_check import LogCheck
from triomq.broker.inspect.queue_check import QueueCheck
from triomq.broker.inspect.report import Report
from triomq.broker.inspect.state import StoreState, check_checkpoint, check_config, read_state
from triomq.remoting.core.findings import Level


@attrs.frozen(kw_only=True)
class Verdict:
    """The result of ``verify``."""

    files: StoreFiles
    state: StoreState
    log: LogCheck
    queues: QueueCheck
    index: IndexCheck
    report: Report
    seconds: float

    @property
    def clean(self) -> bool:
        return not self.report.damaged

    def document(self) -> dict[str, object]:
        """Return the JSON form. Keys are added, never renamed."""
        last = self.log.last
        return {
            "directory": str(self.files.root),
            "verdict": "clean" if self.clean else "damaged",
            "state": "in use"
            if self.state.lock.held
            else "crashed"
            if self.state.crashed
            else "stopped",
            "pid": self.state.lock.pid,
            "log": {
                "directory": str(self.files.commitlog),
                "segments": len(self.files.lengths),
                "segmentSize": self.files.segment_size,
                "firstOffset": self.files.log_start,
                "endOffset": self.log.end,
                "records": self.log.records,
                "tornBytes": self.log.torn_bytes,
                "firstStoreTimestamp": self.log.first.store_timestamp
                if self.log.first is not None
                else None,
                "lastStoreTimestamp": last.store_timestamp if last is not None else None,
            },
            "queues": {
                "queues": self.queues.queue_count,
                "fileSize": self.files.queue_file_sizes[QUEUES],
                "entries": self.queues.entries,
                "expiredEntries": sum(cursor.expired for cursor in self.queues.cursors.values()),
                "fillers": sum(cursor.fillers for cursor in self.queues.cursors.values()),
                "recordsOfDeletedTopics": sum(self.queues.deleted_topics.values()),
                "recordsBeforeRecreation": sum(
                    cursor.earlier_incarnation for cursor in self.queues.cursors.values()
                ),
                "batchQueues": self.queues.batch_queue_count,
                "batchFileSize": self.files.queue_file_sizes[BATCH_QUEUES],
            },
            "index": {
                "files": self.index.file_count,
                "entries": self.index.entries,
                "expiredEntries": self.index.expired,
            },
            "damage": self.report.count(Level.PROBLEM),
            "notes": self.report.count(Level.ADVICE),
            "findings": self.report.documents(),
            "findingsCountedOnly": sum(self.report.suppressed.values()),
            "seconds": round(self.seconds, 3),
        }


def verify(
    root: Path,
    sizes: Sizes | None = None,
    progress: Callable[[int, int], None] = lambda read_bytes, total_bytes: None,
) -> Verdict:
    """Compare all files of a store directory. Nothing is changed.

    Raises: NotAStore; OSError if a folder cannot be listed.
    """
    read_bytes = total_bytes = 0

    def note_read(count: int) -> None:
        nonlocal read_bytes
        read_bytes += count
        progress(read_bytes, total_bytes)

    started = time.monotonic()
    report = Report()
    files = StoreFiles.find(root, sizes or Sizes(), report)
    state = read_state(root, report)
    topics = check_config(root, report)
    log = LogCheck(files, report, progress=note_read)
    queues = QueueCheck(files, report, log, state, topics)
    index = IndexCheck(files, report, log, state, note_read)
    queues.find_queues()
    index.find_files()
    total_bytes = sum(run.end - run.first_offset for run in files.runs) + index.bytes
    mark = state.checkpoint.mark
    ends: set[int] = set()
    apply_queues, apply_index = queues.apply, index.apply
    for batch in log.batches():
        apply_queues(batch)
        apply_index(batch)
        if mark is not None and batch.start < mark.record_end <= batch.end:
            ends.update(place.log_offset + place.size for place in batch.places)
    queues.finish()
    index.finish()
    _check_end(files, state, log, queues, report)
    check_checkpoint(state, root / "checkpoint", log.end, log.newest_ms, ends, report)
    _note_unread(files, queues, report)
    return Verdict(
        files=files,
        state=state,
        log=log,
        queues=queues,
        index=index,
        report=report,
        seconds=time.monotonic() - started,
    )


def _check_end(
    files: StoreFiles, state: StoreState, log: LogCheck, queues: QueueCheck, report: Report
) -> None:
    """Report a torn last record, as kill -9 and power failures leave it.

    If the checkpoint, or after a clean stop a queue, has the record, it was whole once: that is
    damage.
    """
    if not log.torn_bytes:
        return
    path = files.segment_path(log.end)
    mark = state.checkpoint.mark
    known = mark is not None and mark.record_end > log.end
    if not state.crashed:
        known = known or any(cursor.ahead for cursor in queues.cursors.values())
    what = (
        f"the last {log.torn_bytes} bytes, from {log.end} on, are not a whole record"
        f" ({log.stopped_by})"
    )
    if known:
        report.damage(
            "record",
            path,
            f"damaged: {what}, but checkpoint or consume queues have it as a record",
            "restore the segment from a copy or from the folder of a slave; otherwise the next"
            " start cuts off these bytes, and the message with them",
            at=log.end,
        )
    else:
        report.note(
            "torn-end",
            path,
            what,
            f"nothing: recovery will cut {log.torn_bytes} bytes at the next start; no acknowledged"
            " message is in them if flushDiskType was SYNC_FLUSH",
            at=log.end,
        )


def _note_unread(files: StoreFiles, queues: QueueCheck, report: Report) -> None:
    unread = sum(
        cursor.unnumbered for cursor in queues.cursors.values() if isinstance(cursor, BatchCursor)
    )
    if unread:
        what = (
            f"{unread} messages that were sent one by one to topics with batch consume queues have"
            " no entry: Java's broker makes none, so no consumer gets them"
        )
        report.note(
            "unnumbered",
            files.root / BATCH_QUEUES,
            what,
            "send to such topics in batches, or use TrioMQ's broker",
        )
    if queues.deleted_topics:
        count = sum(queues.deleted_topics.values())
        what = (
            f"{count} messages belong to {len(queues.deleted_topics)} topics that have been"
            " deleted: they stay in the log until they expire"
        )
        report.note("deleted-topics", files.commitlog, what, "nothing")
