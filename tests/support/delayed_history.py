"""What was promised about delayed messages, and about messages that consumers gave back: a pure
checker, beside ``history``.

Times are seconds of a clock that does not jump. A broker that starts knows only the wall time at
which the messages that it finds were stored, so a wall clock that was set forward in between may
make those come early; every other message comes when its delay is over.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

import attrs
from history import SHOWN_MAX

TOLERANCE_SECONDS = 1.1
"""How far a wall clock that jumps may move a due time: the broker's own tolerance, and what a wall
time in whole milliseconds rounds off.
"""


@attrs.frozen
class Delayed:
    """A message that left its sender, or that a consumer gave back, to come ``delay`` seconds
    later.

    ``acknowledged``: it must come. ``wall``: how far the wall clocks of the brokers were ahead, the
    one that was least so.
    """

    key: str
    acknowledged: bool
    sent: float
    delay: float
    wall: float = 0.0
    again: bool = False
    """Whether a consumer gave it back."""


@attrs.frozen
class Arrival:
    """A message as a consumer got it. ``done``: the handler was content. ``again``: it came from
    the group's retry topic.
    """

    key: str
    time: float
    done: bool
    again: bool = False


@attrs.frozen
class BrokerStart:
    """A broker was ready, its wall clock ``wall`` seconds ahead."""

    time: float
    wall: float


@attrs.frozen
class DelayHistory:
    """``stored``: keys of the messages in the topic at the end. ``excused``: keys that the group
    may miss.
    """

    sent: Sequence[Delayed]
    stored: Collection[str]
    arrivals: Sequence[Arrival]
    starts: Sequence[BrokerStart] = ()
    excused: frozenset[str] = frozenset()


def delay_violations(history: DelayHistory) -> list[str]:
    """Broken promises, in words; empty if all were kept."""
    return [*undelivered(history), *early(history), *unhandled(history)]


def undelivered(history: DelayHistory) -> Iterator[str]:
    """Each acknowledged message is in its topic in the end, and no message that was never sent."""
    missed = dict.fromkeys(
        one.key for one in history.sent if one.acknowledged and one.key not in history.stored
    )
    yield from [f"the delayed message {key} was acknowledged, and never came" for key in missed][
        :SHOWN_MAX
    ]
    known = {one.key for one in history.sent}
    yield from (
        f"the delayed message {key} came, and it was never sent"
        for key in dict.fromkeys(history.stored)
        if key not in known
    )


def early(history: DelayHistory) -> Iterator[str]:
    """No message comes before the earliest of its tries is due."""
    tries: defaultdict[tuple[str, bool], list[Delayed]] = defaultdict(list)
    for one in history.sent:
        tries[one.key, one.again].append(one)
    for got in history.arrivals:
        earliest = min(
            (due(one, history.starts, got.time) for one in tries[got.key, got.again]), default=None
        )
        if earliest is not None and got.time < earliest:
            what = f"{got.key}, given back," if got.again else f"the delayed message {got.key}"
            yield f"{what} came at {got.time:.3f}, and not before {earliest:.3f} it was due"


def due(one: Delayed, starts: Sequence[BrokerStart], came: float) -> float:
    """Return the first moment at which a message may come, given the brokers that started until it
    ``came``.
    """
    ahead = [start.wall - one.wall for start in starts if one.sent <= start.time <= came]
    return one.sent + one.delay - TOLERANCE_SECONDS - max([0.0, *ahead])


def unhandled(history: DelayHistory) -> Iterator[str]:
    """The group has handled, to its content, each message of the topic, also those that it gave
    back.
    """
    done = {got.key for got in history.arrivals if got.done}
    missed = [
        key
        for key in dict.fromkeys(history.stored)
        if key not in done and key not in history.excused
    ]
    given_back = {one.key for one in history.sent if one.again}
    yield from (
        f"the group never got {key}{' again' if key in given_back else ''}"
        for key in missed[:SHOWN_MAX]
    )
