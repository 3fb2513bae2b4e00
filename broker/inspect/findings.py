"""What an inspection has found: each finding names file, offset, what is wrong and what can be done."""

from __future__ import annotations

import enum
from collections import Counter
from pathlib import Path
from typing import Any

import attrs

FINDINGS_MAX = 20
"""Findings of one kind in one place (a queue, the log, an index file) that are told one by one; the rest is counted."""


class Severity(enum.Enum):
    """``DAMAGE`` decides the exit code. A ``NOTE`` is what the next start of the broker puts right by itself, or what an operator may want to know."""

    DAMAGE = "damage"
    NOTE = "note"


@attrs.frozen
class Finding:
    """One finding. ``offset`` is a byte position: in the log (counted from its beginning) for log files, else in the file; None for the file as a whole."""

    severity: Severity
    kind: str
    """A stable word for programs, see docs/mqstore.md."""
    path: Path
    offset: int | None
    what: str
    advice: str

    def document(self) -> dict[str, Any]:
        return {
            "severity": self.severity.value,
            "kind": self.kind,
            "file": str(self.path),
            "offset": self.offset,
            "what": self.what,
            "advice": self.advice,
        }


@attrs.define(eq=False)
class Report:
    """Collects findings in bounded memory."""

    findings: list[Finding] = attrs.field(factory=list)
    suppressed: Counter[tuple[Severity, str, Path]] = attrs.field(factory=Counter)
    """(severity, kind, folder or file) -> findings that were only counted."""
    _counts: Counter[tuple[Severity, str, Path]] = attrs.field(factory=Counter)

    def damage(self, kind: str, path: Path, offset: int | None, what: str, advice: str) -> None:
        self.add(Finding(Severity.DAMAGE, kind, path, offset, what, advice))

    def note(self, kind: str, path: Path, offset: int | None, what: str, advice: str) -> None:
        self.add(Finding(Severity.NOTE, kind, path, offset, what, advice))

    def add(self, finding: Finding) -> None:
        place = (finding.severity, finding.kind, finding.path)
        self._counts[place] += 1
        if self._counts[place] <= FINDINGS_MAX:
            self.findings.append(finding)
        else:
            self.suppressed[place] += 1

    @property
    def damaged(self) -> bool:
        return any(severity is Severity.DAMAGE for severity, _, _ in self._counts)

    def count(self, severity: Severity) -> int:
        """Findings of a severity, told or only counted."""
        return sum(count for place, count in self._counts.items() if place[0] is severity)
