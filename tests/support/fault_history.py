"""What clients did and saw while servers failed, as they write it down event by event; ``history``
then says whether the cluster has kept its promises.

A file of JSON lines, written by ``fault_clients``; times are seconds of the machine's monotonic
clock:

    ["begin", time, name, attempt]          a send leaves
    ["end", time, name, attempt, outcome, queue, queue offset, log offset]
                                            its answer; -1 for what it does not say
    ["seen", time, group, queue, queue offset, name]
                                            a consumer's handler begins
    ["read", broker, queue, queue offset, log offset, name]
                                            what is stored in the end, by a pull of every queue
                                            from its beginning
    ["bounds", broker, queue, first, end]   what the broker says that the queue has
    ["delayed", begin, time, name, delay, outcome, given back]
                                            a delayed message was sent, or given back by a consumer
    ["arrived", time, name, done, again]    a consumer of delayed messages got the message, from its
                                            topic or again
    ["delivered", broker, name]             a delayed message that is in its topic in the end
    ["group", time, leader, master, epoch, members]
                                            what the leading controller says of a group; in a
                                            file of its own
    ["note", time, text]

Bodies are ``name:digest:filler`` (``crash_loop.body_of``); a reader writes "?name" if the body is
not whole.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import attrs
import history
from delayed_history import Arrival, BrokerStart, Delayed, DelayHistory

TOPIC, DELAYED_TOPIC = "Faults", "FaultsDelayed"
CLOCK_SECONDS = 0.5
"""How exactly is known when a clock was set."""
UNSAFE_SECONDS = 5.0
"""Nothing says when the disk has a message that was given back: a loss of power this long
afterwards may take it.
"""
SHOWN = 3
"""Examples in a complaint."""


class Outcome(enum.StrEnum):
    """What the sender of an attempt knows."""

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
    """One send. Without an end its outcome is unknown."""

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
class FoundMessage:
    """A message as a broker has it in the end."""

    queue_id: int
    queue_offset: int
    log_offset: int
    name: str


@attrs.frozen
class Group:
    """What a leading controller said: the master, its epoch, and the sync state set."""

    time: float = 0.0
    leader: str = ""
    master: str = ""
    epoch: int = 0
    members: tuple[str, ...] = ()


@attrs.define
class Clocks:
    """Wall clocks of brokers that jump."""

    settings: list[tuple[float, str, float]] = attrs.field(factory=list)
    """(when, broker, by how many seconds it is ahead from then on), ascending."""
    starts: list[BrokerStart] = attrs.field(factory=list)

    def least_ahead(self, begin: float, end: float) -> float:
        """Return the least that any broker's clock was ahead at some moment from ``begin`` to
        ``end``.
        """
        at_first = {broker: seconds for when, broker, seconds in self.settings if when <= begin}
        return min(
            [
                *at_first.values(),
                *(seconds for when, _, seconds in self.settings if begin < when <= end),
            ],
            default=0.0,
        )


@attrs.define
class Events:
    """Everything that clients know."""

    attempts: dict[str, list[Attempt]] = attrs.field(factory=dict)
    seen: list[Seen] = attrs.field(factory=list)
    """In order of time."""
    on_brokers: dict[str, list[FoundMessage]] = attrs.field(factory=dict)
    """By broker."""
    bounds: dict[str, dict[int, tuple[int, int]]] = attrs.field(factory=dict)
    """By broker and queue."""
    delayed: list[tuple[float, Delayed]] = attrs.field(factory=list)
    """Delayed messages that may be stored, each with the time of the answer."""
    arrived: list[Arrival] = attrs.field(factory=list)
    delivered: dict[str, list[str]] = attrs.field(factory=dict)
    """By broker."""
    notes: list[str] = attrs.field(factory=list)
    groups: list[Group] = attrs.field(factory=list)

    def add(self, event: list[object]) -> None:
        match event:
            case ["begin", float(time), str(name), int(number)]:
                attempts = self.attempts.setdefault(name, [])
                assert len(attempts) == number, f"{name}: attempt {number} after {len(attempts)}"
                attempts.append(Attempt(time))
            case [
                "end",
                float(time),
                str(name),
                int(number),
                str(outcome),
                int(queue),
                int(queue_offset),
                int(log_offset),
            ]:
                begun = self.attempts[name][number]
                self.attempts[name][number] = Attempt(
                    begun.begin, time, Outcome(outcome), queue, queue_offset, log_offset
                )
            case ["seen", float(), str(group), int(queue), int(queue_offset), str(name)]:
                self.seen.append(Seen(group, queue, queue_offset, name))
            case ["read", str(broker), int(queue), int(queue_offset), int(log_offset), str(name)]:
                self.on_brokers.setdefault(broker, []).append(
                    FoundMessage(queue, queue_offset, log_offset, name)
                )
            case ["bounds", str(broker), int(queue), int(first), int(end)]:
                self.bounds.setdefault(broker, {})[queue] = (first, end)
            case [
                "delayed",
                float(begin),
                float(time),
                str(name),
                float(delay),
                str(outcome),
                bool(again),
            ]:
                if Outcome(outcome) not in (Outcome.REFUSED, Outcome.UNSENT):
                    self.delayed.append(
                        (
                            time,
                            Delayed(
                                name,
                                Outcome(outcome) is Outcome.ACKNOWLEDGED,
                                begin,
                                delay,
                                again=again,
                            ),
                        )
                    )
            case ["arrived", float(time), str(name), bool(done), bool(again)]:
                self.arrived.append(Arrival(name, time, done, again))
            case ["delivered", str(broker), str(name)]:
                self.delivered.setdefault(broker, []).append(name)
            case ["group", float(time), str(leader), str(master), int(epoch), list(members)]:
                self.groups.append(Group(time, leader, master, epoch, tuple(map(str, members))))
            case ["note", float(), str(text)]:
                self.notes.append(text)
            case _:
                raise ValueError(f"no event of a fault test: {event}")

    def acknowledged(self) -> dict[str, Attempt]:
        """Name -> the attempt that was."""
        return {
            name: attempt
            for name, attempts in self.attempts.items()
            for attempt in attempts
            if attempt.outcome is Outcome.ACKNOWLEDGED
        }

    def in_flight(self, begin: float, end: float) -> int:
        """Return the number of sends that were in flight at some moment from ``begin`` to ``end``;
        sends that found no broker do not count.
        """
        return sum(
            attempt.outcome is not Outcome.UNSENT
            and attempt.begin <= end
            and (attempt.end is None or attempt.end > begin)
            for attempts in self.attempts.values()
            for attempt in attempts
        )

    def delay_history(
        self, broker: str, clocks: Clocks, losses: Iterable[float] = (), promoted_at: float = 0.0
    ) -> DelayHistory:
        """For the checker of delayed messages. ``losses``: when brokers lost power;
        ``promoted_at``: when a slave became master.
        """
        sent = [
            attrs.evolve(
                one, wall=clocks.least_ahead(one.sent - CLOCK_SECONDS, end + CLOCK_SECONDS)
            )
            for end, one in self.delayed
        ]
        excused = frozenset(
            one.key
            for one in sent
            if one.again
            and (
                one.sent < promoted_at
                or any(one.sent <= loss <= one.sent + UNSAFE_SECONDS for loss in losses)
            )
        )
        return DelayHistory(
            sent, self.delivered.get(broker, []), self.arrived, clocks.starts, excused
        )

    def history(
        self,
        broker: str,
        groups: Iterable[str] = (),
        ordered: Iterable[str] = (),
        *,
        promoted: bool = False,
    ) -> history.History:
        """For the checker, with one broker's queues. What was answered STORED is held to be there,
        too: a master with SYNC_FLUSH that keeps its disk has it.

        ``promoted``: the broker is a slave that became master, and has what was acknowledged.
        """
        kinds = {
            Outcome.REFUSED: history.Outcome.REFUSED,
            Outcome.UNSENT: history.Outcome.REFUSED,
            Outcome.DOUBTFUL: history.Outcome.UNKNOWN,
        }
        if promoted:
            kinds[Outcome.STORED] = history.Outcome.UNKNOWN

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
            stored=[
                history.Stored(queue(one.queue_id), one.queue_offset, one.name, one.log_offset)
                for one in self.on_brokers.get(broker, [])
            ],
            bounds={queue(number): ends for number, ends in self.bounds.get(broker, {}).items()},
            deliveries=[
                history.Delivery(one.group, queue(one.queue_id), one.queue_offset, one.name)
                for one in self.seen
            ],
            groups=frozenset(groups),
            ordered=frozenset(ordered),
            durable_reads=not promoted,
        )


def read_events(path: Path) -> Events:
    """All whole lines; the last one may be under way."""
    events = Events()
    for line in path.read_bytes().split(b"\n")[:-1]:
        events.add(json.loads(line))
    return events


def missing(acknowledged: Mapping[str, Attempt], on_brokers: Iterable[FoundMessage]) -> list[str]:
    """Return the names of the messages that are not at the place of their answer."""
    there = {(one.name, one.queue_id, one.queue_offset, one.log_offset) for one in on_brokers}
    return [
        name
        for name, attempt in acknowledged.items()
        if (name, attempt.queue_id, attempt.queue_offset, attempt.log_offset) not in there
    ]


def complain(what: str, examples: list[str]) -> list[str]:
    if not examples:
        return []
    return [
        (
            f"{what}: {len(examples)}"
            f" ({', '.join(examples[:SHOWN])}{', …' if len(examples) > SHOWN else ''})"
        )
    ]
