"""How long a message stays hidden: as applications say it, and after a failure. Pure.

Source: client/…/impl/consumer/DefaultMQPushConsumerImpl.java (popDelayLevel).
"""

from __future__ import annotations

import datetime

from triomq.client.core.arguments import check_seconds, shown
from triomq.client.core.errors import SettingsError

Duration = float | datetime.timedelta
"""Seconds, or a ``timedelta``."""

INVISIBLE_SECONDS_MAX = 12 * 3600.0
"""RocketMQ's limit of an invisible time (maxInvisibleTimeMills of its proxy)."""

RETRY_SECONDS = (
    *(10, 30, 60, 120, 180, 240, 300, 360),
    *(420, 480, 540, 600, 1200, 1800, 3600, 7200),
)
"""After the first, second, … delivery; the last one repeats."""

LEVEL_SECONDS = (
    *(1, 5, 10, 30, 60, 120, 180, 240, 300),
    *(360, 420, 480, 540, 600, 1200, 1800, 3600, 7200),
)
"""The brokers' delay levels 1 to 18, by default (messageDelayLevel)."""

DELIVERIES_MAX = 16
"""Deliveries after the first that a group has by default (retryMaxTimes)."""


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


def retry_seconds(delay_level: int, reconsume_times: int) -> int:
    """Return how long a message that failed stays hidden.

    ``delay_level``: 0 for a delay that grows with each delivery, otherwise a level from 1 on; one
    above the highest counts as the highest.
    """
    if delay_level > 0:
        return LEVEL_SECONDS[min(delay_level, len(LEVEL_SECONDS)) - 1]
    return RETRY_SECONDS[min(reconsume_times, len(RETRY_SECONDS) - 1)]
