"""The table in which ``doctor`` and ``tlsCheck`` show their findings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from triomq.client.admin.command import Table
from triomq.remoting.findings import Finding, Level


def findings_table(findings: Iterable[Finding], words: Mapping[Level, str]) -> Table:
    """Return one row per finding; ``words`` are the command's names of the levels."""
    return Table(
        ("Level", "Subject", "Check", "Found", "Why, and what to do"),
        [
            [
                words[finding.level],
                finding.subject,
                finding.check,
                finding.text,
                "; ".join(filter(None, (finding.why, finding.fix))),
            ]
            for finding in findings
        ],
    )
