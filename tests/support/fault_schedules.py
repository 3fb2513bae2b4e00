"""Schedules of faults, each drawn from (seed, number), and the run of a schedule: faults under
load, all servers die at once, all come back, everything is compared.

A schedule is a list of ``Step``s. Kinds are dealt from a shuffled deck, so that consecutive
schedules have all of them. After its steps each schedule has a final fault under load: master and
slave are killed together, or lose power together. Then both logs are checked as they are on the
disks, before a recovery can repair them: with SYNC_FLUSH and SYNC_MASTER every acknowledged message
is in both.
"""

from __future__ import annotations

import heapq
import itertools
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import fault_clock
from crash_loop import is_whole
from delayed_history import delay_violations
from fault_clients import CONSUMERS_ENDED, GROUPS
from fault_cluster import BROKERS, FaultCluster, log_part
from fault_history import TOPIC, Events, FoundMessage, complain, missing
from history import log_differences, violations
from store_ledger import parse

SERVERS = ("names", "master", "slave")
WINDOW_SECONDS = 5.0
STEPS = 4
WAIT_FOR_LOAD_SECONDS = 5.0
DAYS_40 = 40 * 86_400.0
"""Jump of a clock that is longer than retention, timers and invisible times reach."""
LOAD_LEAST = 30
"""Messages acknowledged before the first fault, before the final fault, and after it."""
DETACHED_SECONDS = 4.0
"""More than a period of a slave's copying of tables, and than the longest delay."""
NEVER_LOGGED = ("Traceback", " CRITICAL ", "have parted")
"""With SYNC_FLUSH no slave is ever ahead of its master."""
LINKS = {
    "replication": ("master", "slave"),
    "clients": ("clients", "master"),
    "names": ("master", "names"),
}
KINDS = (
    *(f"kill {host}" for host in (*SERVERS, "all")),
    *(f"power {host}" for host in (*BROKERS, "all")),
    *(f"stop {host}" for host in SERVERS),
    *(f"cut {link}" for link in LINKS),
    *(f"cut {link} {way}" for link in LINKS for way in ("there", "back")),
    *(f"loss {link}" for link in ("replication", "clients")),
    *(f"slow {host}" for host in BROKERS),
    "delay replication",
    *(f"full {host}" for host in BROKERS),
    *(f"clock {host}" for host in (*BROKERS, "names")),
    *(f"files {host}" for host in SERVERS),
)


@attrs.frozen
class Step:
    """A fault. Times in seconds since the load began; restarts of more than one server have times
    of their own, so in any order.
    """

    at: float
    kind: str
    seconds: float
    number: float = 0.0
    """Rate in kbit/s, share of lost packets, delay in s, or jump of the clock in s, by kind."""
    restarts: tuple[float, ...] = ()
    under_load: bool = True
    """Whether it waits, if it must, until sends get through again."""


@attrs.frozen
class Schedule:
    """Everything that chance decides."""

    number: int
    attempt: int
    steps: tuple[Step, ...]
    sync_seconds: float
    final_fault: str
    final_fault_seconds: float
    restart_order: tuple[str, ...]
    seed: int
    acting: bool = False
    """Whether the slave acts for a master that is down (enableSlaveActingMaster)."""
    delays: bool = False
    """Whether there are delayed messages, and a group that gives some back."""
    promotes: bool = False
    """Whether the slave becomes master in the end, with tables that are ahead of its log."""

    @property
    def relayed(self) -> bool:
        return any(step.kind.startswith("delay") for step in self.steps)

    @property
    def few_files(self) -> tuple[str, ...]:
        """Servers whose files are to run out."""
        return tuple(
            host for host in SERVERS if any(step.kind == f"files {host}" for step in self.steps)
        )

    @property
    def small(self) -> tuple[str, ...]:
        """Brokers whose disks are to be filled."""
        return tuple(
            host for host in BROKERS if any(step.kind == f"full {host}" for step in self.steps)
        )


