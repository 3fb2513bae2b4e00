"""Waiting between the tries of one send."""

from __future__ import annotations

import random
from collections.abc import Sequence

import trio

from triomq.client.errors import Attempt
from triomq.client.retry import BusyBackoff, is_busy


async def back_off(policy: BusyBackoff, attempts: Sequence[Attempt] | None, deadline: float) -> bool:
    """Wait if a broker said last that it is busy, longer after each such answer; False, and no wait, if the deadline would pass meanwhile.

    After any other failure there is nothing to wait for, and no checkpoint.
    """
    if not attempts or not is_busy(attempts[-1].error):
        return True
    seconds = policy.seconds(sum(is_busy(attempt.error) for attempt in attempts), random.random())
    if trio.current_time() + seconds >= deadline:
        return False
    await trio.sleep(seconds)
    return True
