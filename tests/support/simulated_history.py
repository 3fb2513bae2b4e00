"""One seed, one history: a cluster with producers and a consumer group under a random schedule of
faults, healed, and compared with what it promised.

Every history ends in one of two ways. Mostly everything comes back, and the master must have what
was acknowledged, the slave the same bytes. Or, with SYNC_MASTER, the master's disk is lost for ever
and the slave, started as a master, must have it: that is what its acknowledgement was for. Some
clusters have a second master of another name, and the topic on both. In some there are delayed
messages, too, and a group that gives some of them back (``simulated_delays``): a wall clock jumps,
and a slave that becomes master may have copied tables that are ahead of its log.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import attrs
import trio
from delayed_history import delay_violations
from history import (
    Delivery,
    History,
    LogPart,
    Outcome,
    Queue,
    Stored,
    Try,
    log_differences,
    violations,
)
from replicated_brokers import log_bytes
from simulated_cluster import (
    BROKER,
    BROKER_PORT,
    SECOND_BROKER,
    SimulatedCluster,
    force_out_in_time,
)
from simulated_delays import DELAYED_TOPIC, DelayedTraffic
from simulated_plan import DAYS_40, FAULTS, HistoryResult, Mode, Plan
from simulated_pops import ACTING_SETTINGS, POP_TOPIC, POSITIONS_SAVED_MS, PopTraffic
from simulated_reading import NotReadable, read_queue, whole_records
from simulated_requests import REQUEST_TOPIC, RequestTraffic
from simulated_timers import BROKER_SETTINGS as TIMER_SETTINGS
from simulated_timers import CLOCK_STEPS, TIMED_TOPIC, TimedTraffic, read_messages
from simulated_transactions import BROKER_SETTINGS, TRANSACTION_TOPIC, TransactionTraffic

from triomq.broker.services import delay
from triomq.broker.store.follow import deferred_indexing, log_copy
from triomq.broker.store.log.flusher import Flusher
from triomq.client import (
    BrokerError,
    ConsumeFrom,
    NoNameServer,
    Producer,
    PushConsumer,
    ReceivedMessage,
    RouteNotFound,
    SendError,
    SendStatus,
)
from triomq.client.admin.admin import Admin
from triomq.client.core.config import ClientSettings, ConsumerSettings, ProducerSettings
from triomq.client.core.errors import TrioMQError
from triomq.remoting.client.connector import Connector, ConnectorConfig
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.protocol.record import StoredMessage
from triomq.testing import Simulation, simulate

TOPIC, GROUP, QUEUES = "T", "G", 2
QUEUES_MAX = 4
"""A slave that becomes master may not know the topic yet, since tables are copied apart from the
log: a send makes it anew, with so many queues.
"""
CHAOS_SECONDS = 15.0
BULK_BYTES = 2048
"""Logs are small here: from this size on a slave's thread writes them."""
FAR_BYTES = 2048
"""And so far behind its master it copies before it indexes."""
SAVE_SECONDS = 2.0
"""Progress of delayed messages is saved this long after it has changed: histories are short."""
READY_SECONDS, HEALED_SECONDS = 60.0, 400.0
RESTART_SECONDS_MAX = 5.0
NOWHERE = "10.0.0.250:1"


def play(seed: int, folder: Path, *, tell: Callable[[str], object] | None = None) -> HistoryResult:
    """Run one history in *folder*, which must not exist and does not afterwards."""
    return play_with(Played(Plan.of(seed), folder), tell)


def play_with(played: Played, tell: Callable[[str], object] | None) -> HistoryResult:
    folder = played.folder
    folder.mkdir()
    try:
        with (
            patch.object(log_copy, "BULK_BYTES", BULK_BYTES),
            patch.object(deferred_indexing, "BYTES_MIN", FAR_BYTES),
            patch.object(delay, "SAVE_SECONDS", SAVE_SECONDS),
            patch.object(Flusher, "_force_out", force_out_in_time),
        ):
            return simulate(played.plan.seed, played.run, tell=tell)
    finally:
        shutil.rmtree(folder)