def draw(
    seed: int,
    number: int,
    attempt: int = 0,
    *,
    stop_seconds: float = 3.0,
    deck: Sequence[str] = KINDS,
    servers: Sequence[str] = SERVERS,
) -> Schedule:
    """``attempt`` counts the schedules of this number that did not count; ``stop_seconds`` is for
    how long a quarter of the stopped processes stays so.
    """
    kinds = [deal(seed, number * STEPS + index, deck) for index in range(STEPS)]
    choose = random.Random(f"{seed}/{number}/{attempt}")
    times = sorted(choose.uniform(0.1, WINDOW_SECONDS - 1.0) for _ in kinds)
    steps = tuple(
        draw_step(choose, kind, at, stop_seconds, len(servers))
        for at, kind in zip(times, kinds, strict=True)
    )
    order = list(servers)
    choose.shuffle(order)
    final_fault = choose.choice(("kill", "power"))
    drawn = Schedule(
        number,
        attempt,
        steps,
        choose.choice((0.002, 0.01, 0.03)),
        final_fault,
        choose.uniform(0.0, 0.5),
        tuple(order),
        choose.getrandbits(32),
        choose.random() < 0.3,
    )
    delays = choose.random() < 0.25
    return attrs.evolve(drawn, delays=delays, promotes=delays and choose.random() < 0.5)


def deal(seed: int, index: int, deck: Sequence[str] = KINDS) -> str:
    """The kinds of a whole deck come before any comes again."""
    shuffled = list(deck)
    random.Random(f"{seed}/deck {index // len(deck)}").shuffle(shuffled)
    return shuffled[index % len(deck)]


def draw_step(
    choose: random.Random, kind: str, at: float, stop_seconds: float, servers: int
) -> Step:
    seconds = choose.uniform(0.3, 2.0)
    restarts = tuple(choose.uniform(0.1, 1.5) for _ in range(servers))
    what = kind.split()[0]
    if what == "stop":
        seconds = choose.uniform(0.5, 3.0) if choose.random() < 0.75 else stop_seconds
    number = {
        "slow": choose.choice((200.0, 1000.0, 4000.0)),
        "loss": choose.choice((0.05, 0.2, 0.5)),
        "delay": choose.uniform(0.05, 0.7),
        "clock": choose.choice((-1, 1)) * choose.choice((60.0, 3600.0, DAYS_40)),
    }.get(what, 0.0)
    return Step(at, kind, seconds, number, restarts, choose.random() < 0.75)


@attrs.define
class Figures:
    """Of one schedule, or of many."""

    schedules: int = 0
    repeated: int = 0
    """Had no fault that hit a request in flight, and were run again with other numbers."""
    sent: int = 0
    acknowledged: int = 0
    stored: int = 0
    """Answered SLAVE_NOT_AVAILABLE or FLUSH_SLAVE_TIMEOUT."""
    doubtful: int = 0
    refused: int = 0
    copies: int = 0
    """Messages that are there more than once, all of them with a doubt."""
    lost: int = 0
    delayed: int = 0
    """Delayed messages that were acknowledged."""
    given_back: int = 0
    """Messages that a consumer gave back."""
    promotions: int = 0
    seen: int = 0
    power_lost_bytes: int = 0
    """What cut power has taken from the files."""
    hits: dict[str, int] = attrs.field(factory=dict)
    """Kind of fault -> sends in flight when it came."""
    faults: dict[str, int] = attrs.field(factory=dict)
    """Kind of fault -> how many came while sends were in flight."""
    missed: int = 0
    """Faults that came when nothing was in flight, or whose target was down."""

    def add(self, other: Figures) -> None:
        for field in attrs.fields(Figures):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            setattr(
                self,
                field.name,
                dict(Counter(mine) + Counter(theirs)) if isinstance(mine, dict) else mine + theirs,
            )


@attrs.define
class Came:
    """A fault that happened, on the monotonic clock; one of no length is over at once."""

    kind: str
    begin: float = attrs.field(factory=time.monotonic)
    end: float | None = None


