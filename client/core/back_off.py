"""Wait between attempts: after busy answers, and while no server takes requests.

``retry.py`` has the rules: which errors are worth another attempt, and how long to wait. Sends,
requests for offsets and route look-ups wait here. Background tasks (pulls, queue locks, heartbeats,
the offset saver) repeat at intervals of their own.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import TypeVar

import trio

from triomq.client.core.errors import Attempt, TrioMQError
from triomq.client.core.retry import (
    CONNECT_BACKOFF,
    BusyBackoff,
    found_no_master,
    is_busy,
    may_ask_again,
)

T = TypeVar("T")

LEAST_SECONDS = 0.01
"""Pause after what ends a wait sooner: routes that change all the time must not cause a storm of
attempts.
"""


async def back_off(
    policy: BusyBackoff,
    attempts: Sequence[Attempt] | None,
    deadline: float,
    refused: int = 0,
    another_master: Callable[[], Awaitable[None]] = trio.sleep_forever,
) -> bool:
    """Wait, longer each time, after a busy answer or a round in which no master was found.

    ``refused``: number of such rounds in a row. ``another_master``: returns when there may be one,
    which ends the wait for it.

    Returns: False, without waiting, if the wait would go past the deadline.
    Checkpoint: maybe, only when it waits.
    """
    if not attempts:
        return True
    error = attempts[-1].error
    if found_no_master(error):
        return not refused or await wait_for_server(refused, deadline, another_master)
    if is_busy(error):
        times = sum(is_busy(attempt.error) for attempt in attempts)
        return await _wait(policy.seconds(times, random.random()), deadline)
    return True


async def wait_for_server(
    rounds: int, deadline: float, sooner: Callable[[], Awaitable[None]] = trio.sleep_forever
) -> bool:
    """Wait after the ``rounds``-th round in a row without a connection, longer each time, at most
    until ``sooner`` returns.

    Returns: False, without waiting, if the wait would go past the deadline.
    Checkpoint: maybe, only when it waits.
    """
    return await _wait(CONNECT_BACKOFF.seconds(rounds, random.random()), deadline, sooner)


async def _wait(
    seconds: float, deadline: float, sooner: Callable[[], Awaitable[None]] = trio.sleep_forever
) -> bool:
    if trio.current_time() + seconds >= deadline:
        return False
    with trio.move_on_after(seconds):
        await sooner()
        await trio.sleep(LEAST_SECONDS)
    return True


async def until_reached(
    ask: Callable[[float], Awaitable[T]],
    seconds: float,
    *,
    again: Callable[[TrioMQError], bool] = may_ask_again,
) -> T:
    """Return the result of ``ask(seconds_left)``, called until a server is reached.

    The call is repeated, with growing waits, after an error for which ``again`` returns True, until
    ``seconds`` or an enclosing deadline is over. ``seconds=inf`` makes one call.

    Raises: the last error of ``ask``.
    Checkpoint: maybe; as ``ask``, and for each wait.
    """
    if seconds == inf:
        return await ask(inf)
    deadline = trio.current_time() + seconds
    last_wait = min(deadline, trio.current_effective_deadline())
    rounds = 0
    while True:
        try:
            return await ask(deadline - trio.current_time())
        except TrioMQError as error:
            rounds += 1
            if not again(error) or not await wait_for_server(rounds, last_wait):
                raise