@attrs.define(eq=False)
class Played:
    """A history of master and slave; another kind of cluster is another class."""

    plan: Plan
    folder: Path
    kinds: Sequence[str] = FAULTS
    chaos_seconds: float = CHAOS_SECONDS
    tries: list[Try] = attrs.field(factory=list)
    deliveries: list[Delivery] = attrs.field(factory=list)
    in_flight: int = 0
    sent: trio.Event = attrs.field(factory=trio.Event)
    safe: trio.Event = attrs.field(factory=trio.Event)
    faults: int = 0
    hits: int = 0
    promoted: bool = False
    sending: bool = True
    healing: bool = False
    senders: int = 0
    consumers: int = 0
    simulation: Simulation = attrs.field(init=False)
    cluster: SimulatedCluster = attrs.field(init=False)
    nursery: trio.Nursery = attrs.field(init=False)
    members: dict[str, trio.CancelScope] = attrs.field(factory=dict)
    traffic: DelayedTraffic = attrs.field(init=False)
    """Of delayed messages, if the plan has them."""
    delayed: set[str] = attrs.field(factory=set)
    """Keys of those that have come, as the masters answered last."""
    transactions: TransactionTraffic = attrs.field(init=False)
    """If the plan has them."""
    committed: list[Stored] = attrs.field(factory=list)
    """Messages of transactions that have come."""
    timed: TimedTraffic = attrs.field(init=False)
    """If the plan has messages with a time of delivery."""
    timed_found: list[tuple[str, StoredMessage]] = attrs.field(factory=list)
    """Those that have come, with their brokers."""
    requests: RequestTraffic = attrs.field(init=False)
    """If the plan has them."""
    pops: PopTraffic = attrs.field(init=False)
    """If the plan has them."""

    async def run(self, simulation: Simulation) -> HistoryResult:
        plan = self.plan
        self.simulation = simulation
        simulation.trace.note(f"seed {plan.seed}: {plan}")
        if plan.slow_disk:
            simulation.device_seconds = (0.002, 0.05)
        broken: list[str] = []
        async with trio.open_nursery() as self.nursery:
            self.cluster = SimulatedCluster(
                simulation, self.nursery, self.folder, acting=plan.acting
            )
            self.traffic = DelayedTraffic(
                self.cluster, plan.seed, plan.retries, lambda: self.sending, self._client
            )
            self.transactions = TransactionTraffic(
                self.cluster, plan.seed, plan.retries, lambda: self.sending, self._client
            )
            self.timed = TimedTraffic(
                self.cluster, plan.seed, plan.retries, lambda: self.sending, self._client
            )
            self.requests = RequestTraffic(
                self.cluster, plan.seed, plan.retries, lambda: self.sending, self._client
            )
            self.pops = PopTraffic(
                self.cluster, plan.seed, lambda: self.sending, self._client, self._addresses
            )
            await self._start_services()
            await self._begin()
            await self._cause_faults()
            broken += await self._heal()
            self.nursery.cancel_scope.cancel()
        outcomes = [done.outcome for done in self.tries]
        return HistoryResult(
            plan.seed,
            plan,
            simulation.trace.digest,
            broken,
            outcomes.count(Outcome.ACKNOWLEDGED),
            outcomes.count(Outcome.UNKNOWN),
            outcomes.count(Outcome.REFUSED),
            self.faults,
            self.hits,
            len(self.deliveries),
            self.traffic.acknowledged,
            self.traffic.given_back,
            len(self.transactions.begun),
            self.timed.acknowledged,
            self.requests.answered,
            len(self.pops.finished),
            trio.current_time(),
        )

    @property
    def brokers(self) -> list[str]:
        return [name for name, service in self.cluster.services.items() if service.disk is not None]

    @property
    def disks(self) -> list[str]:
        """Services whose disks fail."""
        return self.brokers

    @property
    def pair(self) -> tuple[str, str]:
        """Two brokers of one group."""
        return "master", "slave"

    @property
    def copies(self) -> Sequence[str]:
        """Brokers whose logs are equal in the end."""
        return () if self.promoted else self.pair

    @property
    def masters(self) -> dict[str, str]:
        """Name of a broker -> the service that has its messages in the end."""
        first = {BROKER: "slave" if self.promoted else "master"}
        return {**first, SECOND_BROKER: "second"} if self.plan.second else first

    def _addresses(self) -> dict[str, str]:
        names = self.masters
        if self.plan.acting and not self.promoted and not self.cluster.services["master"].running:
            names = {**names, BROKER: "slave"}
        return {
            broker: f"{self.cluster.services[name].address}:{BROKER_PORT}"
            for broker, name in names.items()
        }

    @property
    def topics(self) -> tuple[str, ...]:
        plan = self.plan
        others = (
            (plan.delays, DELAYED_TOPIC),
            (plan.transactions, TRANSACTION_TOPIC),
            (plan.timers, TIMED_TOPIC),
            (plan.requests, REQUEST_TOPIC),
            (plan.pops, POP_TOPIC),
        )
        return (TOPIC, *(topic for there, topic in others if there))

    # The players

    async def _start_services(self) -> None:
        plan, cluster = self.plan, self.cluster
        for number in range(plan.namesrvs):
            cluster.add_namesrv(f"namesrv-{number + 1}")
        master = "ASYNC_MASTER" if plan.mode is Mode.SYNC_ASYNC else "SYNC_MASTER"
        lines = self._broker_settings()
        cluster.add_broker("master", brokerId=0, brokerRole=master, **lines)
        cluster.add_broker("slave", brokerId=1, brokerRole="SLAVE", **lines)
        if plan.second:
            cluster.add_broker(
                "second", brokerName=SECOND_BROKER, brokerId=0, brokerRole="ASYNC_MASTER", **lines
            )

    def _broker_settings(self) -> dict[str, Any]:
        """Return the lines of every broker of the group."""
        plan = self.plan
        lines: dict[str, Any] = {
            "flushDiskType": "ASYNC_FLUSH" if plan.mode is Mode.ASYNC_SYNC else "SYNC_FLUSH",
            "slaveReadEnable": plan.slave_reads,
            # Files of timers are large, and made at each start.
            "timerWheelEnable": plan.timers or plan.pops,
            "mappedFileSizeTimerLog": 52 * 4096,
            **(TIMER_SETTINGS if plan.timers else {}),
        }
        if plan.delays:
            lines["flushConsumerOffsetInterval"] = 2000
        if plan.pops:
            lines["flushConsumerOffsetInterval"] = POSITIONS_SAVED_MS
        if plan.acting:
            lines |= ACTING_SETTINGS
        if plan.transactions:
            lines |= BROKER_SETTINGS | {"flushConsumerOffsetInterval": 1000}
        return lines

    async def _begin(self) -> None:
        plan = self.plan
        for name in ("shop-1", "shop-2", "reader-1", "reader-2"):
            self.simulation.machine(name)
        ready = trio.Event()
        self._on("shop-1", self._create_topic, ready, QUEUES)
        with trio.fail_after(READY_SECONDS):
            await ready.wait()
        for name in ("shop-1", "shop-2"):
            self._on(name, self._sell, name)
        for name in ("reader-1", "reader-2"):
            self._on(name, self._read, name)
        if plan.delays:
            self._on("shop-2", self.traffic.sell, "shop-2")
            self._on("reader-2", self.traffic.read, "reader-2")
        if plan.transactions:
            self._on("shop-1", self.transactions.sell, "shop-1")
            self._on("shop-2", self.transactions.answer_checks, "shop-2")
        if plan.timers:
            self._on("shop-2", self.timed.sell, "shop-2")
        if plan.pops:
            self._on("shop-1", self.pops.sell, "shop-1")
            for name in ("reader-1", "reader-2"):
                self._on(name, self.pops.consume, name)
        if plan.requests:
            for name in ("shop-1", "shop-2"):
                self._on(name, self.requests.ask, name)
            for name in ("reader-1", "reader-2"):
                self._on(name, self.requests.answer, name)

    def acknowledged(self, key: str, log_offset: int) -> None:
        """Look at what a sender was told. No checkpoint."""

    def came(self, key: str, log_offset: int) -> None:
        """Look at what a consumer got. No checkpoint."""

    def _on(self, machine: str, run: Callable[..., Any], *arguments: Any) -> None:
        network = self.simulation.network
        network.machines[network.address(machine)].start(
            self.nursery, run, *arguments, name=machine
        )

    async def _create_topic(self, ready: trio.Event, queues: int) -> None:
        while not ready.is_set():
            try:
                async with Admin(self.cluster.namesrv_address) as admin:
                    if len(await admin.brokers(masters_only=True)) < len(self.masters):
                        await trio.sleep(0.2)
                        continue
                    for topic in self.topics:
                        await admin.create_topic(topic, queues=queues)
                    ready.set()
            except TrioMQError:
                await trio.sleep(0.2)

    def _client(self, name: str) -> ClientSettings:
        return ClientSettings(
            instance_name=f"{name}-{len(self.members)}",
            route_interval=10.0,
            heartbeat_interval=10.0,
        )

    async def _sell(self, name: str) -> None:
        """A producer: messages with numbers, one after the other; what is not acknowledged is tried
        again now and then.
        """
        choose = random.Random(f"{self.plan.seed} {name}")
        settings = ProducerSettings(retries=self.plan.retries, client=self._client(name))
        self.senders += 1
        number = 0
        while self.sending:
            try:
                async with Producer(
                    self.cluster.namesrv_address, group="P", settings=settings
                ) as producer:
                    while self.sending:
                        number += 1
                        key = f"{name}.{number}"
                        body = f"{key}:{'x' * choose.choice((0, 10, 100, 700))}".encode()
                        while (
                            not await self._send(producer, key, body)
                            and self.sending
                            and choose.random() < 0.6
                        ):
                            await trio.sleep(choose.uniform(0.01, 0.5))
                        await trio.sleep(choose.choice((0, 0.05, 0.3, 0.6)))
            except TrioMQError:
                await trio.sleep(0.5)
        self.senders -= 1

    async def _send(self, producer: Producer, key: str, body: bytes) -> bool:
        self.in_flight += 1
        self.sent.set()
        self.sent = trio.Event()
        outcome, queue, offset, log_offset = Outcome.UNKNOWN, None, -1, -1
        unknown_tries = self.plan.retries
        try:
            receipt = await producer.send(TOPIC, body)
            if receipt.status is SendStatus.STORED:
                outcome = Outcome.ACKNOWLEDGED
                self.safe.set()
                self.safe = trio.Event()
                queue, offset = (
                    (receipt.queue.broker_name, TOPIC, receipt.queue.queue_id),
                    receipt.queue_offset,
                )
                log_offset = int(receipt.offset_message_id[-16:], 16)
                self.acknowledged(key, log_offset)
        except SendError as error:
            if not error.maybe_stored:
                outcome, unknown_tries = Outcome.REFUSED, 0
        except (BrokerError, RouteNotFound, NoNameServer):
            outcome, unknown_tries = Outcome.REFUSED, 0
        finally:
            self.in_flight -= 1
        self.tries += [Try(key, Outcome.UNKNOWN)] * unknown_tries  # tries inside of the client
        self.tries.append(Try(key, outcome, queue, offset, log_offset))
        self.simulation.trace.note(f"{key}: {outcome.value} {queue} {offset}")
        return outcome is Outcome.ACKNOWLEDGED

    async def _read(self, name: str) -> None:
        """A member of the group, until its scope is cancelled."""
        choose = random.Random(f"{self.plan.seed} {name}")

        async def handle(message: ReceivedMessage) -> None:
            if choose.random() < 0.3:
                await trio.sleep(choose.uniform(0, 0.2))
            key = message.body.decode().partition(":")[0]
            queue: Queue = (message.queue.broker_name, message.queue.topic, message.queue.queue_id)
            self.came(key, message.log_offset)
            self.deliveries.append(Delivery(GROUP, queue, message.queue_offset, key))
            self.simulation.trace.note(f"{name} got {key} {queue} {message.queue_offset}")

        while True:
            settings = ConsumerSettings(client=self._client(name))
            consumer = PushConsumer(
                self.cluster.namesrv_address,
                group=GROUP,
                subscriptions=TOPIC,
                handler=handle,
                concurrency=4,
                ordered=self.plan.ordered,
                consume_from=ConsumeFrom.FIRST,
                settings=settings,
            )
            try:
                with trio.CancelScope() as scope:
                    self.members[name] = scope
                    async with consumer:
                        await trio.sleep_forever()
            except TrioMQError:
                await trio.sleep(0.5)

    # Faults

    async def _cause_faults(self) -> None:
        plan, choose = self.plan, self.simulation.random
        end = trio.current_time() + self.chaos_seconds
        if plan.jump:
            self._later(
                choose.uniform(0, CHAOS_SECONDS),
                self._jump,
                choose.choice([name for name in self.brokers if name != "slave"]),
            )
        if plan.stuck:
            self._later(
                choose.uniform(CHAOS_SECONDS / 4, CHAOS_SECONDS / 2),
                self._stick,
                "master",
                choose.uniform(1.5 * SAVE_SECONDS, 3 * SAVE_SECONDS),
            )
        if plan.detached:
            self.nursery.start_soon(self._detach, choose.uniform(0, CHAOS_SECONDS / 2))
        for number in range(plan.faults):
            promote = plan.promote and number == plan.faults - 1
            await trio.sleep(choose.uniform(0, 2 * self.chaos_seconds / (plan.faults + 1)))
            moment = choose.random() + (0.3 if promote else 0.0)
            # Most faults come just after a client has sent a message or got its answer.
            with trio.move_on_after(1.0):
                if moment < 0.4:
                    await self.sent.wait()
                    await trio.sleep(choose.choice((0.0, 0.002, 0.005, 0.01)))
                elif moment < 0.8 or promote:
                    await self.safe.wait()
            if trio.current_time() > end:
                break
            kind = "promote" if promote else choose.choice(self.kinds)
            self._fault(
                "clock" if kind == "failed fsync" and not plan.power else kind
            )  # a page cache that is not trusted any more is as good as lost
            if self.promoted:
                break
        if plan.promote and not self.promoted:
            self._fault("promote")
        await trio.sleep(choose.uniform(0, 3))

    def _fault(self, kind: str) -> None:
        cluster, choose, network = self.cluster, self.simulation.random, self.simulation.network
        self.faults += 1
        self.hits += bool(self.in_flight)
        self.simulation.trace.note(f"fault: {kind}")
        power = self.plan.power and choose.random() < 0.7
        seconds = choose.uniform(0.1, RESTART_SECONDS_MAX)
        brokers = self.brokers
        pair = self.pair
        if kind == "promote":
            if choose.random() < 0.6:
                self._promote()
            else:
                name = choose.choice(("slave", "slave", "master"))
                cluster.crash_at_operation(
                    name,
                    choose.choice(("", "sync", "sync", "write")),
                    choose.randint(0, 3),
                    self._promote,
                )
                self._later(3.0, self._promote)
        elif kind in ("crash", "crash all"):
            names = (
                list(cluster.services)
                if kind == "crash all"
                else [choose.choice(list(cluster.services))]
            )
            for name in names:
                cluster.crash(name, power=power)
                self._later(choose.uniform(0.1, RESTART_SECONDS_MAX), self._start, name)
        elif kind == "crash at operation":
            name = choose.choice(self.disks)
            others = choose.random() < 0.3

            def crash() -> None:
                for each in (*pair, name) if others else (name,):
                    cluster.crash(each, power=power)
                    self._later(choose.uniform(0.1, RESTART_SECONDS_MAX), self._start, each)

            cluster.crash_at_operation(
                name, choose.choice(("", "sync", "write", "rename")), choose.randint(0, 12), crash
            )
        elif kind == "restart":
            name = choose.choice(list(cluster.services))
            self.nursery.start_soon(self._restart, name, seconds)
        elif kind == "cut":
            one, other = choose.sample(list(network.names.values()), 2)
            if choose.random() < 0.5:
                one, other = choose.sample(pair, 2)
            if self.plan.requests and choose.random() < 0.5:  # so that replies are under way
                one, other = choose.choice(brokers), choose.choice(("shop-1", "shop-2"))
            both = choose.random() < 0.5
            for source, target in ((one, other), (other, one)) if both else ((one, other),):
                network.cut(source, target)
                self._later(seconds * 3, network.heal, source, target)
        elif kind == "reset":
            network.reset(
                *choose.sample(list(network.names.values()), 2) if choose.random() < 0.5 else pair
            )
        elif kind == "slow":
            one, other = choose.sample(list(network.names.values()), 2)
            network.delay_more(one, other, choose.choice((0.05, 0.5, 4.0)))
            self._later(seconds, network.delay_more, one, other, 0.0)
        elif kind == "disk full":
            name = choose.choice(self.disks)
            cluster.fill_disk(name, full=True)
            self._later(seconds, self._empty, name)
        elif kind == "clock":
            name = choose.choice(list(network.names.values()))
            steps = (
                CLOCK_STEPS
                if self.plan.timers or self.plan.pops
                else (-DAYS_40, -3600, *CLOCK_STEPS, 5, DAYS_40)
            )
            network.machines[network.address(name)].step_clock(choose.choice(steps))
        elif kind == "failed fsync":
            name = choose.choice(self.disks)
            cluster.fail_sync(name, choose.choice((0, 0, 1, 4)))
            if choose.random() < 0.6:  # when it has gone on with that disk
                self._later(choose.uniform(4.0, 8.0), self._lose_power, name)
        elif kind == "pause":
            name = choose.choice(list(network.names.values()))
            machine = network.machines[network.address(name)]
            if machine.up:
                cluster.pauses.append((name, trio.current_time()))
                machine.pause()
                self._later(choose.choice((0.2, 1.0, seconds * 3, 30.0)), machine.go_on)
        elif kind == "member":
            self.members[choose.choice(sorted(self.members))].cancel()

    def _later(self, seconds: float, call: Callable[..., None], *arguments: Any) -> None:
        async def wait() -> None:
            await trio.sleep(seconds)
            call(*arguments)

        self.nursery.start_soon(wait, name=f"later: {call.__name__}")

    def _lose_power(self, name: str) -> None:
        if not self.healing:
            self.cluster.crash(name, power=True)
            self._later(RESTART_SECONDS_MAX / 2, self._start, name)

    def _jump(self, name: str) -> None:
        if not self.healing:
            network = self.simulation.network
            network.machines[network.address(name)].step_clock(self.plan.jump)

    def _stick(self, name: str, seconds: float) -> None:
        if self.healing:  # nothing would set it free again
            return
        self.cluster.stick(name)
        self._later(seconds, self._lose_power, name)

    async def _detach(self, seconds: float) -> None:
        """The slave looks for its master's log where nothing is; it finds the tables by the name
        servers, as before.
        """
        await trio.sleep(seconds)
        if not self.promoted:
            await self._restart("slave", 0.1, haMasterAddress=NOWHERE)

    def _start(self, name: str) -> None:
        self.cluster.start(name)

    def _empty(self, name: str) -> None:
        self.cluster.fill_disk(name, full=False)

    async def _restart(self, name: str, seconds: float, **settings: object) -> None:
        self.cluster.services[name].settings |= settings
        await (self.cluster.stop_ready(name) if settings else self.cluster.stop(name))
        await trio.sleep(seconds)
        self.cluster.start(name)

    def _promote(self) -> None:
        """The master's disk is lost, the slave stops in order or loses its power too, and comes
        back as master.
        """
        if self.promoted:
            return
        self.promoted = True
        cluster = self.cluster
        cluster.promoted_at = trio.current_time()
        for name in ("master",) if self.plan.orderly else ("master", "slave"):
            cluster.crash(name, power=self.plan.power)
        cluster.services["master"].gone = True
        role = {"brokerId": 0, "brokerRole": "ASYNC_MASTER"}
        cluster.services["slave"].settings |= role
        if self.plan.orderly:
            self.nursery.start_soon(partial(self._restart, "slave", 1.0, **role))
        # A member that lives on is where it was on the lost log, which no broker can know.
        if self.plan.delays:
            for member in (*self.members.values(), self.traffic.member):
                member.cancel()
        for member in self.requests.members.values():
            member.cancel()

    # Afterwards

    async def _heal(self) -> list[str]:
        """All is well again; what is broken after a while stays broken."""
        cluster, network = self.cluster, self.simulation.network
        self.healing = True
        network.heal_all()
        for name, service in cluster.services.items():
            if service.disk is not None:
                service.disk.before = None
                service.disk.go_on()
                cluster.fill_disk(name, full=False)
        deadline = trio.current_time() + HEALED_SECONDS
        for name in cluster.services:
            self._start(name)
        await trio.sleep(RESTART_SECONDS_MAX + 3.0)  # what was to happen later has happened
        for name in cluster.services:
            self._start(name)
        cluster.healed_at = trio.current_time()
        self.sending = False
        if self.promoted:
            self._on("shop-1", self._create_topic, trio.Event(), QUEUES_MAX)
        found: list[str] = ["the cluster did not come back"]
        pause = 1.0
        while trio.current_time() < deadline:
            await trio.sleep(pause)
            pause *= 1.3
            traffics = (self.traffic, self.transactions, self.timed, self.requests, self.pops)
            if self.senders or any(traffic.senders for traffic in traffics):
                continue
            history = await self._history()
            if history is None:
                continue
            found = [
                *violations(history),
                *self._log_differences(),
                *self._delay_violations(),
                *self.transactions.violations(self.committed),
                *self.timed.violations(self.timed_found),
                *self.requests.violations(),
                *self.pops.violations(),
            ]
            if not found:
                break
        return [*cluster.deaths, *found]

    async def _history(self) -> History | None:
        """What the masters have, as they answer; None while one does not."""
        services = {broker: self.cluster.services[name] for broker, name in self.masters.items()}
        if any(service.life is None or service.life.ready is None for service in services.values()):
            return None
        stored: list[Stored] = []
        delayed: list[Stored] = []
        committed: list[Stored] = []
        timed: list[tuple[str, StoredMessage]] = []
        bounds: dict[Queue, tuple[int, int]] = {}
        done = trio.Event()

        async def ask() -> None:
            try:
                async with Connector(ConnectorConfig()) as connector:
                    for broker, service in services.items():
                        for number in range(QUEUES_MAX):
                            queue = broker, TOPIC, number
                            bounds[queue] = await read_queue(
                                connector, f"{service.address}:{BROKER_PORT}", queue, stored
                            )
                            address = f"{service.address}:{BROKER_PORT}"
                            if self.plan.timers:
                                timed.extend(
                                    (broker, message)
                                    for message in await read_messages(connector, address, number)
                                )
                            others = (
                                (self.plan.delays, DELAYED_TOPIC, delayed),
                                (self.plan.transactions, TRANSACTION_TOPIC, committed),
                            )
                            for there, topic, found in others:
                                if there:
                                    await read_queue(
                                        connector,
                                        f"{service.address}:{BROKER_PORT}",
                                        (broker, topic, number),
                                        found,
                                    )
                    done.set()
            except (RemotingError, NotReadable):
                return

        async with trio.open_nursery() as nursery:
            network = self.simulation.network
            network.machines[network.address("shop-1")].start(nursery, ask)
        if not done.is_set():
            return None
        self.delayed = {one.key for one in delayed}
        self.committed, self.timed_found = committed, timed
        groups = frozenset() if self.promoted and not self.plan.delays else frozenset({GROUP})
        return History(
            tries=self.tries,
            stored=stored,
            bounds=bounds,
            deliveries=self.deliveries,
            groups=groups,
            ordered=groups if self.plan.ordered and not self.promoted else frozenset(),
            durable_reads=not self.promoted,
        )

    def _delay_violations(self) -> list[str]:
        return delay_violations(self.traffic.history(self.delayed)) if self.plan.delays else []

    def _log_differences(self) -> list[str]:
        disks = {name: self.cluster.services[name].disk for name in self.copies}
        parts = []
        for name, disk in disks.items():
            assert disk is not None
            segments = (
                sorted((disk.root / "commitlog").iterdir())
                if (disk.root / "commitlog").exists()
                else []
            )
            parts.append(
                LogPart(
                    name,
                    int(segments[0].name) if segments else 0,
                    whole_records(log_bytes(disk.root)) if segments else b"",
                )
            )
        ends = [
            f"the {part.broker}'s log ends at {part.end}, the {parts[0].broker}'s at {parts[0].end}"
            for part in parts[1:]
            if part.end != parts[0].end
        ]
        return [*log_differences(parts), *ends]