@attrs.define(eq=False)
class ScheduleRun:
    """One schedule on one cluster. ``complaints`` has what was found before the end."""

    cluster: FaultCluster
    schedule: Schedule
    figures: Figures = attrs.field(factory=Figures)
    applied: list[Came] = attrs.field(factory=list)
    complaints: list[str] = attrs.field(factory=list)
    promoted_at: float = 0.0
    """On the monotonic clock."""
    _agenda: list[tuple[float, int, Callable[[], None]]] = attrs.field(factory=list)
    _order: itertools.count[int] = attrs.field(factory=itertools.count)

    def run(self) -> list[str]:
        """Complaints; none is what one hopes for. Raises AssertionError when something does not
        come back.
        """
        cluster = self.cluster
        cluster.wait_acknowledged(LOAD_LEAST, "before the first fault")
        begun = time.monotonic()
        for step in self.schedule.steps:
            self._plan(begun + step.at, lambda step=step: self._come(step))  # type: ignore[misc]
        while self._agenda:
            due, _, action = heapq.heappop(self._agenda)
            time.sleep(max(0.0, due - time.monotonic()))
            for host in list(cluster.processes):
                cluster.is_up(host)
            action()
        cluster.network.heal()
        if self.schedule.promotes:
            return self.promote()
        self.strike(self.schedule.final_fault, self.schedule.final_fault_seconds)
        self.complaints += self.check_dead()
        for host in self.schedule.restart_order:
            if not cluster.is_up(host):
                cluster.start(host)
        return self.finish()

    def _plan(self, at: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (at, next(self._order), action))

    def _came(self, kind: str) -> None:
        self.applied.append(Came(kind))

    def _lasts(self, step: Step, heal: Callable[[], object]) -> None:
        """The fault that just came ends in its time."""
        came = self.applied[-1]

        def end() -> None:
            heal()
            came.end = time.monotonic()

        self._plan(time.monotonic() + step.seconds, end)

    # Faults

    def _come(self, step: Step, answers: int | None = None, until: float = 0.0) -> None:
        now, found = time.monotonic(), sum(self.cluster.answered().values())
        if not step.under_load or (answers is not None and (found > answers or now > until)):
            self._apply(step)
        else:
            last = found if answers is None else answers
            self._plan(
                now + 0.02, lambda: self._come(step, last, until or now + WAIT_FOR_LOAD_SECONDS)
            )

    def _apply(self, step: Step) -> None:
        what, target, *way = step.kind.split()
        getattr(self, f"_{what}")(step, target, *way)

    def _hosts(self, step: Step, target: str, of: tuple[str, ...]) -> list[tuple[str, float]]:
        """Those that are up, and when each is to start again."""
        return [
            (host, step.restarts[self.cluster.servers.index(host)])
            for host in (of if target == "all" else (target,))
            if self.cluster.is_up(host)
        ]

    def _kill(self, step: Step, target: str) -> None:
        hosts = self._hosts(step, target, self.cluster.servers)
        if hosts:
            self._came(step.kind)
        for host, seconds in hosts:
            self.cluster.kill(host)
            self._start_in(host, seconds)

    def _power(self, step: Step, target: str) -> None:
        hosts = self._hosts(step, target, self.cluster.BROKERS)
        if hosts:
            self._came(step.kind)
        for host, _ in hosts:
            self.cluster.signal(host, signal.SIGSTOP)  # at one moment
        for host, seconds in hosts:
            self.figures.power_lost_bytes += self.cluster.lose_power(
                host, f"{self.schedule.seed}/{step.at}/{host}"
            ).bytes
            self._start_in(host, seconds)

    def _start_in(self, host: str, seconds: float) -> None:
        def start() -> None:
            if not self.cluster.is_up(host):
                self.cluster.start(host)

        self._plan(time.monotonic() + seconds, start)

    def _stop(self, step: Step, target: str) -> None:
        if self.cluster.is_up(target):
            self._came(step.kind)
            self.cluster.signal(target, signal.SIGSTOP)
            stopped = self.cluster.processes[target]

            def go_on() -> None:
                if self.cluster.processes.get(target) is stopped:
                    self.cluster.signal(target, signal.SIGCONT)

            self._lasts(step, go_on)

    def _links(self, link: str) -> list[tuple[str, str]]:
        """The hosts at both ends of what a fault of links hits."""
        return [LINKS[link]]

    def _ways(self, link: str, way: str = "") -> list[tuple[str, str]]:
        links = self._links(link)
        there, back = links * (way != "back"), links * (way != "there")
        return there + [(target, source) for source, target in back]

    def _cut(self, step: Step, link: str, way: str = "") -> None:
        network, ways = self.cluster.network, self._ways(link, way)
        self._came(step.kind)
        for each in ways:
            network.cut(*each)
        self._lasts(step, lambda: [network.join(*each) for each in ways])

    def _loss(self, step: Step, link: str) -> None:
        network, ways = self.cluster.network, self._ways(link)
        self._came(step.kind)
        for each in ways:
            network.lose(*each, step.number)
        self._lasts(step, lambda: [network.join(*each) for each in ways])

    def _slow(self, step: Step, target: str) -> None:
        self._came(step.kind)
        self.cluster.network.slow(target, int(step.number))
        self._lasts(step, lambda: self.cluster.network.slow(target, 0))

    def _delay(self, step: Step, link: str) -> None:
        self._came(step.kind)
        controls = self.cluster.controls("relay")
        controls.set(delay_seconds=step.number)
        self._lasts(step, lambda: controls.set(delay_seconds=0.0))

    def _full(self, step: Step, target: str) -> None:
        self._came(step.kind)
        self.cluster.fill(target)
        self._lasts(step, lambda: self.cluster.make_room(target))

    def _files(self, step: Step, target: str) -> None:
        if not self.cluster.is_up(target):
            return
        self._came(step.kind)
        self.cluster.flood(target)
        self._lasts(step, lambda: self.cluster.end_flood(target))

    def _clock(self, step: Step, target: str) -> None:
        """It stays there: coming back is the next jump."""
        if fault_clock.libfaketime() is None:  # left out, and counted as one that met nothing
            return
        self._came(step.kind)
        self.cluster.set_clock(target, step.number)
        self._lasts(step, lambda: self.cluster.set_clock(target, 0.0))

    def strike(self, final_fault: str, seconds: float = 0.0) -> None:
        """The final fault, when all is well again and under load."""
        cluster = self.cluster
        cluster.wait_acknowledged(
            LOAD_LEAST, f"after {[step.kind for step in self.schedule.steps]}"
        )
        time.sleep(seconds)
        self._came(f"{final_fault} brokers at the end")
        for host in cluster.BROKERS:
            cluster.signal(host, signal.SIGSTOP)  # at one moment
        for host in cluster.BROKERS:
            if final_fault == "kill":
                cluster.kill(host)
            else:
                self.figures.power_lost_bytes += cluster.lose_power(
                    host, f"{self.schedule.seed}/end/{host}"
                ).bytes

    def check_dead(self) -> list[str]:
        """Return what is wrong on the disks of the brokers that the final fault has ended."""
        return check_logs(self.cluster)

    def promote(self) -> list[str]:
        """The slave loses the stream of the log, and goes on to copy the tables; then the master's
        disk is lost, and the slave becomes master.
        """
        cluster = self.cluster
        for host in SERVERS:
            if not cluster.is_up(host):
                cluster.start(host)
        cluster.wait_acknowledged(
            LOAD_LEAST, f"after {[step.kind for step in self.schedule.steps]}"
        )
        time.sleep(self.schedule.final_fault_seconds)
        cluster.stop_in_order("slave")
        cluster.detached = True
        cluster.start("slave")
        before = sum(cluster.answered().values())
        time.sleep(DETACHED_SECONDS)
        # Consumers end first: a consumer that lived on would commit its position in the lost log at
        # the new master, which cannot see the difference.
        cluster.tell_clients(BROKERS, consume=False)
        cluster.wait("consumers have ended", lambda: CONSUMERS_ENDED in cluster.events().notes)
        self._came("promote at the end")
        cluster.kill("master")
        cluster.stop_in_order("slave")
        self.promoted_at = time.monotonic()
        self.complaints += check_logs(cluster, ("slave",))
        shutil.rmtree(cluster.store("master"))
        cluster.promoted = True
        lost = sum(cluster.answered().values()) - before
        cluster.start("slave")
        cluster.wait_acknowledged(
            lost, "in place of what only the lost master had"
        )  # else groups would find their offsets beyond the end, and correct them
        cluster.tell_clients(("slave",), consume=True)
        return self.finish(("slave",))

    def finish(self, brokers: tuple[str, ...] = ()) -> list[str]:
        """After everything was started again: work, stop in order, compare."""
        cluster, promoted = self.cluster, bool(brokers)
        brokers = brokers or cluster.BROKERS
        cluster.wait_acknowledged(LOAD_LEAST, "after the brokers came back")
        events = cluster.finish_clients()
        if not promoted:
            cluster.wait(
                "all have all of the log",
                lambda: len({log_part(cluster.store(broker)).data for broker in brokers}) == 1,
            )
        for host in (*reversed(brokers), *cluster.NAMES):
            cluster.stop_in_order(host)
        for broker in brokers:
            self.complaints += violations(
                events.history(
                    broker,
                    GROUPS if cluster.consumers else (),
                    () if promoted else ("ordered",),
                    promoted=promoted,
                )
            )
            if cluster.delays:
                self.complaints += delay_violations(
                    events.delay_history(
                        broker, cluster.clocks(), cluster.power_losses, self.promoted_at
                    )
                )
        self.complaints += [] if promoted else compare_stores(cluster)
        self.complaints += [
            f"{host} has logged: {line}"
            for host in cluster.servers
            for line in cluster.log_lines(host)
            if any(words in line for words in NEVER_LOGGED)
        ]
        if self.complaints:
            self.complaints += [
                f"(clients: {note})" for note in events.notes if "without success" in note
            ]
        self.count(events)
        return self.complaints

    def count(self, events: Events) -> None:
        figures = self.figures
        attempts = [attempt for attempts in events.attempts.values() for attempt in attempts]
        outcomes = Counter(attempt.outcome for attempt in attempts)
        figures.sent, figures.seen = len(attempts), len(events.seen)
        figures.acknowledged, figures.stored = outcomes["acknowledged"], outcomes["stored"]  # type: ignore[index]
        figures.doubtful, figures.refused = (
            outcomes["doubtful"],
            outcomes["refused"] + outcomes["unsent"],
        )  # type: ignore[index]
        last = "slave" if self.promoted_at else self.cluster.BROKERS[0]
        on_brokers = events.on_brokers.get(last, [])
        figures.copies = sum(
            count > 1 for count in Counter(one.name for one in on_brokers).values()
        )
        figures.delayed = sum(one.acknowledged for _, one in events.delayed)
        figures.given_back = sum(one.again for _, one in events.delayed)
        figures.promotions = int(bool(self.promoted_at))
        figures.lost = len(missing(events.acknowledged(), on_brokers))
        for came in self.applied:
            hit = events.in_flight(came.begin, came.end or came.begin)
            if hit:
                figures.hits[came.kind] = figures.hits.get(came.kind, 0) + hit
                figures.faults[came.kind] = figures.faults.get(came.kind, 0) + 1
            else:
                figures.missed += 1
        figures.missed += len(self.schedule.steps) + 1 - len(self.applied)

    @property
    def counts(self) -> bool:
        """Whether a fault of the schedule itself, the final fault apart, has hit requests in
        flight.
        """
        return any(not kind.endswith("at the end") for kind in self.figures.faults)


