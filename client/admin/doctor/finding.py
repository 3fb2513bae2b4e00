"""What a check found."""

from __future__ import annotations

import enum

import attrs


class Level(enum.Enum):
    """How bad it is."""

    OK = "ok"
    ADVICE = "advice"
    """works, and would work better"""
    PROBLEM = "problem"
    """loses data or service sooner or later"""
    UNKNOWN = "unknown"
    """cannot be seen from here: another system, or a container that hides it"""


@attrs.frozen
class Finding:
    """One check and its result; ``why`` and ``fix`` are empty where all is well."""

    area: str
    check: str
    level: Level
    found: str
    why: str = ""
    fix: str = ""


def ok(area: str, check: str, found: str) -> Finding:
    return Finding(area, check, Level.OK, found)


def unknown(area: str, check: str, found: str = "cannot be read here") -> Finding:
    return Finding(area, check, Level.UNKNOWN, found)
