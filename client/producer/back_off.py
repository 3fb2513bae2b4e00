"""Waiting between the tries of one send."""

from __future__ import annotations

import random
from collections.abc import Sequence

import trio

from triomq.client.errors import Attempt
from triomq.client.retry import CONNECT_BACKOFF, BusyBackoff, is_busy, is_unconnected


async def back_off(policy: BusyBackoff, attempts: Sequence[Attempt] | None, deadline: float, unconnected: int = 0) -> bool:
    """Wait after a busy answer, or after rounds without a connection, longer each time; return False without waiting if the deadline would pass.

    `unconnected`: rounds in a row in which no broker accepted a connection.  After any other failure the function returns at once, without a checkpoint.
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
