"""Read and write instants: milliseconds since 1970, local time, or a time ago."""

from __future__ import annotations

import re
import time
from datetime import datetime

_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_SPAN = re.compile(r"(\d+)(ms|[smhdw])")
_JAVA = re.compile(r"(\d{4}-\d\d-\d\d)[# T](\d\d:\d\d(?::\d\d)?)(?::(\d{1,3}))?", re.ASCII)
_AMBIGUOUS = re.compile(r"\d{4}-?W|\d{8}", re.ASCII)
"""weeks, and dates without dashes, which could be milliseconds"""
INSTANT_FORMS = (
    "now, a time ago (-90s, -1h, -2d12h), local time (2026-01-31, 2026-01-31 08:00,"
    " 2026-01-31T08:00:00.250), time with zone (2026-01-31T08:00:00Z, …+08:00),"
    " 2026-01-31#08:00:00:000, or milliseconds since 1970"
)
"""what ``instant_ms`` reads, for messages and the manual"""


def instant_ms(text: str) -> int:
    """Read an instant in one of ``INSTANT_FORMS``, as milliseconds since 1970.

    Raises: ValueError.
    """
    text = text.strip()
    if text.lower() == "now":
        return now_ms()
    if re.fullmatch(r"-?\d+", text, re.ASCII):
        return int(text)
    ago = text.removeprefix("now").lower()
    if ago.startswith("-") and re.fullmatch(f"(?:{_SPAN.pattern})+", ago[1:], re.ASCII):
        spans = _SPAN.findall(ago)
        return max(0, now_ms() - sum(int(count) * _UNIT_MS[unit] for count, unit in spans))
    if (java := _JAVA.fullmatch(text)) is not None:
        # Java's milliseconds are a number: ":5" is 5 ms.
        text = f"{java[1]}T{java[2]}" + (f".{int(java[3]):03d}" if java[3] else "")
    try:
        if _AMBIGUOUS.match(text):
            raise ValueError(text)
        instant = datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise ValueError(f"use {INSTANT_FORMS}") from None
    return int(instant.replace(microsecond=0).timestamp()) * 1000 + instant.microsecond // 1000


def now_ms() -> int:
    return int(time.time() * 1000)


def seconds_text(timestamp_ms: int) -> str:
    """Return local time to the second, or ``N/A`` for a time that was never set."""
    return (
        datetime.fromtimestamp(timestamp_ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        if timestamp_ms > 0
        else "N/A"
    )


def milliseconds_text(timestamp_ms: int) -> str:
    """Return local time to the millisecond in Java's form; empty for a time that was never set."""
    if timestamp_ms <= 0:
        return ""
    seconds = datetime.fromtimestamp(timestamp_ms // 1000).astimezone()
    return f"{seconds:%Y-%m-%d %H:%M:%S},{timestamp_ms % 1000:03d}"


def request_seconds(timeout: int) -> float:
    """Return the time limit of one request, for a command with a limit of ``timeout`` seconds."""
    return min(REQUEST_SECONDS, timeout * REQUEST_SHARE)


REQUEST_SECONDS = 5.0


REQUEST_SHARE = 1 / 3
"""largest share of ``--timeout`` for one request: a server that hangs in the first step must leave
time for the next steps
"""
