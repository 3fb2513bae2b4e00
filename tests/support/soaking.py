"""A soak: producers send without end, members of two groups come and go, brokers and name servers
restart, and a ledger counts.

What must hold at the end: every message whose send was acknowledged was handled at least once by
either group; in the ordered group, for each key, message n + 1 was never handled before message n.
What is counted: messages that were handled twice, each with its cause. What is measured: the memory
of a broker and of a name server that are never restarted, and of this process (all producers and
consumers), less the memory of the ledger.

A short soak runs in one process (``soak``); the long soak has real processes (``soak_processes``),
which are killed by SIGKILL while they work.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import attrs
import psutil
import trio
from process_cluster import ProcessCluster, process_cluster

from triomq import (
    AssignmentChange,
    ClientSettings,
    ConsumerSettings,
    MessageQueue,
    Producer,
    ProducerSettings,
    PushConsumer,
    ReceivedMessage,
    SendError,
    TrioMQError,
)
from triomq.testing import local_cluster

TOPIC = "Soak"
BROKERS = ("broker-a", "broker-b", "broker-c")
STEADY_BROKER = BROKERS[-1]
"""never restarted: its memory is measured"""
NAME_SERVERS = 2
STEADY_NAME_SERVER = f"namesrv-{NAME_SERVERS}"
QUEUES_PER_BROKER = 4
DRAIN_SECONDS_MAX = 150.0
"""until everything that was sent must have been handled, on a machine with other work, too"""
BROKER_SETTINGS: Mapping[str, object] = {"diskMaxUsedSpaceRatio": 99, "fileReservedTime": 1}
CLIENT = ClientSettings(route_interval=1.0, heartbeat_interval=1.0, shutdown_timeout=2.0)
CONSUMER = ConsumerSettings(
    error_delay=0.1, rebalance_interval=2.0, rebalance_retry=0.2, lock_retry=0.1,
    lock_interval=1.0, offset_interval=1.0,
    client=CLIENT,
)  # fmt: skip

GROWTH_SHARE_MAX, GROWTH_BYTES_MAX = 0.05, 4 * 2**20
"""Memory is flat if the straight line through the samples of a run's second half rises by no more
than one of these.
"""

SENT_TWICE = "sent twice"
INTERRUPTED = "the first handler was cancelled in mid-work"
BROKER_ENDED = "the broker ended before it had the offset on disk"
HANDED_OVER = "the queue moved before the offset was stored, or had two owners for a moment"
UNEXPLAINED = "unexplained"


@attrs.frozen
class Place:
    """The place of a message when it was handled."""

    broker: str
    queue_id: int
    offset: int

    @property
    def number(self) -> int:
        """The place as one number of 63 bits."""
        return (BROKERS.index(self.broker) << 56) | (self.queue_id << 48) | self.offset


@attrs.define(eq=False)
class History:
    """What a ledger keeps of one key, an item for each number: 21 bytes a message."""

    times: bytearray = attrs.field(factory=bytearray)
    """how often it was handled (at most 255)"""
    places: array[int] = attrs.field(factory=lambda: array("q"))
    members: array[int] = attrs.field(factory=lambda: array("i"))
    """the member that handled it last; negative: it was cancelled then, or still handles it"""
    at: array[float] = attrs.field(factory=lambda: array("d"))
    """when that began"""

    def reach(self, number: int) -> None:
        missing = number + 1 - len(self.times)
        if missing > 0:
            self.times.extend(bytes(missing))
            self.places.extend([-1] * missing)
            self.members.extend([0] * missing)
            self.at.extend([0.0] * missing)

    @property
    def size_bytes(self) -> int:
        arrays = (self.places.__sizeof__(), self.members.__sizeof__(), self.at.__sizeof__())
        return self.times.__sizeof__() + sum(arrays)


@attrs.define(eq=False)
class GroupLedger:
    """What one group has handled. Messages are ``key:number``; numbers of a key run from 0. Members
    are numbers from 1.
    """

    ordered: bool
    keys: dict[int, History] = attrs.field(factory=dict)
    next_number: Counter[int] = attrs.field(factory=Counter)
    gaps: list[str] = attrs.field(factory=list)
    """ordered: numbers that were handled before their predecessor"""
    overlaps: int = 0
    """ordered: how often two handlers worked on one queue at the same time"""
    handled: int = 0
    again: Counter[str] = attrs.field(factory=Counter)
    """messages that were handled once more, by cause"""
    gained_at: dict[tuple[str, int], float] = attrs.field(factory=dict)
    """(broker, queue) → when a member of the group took it last"""
    broker_ended_at: dict[str, float] = attrs.field(factory=dict)
    _working: Counter[tuple[str, int]] = attrs.field(factory=Counter)

    def begin(self, key: int, number: int, place: Place, member: int, now: float) -> None:
        """Note that a member's handler has begun."""
        self.handled += 1
        history = self.keys.setdefault(key, History())
        history.reach(number)
        if history.times[number]:
            self.again[self._cause(history, number, place, member)] += 1
        history.times[number] = min(history.times[number] + 1, 255)
        history.places[number], history.members[number], history.at[number] = (
            place.number,
            -member,
            now,
        )
        if self.ordered:
            if number > self.next_number[key]:
                self.gaps.append(f"key {key}: {number} came before {self.next_number[key]}")
            self.next_number[key] = max(self.next_number[key], number + 1)
            queue = place.broker, place.queue_id
            self.overlaps += self._working[queue] > 0
            self._working[queue] += 1

    def _cause(self, history: History, number: int, place: Place, member: int) -> str:
        """Say why a message comes again. The order of the questions counts: what certainly suffices
        is asked first.
        """
        before, at = history.members[number], history.at[number]
        if history.places[number] != place.number:
            return SENT_TWICE
        if before < 0:
            return INTERRUPTED
        if self.broker_ended_at.get(place.broker, -1.0) >= at:
            return BROKER_ENDED
        if before != member or self.gained_at.get((place.broker, place.queue_id), -1.0) >= at:
            return HANDED_OVER
        return UNEXPLAINED

    def end(self, key: int, number: int, place: Place, member: int, *, done: bool) -> None:
        """Note that a handler has ended; ``done`` unless it was cancelled."""
        if done and self.keys[key].members[number] == -member:
            self.keys[key].members[number] = member
        if self.ordered:
            self._working[place.broker, place.queue_id] -= 1

    def missing(self, acknowledged: Mapping[int, int]) -> list[str]:
        """Return the acknowledged messages that were not handled; ``acknowledged`` is key → count
        of numbers.
        """
        nothing = History()
        missing = []
        for key, count in acknowledged.items():
            times = self.keys.get(key, nothing).times
            if len(times) < count or 0 in times[:count]:
                missing += [
                    f"{key}:{number}"
                    for number in range(count)
                    if number >= len(times) or not times[number]
                ]
        return missing

    @property
    def size_bytes(self) -> int:
        return sum(history.size_bytes for history in self.keys.values())


