"""Durations as applications write them: seconds or a ``timedelta``."""

from __future__ import annotations

import datetime

from triomq.client.core.arguments import check_seconds, shown
from triomq.client.core.errors import SettingsError

Duration = float | datetime.timedelta
"""Seconds, or a ``timedelta``."""

INVISIBLE_SECONDS_MAX = 12 * 3600.0
"""RocketMQ's limit of an invisible time (maxInvisibleTimeMills of its proxy)."""


def check_duration(name: str, value: object) -> float:
    """Return a duration in seconds, 0 or greater. Raises: ``SettingsError``."""
    seconds = check_seconds(
        name, value.total_seconds() if isinstance(value, datetime.timedelta) else value
    )
    if seconds is None:
        raise SettingsError(f"{name} must be a number of seconds or a timedelta, not None")
    return seconds


def check_invisible(name: str, value: object, *, least: float) -> float:
    """Return an invisible time in seconds. Raises: ``SettingsError``."""
    seconds = check_duration(name, value)
    if not least <= seconds <= INVISIBLE_SECONDS_MAX:
        raise SettingsError(
            f"{name} must be from {least:g} s to {INVISIBLE_SECONDS_MAX:g} s, not {shown(value)}:"
            " renew it with change_invisible if work takes longer"
        )
    return seconds
