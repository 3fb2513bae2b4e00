"""Three whole controllers in virtual time, from one seed: their logs, disks, clocks and requests.

Only network, disk and power are played: everything else is what ``mqnamesrv`` runs. Brokers ask as
Java's do: they register, look for a master, and the master changes its set.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import trio
import trio.testing
from simulated_disk import Operation, SimulatedDisk

from triomq.namesrv.controller import replicated_state
from triomq.namesrv.controller.broker_groups import BrokerGroups
from triomq.namesrv.controller.command_log import CommandLog
from triomq.namesrv.controller.controller_files import ControllerFolder
from triomq.namesrv.controller.controller_settings import ControllerSettings, Peer
from triomq.namesrv.controller.liveness import BrokerLiveness
from triomq.namesrv.controller.members import ControllerMembers
from triomq.namesrv.controller.raft.events import RaftEvent, Tick
from triomq.namesrv.controller.raft.messages import AnyRaftMessage
from triomq.namesrv.controller.requests import ControllerRequests
from triomq.namesrv.controller.state import ControllerState
from triomq.remoting.core.errors import Rejected
from triomq.remoting.protocol.bodies.controller import SyncStateSet
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.controller import (
    AlterSyncStateSetHeader,
    ApplyBrokerIdHeader,
    ElectMasterHeader,
    RegisterToControllerHeader,
    ReplicaInfoHeader,
)
from triomq.remoting.protocol.headers.registration import BrokerHeartbeatHeader
from triomq.remoting.protocol.limits import Limits
from triomq.remoting.server.requests import Response

IDS = ("n0", "n1", "n2")
SECONDS = 25.0
"""of trouble; then all faults end"""
SNAPSHOT_ENTRIES = 12
REQUEST_SECONDS = 3.0


class ControllerBroken(AssertionError):
    """A promise was broken."""


class PowerLoss(BaseException):
    """The machine of a controller has no power."""


class PausableLog(CommandLog):
    """The process may be stopped: then it takes no event."""

    async def _keep_time(self) -> None:
        while True:
            await self.process.resumed()  # type: ignore[attr-defined]
            self.step(Tick())
            with trio.CancelScope(deadline=self.lasting.node.next_tick) as self._timer:
                await trio.sleep_forever()
            if self._broken is not None:
                raise self._broken

    def step(self, event: RaftEvent) -> None:
        if trio.current_time() >= self.process.paused_until:  # type: ignore[attr-defined]
            super().step(event)
            self.process.cluster.look_at(self)  # type: ignore[attr-defined]


@attrs.define(eq=False)
class Process:
    """A controller and the machine that it runs on."""

    name: str
    cluster: Cluster
    folder: Path
    life: int = 0
    paused_until: float = 0.0
    log: PausableLog | None = None
    requests: ControllerRequests | None = None
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    dies_at: int = -1
    """Number of the operation of the disk at which the power fails."""

    async def run(self) -> None:
        while True:
            self.folder.mkdir(parents=True, exist_ok=True)
            disk = SimulatedDisk(self.folder)
            disk.before = self._before
            try:
                with trio.CancelScope() as self.scope:
                    await self._live(disk)
            except* PowerLoss:
                pass
            self.log = self.requests = None
            self.dies_at = -1
            image, choose = disk.image(), self.cluster.choose
            self.life += 1
            self.folder = self.folder.with_name(f"{self.name}-{self.life}")
            if choose.random() < 0.5:
                image.after_power_failure(self.folder, choose.randrange(1 << 30))
            else:
                image.after_kill(self.folder)
            await trio.sleep(choose.uniform(0.01, 3.0))

    def _before(self, operation: Operation) -> None:
        if operation.number == self.dies_at:
            raise PowerLoss

    async def _live(self, disk: SimulatedDisk) -> None:
        cluster = self.cluster
        settings = ControllerSettings()
        log = PausableLog(
            own_id=self.name,
            folder=ControllerFolder(self.folder / "store", IDS, disk),
            send=lambda target, message: cluster.transmit(self.name, target, message),
            leads_now=lambda: groups.begin_to_lead(),
            in_thread=self._in_thread,
            jitter=cluster.choose.random,
        )
        log.process = self  # type: ignore[attr-defined]
        groups = BrokerGroups(
            log=log,
            liveness=BrokerLiveness(trio.current_time()),
            settings=lambda: settings,
            limits=Limits(settings, "controller"),
            role_changed=lambda _name: None,
        )
        peers = [Peer(name, f"{name}:1") for name in IDS]
        self.log = log
        own = next(peer for peer in peers if peer.id == self.name)
        members = ControllerMembers(own, peers, log)
        self.requests = ControllerRequests(groups=groups, settings=settings, members=members)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(log.run)
            nursery.start_soon(groups.watch)

    async def _in_thread(self, call: Callable[..., Any], *arguments: Any) -> Any:
        await trio.sleep(self.cluster.choose.uniform(0.0005, 0.02))
        await self.resumed()
        return call(*arguments)

    async def resumed(self) -> None:
        while trio.current_time() < self.paused_until:
            await trio.sleep_until(self.paused_until)


@attrs.define(eq=False)
class Promised:
    """What was answered about one group: later answers may not be behind it."""

    ids: set[int] = attrs.field(factory=set)
    epochs: tuple[int, int] = (0, 0)
    """Of the master and of the set."""


@attrs.define(eq=False, slots=False)
class Cluster:
    seed: int
    folder: Path
    cut: set[tuple[str, str]] = attrs.field(factory=set)
    loss: float = 0.0
    promised: dict[str, Promised] = attrs.field(factory=dict)
    masters: dict[tuple[str, int], int] = attrs.field(factory=dict)
    """Group and epoch -> its master."""
    applied: dict[int, ControllerState] = attrs.field(factory=dict)
    """Index of the log -> the state that its commands have made."""
    taken: int = 0
    read: int = 0
    terms: set[int] = attrs.field(factory=set)

    def __attrs_post_init__(self) -> None:
        self.choose = random.Random(self.seed)
        self.processes = {name: Process(name, self, self.folder / f"{name}-0") for name in IDS}

    # The network

    def transmit(self, sender: str, target: str, message: AnyRaftMessage) -> None:
        if (sender, target) in self.cut or self.choose.random() < self.loss:
            return
        self.nursery.start_soon(self._arrive, sender, target, message)

    async def _arrive(self, sender: str, target: str, message: AnyRaftMessage) -> None:
        await trio.sleep(self.choose.uniform(0.001, 0.02))
        process = self.processes[target]
        life = process.life
        await process.resumed()
        if process.log is not None and process.life == life and (sender, target) not in self.cut:
            process.log.receive(sender, message)

    async def ask(
        self, name: str, method: str, header: object, body: bytes = b"", *, prompt: bool = False
    ) -> Response | Rejected | None:
        """Ask one controller; None without an answer, the request may be done all the same."""
        process = self.processes[name]
        answer: Response | Rejected | None = None
        with trio.move_on_after(REQUEST_SECONDS):
            await trio.sleep(self.choose.uniform(0.001, 0.02))
            await process.resumed()
            requests, life = process.requests, process.life
            if requests is None:
                return None
            asked: Any = SimpleNamespace(
                header=header, body=body, connection=SimpleNamespace(closed=False)
            )
            handle = getattr(requests, method)
            try:
                found = (handle if prompt else requests.leading(handle))(asked)
                answer = await found if isinstance(found, Awaitable) else found
            except Rejected as refusal:
                answer = refusal
            if process.life != life or process.log is None:
                return None
            await process.resumed()
            await trio.sleep(self.choose.uniform(0.001, 0.02))
        return answer

    async def beat(self, name: str, header: BrokerHeartbeatHeader) -> None:
        await self.ask(name, "heartbeat", header, prompt=True)

    # What is true of all

    def look_at(self, log: CommandLog) -> None:
        """Compare what a controller has applied with what others had there."""
        lasting = log.lasting
        if self.applied.setdefault(lasting.applied_index, lasting.state) != lasting.state:
            raise ControllerBroken(f"{log.own_id} has another state at {lasting.applied_index}")
        if log.leads:
            self.terms.add(lasting.node.term)
        for name, group in lasting.state.groups.items():
            if group.master is not None:
                self._one_master(name, group.master_epoch, group.master)

    def _one_master(self, name: str, epoch: int, master: int) -> None:
        if self.masters.setdefault((name, epoch), master) != master:
            raise ControllerBroken(f"{name} has two masters in epoch {epoch}")

    def promise(self, name: str, *, ids: Iterable[int] = (), epochs: tuple[int, int]) -> None:
        promised = self.promised.setdefault(name, Promised())
        promised.ids |= set(ids)
        promised.epochs = max(promised.epochs, epochs)
        self.taken += 1

    # Faults

    async def trouble(self) -> None:
        choose, end = self.choose, trio.current_time() + SECONDS
        while trio.current_time() < end:
            await trio.sleep(choose.uniform(0.2, 4.0))
            victim = self._leading() if choose.random() < 0.6 else None
            process = self.processes[victim or choose.choice(IDS)]
            kind = choose.random()
            if kind < 0.25:
                process.scope.cancel()
            elif kind < 0.45:
                process.dies_at = self._operations(process) + choose.randrange(8)
            elif kind < 0.65:
                process.paused_until = trio.current_time() + choose.uniform(0.5, 5.0)
            elif kind < 0.9:
                others = [name for name in IDS if name != process.name]
                pairs = {(process.name, other) for other in others}
                back = {(other, process.name) for other in others}
                self.cut = choose.choice([pairs, back, pairs | back])
            else:
                self.loss = choose.choice([0.0, 0.2])
            if choose.random() < 0.4:
                self.cut = set()
        self.cut, self.loss = set(), 0.0
        for process in self.processes.values():
            process.dies_at = -1

    def _leading(self) -> str | None:
        return next(
            (one.name for one in self.processes.values() if one.log and one.log.leads), None
        )

    def _operations(self, process: Process) -> int:
        storage = process.log._storage if process.log is not None else None
        return storage.files.count if storage is not None else 0  # type: ignore[attr-defined]


@attrs.define(eq=False)
class Broker:
    """A broker that asks any controller for the leader by trying, and does what brokers do."""

    cluster: Cluster
    name: str
    number: int
    broker_id: int = 0
    known: str = "n0"

    async def run(self) -> None:
        choose = self.cluster.choose
        while not await self.apply():
            await trio.sleep(0.2)
        while True:
            if choose.random() < 0.1:
                await self.register()
            for name in IDS:
                header = BrokerHeartbeatHeader(
                    "C", f"{self.name}:{self.broker_id}", self.name, self.broker_id, 3000
                )
                self.cluster.nursery.start_soon(self.cluster.beat, name, header)
            await self.act()
            await trio.sleep(choose.uniform(0.05, 0.5))

    async def lead(self, method: str, header: object, body: bytes = b"") -> Response | None:
        answer = await self.cluster.ask(self.known, method, header, body)
        if isinstance(answer, Response):
            return answer
        if answer is None or answer.code == ResponseCode.CONTROLLER_NOT_LEADER:
            self.known = self.cluster.choose.choice(IDS)
        return None

    async def apply(self) -> bool:
        wanted = self.cluster.choose.randint(1, 2)
        code = f"{self.number};1"
        header = ApplyBrokerIdHeader("C", self.name, wanted, code)
        if await self.lead("apply_id", header) is None:
            return False
        self.broker_id = wanted
        self.cluster.promise(self.name, ids=[wanted], epochs=(0, 0))
        return True

    async def register(self) -> None:
        header = RegisterToControllerHeader("C", self.name, self.broker_id, f"a:{self.broker_id}")
        await self.lead("register", header)

    async def act(self) -> None:
        cluster, own = self.cluster, self.broker_id
        before = cluster.promised[self.name].epochs
        ids = set(cluster.promised[self.name].ids)
        answer = await self.lead("replica_info", ReplicaInfoHeader(self.name))
        if answer is None:
            return
        held = SyncStateSet.decode(bytes(answer.body))  # type: ignore[arg-type]
        epochs = (answer.header.master_epoch, held.epoch)
        cluster.read += 1
        if epochs < before:
            raise ControllerBroken(f"{self.name} is {epochs}, and {before} was answered before")
        master = answer.header.master_broker_id
        if master is not None:
            cluster._one_master(self.name, epochs[0], master)
        if master == own:
            wanted = frozenset({own}) if len(held.ids) > 1 else frozenset(ids | {own})
            change = SyncStateSet(wanted, held.epoch).encode()
            header = AlterSyncStateSetHeader(self.name, own, epochs[0])
            changed = await self.lead("alter_set", header, change)
            if changed is not None:
                epoch = changed.header.new_sync_state_set_epoch
                if epoch <= held.epoch:
                    raise ControllerBroken(f"the epoch of a set went from {held.epoch} to {epoch}")
                cluster.promise(self.name, epochs=(epochs[0], epoch))
        elif master is None or cluster.choose.random() < 0.1:
            designated = master is not None and own in held.ids
            elected = await self.lead("elect", ElectMasterHeader("C", self.name, own, designated))
            if elected is not None and elected.code == ResponseCode.SUCCESS:
                header = elected.header
                cluster._one_master(self.name, header.master_epoch, header.master_broker_id)
                cluster.promise(
                    self.name, epochs=(header.master_epoch, header.sync_state_set_epoch)
                )


async def _play(cluster: Cluster) -> None:
    brokers = [Broker(cluster, name, number) for number, name in enumerate("aabb")]
    async with trio.open_nursery() as nursery:
        cluster.nursery = nursery
        for process in cluster.processes.values():
            nursery.start_soon(process.run)
        for broker in brokers:
            nursery.start_soon(broker.run)
        await cluster.trouble()
        await _wait_settled(cluster)
        nursery.cancel_scope.cancel()


async def _wait_settled(cluster: Cluster) -> None:
    """All faults have ended: what was answered is there, at every controller."""
    try:
        with trio.fail_after(60):
            while not _is_settled(cluster):
                await trio.sleep(0.1)
    except trio.TooSlowError:
        states = {one.name: one.log and one.log.state for one in cluster.processes.values()}
        raise ControllerBroken(f"{cluster.promised} is not in {states}") from None


def _is_settled(cluster: Cluster) -> bool:
    logs = [one.log for one in cluster.processes.values()]
    if not any(log is not None and log.leads for log in logs):
        return False
    for name, promised in cluster.promised.items():
        for log in logs:
            group = None if log is None else log.state.groups.get(name)
            if group is None or not promised.ids <= group.replicas.keys():
                return False
            if (group.master_epoch, group.sync_set_epoch) < promised.epochs:
                return False
    return True


def play_controllers(seed: int, folder: Path) -> Cluster:
    """Play one history. Raises: ControllerBroken, or an ExceptionGroup with one."""
    before = replicated_state.SNAPSHOT_ENTRIES
    replicated_state.SNAPSHOT_ENTRIES = SNAPSHOT_ENTRIES
    # The order of tasks that are ready is drawn from a generator of its own.
    trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING = True
    trio._core._run._r.seed(seed)
    cluster = Cluster(seed, folder / str(seed))
    try:
        trio.run(_play, cluster, clock=trio.testing.MockClock(autojump_threshold=0))
    finally:
        replicated_state.SNAPSHOT_ENTRIES = before
    return cluster
