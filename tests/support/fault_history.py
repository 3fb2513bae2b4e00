"""What clients did and saw while servers failed, as they write it down event by event; ``history`` then says whether the cluster has kept its promises.

A file of JSON lines, written by ``fault_clients``; times are seconds of the machine's monotonic clock:

    ["begin", time, name, attempt]                                            a send leaves
    ["end", time, name, attempt, outcome, queue, queue offset, log offset]    its answer; -1 where there is none
    ["seen", time, group, queue, queue offset, name]                          a consumer's handler begins
    ["read", broker, queue, queue offset, log offset, name]                   what lies there in the end, by a pull of every queue from its beginning
    ["bounds", broker, queue, first, end]                                     what the broker says that the queue has
    ["note", time, text]

Bodies are ``name:digest:filler`` (``crash_loop.body_of``); whoever reads one writes "?name" if it is not whole.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import attrs
import history

TOPIC = "Faults"
SHOWN = 3
"""Examples in a complaint."""


class Outcome(enum.StrEnum):
    """What the sender of one attempt was told."""

    ACKNOWLEDGED = "acknowledged"
    """SEND_OK"""
    STORED = "stored"
    """on the master, but not as safe as wished: SLAVE_NOT_AVAILABLE, FLUSH_SLAVE_TIMEOUT"""
    DOUBTFUL = "doubtful"
    """FLUSH_DISK_TIMEOUT, no answer, a broken connection: it may be there or not"""
    REFUSED = "refused"
    """an error of the broker that says: it is not stored"""
    UNSENT = "unsent"
    """no route, no connection: the message has not left"""


@attrs.frozen
class Attempt:
    """One send. Without an end nobody knows."""

    begin: float
    end: float | None = None
    outcome: Outcome = Outcome.DOUBTFUL
    queue_id: int = -1
    queue_offset: int = -1
    log_offset: int = -1


@attrs.frozen
class Seen:
    """A consumer got this."""

    group: str
    queue_id: int
    queue_offset: int
    name: str


@attrs.frozen
class Lying:
    """A message as a broker has it in the end."""

    queue_id: int
    queue_offset: int
    log_offset: int
    name: str


@attrs.define
class Events:
    """Everything that clients know."""

    attempts: dict[str, list[Attempt]] = attrs.field(factory=dict)
    seen: list[Seen] = attrs.field(factory=list)
    """In order of time."""
    lying: dict[str, list[Lying]] = attrs.field(factory=dict)
    """By broker."""
    bounds: dict[str, dict[int, tuple[int, int]]] = attrs.field(factory=dict)
    """By broker and queue."""
    notes: list[str] = attrs.field(factory=list)

    def add(self, event: list[object]) -> None:
        match event:
            case ["begin", float(time), str(name), int(number)]:
                attempts = self.attempts.setdefault(name, [])
                assert len(attempts) == number, f"{name}: attempt {number} after {len(attempts)}"
                attempts.append(Attempt(time))
            case ["end", float(time), str(name), int(number), str(outcome), int(queue), int(queue_offset), int(log_offset)]:
                begun = self.attempts[name][number]
                self.attempts[name][number] = Attempt(begun.begin, time, Outcome(outcome), queue, queue_offset, log_offset)
            case ["seen", float(), str(group), int(queue), int(queue_offset), str(name)]:
                self.seen.append(Seen(group, queue, queue_offset, name))
            case ["read", str(broker), int(queue), int(queue_offset), int(log_offset), str(name)]:
                self.lying.setdefault(broker, []).append(Lying(queue, queue_offset, log_offset, name))
            case ["bounds", str(broker), int(queue), int(first), int(end)]:
                self.bounds.setdefault(broker, {})[queue] = (first, end)
            case ["note", float(), str(text)]:
                self.notes.append(text)
            case _:
                raise ValueError(f"no event of a fault test: {event}")

    def acknowledged(self) -> dict[str, Attempt]:
        """Name -> the attempt that was."""
        return {name: attempt for name, attempts in self.attempts.items() for attempt in attempts if attempt.outcome is Outcome.ACKNOWLEDGED}

    def in_flight(self, begin: float, end: float) -> int:
        """Sends that were on their way at some moment from ``begin`` to ``end``; not those that found nobody to go to."""
        return sum(
            attempt.outcome is not Outcome.UNSENT and attempt.begin <= end and (attempt.end is None or attempt.end > begin)
            for attempts in self.attempts.values()
            for attempt in attempts
        )

    def history(self, broker: str, groups: Iterable[str] = (), ordered: Iterable[str] = ()) -> history.History:
        """For the checker, with one broker's queues. What was answered STORED is held to be there, too: a master with SYNC_FLUSH that keeps its disk has it."""
        kinds = {Outcome.REFUSED: history.Outcome.REFUSED, Outcome.UNSENT: history.Outcome.REFUSED, Outcome.DOUBTFUL: history.Outcome.UNKNOWN}

        def queue(queue_id: int) -> history.Queue:
            return broker, TOPIC, queue_id

        return history.History(
            tries=[
                history.Try(
                    name,
                    kinds.get(attempt.outcome, history.Outcome.ACKNOWLEDGED),
                    None if attempt.queue_id < 0 else queue(attempt.queue_id),
                    attempt.queue_offset,
                    attempt.log_offset,
                )
                for name, attempts in self.attempts.items()
                for attempt in attempts
            ],
            stored=[history.Stored(queue(one.queue_id), one.queue_offset, one.name, one.log_offset) for one in self.lying.get(broker, [])],
            bounds={queue(number): ends for number, ends in self.bounds.get(broker, {}).items()},
            deliveries=[history.Delivery(one.group, queue(one.queue_id), one.queue_offset, one.name) for one in self.seen],
            groups=frozenset(groups),
            ordered=frozenset(ordered),
        )


def read_events(path: Path) -> Events:
    """All whole lines; the last one may be under way."""
    events = Events()
    for line in path.read_bytes().split(b"\n")[:-1]:
        events.add(json.loads(line))
    return events


def missing(acknowledged: Mapping[str, Attempt], lying: Iterable[Lying]) -> list[str]:
    """Names of those that do not lie where their answers said."""
    there = {(one.name, one.queue_id, one.queue_offset, one.log_offset) for one in lying}
    return [
        name
        for name, attempt in acknowledged.items()
        if (name, attempt.queue_id, attempt.queue_offset, attempt.log_offset) not in there
    ]


def complain(what: str, examples: list[str]) -> list[str]:
    if not examples:
        return []
    return [f"{what}: {len(examples)} ({', '.join(examples[:SHOWN])}{', …' if len(examples) > SHOWN else ''})"]
