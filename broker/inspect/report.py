"""The findings of one inspection, in bounded memory."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import attrs

from triomq.remoting.core.findings import Finding, Level

FINDINGS_MAX = 20
"""Findings of one kind in one place (a queue, the log, an index file) that are kept; the others are
only counted.
"""
LEVEL_WORDS = {Level.PROBLEM: "damage", Level.ADVICE: "note"}
"""Damage decides the exit code. A note is what the next start of the broker repairs by itself,
or what an operator may want to know.
"""


@attrs.define(eq=False)
class Report:
    """The findings: their ``subject`` is a path, their ``check`` a stable word (docs/mqstore.md).

    ``at`` is a byte position: in the log (counted from its beginning) for log files, otherwise
    in the file; None for the file as a whole.
    """

    findings: list[Finding] = attrs.field(factory=list)
    _counts: Counter[tuple[Level, str, str]] = attrs.field(factory=Counter)
    """(level, check, path) -> findings, kept or only counted."""

    def damage(self, kind: str, path: Path, what: str, advice: str, at: int | None = None) -> None:
        self.add(Level.PROBLEM, kind, path, what, advice, at)

    def note(self, kind: str, path: Path, what: str, advice: str, at: int | None = None) -> None:
        self.add(Level.ADVICE, kind, path, what, advice, at)

    def add(
        self, level: Level, kind: str, path: Path, what: str, advice: str, at: int | None = None
    ) -> None:
        place = level, kind, str(path)
        self._counts[place] += 1
        if self._counts[place] <= FINDINGS_MAX:
            self.findings.append(Finding(level, str(path), kind, what, advice, offset=at))

    @property
    def suppressed(self) -> dict[tuple[Level, str, str], int]:
        """(level, check, path) -> findings that were only counted."""
        return {
            place: count - FINDINGS_MAX
            for place, count in self._counts.items()
            if count > FINDINGS_MAX
        }

    @property
    def damaged(self) -> bool:
        return self.count(Level.PROBLEM) > 0

    def count(self, level: Level) -> int:
        """Return the number of findings of a level, kept or only counted."""
        return sum(count for place, count in self._counts.items() if place[0] is level)

    def documents(self) -> list[dict[str, object]]:
        """Return the kept findings in their JSON form."""
        return [
            {
                "severity": LEVEL_WORDS[finding.level],
                "kind": finding.check,
                "file": finding.subject,
                "offset": finding.offset,
                "what": finding.text,
                "advice": finding.fix,
            }
            for finding in self.findings
        ]
