"""How long a failed message stays hidden before it comes again. Pure.

Source: client/…/impl/consumer/DefaultMQPushConsumerImpl.java (popDelayLevel).
"""

from __future__ import annotations

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


def retry_seconds(delay_level: int, reconsume_times: int) -> int:
    """Return how long a message that failed stays hidden.

    ``delay_level``: 0 for a delay that grows with each delivery, otherwise a level from 1 on; one
    above the highest counts as the highest.
    """
    if delay_level > 0:
        return LEVEL_SECONDS[min(delay_level, len(LEVEL_SECONDS)) - 1]
    return RETRY_SECONDS[min(reconsume_times, len(RETRY_SECONDS) - 1)]
