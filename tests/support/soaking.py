"""A soak: producers send without end, members of two groups come and go, brokers and name servers restart, and a ledger keeps the books.

What must hold at the end: every message whose send was acknowledged was handled at least once by either group; in the ordered group, of each key,
message n + 1 was never handled before message n.  What is counted: messages that were handled twice, and whether because a producer had to
send them twice (two places in the log) or because a consumer got one place twice (a hand-over, a restart).
"""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import attrs
import psutil
import trio

from triomq import (
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
from triomq.testing import InProcessCluster, local_cluster

TOPIC = "Soak"
BROKERS = ("broker-a", "broker-b")
QUEUES_PER_BROKER = 4
CLIENT = ClientSettings(route_interval=1.0, heartbeat_interval=1.0, shutdown_timeout=2.0)
CONSUMER = ConsumerSettings(
    error_delay=0.1, rebalance_interval=2.0, rebalance_retry=0.2, lock_retry=0.1, lock_interval=1.0, offset_interval=1.0,
    client=CLIENT,
)  # fmt: skip


@attrs.define(eq=False)
class GroupLedger:
    """What one group has handled.  Messages are `key:number`; numbers of a key run from 0."""

    ordered: bool
    seen: dict[int, bytearray] = attrs.field(factory=dict)
    """key → how often each number was handled (at most 255)"""
    next_number: Counter[int] = attrs.field(factory=Counter)
    gaps: list[str] = attrs.field(factory=list)
    """ordered: numbers that were handled before their predecessor"""
    overlaps: int = 0
    """ordered: how often two handlers worked on one queue at the same time"""
    handled: int = 0
    sent_twice: int = 0
    came_twice: int = 0
    _places: dict[tuple[int, int], tuple[str, int, int]] = attrs.field(factory=dict)
    """(key, number) → where the message lay when it was handled last, for the latest numbers"""
    _working: Counter[tuple[str, int]] = attrs.field(factory=Counter)

    def begin(self, key: int, number: int, place: tuple[str, int, int]) -> None:
        """Note that a handler has begun; `place` is broker, queue and offset."""
        self.handled += 1
        counts = self.seen.setdefault(key, bytearray())
        if number >= len(counts):
            counts.extend(bytes(number + 1 - len(counts)))
        if counts[number]:
            if self._places.get((key, number)) == place:
                self.came_twice += 1
            else:
                self.sent_twice += 1
        counts[number] = min(counts[number] + 1, 255)
        self._places[key, number] = place
        if len(self._places) > 20_000:
            for old in list(self._places)[:10_000]:
                del self._places[old]
        if self.ordered:
            if number > self.next_number[key]:
                self.gaps.append(f"key {key}: {number} came before {self.next_number[key]}")
            self.next_number[key] = max(self.next_number[key], number + 1)
            self.overlaps += self._working[place[:2]] > 0
            self._working[place[:2]] += 1

    def end(self, place: tuple[str, int, int]) -> None:
        if self.ordered:
            self._working[place[:2]] -= 1

    def missing(self, acknowledged: dict[int, int]) -> list[str]:
        """Return the acknowledged messages that nobody handled; `acknowledged` is key → how many numbers."""
        return [
            f"{key}:{number}"
            for key, count in acknowledged.items()
            for number in range(count)
            if number >= len(self.seen.get(key, b"")) or not self.seen[key][number]
        ]


@attrs.define(eq=False)
class Soak:
    """One run."""

    cluster: InProcessCluster
    random: random.Random
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
    memory: list[tuple[float, int]] = attrs.field(factory=list)
    """(seconds since the start, unique memory in bytes)"""
    _stop: trio.Event = attrs.field(factory=trio.Event)
    _may_send: trio.Event = attrs.field(factory=trio.Event)
    _sending: int = 0
    _drained: trio.Event = attrs.field(factory=trio.Event)

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
            with trio.move_on_after(60):
                while any(ledger.missing(self.acknowledged) for ledger in self.ledgers.values()):  # noqa: ASYNC110
                    await trio.sleep(0.2)
            self._drained.set()
            await trio.sleep(0.2)
            nursery.cancel_scope.cancel()

    # -- producers --------------------------------------------------------------------------------------------------------------

    async def _produce(self, producer_number: int) -> None:
        """Send each key's numbers in their order to the key's own queue, every one until it is acknowledged."""
        settings = ProducerSettings(send_timeout=2.0, client=CLIENT)
        async with Producer(self.cluster.namesrv_address, group="soak", settings=settings) as producer:
            while not self._stop.is_set():
                key = producer_number * self.keys_per_producer + self.random.randrange(self.keys_per_producer)
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

    # -- consumers --------------------------------------------------------------------------------------------------------------

    async def _members_come_and_go(self, group: str) -> None:
        """One member stays; others join, and leave in order or in mid-work."""
        async with trio.open_nursery() as nursery:
            members: list[tuple[trio.CancelScope, trio.Event]] = []
            nursery.start_soon(self._member, group, trio.CancelScope(), trio.Event())
            while not self._stop.is_set():
                await trio.sleep(self.random.uniform(0.5, 2.5))
                if members and (len(members) >= self.members_max - 1 or self.random.random() < 0.45):
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

        async def handle(message: ReceivedMessage) -> None:
            key, number = map(int, message.body.split(b":"))
            place = (message.queue.broker_name, message.queue.queue_id, message.queue_offset)
            ledger.begin(key, number, place)
            try:
                await trio.sleep(0.001)
            finally:
                ledger.end(place)

        with scope:
            while True:
                try:
                    async with PushConsumer(
                        self.cluster.namesrv_address, group=f"soak-{group}", subscriptions=TOPIC, consume_from="first",
                        ordered=ledger.ordered, handler=handle, concurrency=8, settings=CONSUMER,
                    ):  # fmt: skip
                        await leave.wait()
                        return
                except* TrioMQError:  # no name server just now, and perhaps cancelled at the same moment
                    self.events["starts repeated"] += 1
                    await trio.sleep(0.2)

    # -- servers ----------------------------------------------------------------------------------------------------------------

    async def _restart_servers(self) -> None:
        while not self._stop.is_set():
            with trio.move_on_after(self.random.uniform(3, 6)):
                await self._stop.wait()
            what = self.random.choice(["broker", "broker", "crash", "namesrv"])
            self.events[{"crash": "broker crashes"}.get(what, f"{what} restarts")] += 1
            if what == "namesrv":
                name = self.random.choice(self.cluster.namesrvs).name
                await self.cluster.stop_namesrv(name)
                await trio.sleep(self.random.uniform(0, 0.5))
                await self.cluster.start_namesrv(name)
            else:
                name = self.random.choice(BROKERS)
                if what == "crash":
                    await self._crash(name)
                else:
                    await self.cluster.stop_broker(name)
                await trio.sleep(self.random.uniform(0, 0.5))
                await self.cluster.start_broker(name)

    async def _crash(self, name: str) -> None:
        """Crash a broker while nothing is being sent.

        A task is not killed at one instant: a broker of this loop may store and acknowledge a message after its files were copied, which a
        killed process cannot.  Sends during orderly restarts, and real kills, are other tests' and other events' business.
        """
        self._may_send = trio.Event()
        while self._sending:  # noqa: ASYNC110
            await trio.sleep(0.01)
        await self.cluster.crash_broker(name)
        self._may_send.set()

    async def _sample_memory(self, began: float) -> None:
        process = psutil.Process()
        while True:
            self.memory.append((trio.current_time() - began, process.memory_full_info().uss))
            await trio.sleep(1)

    # -- the result -------------------------------------------------------------------------------------------------------------

    def failures(self) -> list[str]:
        """Return what must not be, in words."""
        found = []
        for group, ledger in self.ledgers.items():
            missing = ledger.missing(self.acknowledged)
            if missing:
                found.append(f"{group}: {len(missing)} acknowledged messages were never handled: {missing[:5]}")
            if ledger.gaps:
                found.append(f"{group}: {len(ledger.gaps)} messages overtook their predecessor: {ledger.gaps[:5]}")
        return found

    def report(self) -> list[str]:
        """Return the numbers, a line each."""
        total = sum(self.acknowledged.values())
        lines = [f"acknowledged: {total} messages of {len(self.acknowledged)} keys"]
        for group, ledger in self.ledgers.items():
            twice = ledger.came_twice + ledger.sent_twice
            lines.append(
                f"{group}: handled {ledger.handled}, of these {twice} again ({100 * twice / max(total, 1):.2f} %): "
                f"{ledger.came_twice} delivered twice, {ledger.sent_twice} sent twice"
                + (f"; {ledger.overlaps} times two handlers on one queue" if ledger.ordered else "")
            )
        lines += [f"{what}: {count}" for what, count in sorted(self.events.items())]
        if len(self.memory) > 4:
            quarter = self.memory[len(self.memory) // 4][1] / 2**20
            lines.append(f"memory: {quarter:.0f} MiB after a quarter, {self.memory[-1][1] / 2**20:.0f} MiB at the end")
        return lines


async def soak(seconds: float, seed: int, folder: Path | None = None) -> Soak:
    """Run one against a cluster of two brokers and two name servers in this process; returns the books."""
    settings = {"diskMaxUsedSpaceRatio": 99, "fileReservedTime": 1}
    async with local_cluster(brokers=BROKERS, namesrvs=2, dir=folder, settings=settings) as cluster:
        run = Soak(cluster, random.Random(seed))
        await run.run(seconds)
    return run


def new_seed() -> int:
    return time.time_ns() % 1_000_000
