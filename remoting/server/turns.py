"""How a long request lets others have their turn: loops in parts, long answers in a thread.

A topic may have 65,535 queues, a broker 20,000 topics, a group thousands of members. No step of a
request may hold the loop for more than some milliseconds; docs/limits.md has what each request code
takes at most.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from functools import partial
from typing import TypeVar

import attrs
import trio

from triomq.remoting.protocol.bodies.schema import JsonBody

T = TypeVar("T")
ROWS_AT_ONCE = 512
"""Queues, or rows of an answer: a few milliseconds."""


@attrs.define
class Turns:
    """The turns of one request. Loops within loops share one: it counts the items of all."""

    at_once: int = ROWS_AT_ONCE
    taken: int = attrs.field(default=0, init=False)


def in_turns(items: Iterable[T], turns: Turns | None = None) -> AsyncIterator[T]:
    """Return items one after the other, and let other tasks run after as many as a turn has.

    Others may change a table meanwhile: give a copy of it, and check again what an earlier step has
    checked.
    """
    return _InTurns(iter(items), turns or Turns())


@attrs.define(eq=False)
class _InTurns(AsyncIterator[T]):
    """A class: Trio warns of an asynchronous generator whose loop ends with an exception."""

    items: Iterator[T]
    turns: Turns

    async def __anext__(self) -> T:
        turns = self.turns
        if turns.taken >= turns.at_once:
            turns.taken = 0
            await trio.lowlevel.checkpoint()
        turns.taken += 1
        for item in self.items:
            return item
        raise StopAsyncIteration


async def encoded(body: JsonBody, rows: int, **form: bool) -> bytes:
    """Return a body as JSON, made in a thread if it has many rows. Checkpoint: maybe."""
    encode = partial(body.encode, **form)
    return encode() if rows <= ROWS_AT_ONCE else await trio.to_thread.run_sync(encode)
