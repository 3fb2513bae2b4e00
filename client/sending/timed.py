"""When a message is to be delivered, as the property that says it to the broker. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta
from math import ceil, isfinite

from triomq.client.core.arguments import shown
from triomq.client.core.errors import MessageInvalid
from triomq.remoting.protocol.message_properties import TIMER_DELAY_MS, TIMER_DELIVER_MS

Delay = float | timedelta
"""Seconds, or a timedelta."""
_DELAY = "delay is seconds (a number) or a timedelta, 0 or more"


def timer_property(
    delay: Delay | None, deliver_at: datetime | None, delay_level: object
) -> tuple[str, str] | None:
    """Return name and value of the property; None for a message that goes at once.

    A delay goes as such, so that the broker's clock alone counts; a time as milliseconds.

    Raises: ``MessageInvalid``.
    """
    if delay is None and deliver_at is None:
        return None
    if delay_level or (delay is not None and deliver_at is not None):
        raise MessageInvalid("give one of delay, deliver_at and delay_level, not several")
    if deliver_at is not None:
        return TIMER_DELIVER_MS, str(_time_ms(deliver_at))
    if isinstance(delay, timedelta):
        milliseconds = -(-delay // timedelta(milliseconds=1))
    elif (
        isinstance(delay, (int, float))
        and not isinstance(delay, bool)
        and isfinite(delay)
        and abs(delay) < 1e12
    ):
        milliseconds = ceil(delay * 1000)
    else:
        raise MessageInvalid(f"{_DELAY}, not {shown(delay)}")
    if milliseconds < 0:
        raise MessageInvalid(f"{_DELAY}, not {delay}")
    return (TIMER_DELAY_MS, str(milliseconds)) if milliseconds else None


def _time_ms(time: object) -> int:
    if not isinstance(time, datetime) or time.tzinfo is None:
        what = "one without a time zone" if isinstance(time, datetime) else shown(time)
        raise MessageInvalid(
            f"deliver_at is a datetime with a time zone, not {what}: for example"
            " datetime.now(timezone.utc) + timedelta(hours=1)"
        )
    epoch = datetime.fromtimestamp(0, time.tzinfo)
    return -(-(time - epoch) // timedelta(milliseconds=1))
