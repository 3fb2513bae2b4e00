"""How ``doctor``, ``tlsCheck`` and ``groupWhy`` show their findings: a table, or documents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from triomq.client.mqadmin.core.result import Table
from triomq.remoting.core.findings import Finding, Level


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


def finding_documents(findings: Iterable[Finding], subject: str) -> list[dict[str, object]]:
    """Return one document per finding; ``subject`` is the command's name for what it is about."""
    return [
        {
            subject: finding.subject,
            "check": finding.check,
            "level": finding.level.value,
            "found": finding.text,
            "why": finding.why or None,
            "fix": finding.fix or None,
        }
        for finding in findings
    ]
