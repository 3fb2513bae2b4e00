"""Name servers, a master and a slave as services on simulated machines with simulated disks: each
can lose its power, be killed, stop and start again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import attrs
import trio
from brokers import broker_config
from delayed_history import BrokerStart
from simulated_disk import Fault, Operation, SimulatedDisk

from triomq.broker.app import run_broker
from triomq.broker.store.log.flusher import Due, Flusher
from triomq.namesrv.app import run_namesrv
from triomq.namesrv.config import NamesrvConfig
from triomq.namesrv.controller.controller_settings import ControllerSettings
from triomq.remoting.simulated.simulate import Machine, Simulation

SEGMENT_BYTES = 32 * 1024
NAMESRV_PORT, BROKER_PORT, CONTROLLER_PORT = 9876, 10911, 9878
BROKER, SECOND_BROKER = "broker-a", "broker-b"
RESTART_SECONDS = 2.0
STOPPED_SECONDS = 12.0
"""Limit of the time in which a broker ends after a failed fsync of its log."""
NO_SPACE, IO_ERROR = 28, 5


class ClusterDisk(SimulatedDisk):
    """With files that are as old as the simulated clock says: nothing expires."""

    stuck: trio.Event | None = None
    """Until it is set, no fsync of the log comes back."""

    def go_on(self) -> None:
        """End a fault in which fsyncs of the log do not come back. No checkpoint."""
        stuck, self.stuck = self.stuck, None
        if stuck is not None:
            stuck.set()

    def modified_ms(self, path: Path) -> int:
        return time.time_ns() // 1_000_000


class ControllerDisk(ClusterDisk):
    """Its errors are those of the system: a controller has no store."""

    def write_error(self, path: Path, error: OSError) -> Any:
        return error


force_out = Flusher._force_out


async def force_out_in_time(flusher: Flusher, due: Due, begun: bool) -> None:
    """Stand in for ``Flusher._force_out``: the disk may be stuck."""
    disk = flusher.disk
    assert isinstance(disk, ClusterDisk)
    with trio.CancelScope(shield=True):  # a thread under way is not cancelled
        while disk.stuck is not None:
            await disk.stuck.wait()
    await force_out(flusher, due, begun)


@attrs.define(eq=False)
class Life:
    """A service from its start to its end."""

    machine: Machine
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    ended: trio.Event = attrs.field(factory=trio.Event)
    crashed: bool = False
    """We ended it: what it does and raises from then on does not count."""
    ready: Any = None


@attrs.define(eq=False)
class Service:
    """One program of the cluster, over all its lives."""

    name: str
    address: str
    settings: dict[str, Any] = attrs.field(factory=dict)
    disk: ClusterDisk | None = None
    life: Life | None = None
    full: bool = False
    """Its disk has no room now."""
    gone: bool = False
    """Its disk is lost: it never comes back."""
    sync_failed: bool = False
    """Its disk has refused an fsync in this life: that is a reason to end."""
    controls: bool = False
    """It is a controller: its settings are those of ``ControllerSettings``."""

    @property
    def running(self) -> bool:
        return self.life is not None


@attrs.define(eq=False)
class SimulatedCluster:
    """``deaths`` are ends without a cause in the plan: each breaks a promise."""

    simulation: Simulation
    nursery: trio.Nursery
    folder: Path
    services: dict[str, Service] = attrs.field(factory=dict)
    controller_ids: dict[str, str] = attrs.field(factory=dict)
    """Service -> its controller as in ``controllerDLegerPeers``."""
    deaths: list[str] = attrs.field(factory=list)
    starts: list[BrokerStart] = attrs.field(factory=list)
    losses: list[float] = attrs.field(factory=list)
    """When a broker lost what its disk did not have."""
    ends: list[float] = attrs.field(factory=list)
    """When a broker ended."""
    acting: bool = False
    """Whether name servers show a slave that acts for its master."""
    promoted_at: float = 0.0
    healed_at: float = inf
    """When the last fault was over."""
    pauses: list[tuple[str, float]] = attrs.field(factory=list)
    """Machines that stood still, and since when."""
    lives: int = 0

    @property
    def namesrv_address(self) -> str:
        return ";".join(
            f"{service.address}:{NAMESRV_PORT}"
            for service in self.services.values()
            if service.disk is None
        )

    def least_ahead(self) -> float:
        """Return by how many seconds the brokers' wall clocks are ahead; the one that is
        least so.
        """
        return min(
            self._ahead(service) for service in self.services.values() if service.disk is not None
        )

    def _ahead(self, service: Service) -> float:
        return self.simulation.network.machines[service.address].clock_offset_ns / 1e9

    def note_start(self, service: Service) -> None:
        """A broker is ready, or begins another role: it knows what its disk has."""
        self.starts.append(BrokerStart(trio.current_time(), self._ahead(service)))

    def add_namesrv(self, name: str) -> None:
        machine = self.simulation.machine(name)
        self.services[name] = Service(name, machine.address)
        self._run(self.services[name], machine)

    def add_controllers(self, names: Sequence[str]) -> None:
        """Start them for the first time, with empty disks; those of later calls name all."""
        machines = {name: self.simulation.machine(name) for name in names}
        first = len(self.controller_ids)
        for number, (name, machine) in enumerate(machines.items(), first):
            self.controller_ids[name] = f"n{number}-{machine.address}:{CONTROLLER_PORT}"
        peers = ";".join(self.controller_ids.values())
        for number, (name, machine) in enumerate(machines.items(), first):
            settings = {"group_name": "C", "peers": peers, "self_id": f"n{number}"}
            root = self._next_folder(name)
            root.mkdir()
            service = Service(name, machine.address, settings, ControllerDisk(root), controls=True)
            self.services[name] = service
            self._run(service, machine)

    def lose_disk(self, name: str) -> None:
        """The machine ends, and comes back with an empty disk. No checkpoint."""
        self.crash(name, power=True)
        root = self._next_folder(name)
        root.mkdir()
        service = self.services[name]
        service.disk = ControllerDisk(root) if service.controls else ClusterDisk(root)

    def disk_of(self, path: Path) -> ClusterDisk:
        """Return the disk that has a path."""
        disks = (service.disk for service in self.services.values())
        return next(disk for disk in disks if disk is not None and path.is_relative_to(disk.root))

    def add_broker(self, name: str, **settings: Any) -> None:
        """Start it for the first time, with an empty disk."""
        machine = self.simulation.machine(name)
        settings.setdefault("brokerName", BROKER)
        root = self._next_folder(name)
        root.mkdir()
        self.services[name] = Service(name, machine.address, settings, ClusterDisk(root))
        self._run(self.services[name], machine)

    def start(self, name: str) -> None:
        """Switch on what is off. No checkpoint."""
        service = self.services[name]
        if service.life is None and not service.gone:
            self._run(service, self.simulation.machine(name))

    def crash(self, name: str, *, power: bool) -> None:
        """End a service at once, its machine too if it loses its power. No checkpoint: a disk may
        call this in the middle of an operation.
        """
        service, life = self.services[name], self.services[name].life
        if life is None:
            return
        service.life = None
        life.crashed = True
        if power:
            life.machine.lose_power()
        else:
            life.machine.kill()
        disk = service.disk
        if disk is not None:
            self.ends.append(trio.current_time())
            disk.before, disk.fault = None, _no_fault
            service.full = service.sync_failed = False
            image, root = disk.image(), self._next_folder(name)
            disk.go_on()
            if power:
                self.losses.append(trio.current_time())
                if self.simulation.random.random() < 0.5:
                    image = image.forgetful()
                image.after_power_failure(root, self.simulation.random.getrandbits(32))
                service.disk = ClusterDisk(root)
            else:
                image.after_kill(root)
                service.disk = disk.moved(root)
        life.scope.cancel()

    async def stop_ready(self, name: str) -> None:
        """In order, and if it is starting, as soon as it is ready."""
        life = self.services[name].life
        while life is not None and life.ready is None and not life.ended.is_set():
            await trio.sleep(0.1)
        await self.stop(name)

    async def stop(self, name: str) -> None:
        """In order."""
        life = self.services[name].life
        if life is not None and life.ready is not None:
            self.simulation.trace.note(f"{name}: asked to stop")
            life.ready.stop()
            await life.ended.wait()

    def crash_at_operation(
        self, name: str, kind: str, count: int, crash: Callable[[], None]
    ) -> None:
        """Call *crash* ahead of the disk's next operation but *count* of a kind ("" for any)."""
        disk = self.services[name].disk
        left = count

        def before(operation: Operation) -> None:
            nonlocal left
            if operation.kind.startswith(kind):
                left -= 1
                if left < 0:
                    assert disk is not None
                    disk.before = None
                    self.simulation.trace.note(
                        f"{name}: ahead of operation {operation.number}, {operation.kind}"
                        f" {operation.path.name}"
                    )
                    crash()

        if disk is not None:
            disk.before = before

    def stick(self, name: str) -> None:
        """Let no fsync of its log come back, until ``ClusterDisk.go_on``. No checkpoint."""
        service = self.services[name]
        if service.disk is not None and service.life is not None:
            self.simulation.trace.note(f"{name}: its disk answers no fsync of the log")
            service.disk.go_on()
            service.disk.stuck = trio.Event()

    def fail_sync(self, name: str, count: int) -> None:
        """Let the disk's next fsync but *count* fail: what it was for, the disk never gets. No
        checkpoint.
        """
        service, left = self.services[name], count
        disk, life = service.disk, service.life
        assert disk is not None
        others = disk.fault

        def fault(operation: Operation) -> Fault | None:
            nonlocal left
            if not operation.kind.startswith("sync"):
                return others(operation)
            left -= 1
            if left >= 0 or service.life is not life:
                return None
            disk.fault = _full if service.full else _no_fault
            self.simulation.trace.note(f"{name}: {operation.kind} {operation.path.name} fails")
            service.sync_failed = True
            self.losses.append(trio.current_time())
            if life is not None and operation.path.parent.name == "commitlog":
                self.nursery.start_soon(self._must_end, service, life)
            return Fault(IO_ERROR)

        if life is not None:
            disk.fault = fault

    async def _must_end(self, service: Service, life: Life) -> None:
        """After a failed fsync of the log it is unknown what the disk has: a broker that went on
        would promise it all the same.
        """
        with trio.move_on_after(STOPPED_SECONDS) as waiting:
            while life.machine.paused or not life.ended.is_set():
                with trio.move_on_after(0.1):
                    await life.ended.wait()
                    await trio.sleep(0.1)
                if life.machine.paused:
                    waiting.deadline = trio.current_time() + STOPPED_SECONDS
        if not life.ended.is_set():
            self.deaths.append(f"{service.name} went on after a failed fsync of its log")

    async def _restart_in(self, name: str, seconds: float) -> None:
        await trio.sleep(seconds)
        self.start(name)

    def fill_disk(self, name: str, *, full: bool) -> None:
        """Whether writes find no room. No checkpoint."""
        disk = self.services[name].disk
        if disk is not None:
            self.simulation.trace.note(
                f"{name}: its disk is {'full' if full else 'not full any more'}"
            )
            disk.fault = _full if full else _no_fault
            self.services[name].full = full

    def _next_folder(self, name: str) -> Path:
        self.lives += 1
        return self.folder / f"{self.lives}-{name}"

    def _run(self, service: Service, machine: Machine) -> None:
        service.sync_failed = False
        life = service.life = Life(machine)
        machine.start(self.nursery, self._live, service, life, name=service.name)

    async def _live(self, service: Service, life: Life) -> None:
        """Run it to its end, and note an end that the plan does not have."""
        reason = ""
        try:
            with life.scope:
                async with trio.open_nursery() as nursery:
                    life.ready = await nursery.start(self._program(service))
                    self.simulation.trace.note(f"{service.name}: ready")
                    if service.disk is not None:
                        self.note_start(service)
        except Exception as error:
            reason = _causes(error)
        finally:
            life.ended.set()
            if not life.crashed:
                service.life = None
                self.simulation.trace.note(f"{service.name}: ended {reason}")
                life.machine.kill()
                if reason and service.sync_failed and "FlushFailed" in reason:
                    self.nursery.start_soon(self._restart_in, service.name, RESTART_SECONDS)
                elif reason and not (
                    service.full and life.ready is None
                ):  # no room is a reason not to start, and not to begin another role
                    self.deaths.append(
                        f"{service.name} ended at {trio.current_time():.3f}: {reason}"
                    )

    def _program(self, service: Service) -> Callable[..., Any]:
        if service.disk is None or service.controls:
            settings = {} if service.disk is None else {"store_path": service.disk.root / "C"}
            config = NamesrvConfig(
                listen_host="0.0.0.0",
                listen_port=NAMESRV_PORT,
                kv_path=self.folder / f"{service.name}.json",
                acting_master=self.acting,
                controller=ControllerSettings(
                    enabled=service.controls, **settings, **service.settings
                ),
            )
            return partial(run_namesrv, config, routes_too=not service.controls)
        lines = {
            "brokerIP1": service.address,
            "bindAddress": "0.0.0.0",
            "listenPort": BROKER_PORT,
            "grpcServerPort": 0,
            "namesrvAddr": self.namesrv_address,
            "mappedFileSizeCommitLog": SEGMENT_BYTES,
            "mappedFileSizeConsumeQueue": 20 * 50,
            "maxHashSlotNum": 16,
            "maxIndexNum": 400,
            **service.settings,
        }
        return partial(run_broker, broker_config(service.disk.root, **lines), disk=service.disk)


def _no_fault(_: Operation) -> Fault | None:
    return None


def _full(operation: Operation) -> Fault | None:
    return (
        Fault(NO_SPACE, len(operation.data) // 2)
        if operation.kind in ("write", "create", "allocate", "write file")
        else None
    )


def _causes(error: BaseException) -> str:
    """The errors of a group, as one text."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_causes(inner) for inner in error.exceptions)
    return f"{type(error).__name__}: {error}"
