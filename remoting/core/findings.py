"""The results of checks of certificates, machines, clusters and stores."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable

import attrs


class Level(enum.Enum):
    """How bad a finding is."""

    OK = "ok"
    ADVICE = "advice"
    """works, and could work better; or repairs itself"""
    PROBLEM = "problem"
    """loses data or service, now or later"""
    UNKNOWN = "unknown"
    """cannot be checked here: another system, or hidden by a container"""


@attrs.frozen
class Finding:
    """The result of one check. ``fix`` and ``why`` are empty for OK."""

    level: Level
    subject: str
    """what was examined: a part of the machine, a server, a file"""
    check: str
    """a stable word for programs"""
    text: str
    fix: str = ""
    why: str = ""
    """what happens if nothing is done"""
    offset: int | None = None
    """a byte position in the file that ``subject`` names"""


def ok(subject: str, check: str, text: str) -> Finding:
    return Finding(Level.OK, subject, check, text)


def advice(subject: str, check: str, text: str, fix: str, why: str = "") -> Finding:
    return Finding(Level.ADVICE, subject, check, text, fix, why)


def problem(subject: str, check: str, text: str, fix: str, why: str = "") -> Finding:
    return Finding(Level.PROBLEM, subject, check, text, fix, why)


def unknown(subject: str, check: str, text: str = "cannot be read here") -> Finding:
    return Finding(Level.UNKNOWN, subject, check, text)


def count_levels(findings: Iterable[Finding]) -> Counter[Level]:
    return Counter(finding.level for finding in findings)
