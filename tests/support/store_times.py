"""What searches by time must answer, by the rule alone: in a store whose times may go back.

A message later than the newest one counts as old as the next that is not, unless the question is
later, too. The answer is the first message that counts as old as asked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from stores import find_bodies

from triomq.broker.store.store import MessageStore


def first_from(times: Sequence[int], asked: int, newest: int) -> int:
    """The index of that message; their number if there is none. ``newest``: time of the last
    message of the log.
    """
    known = newest if asked <= newest else math.inf
    counted, following = [0.0] * len(times), math.inf
    for number in reversed(range(len(times))):
        if times[number] <= known:
            following = times[number]
        counted[number] = following
    return next((number for number, time in enumerate(counted) if time >= asked), len(times))


async def check_offset_by_time(
    store: MessageStore, topic: str, queue_id: int, times: Sequence[int]
) -> None:
    """``times``: store times of the messages of the queue, from its smallest offset on."""
    low, newest = store.min_offset(topic, queue_id), store.log.last_timestamp
    for asked in {time + more for time in times for more in (0, 1)}:
        found = await store.offset_by_time(topic, queue_id, asked)
        assert found == low + first_from(times, asked, newest), (
            f"{topic}-{queue_id}: asked for {asked}, the newest is {newest}"
        )
        before = await store.offset_by_time(topic, queue_id, asked, upper=True)
        assert before == max(low, low + first_from(times, asked + 1, newest) - 1)


async def check_found_by_key(
    store: MessageStore, topic: str, key: str, stored_ms: int, body: bytes
) -> None:
    """The entries of the key index have whole seconds."""
    found = await find_bodies(store, topic, key, begin_ms=stored_ms - 999, end_ms=stored_ms)
    assert found == [body], f"{body[:12]!r} of {stored_ms} is not found by its key and time"