@attrs.frozen
class MemorySample:
    """Memory at one moment, in bytes."""

    seconds: float
    size_bytes: int


def growth(samples: Sequence[MemorySample]) -> tuple[float, float]:
    """Return (bytes by which the straight line through the second half of the samples rises in that
    half, mean of that half).
    """
    half = samples[len(samples) // 2 :]
    if len(half) < 3:
        return 0.0, float(half[-1].size_bytes) if half else 0.0
    seconds = [sample.seconds for sample in half]
    sizes = [float(sample.size_bytes) for sample in half]
    slope = statistics.linear_regression(seconds, sizes).slope
    return slope * (seconds[-1] - seconds[0]), statistics.fmean(sizes)


def is_flat(samples: Sequence[MemorySample]) -> bool:
    rise, mean = growth(samples)
    return rise <= max(GROWTH_SHARE_MAX * mean, GROWTH_BYTES_MAX)


class Cluster(Protocol):
    """What a soak does with a cluster."""

    @property
    def namesrv_address(self) -> str: ...

    async def create_topic(self, name: str, queues: int) -> None: ...

    async def stop_broker(self, name: str) -> None: ...

    async def crash_broker(self, name: str) -> None: ...

    async def start_broker(self, name: str) -> None: ...

    async def stop_namesrv(self, name: str) -> None: ...

    async def start_namesrv(self, name: str) -> None: ...


@attrs.define(eq=False)
class Soak:
    """One run."""

    cluster: Cluster
    random: random.Random
    kills: bool = False
    """whether ``crash_broker`` ends a broker at one instant, whatever it is doing"""
    measured: Mapping[str, Callable[[], int | None]] = attrs.field(factory=dict)
    """whose memory is sampled besides this process's: name → bytes"""
    producers: int = 4
    keys_per_producer: int = 6
    members_max: int = 4
    """of each group"""
    pause: float = 0.01
    """seconds between the sends of one producer"""
    acknowledged: dict[int, int] = attrs.field(factory=dict)
    ledgers: dict[str, GroupLedger] = attrs.field(
        factory=lambda: {"ordered": GroupLedger(True), "concurrent": GroupLedger(False)}
    )
    events: Counter[str] = attrs.field(factory=Counter)
    memory: dict[str, list[MemorySample]] = attrs.field(factory=dict)
    """of ``CLIENTS`` (this process, without the books) and of what is measured besides"""
    sample_interval: float = 5.0
    _stop: trio.Event = attrs.field(factory=trio.Event)
    _may_send: trio.Event = attrs.field(factory=trio.Event)
    _sending: int = 0
    _drained: trio.Event = attrs.field(factory=trio.Event)
    _members: int = 0

    async def run(self, seconds: float) -> None:
        """Work for so long, then let everything that was sent be handled."""
        await self.cluster.create_topic(TOPIC, queues=QUEUES_PER_BROKER)
        began = trio.current_time()
        self._may_send.set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._sample_memory, began)
            async with trio.open_nursery() as work:
                for number in range(self.producers):
                    work.start_soon(self._produce, number)
                for group in self.ledgers:
                    nursery.start_soon(self._members_come_and_go, group)
                work.start_soon(self._restart_servers)
                await trio.sleep(seconds)
                self._stop.set()
            with trio.move_on_after(DRAIN_SECONDS_MAX):
                while any(ledger.missing(self.acknowledged) for ledger in self.ledgers.values()):
                    await trio.sleep(0.2)
            self._drained.set()
            await trio.sleep(0.2)
            nursery.cancel_scope.cancel()

    # -- producers
    # --------------------------------------------------------------------------------------------

    async def _produce(self, producer_number: int) -> None:
        """Send each key's numbers in their order to the key's own queue, every one until it is
        acknowledged.
        """
        settings = ProducerSettings(send_timeout=2.0, client=CLIENT)
        async with Producer(
            self.cluster.namesrv_address, group="soak", settings=settings
        ) as producer:
            while not self._stop.is_set():
                key = producer_number * self.keys_per_producer + self.random.randrange(
                    self.keys_per_producer
                )
                number = self.acknowledged.setdefault(key, 0)
                place = key % (len(BROKERS) * QUEUES_PER_BROKER)
                queue = MessageQueue(TOPIC, BROKERS[place % len(BROKERS)], place // len(BROKERS))
                while True:
                    await self._may_send.wait()
                    self._sending += 1
                    try:
                        await producer.send(TOPIC, b"%d:%d" % (key, number), queue=queue)
                        break
                    except (SendError, TrioMQError):
                        self.events["sends repeated"] += 1
                        await trio.sleep(0.1)
                    finally:
                        self._sending -= 1
                self.acknowledged[key] = number + 1
                await trio.sleep(self.pause)

    # -- consumers
    # --------------------------------------------------------------------------------------------

    async def _members_come_and_go(self, group: str) -> None:
        """One member stays; others join, and leave in order or in mid-work."""
        async with trio.open_nursery() as nursery:
            members: list[tuple[trio.CancelScope, trio.Event]] = []
            nursery.start_soon(self._member, group, trio.CancelScope(), trio.Event())
            while not self._stop.is_set():
                await trio.sleep(self.random.uniform(0.5, 2.5))
                if members and (
                    len(members) >= self.members_max - 1 or self.random.random() < 0.45
                ):
                    scope, leave = members.pop(self.random.randrange(len(members)))
                    if self.random.random() < 0.5:
                        self.events["members cancelled in mid-work"] += 1
                        scope.cancel()
                    else:
                        self.events["members left"] += 1
                        leave.set()
                else:
                    self.events["members joined"] += 1
                    members.append((trio.CancelScope(), trio.Event()))
                    nursery.start_soon(self._member, group, *members[-1])
            await self._drained.wait()
            nursery.cancel_scope.cancel()

    async def _member(self, group: str, scope: trio.CancelScope, leave: trio.Event) -> None:
        ledger = self.ledgers[group]
        self._members += 1
        member = self._members

        async def handle(message: ReceivedMessage) -> None:
            key, number = map(int, message.body.split(b":"))
            place = Place(message.queue.broker_name, message.queue.queue_id, message.queue_offset)
            ledger.begin(key, number, place, member, trio.current_time())
            done = False
            try:
                await trio.sleep(0.001)
                done = True
            finally:
                ledger.end(key, number, place, member, done=done)

        def note(change: AssignmentChange) -> None:
            for queue in change.gained:
                if queue.topic == TOPIC:
                    ledger.gained_at[queue.broker_name, queue.queue_id] = trio.current_time()

        with scope:
            while True:
                try:
                    async with PushConsumer(
                        self.cluster.namesrv_address, group=f"soak-{group}", subscriptions=TOPIC,
                        consume_from="first",
                        ordered=ledger.ordered, handler=handle, on_assignment=note, concurrency=8,
                        settings=CONSUMER,
                    ):  # fmt: skip
                        await leave.wait()
                    return
                except* (
                    TrioMQError
                ):  # no name server just now, and perhaps cancelled at the same moment
                    self.events["starts repeated"] += 1
                    await trio.sleep(0.2)

    # -- servers
    # --------------------------------------------------------------------------------------------

    async def _restart_servers(self) -> None:
        while not self._stop.is_set():
            with trio.move_on_after(self.random.uniform(3, 6)):
                await self._stop.wait()
            what = self.random.choice(["broker", "broker", "crash", "namesrv"])
            self.events[{"crash": "broker crashes"}.get(what, f"{what} restarts")] += 1
            if what == "namesrv":
                name = self.random.choice(
                    [f"namesrv-{number}" for number in range(1, NAME_SERVERS)]
                )
                await self.cluster.stop_namesrv(name)
                await trio.sleep(self.random.uniform(0, 0.5))
                await self.cluster.start_namesrv(name)
            else:
                name = self.random.choice([name for name in BROKERS if name != STEADY_BROKER])
                if what == "crash":
                    await self._crash(name)
                else:
                    await self.cluster.stop_broker(name)
                for ledger in self.ledgers.values():
                    ledger.broker_ended_at[name] = trio.current_time()
                await trio.sleep(self.random.uniform(0, 0.5))
                await self.cluster.start_broker(name)

    async def _crash(self, name: str) -> None:
        """Crash a broker; inside this process while nothing is being sent.

        A task is not killed at one instant: a broker of this loop may store and acknowledge a
        message after its files were copied, which a killed process cannot.
        """
        if self.kills:
            await self.cluster.crash_broker(name)
            return
        self._may_send = trio.Event()
        while self._sending:
            await trio.sleep(0.01)
        await self.cluster.crash_broker(name)
        self._may_send.set()

    async def _sample_memory(self, began: float) -> None:
        process = psutil.Process()
        while True:
            await trio.sleep(self.sample_interval)
            gc.collect()
            seconds = trio.current_time() - began
            books = sum(ledger.size_bytes for ledger in self.ledgers.values())
            sizes: dict[str, int | None] = {CLIENTS: process.memory_full_info().uss - books}
            sizes |= {name: measure() for name, measure in self.measured.items()}
            for name, size in sizes.items():
                if size is not None:
                    self.memory.setdefault(name, []).append(MemorySample(seconds, size))

    # -- the result
    # --------------------------------------------------------------------------------------------

    def failures(self, *, judge_memory: bool = False) -> list[str]:
        """Return what must not be, in words. Memory is judged in a long run only: a process fills
        its pools first.
        """
        found = []
        for group, ledger in self.ledgers.items():
            missing = ledger.missing(self.acknowledged)
            if missing:
                found.append(
                    f"{group}: {len(missing)} acknowledged messages were never handled:"
                    f" {missing[:5]}"
                )
            if ledger.gaps:
                found.append(
                    f"{group}: {len(ledger.gaps)} messages overtook their predecessor:"
                    f" {ledger.gaps[:5]}"
                )
            if ledger.again[UNEXPLAINED]:
                found.append(
                    f"{group}: {ledger.again[UNEXPLAINED]} messages came twice for no reason that"
                    " was seen"
                )
        if judge_memory:
            found += [
                f"memory of {name} grew: {_memory_line(samples)}"
                for name, samples in self.memory.items()
                if not is_flat(samples)
            ]
        return found

    def report(self) -> list[str]:
        """Return the numbers, a line each."""
        total = sum(self.acknowledged.values())
        lines = [f"acknowledged: {total} messages of {len(self.acknowledged)} keys"]
        for group, ledger in self.ledgers.items():
            twice = ledger.again.total()
            lines.append(
                f"{group}: handled {ledger.handled}, of these {twice} again"
                f" ({100 * twice / max(total, 1):.2f} %)"
                + (f"; {ledger.overlaps} times two handlers on one queue" if ledger.ordered else "")
            )
            lines += [
                f"    {cause}: {count} ({100 * count / twice:.0f} %)"
                for cause, count in ledger.again.most_common()
            ]
        lines += [f"{what}: {count}" for what, count in sorted(self.events.items())]
        books = sum(ledger.size_bytes for ledger in self.ledgers.values())
        lines.append(f"books of this test: {books / 2**20:.1f} MiB, not counted below")
        lines += [
            f"memory of {name}: {_memory_line(samples)}"
            for name, samples in self.memory.items()
            if len(samples) > 4
        ]
        return lines


CLIENTS = "producers and consumers"


def _memory_line(samples: Sequence[MemorySample]) -> str:
    rise, mean = growth(samples)
    marks = ", ".join(
        f"{samples[len(samples) * part // 4 - 1 if part else 0].size_bytes / 2**20:.1f}"
        for part in range(5)
    )
    return (
        f"{marks} MiB at the quarters; {rise / 2**20:+.2f} MiB over the second half, mean"
        f" {mean / 2**20:.1f} MiB"
    )


async def soak(seconds: float, seed: int, folder: Path | None = None) -> Soak:
    """Run one against a cluster in this process; returns the books."""
    async with local_cluster(
        brokers=BROKERS, namesrvs=NAME_SERVERS, dir=folder, settings=BROKER_SETTINGS
    ) as cluster:
        run = Soak(cluster, random.Random(seed))
        await run.run(seconds)
    return run


async def soak_processes(seconds: float, seed: int, folder: Path) -> Soak:
    """Run one against brokers and name servers that are processes; returns the books."""
    async with process_cluster(
        folder, brokers=BROKERS, namesrvs=NAME_SERVERS, settings=BROKER_SETTINGS
    ) as cluster:
        run = Soak(cluster, random.Random(seed), kills=True, measured=_steady(cluster))
        await run.run(seconds)
    return run


def _steady(cluster: ProcessCluster) -> dict[str, Callable[[], int | None]]:
    services = [*cluster.brokers, *cluster.namesrvs]
    steady = {
        service.name: service.anonymous_bytes
        for service in services
        if service.name in (STEADY_BROKER, STEADY_NAME_SERVER)
    }
    return {f"{name}, never restarted": measure for name, measure in steady.items()}


def new_seed() -> int:
    return time.time_ns() % 1_000_000
