"""Read and write instants: milliseconds since 1970, or local time as text."""

from __future__ import annotations

import time
from datetime import datetime

_FORMATS = ("%Y-%m-%d#%H:%M:%S", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S")


def instant_ms(text: str) -> int:
    """Read milliseconds, ``now``, or local time as ``yyyy-MM-dd#HH:mm:ss[:SSS]``."""
    text = text.strip()
    if text.lower() == "now":
        return now_ms()
    if text.lstrip("-").isdigit():
        return int(text)
    whole, milliseconds = (
        (text[:19], text[20:]) if len(text) > 19 and text[19] in ":." else (text, "0")
    )
    for form in _FORMATS:
        try:
            return int(datetime.strptime(whole, form).astimezone().timestamp()) * 1000 + int(
                milliseconds
            )
        except ValueError:
            continue
    raise ValueError("use milliseconds since 1970, now, or yyyy-MM-dd#HH:mm:ss:SSS")


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