def check_logs(cluster: FaultCluster, brokers: tuple[str, ...] = BROKERS) -> list[str]:
    """Return what is wrong with stores of dead brokers: acknowledged messages that they lack."""
    acknowledged = cluster.events().acknowledged()
    complaints = []
    for broker in brokers:
        complaints += complain(
            f"{broker}, as found on the disk: acknowledged and lost",
            missing(acknowledged, read_log(cluster.store(broker))),
        )
    return complaints + compare_stores(cluster, whole=False)


def read_log(store: Path) -> list[FoundMessage]:
    """The whole records of a log up to the first that is none: what a recovery can find."""
    part = log_part(store)
    first, data = part.start, part.data
    found = []
    at = 0
    while at + 8 <= len(data):
        size = int.from_bytes(data[at : at + 4])
        if data[at + 4 : at + 8] == (0xCBD43194).to_bytes(4):  # the rest of a segment
            at += size
            continue
        try:
            record = parse(data[at : at + size].ljust(size, b"\0"), first + at)
        except (AssertionError, ValueError, IndexError, OverflowError, ArithmeticError):
            break
        except Exception as error:
            if type(error).__name__ != "error":
                raise
            break
        if record.topic == TOPIC:
            text = record.body.decode(errors="replace")
            if text.count(":") != 2 or not is_whole(text):
                break
            found.append(
                FoundMessage(
                    record.queue_id, record.queue_offset, record.log_offset, text.partition(":")[0]
                )
            )
        at += size
    return found


def compare_stores(cluster: FaultCluster, *, whole: bool = True) -> list[str]:
    """Master's and slave's logs: equal on every byte that both hold. ``whole``: as files; without
    it as whole records, since a dead broker's tail may be torn.
    """
    if not whole:
        master, slave = (read_log(cluster.store(broker)) for broker in BROKERS)
        return (
            []
            if master[: len(slave)] == slave[: len(master)]
            else ["the logs of the dead brokers have different records at the same places"]
        )
    return log_differences(log_part(cluster.store(broker)) for broker in cluster.BROKERS)
