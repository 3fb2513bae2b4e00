"""Waiting between the tries of one send."""

from __future__ import annotations

import random
from collections.abc import Sequence

import trio

from triomq.client.errors import Attempt
from triomq.client.retry import CONNECT_BACKOFF, BusyBackoff, is_busy, is_unconnected


async def back_off(policy: BusyBackoff, attempts: Sequence[Attempt] | None, deadline: float, unconnected: int = 0) -> bool:
    """Wait if a broker said last that it is busy, or if no broker could be connected to, longer each time; False, and no wait, if the deadline would pass meanwhile.

    `unconnected`: how often in a row all brokers were tried in vain.  After any other failure there is nothing to wait for, and no checkpoint.
    """
    if not attempts:
        return True
    error = attempts[-1].error
    if is_busy(error):
        seconds = policy.seconds(sum(is_busy(attempt.error) for attempt in attempts), random.random())
    elif is_unconnected(error) and unconnected:
        seconds = CONNECT_BACKOFF.seconds(unconnected, random.random())
    else:
        return True
    if trio.current_time() + seconds >= deadline:
        return False
    await trio.sleep(seconds)
    return True
