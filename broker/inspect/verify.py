"""``verify``: one pass over the log, with queues and key index read in step, and a verdict."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Protocol

import attrs

from triomq.broker.inspect.batch_cursor import BatchCursor
from triomq.broker.inspect.findings import Report, Severity
from triomq.broker.inspect.index_check import IndexCheck
from triomq.broker.inspect.layout import Sizes, StoreFiles
from triomq.broker.inspect.log_check import LogCheck
from triomq.broker.inspect.queue_check import QueueCheck
from triomq.broker.inspect.state import StoreState, check_checkpoint, check_config, read_state


class Progress(Protocol):
    """Who wants to know how far it is."""

    def start(self, bytes_total: int) -> None:
        """Called once, when it is known how much there is to read."""

    def advance(self, bytes_read: int) -> None:
        """So many more have been read."""


class NoProgress:
    """For those who do not."""

    def start(self, bytes_total: int) -> None:
        """Nothing."""

    def advance(self, bytes_read: int) -> None:
        """Nothing."""


@attrs.frozen(kw_only=True)
class Verdict:
    """What ``verify`` has found."""

    root: Path
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

    @property
    def log_bytes(self) -> int:
        """Bytes of the log from its first to its last record."""
        return self.log.end - self.files.log_start

    def document(self) -> dict[str, Any]:
        """The JSON form; keys are added, never renamed."""
        last = self.log.last
        return {
            "directory": str(self.root),
            "verdict": "clean" if self.clean else "damaged",
            "state": "in use" if self.state.lock.held else "crashed" if self.state.crashed else "stopped",
            "pid": self.state.lock.pid,
            "log": {
                "directory": str(self.files.commitlog),
                "segments": len(self.files.lengths),
                "segmentSize": self.files.segment_size,
                "firstOffset": self.files.log_start,
                "endOffset": self.log.end,
                "records": self.log.records,
                "tornBytes": self.log.torn_bytes,
                "firstStoreTimestamp": self.log.first.store_timestamp if self.log.first is not None else None,
                "lastStoreTimestamp": last.store_timestamp if last is not None else None,
            },
            "queues": {
                "queues": self.queues.queue_count,
                "fileSize": self.files.queue_file_size,
                "entries": self.queues.entries,
                "expiredEntries": sum(cursor.expired for cursor in self.queues.cursors.values()),
                "fillers": sum(cursor.fillers for cursor in self.queues.cursors.values()),
                "recordsOfDeletedTopics": sum(self.queues.deleted_topics.values()),
                "recordsBeforeRecreation": sum(cursor.earlier_life for cursor in self.queues.cursors.values()),
                "batchQueues": self.queues.batch_queue_count,
                "batchFileSize": self.files.batch_queue_file_size,
            },
            "index": {"files": self.index.file_count, "entries": self.index.entries, "expiredEntries": self.index.expired},
            "damage": self.report.count(Severity.DAMAGE),
            "notes": self.report.count(Severity.NOTE),
            "findings": [finding.document() for finding in self.report.findings],
            "findingsCountedOnly": sum(self.report.suppressed.values()),
            "seconds": round(self.seconds, 3),
        }


def verify(root: Path, sizes: Sizes | None = None, progress: Progress | None = None) -> Verdict:
    """Check everything in a store directory against everything. Changes nothing. Raises NotAStore, OSError (a folder that cannot be listed)."""
    started = time.monotonic()
    told = progress or NoProgress()
    report = Report()
    files = StoreFiles.find(root, sizes or Sizes(), report)
    state = read_state(root, report)
    topics = check_config(root, report)
    log = LogCheck(files, report, progress=told.advance)
    queues = QueueCheck(files, report, log, state, topics)
    index = IndexCheck(files, report, log, state, told.advance)
    queues.find_queues()
    index.find_files()
    told.start(sum(run.end - run.first_offset for run in files.runs) + index.bytes)
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
    _judge_end(files, state, log, queues, report)
    check_checkpoint(state, root / "checkpoint", log.end, log.last, ends, report)
    _tell_unchecked(files, queues, report)
    return Verdict(root=root, files=files, state=state, log=log, queues=queues, index=index, report=report, seconds=time.monotonic() - started)


def _judge_end(files: StoreFiles, state: StoreState, log: LogCheck, queues: QueueCheck, report: Report) -> None:
    """A torn last record is what kill -9 and power failures leave. It was whole once if the checkpoint, or after a clean stop a queue, knows of it."""
    if not log.torn_bytes:
        return
    path = files.segment_path(log.end)
    mark = state.checkpoint.mark
    known = mark is not None and mark.record_end > log.end
    if not state.crashed:
        known = known or any(cursor.ahead for cursor in queues.cursors.values())
    what = f"the last {log.torn_bytes} bytes, from {log.end} on, are no whole record ({log.stopped_by})"
    if known:
        report.damage(
            "record",
            path,
            log.end,
            f"damaged: {what}, but checkpoint or consume queues know it as one",
            "restore the segment from a copy or from the folder of a slave; else the next start cuts these bytes off, and with them the message",
        )
    else:
        report.note("torn-end", path, log.end, what, f"nothing: recovery will cut {log.torn_bytes} bytes at the next start; no acknowledged message is in them if flushDiskType was SYNC_FLUSH")


def _tell_unchecked(files: StoreFiles, queues: QueueCheck, report: Report) -> None:
    unread = sum(cursor.unnumbered for cursor in queues.cursors.values() if isinstance(cursor, BatchCursor))
    if unread:
        what = f"{unread} messages that were sent one by one to topics with batch consume queues have no entry: Java's broker makes none, so no consumer gets them"
        report.note("unnumbered", files.root / "batchconsumequeue", None, what, "send to such topics in batches, or with a broker of ours")
    if queues.deleted_topics:
        count = sum(queues.deleted_topics.values())
        what = f"{count} messages belong to {len(queues.deleted_topics)} topics that have been deleted: they lie in the log until they expire"
        report.note("deleted-topics", files.commitlog, None, what, "nothing")
