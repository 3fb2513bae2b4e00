"""What a cluster promised and what it has: a pure checker for histories of any origin (real
processes, or the simulation).

A *try* is one send request: its outcome is known to be good (acknowledged), known to be bad
(refused), or unknown. The same message, recognised by its key, may be tried more than once.
``violations`` compares tries with what the brokers' queues hold afterwards and with what consumers
got.
"""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

Queue = tuple[str, str, int]
"""Broker name, topic, queue id."""
SHOWN_MAX = 20


class Outcome(enum.Enum):
    """What the sender knows of a try."""

    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"
    """The message is not stored by this try."""
    UNKNOWN = "unknown"
    """It may be stored or not; also an answer that promises less than the cluster should (a slave
    timed out).
    """


@attrs.frozen
class Try:
    """One send request; ``queue`` and ``offset`` (in the queue) as acknowledged, ``log_offset``
    where it is known.
    """

    key: str
    outcome: Outcome
    queue: Queue | None = None
    offset: int = -1
    log_offset: int = -1


@attrs.frozen
class Stored:
    """A message as it is read from a queue afterwards."""

    queue: Queue
    offset: int
    key: str
    log_offset: int = -1


@attrs.frozen
class Delivery:
    """A message as a consumer of ``group`` got it; the order of deliveries of a group's queue is
    that of their list.
    """

    group: str
    queue: Queue
    offset: int
    key: str


@attrs.frozen
class History:
    """``bounds``: first and end offset that the broker names for each queue. ``groups`` must have
    got everything; ``ordered`` ones in order.
    """

    tries: Sequence[Try]
    stored: Sequence[Stored]
    bounds: Mapping[Queue, tuple[int, int]]
    deliveries: Sequence[Delivery] = ()
    groups: frozenset[str] = frozenset()
    ordered: frozenset[str] = frozenset()
    durable_reads: bool = True
    """Whether what a consumer got can never vanish again, nor another message take its offset: with
    SYNC_FLUSH, or where no page cache was lost, and where no slave has taken the place of a master
    whose disk is lost (consumers see messages that slaves do not have yet).
    """


def violations(history: History) -> list[str]:
    """Broken promises, in words; empty if all were kept."""
    rules = (lost(history), copies(history), gaps(history), deliveries(history))
    return [text for found in rules for text in found]


def lost(history: History) -> Iterator[str]:
    """Every acknowledged message is readable at its acknowledged offset."""
    at = {(stored.queue, stored.offset): stored for stored in history.stored}
    promised: dict[tuple[Queue, int], str] = {}
    for done in history.tries:
        if done.outcome is not Outcome.ACKNOWLEDGED or done.queue is None:
            continue
        place = done.queue, done.offset
        if promised.setdefault(place, done.key) != done.key:
            yield f"{place} was acknowledged to {promised[place]} and to {done.key}"
        found = at.get(place)
        if found is None:
            yield f"{done.key} was acknowledged at {place}, where nothing is"
        elif found.key != done.key:
            yield f"{done.key} was acknowledged at {place}, where {found.key} is"
        elif -1 not in (done.log_offset, found.log_offset) and done.log_offset != found.log_offset:
            yield (
                f"{done.key} was acknowledged at log offset {done.log_offset}, it is at"
                f" {found.log_offset}"
            )


def copies(history: History) -> Iterator[str]:
    """A message is there once for each acknowledgement, and at most once more for each try of
    unknown outcome; nothing else is there.
    """
    acknowledged, unknown = Counter[str](), Counter[str]()
    for done in history.tries:
        if done.outcome is Outcome.ACKNOWLEDGED:
            acknowledged[done.key] += 1
        elif done.outcome is Outcome.UNKNOWN:
            unknown[done.key] += 1
    tried = {done.key for done in history.tries}
    for key, count in Counter(stored.key for stored in history.stored).items():
        most = acknowledged[key] + unknown[key]
        if key not in tried:
            yield f"{key} is stored, and it was never sent"
        elif count > most:
            yield (
                f"{key} is stored {count} times after {acknowledged[key]} acknowledgements and"
                f" {unknown[key]} tries of unknown outcome"
            )


def gaps(history: History) -> Iterator[str]:
    """Queue offsets are dense from first to end, and log offsets differ."""
    offsets: defaultdict[Queue, list[int]] = defaultdict(list)
    for stored in history.stored:
        offsets[stored.queue].append(stored.offset)
    for queue in sorted({*offsets, *history.bounds}):
        first, end = history.bounds.get(queue, (0, 0))
        if offsets[queue] != list(range(first, end)):
            yield f"{queue} names offsets {first} to {end}, and holds {_runs(offsets[queue])}"
    places = Counter(
        (stored.queue[0], stored.log_offset) for stored in history.stored if stored.log_offset >= 0
    )
    yield from (
        f"log offset {place} is in two queues" for place, count in places.items() if count > 1
    )


def deliveries(history: History) -> Iterator[str]:
    """Each group sees each message at least once, and as it is stored; an ordered one sees none
    before those ahead of it in its queue.
    """
    at = {(stored.queue, stored.offset): stored.key for stored in history.stored}
    seen: defaultdict[str, set[tuple[Queue, int]]] = defaultdict(set)
    got_here: defaultdict[str, set[tuple[Queue, int]]] = defaultdict(set)
    ends: dict[tuple[str, Queue], int] = {}
    for got in history.deliveries:
        place = got.queue, got.offset
        if at.get(place) != got.key and history.durable_reads:
            yield f"{got.group} got {got.key} at {place}, where {at.get(place, 'nothing')} is"
        if place not in seen[got.group] and got.group in history.ordered:
            end = ends.get((got.group, got.queue), history.bounds.get(got.queue, (0, 0))[0])
            if got.offset != end:
                yield f"{got.group} got {place} when {end} came next"
            ends[got.group, got.queue] = max(end, got.offset + 1)
        seen[got.group].add(place)
        if at.get(place) == got.key:
            got_here[got.group].add(place)
    for group in sorted(history.groups):
        missed = sorted(place for place in at if place not in got_here[group])
        yield from (f"{group} never got {place} ({at[place]})" for place in missed[:SHOWN_MAX])


@attrs.frozen
class LogPart:
    """A commit log on one broker's disk: its first log offset, and its bytes up to the
    end of its last record.
    """

    broker: str
    start: int
    data: bytes

    @property
    def end(self) -> int:
        return self.start + len(self.data)


def log_differences(logs: Iterable[LogPart]) -> list[str]:
    """Where two copies of one log differ in bytes that both hold."""
    found = []
    parts = list(logs)
    for number, one in enumerate(parts):
        for other in parts[number + 1 :]:
            start, end = max(one.start, other.start), min(one.end, other.end)
            mine, theirs = (
                one.data[max(0, start - one.start) : end - one.start],
                other.data[max(0, start - other.start) : end - other.start],
            )
            if start < end and mine != theirs:
                place = next(
                    place for place, (left, right) in enumerate(zip(mine, theirs)) if left != right
                )
                found.append(
                    f"the logs of {one.broker} and {other.broker} differ at log offset"
                    f" {start + place}"
                )
    return found


def _runs(offsets: Sequence[int]) -> str:
    """Offsets as ranges, for people."""
    runs: list[list[int]] = []
    for offset in offsets:
        if runs and offset == runs[-1][1]:
            runs[-1][1] += 1
        else:
            runs.append([offset, offset + 1])
    return ", ".join(f"{first} to {end}" for first, end in runs[:SHOWN_MAX]) or "nothing"
