"""Compare what a query has written with what was sent. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

import attrs

SHOWN = 3


@attrs.frozen
class SentMessage:
    """An acknowledged message. ``life``: which life of its topic it belongs to."""

    life: int
    number: int
    broker: str
    queue: int
    offset: int
    checksum: int

    @property
    def name(self) -> str:
        """What its body begins with."""
        return message_name(self.life, self.number)


@attrs.frozen
class WrittenRow:
    """A row of a query's output. ``name``: what its body begins with."""

    name: str
    broker: str
    queue: int
    offset: int
    checksum: int


NAME_BYTES = 12


def message_name(life: int, number: int) -> str:
    """Return the first ``NAME_BYTES`` bytes of a message."""
    return f"{life}/{number:06}".ljust(NAME_BYTES)


def complaints(
    rows: Iterable[WrittenRow], must: Collection[SentMessage], may: Collection[SentMessage] = ()
) -> list[str]:
    """Return how the output breaks the promise; nothing if it keeps it.

    ``must``: messages that are there exactly once; ``may``: at most once.
    """
    known = {message.name: message for message in (*must, *may)}
    counts: Counter[str] = Counter()
    foreign, changed = [], []
    for row in rows:
        counts[row.name] += 1
        sent = known.get(row.name)
        if sent is None:
            foreign.append(f"{row.name.strip()} at {row.broker}/{row.queue}/{row.offset}")
        elif (row.broker, row.queue, row.offset, row.checksum) != (
            sent.broker,
            sent.queue,
            sent.offset,
            sent.checksum,
        ):
            changed.append(row.name.strip())
    lost = [message.name.strip() for message in must if message.name not in counts]
    twice = [name.strip() for name, count in counts.items() if count > 1]
    found = {
        "lost": lost,
        "twice": twice,
        "not to be read": foreign,
        "with another place or body": changed,
    }
    return [
        f"{len(names)} messages {what}: {', '.join(sorted(names)[:SHOWN])}"
        for what, names in found.items()
        if names
    ]


@attrs.frozen
class Repeats:
    """What a topic that a stream has written to contains."""

    messages: int
    rows: int
    complaints: list[str]


def judge_sink(rows: Collection[str], by_origin: Mapping[str, Collection[str]]) -> Repeats:
    """Judge a topic. ``by_origin``: ``__SPARK`` -> the bodies with it, repeats included."""
    found = [body for bodies in by_origin.values() for body in bodies]
    broken = []
    if lost := set(rows) - set(found):
        broken.append(f"{len(lost)} rows lost: {', '.join(sorted(lost)[:SHOWN])}")
    if mixed := [origin for origin, bodies in by_origin.items() if len(set(bodies)) > 1]:
        broken.append(f"{len(mixed)} values of __SPARK mean several rows: {sorted(mixed)[:SHOWN]}")
    firsts = sorted(next(iter(bodies)) for bodies in by_origin.values())
    if not broken and firsts != sorted(rows):
        broken.append(
            f"{len(firsts)} rows remain of {len(rows)} without repeats of a value of __SPARK"
        )
    return Repeats(len(found), len(set(found)), broken)
