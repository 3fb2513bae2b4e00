"""MissingBrokers: broker processes that should be in the routes and are not.

They were registered and are not any more, or two living processes have one name and id, and take
the place in the routes from each other.

Java's name server drops a broker that is gone, and then no answer names it: operators see a smaller
cluster in which all is well. Routes are as in Java, so that no client asks a missing broker; but
the key-value namespace ``TRIOMQ_MISSING_BROKERS`` tells tools which brokers are missing, how they
left and when. Memory only. Pure: times are milliseconds of the caller's steady clock.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

import attrs

from triomq.namesrv.broker_registration import Departed
from triomq.remoting.protocol.bodies.cluster import MissingProcess, MissingProcesses

REMEMBERED_MS = 24 * 3600 * 1000
"""A day: after it, a broker counts as taken away for good."""
CONTEST_MS = 120_000
"""Two registrations for one place within this time are of processes that live side by side: brokers
register every 30 s.
"""
REMEMBERED_MAX = 1000
"""Missing processes that are remembered; the one that left first is dropped for the next one."""


class Leave(enum.Enum):
    """How a broker process left."""

    UNREGISTERED = "unregistered"
    """it was stopped in order"""
    CONNECTION_LOST = "connection lost"
    SILENT = "silent"
    DISPLACED = "displaced"
    """it lives, and so does another process with its cluster, name and id"""


@attrs.frozen
class _Gone:
    address: str
    leave: Leave
    at_ms: int


@attrs.frozen
class _Contest:
    """The last registration for a place whose holder was another living process."""

    claimant: str
    holder: str
    at_ms: int
    proven: bool
    """both live: each has registered after the other"""


Place = tuple[str, str, int]
"""(cluster, broker name, broker id)"""


@attrs.define(eq=False)
class MissingBrokers:
    """The missing brokers of one name server, in the order in which they left."""

    _gone: dict[Place, _Gone] = attrs.field(factory=dict, init=False)
    _contests: dict[Place, _Contest] = attrs.field(factory=dict, init=False)

    def left(self, departed: Departed, leave: Leave, now_ms: int) -> None:
        """Remember a process that left."""
        place = departed.cluster, departed.broker_name, departed.broker_id
        self._end_contest(place, departed.address)
        self._gone.pop(place, None)
        self._gone[place] = _Gone(departed.address, leave, now_ms)
        while len(self._gone) > REMEMBERED_MAX:
            del self._gone[next(iter(self._gone))]

    def unregistered(self, cluster: str, broker_name: str, address: str) -> None:
        """Note that a process which had left already was stopped in order."""
        for place, gone in self._gone.items():
            if place[:2] == (cluster, broker_name) and gone.address == address:
                self._gone[place] = attrs.evolve(gone, leave=Leave.UNREGISTERED)
        for place in [place for place in self._contests if place[:2] == (cluster, broker_name)]:
            self._end_contest(place, address)

    def claimed(self, place: Place, claimant: str, holder: str, seen_ms: int, now_ms: int) -> bool:
        """Note a registration for the place of another process, which lives as far as known.

        ``seen_ms``: when the holder last registered. A broker that moves to another address does
        this once; two that live side by side go on.

        Returns: whether it is proven now, and was not before, that both live.
        """
        last = self._contests.pop(place, None)
        if last is not None and now_ms - last.at_ms > CONTEST_MS:
            last = None
        both = {claimant, holder}
        proven = (
            last is not None
            and both == {last.claimant, last.holder}
            and (last.proven or last.holder == claimant or seen_ms > last.at_ms)
        )
        self._contests[place] = _Contest(claimant, holder, now_ms, proven)
        while len(self._contests) > REMEMBERED_MAX:
            del self._contests[next(iter(self._contests))]
        return proven and not (last is not None and last.proven)

    def is_contested(self, place: Place) -> bool:
        """Return whether two living processes are known to claim a place."""
        contest = self._contests.get(place)
        return contest is not None and contest.proven

    def _end_contest(self, place: Place, address: str) -> None:
        """End the contest in which the process at an address took part: it is gone."""
        contest = self._contests.get(place)
        if contest is not None and address in (contest.claimant, contest.holder):
            del self._contests[place]

    def registered(self, cluster: str, broker_name: str, broker_id: int, address: str) -> None:
        """Drop the process that returned: its place has a process, or its address has one."""
        self._drop(
            place
            for place, gone in self._gone.items()
            if place == (cluster, broker_name, broker_id)
            or (place[0] == cluster and gone.address == address)
        )

    def forget(self, broker_name: str) -> None:
        """Drop all processes of a broker name."""
        for place in [place for place in self._contests if place[1] == broker_name]:
            del self._contests[place]
        self._drop(place for place in self._gone if place[1] == broker_name)

    def processes(self, now_ms: int) -> list[MissingProcess]:
        """Return the missing processes, without those that left more than a day ago.

        Of a contested place both: which of them is in the routes changes at any moment.
        """
        self._drop(
            place for place, gone in self._gone.items() if now_ms - gone.at_ms > REMEMBERED_MS
        )
        for place, contest in [*self._contests.items()]:
            if now_ms - contest.at_ms > CONTEST_MS:
                del self._contests[place]
        displaced = [
            (place, _Gone(address, Leave.DISPLACED, contest.at_ms))
            for place, contest in self._contests.items()
            if contest.proven
            for address in sorted((contest.claimant, contest.holder))
        ]
        return [
            MissingProcess(
                cluster=cluster,
                broker_name=broker_name,
                broker_id=broker_id,
                address=gone.address,
                leave=gone.leave.value,
                seconds=(now_ms - gone.at_ms) // 1000,
            )
            for (cluster, broker_name, broker_id), gone in [*self._gone.items(), *displaced]
        ]

    def values(self, now_ms: int) -> dict[str, str]:
        """Return the key-value namespace: broker name → JSON of its missing processes."""
        by_name: dict[str, list[MissingProcess]] = {}
        for process in self.processes(now_ms):
            by_name.setdefault(process.broker_name, []).append(process)
        return {name: MissingProcesses(some).encode().decode() for name, some in by_name.items()}

    def _drop(self, places: Iterable[Place]) -> None:
        for place in list(places):
            del self._gone[place]
