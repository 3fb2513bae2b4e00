"""The result of ``verify`` as text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from triomq.broker.inspect.report import LEVEL_WORDS
from triomq.broker.inspect.verify import Verdict
from triomq.remoting.core.findings import Finding, Level

MIB = 1 << 20


def report_lines(verdict: Verdict) -> Iterator[str]:
    """Yield a summary, the findings with damage first, and the verdict in the last line."""
    log, queues, index, files = verdict.log, verdict.queues, verdict.index, verdict.files
    rate = (log.end - files.log_start) / MIB / max(verdict.seconds, 0.001)
    yield f"store    {files.root}: {verdict.state.text}"
    yield (
        f"log      {len(files.lengths)} segments of {files.segment_size:,} bytes, offsets"
        f" {files.log_start:,} to {log.end:,}, {log.records:,} messages"
    )
    yield f"queues   {queues.queue_count:,} queues, {queues.entries:,} entries"
    yield f"index    {index.file_count:,} files, {index.entries:,} entries"
    yield f"time     {verdict.seconds:.1f} s ({rate:,.0f} MiB/s of log)"
    for level, word in LEVEL_WORDS.items():
        for finding in verdict.report.findings:
            if finding.level is level:
                yield ""
                yield from _finding_lines(finding, files.root)
        for (found, kind, path), count in verdict.report.suppressed.items():
            if found is level:
                yield ""
                yield (
                    f"{word.upper()}   {_short(path, files.root)}: and {count:,} more of kind"
                    f" {kind}"
                )
    yield ""
    damage, notes = verdict.report.count(Level.PROBLEM), verdict.report.count(Level.ADVICE)
    text = "clean" if verdict.clean else f"DAMAGED: {damage:,} findings of damage"
    yield f"verdict  {text}" + (f", {notes:,} notes" if notes else "")


def _finding_lines(finding: Finding, root: Path) -> Iterator[str]:
    place = "" if finding.offset is None else f" at {finding.offset}"
    word = LEVEL_WORDS[finding.level].upper()
    yield f"{word}   {_short(finding.subject, root)}{place}: {finding.text}"
    yield f"         what can be done: {finding.fix}"


def _short(name: str, root: Path) -> Path:
    path = Path(name)
    return path.relative_to(root) if path.is_relative_to(root) else path
