"""The verdict for people."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from triomq.broker.inspect.findings import Finding, Severity
from triomq.broker.inspect.verify import Verdict

MIB = 1 << 20


def report_lines(verdict: Verdict) -> Iterator[str]:
    """A summary, the findings with damage first, and the verdict in the last line."""
    log, queues, index, files = verdict.log, verdict.queues, verdict.index, verdict.files
    rate = files.log_bytes and verdict.log_bytes / MIB / max(verdict.seconds, 0.001)
    yield f"store    {verdict.root}: {verdict.state.text}"
    yield (
        f"log      {len(files.lengths)} segments of {files.segment_size:,} bytes, offsets {files.log_start:,} to {log.end:,}, "
        f"{log.records:,} messages"
    )
    yield f"queues   {queues.queue_count:,} queues, {queues.entries:,} entries"
    yield f"index    {index.file_count:,} files, {index.entries:,} entries"
    yield f"time     {verdict.seconds:.1f} s ({rate:,.0f} MiB/s of log)"
    for severity in (Severity.DAMAGE, Severity.NOTE):
        for finding in verdict.report.findings:
            if finding.severity is severity:
                yield ""
                yield from _finding_lines(finding, verdict.root)
        for (found, kind, path), count in verdict.report.suppressed.items():
            if found is severity:
                yield ""
                yield f"{severity.value.upper()}   {_short(path, verdict.root)}: and {count:,} more of kind {kind}"
    yield ""
    damage, notes = verdict.report.count(Severity.DAMAGE), verdict.report.count(Severity.NOTE)
    text = "clean" if verdict.clean else f"DAMAGED: {damage:,} findings of damage"
    yield f"verdict  {text}" + (f", {notes:,} notes" if notes else "")


def _finding_lines(finding: Finding, root: Path) -> Iterator[str]:
    place = "" if finding.offset is None else f" at {finding.offset}"
    yield f"{finding.severity.value.upper()}   {_short(finding.path, root)}{place}: {finding.what}"
    yield f"         what can be done: {finding.advice}"


def _short(path: Path, root: Path) -> Path:
    return path.relative_to(root) if path.is_relative_to(root) else path
