"""One seed, one history of a group in controller mode: controllers, brokers and clients in one
virtual time, under faults that make other brokers master.

Everything is what runs in the processes; only network, disks, clocks and power are played. Besides
what every history is judged by, a ``Witness`` compares each confirmed byte and each new master.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import attrs
import trio
from failover_witness import Witness
from history import History
from simulated_cluster import BROKER, CONTROLLER_PORT
from simulated_history import READY_SECONDS, RESTART_SECONDS_MAX, Played, play_with
from simulated_plan import CONTROLLED_FAULTS, HistoryResult, Mode, Plan

from triomq.broker.roles.controllers import Controllers
from triomq.client.core.errors import TrioMQError
from triomq.remoting.client.connector import Connector
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.controller import (
    ChangeControllersHeader,
    ElectMasterHeader,
)
from triomq.testing import Simulation

CHAOS_SECONDS = 40.0
HEARTBEAT_TIMEOUT_MS = 3000
LOOK_SECONDS = 1.0
TABLES_SECONDS = 4.0
"""In which slaves have copied the topics."""


def play_controlled(
    seed: int, folder: Path, *, tell: Callable[[str], object] | None = None
) -> HistoryResult:
    """Run one history in *folder*, which must not exist and does not afterwards."""
    return play_with(Controlled(Plan.controlled(seed), folder), tell)


@attrs.define(eq=False)
class Controlled(Played):
    """A history of a group whose master is elected."""

    kinds: Sequence[str] = CONTROLLED_FAULTS
    chaos_seconds: float = CHAOS_SECONDS
    witness: Witness = attrs.field(init=False)
    disk_lost: bool = False
    controllers: list[str] = attrs.field(init=False)
    """Services of the controllers that count."""
    changing: bool = False
    """Whether an operator changes the controllers now."""
    _watching: ExitStack = attrs.field(factory=ExitStack, init=False)

    async def run(self, simulation: Simulation) -> HistoryResult:
        with self._watching:
            found = await super().run(simulation)
        return attrs.evolve(found, elected=len(self.witness.masters))

    def __attrs_post_init__(self) -> None:
        self.controllers = [f"controller-{number + 1}" for number in range(self.plan.controllers)]

    @property
    def brokers(self) -> list[str]:
        return [f"broker-{number + 1}" for number in range(self.plan.replicas)]

    @property
    def disks(self) -> list[str]:
        return [*self.brokers, *self.brokers, *self.controllers]

    @property
    def copies(self) -> Sequence[str]:
        return self.brokers

    @property
    def master(self) -> str:
        """The service that is, or was last, master."""
        group = self.witness.group()
        if group is None or group.master is None:
            return self.brokers[0]
        return self.witness.service(group, group.master).name

    @property
    def pair(self) -> tuple[str, str]:
        master = self.master
        return master, self.simulation.random.choice([one for one in self.brokers if one != master])

    @property
    def masters(self) -> dict[str, str]:
        return {BROKER: self.master}

    async def _start_services(self) -> None:
        plan, cluster = self.plan, self.cluster
        self.witness = Witness(cluster, durable=plan.mode is Mode.SYNC_SYNC)
        self._watching.enter_context(self.witness.watching())
        for number in range(plan.namesrvs):
            cluster.add_namesrv(f"namesrv-{number + 1}")
        cluster.add_controllers(self.controllers)
        addresses = [cluster.services[name].address for name in self.controllers]
        for name in self.brokers:
            cluster.add_broker(
                name,
                **self._broker_settings(),
                enableControllerMode=True,
                controllerAddr=";".join(f"{address}:{CONTROLLER_PORT}" for address in addresses),
                controllerHeartBeatTimeoutMills=HEARTBEAT_TIMEOUT_MS,
                slaveTimeout=1500,  # so that senders hear of it
                minInSyncReplicas=plan.copies_min,  # 0: as mqbroker has it unless set
            )
        with trio.fail_after(READY_SECONDS):
            while not self._is_whole():
                await trio.sleep(0.1)
        self.nursery.start_soon(self._look)

    def _is_whole(self) -> bool:
        """Whether all brokers are in the set."""
        group = self.witness.group()
        return group is not None and len(group.sync_set) == len(self.brokers)

    async def _begin(self) -> None:
        await super()._begin()
        await trio.sleep(TABLES_SECONDS)

    def acknowledged(self, key: str, log_offset: int) -> None:
        self.witness.see_answer(key, log_offset, self.plan.copies_min or 2)

    def came(self, key: str, log_offset: int) -> None:
        if log_offset >= len(self.witness.confirmed):
            self.witness.complain(f"{key} came from {log_offset}, which is not confirmed")

    async def _look(self) -> None:
        while True:
            await trio.sleep(LOOK_SECONDS)
            self.witness.compare_epochs()

    # Faults

    def _fault(self, kind: str) -> None:
        own = {
            "crash master": self._crash_master,
            "isolate": self._isolate,
            "pause master": self._pause_master,
            "lose disk": self._lose_disk,
            "elect": lambda: self._on("shop-1", self._elect),
            "lose controller": lambda: self._operate(self._lose_controller),
            "replace controller": lambda: self._operate(self._replace_controller),
        }.get(kind)
        if own is None:
            super()._fault(kind)
            return
        self.faults += 1
        self.hits += bool(self.in_flight)
        self.simulation.trace.note(f"fault: {kind}")
        own()

    def _crash_master(self) -> None:
        name, choose = self.master, self.simulation.random
        self.cluster.crash(name, power=self.plan.power and choose.random() < 0.7)
        self._later(choose.choice((0.1, RESTART_SECONDS_MAX, 12.0)), self._start, name)

    def _isolate(self) -> None:
        """Cut a server from the others, or from all but one, both ways or one way."""
        choose, network = self.simulation.random, self.simulation.network
        servers = list(self.cluster.services)
        name = self.master if choose.random() < 0.6 else choose.choice(servers)
        others = [one for one in servers if one != name]
        if choose.random() < 0.3:
            others.remove(choose.choice(others))
        ways = choose.choice(((True, True), (True, True), (True, False), (False, True)))
        seconds = choose.choice((1.0, 4.0, 8.0, 15.0))
        self.simulation.trace.note(f"{name}: cut from {others}, {ways}, for {seconds} s")
        for other in others:
            for way, (source, target) in zip(ways, ((name, other), (other, name)), strict=True):
                if way:
                    network.cut(source, target)
                    self._later(seconds, network.heal, source, target)

    def _pause_master(self) -> None:
        network, choose = self.simulation.network, self.simulation.random
        machine = network.machines[network.address(self.master)]
        if machine.up:
            self.cluster.pauses.append((machine.name, trio.current_time()))
            machine.pause()
            self._later(choose.choice((2.0, 4.0, 8.0, 20.0)), machine.go_on)

    def _lose_disk(self) -> None:
        """Once, and only while another member has all that is confirmed."""
        group = self.witness.group()
        if self.disk_lost or group is None or len(group.sync_set) < 2 or self.witness.set_is_open():
            return
        choose = self.simulation.random
        name = choose.choice(self.brokers)
        self.disk_lost = True
        self.witness.lost_ids |= {
            broker_id
            for broker_id in group.replicas
            if self.witness.service(group, broker_id).name == name
        }
        self.cluster.lose_disk(name)
        self._later(choose.uniform(0.1, RESTART_SECONDS_MAX), self._start, name)

    async def _elect(self) -> None:
        """An operator names a member of the set."""
        group = self.witness.group()
        if group is None or not group.sync_set:
            return
        chosen = self.simulation.random.choice(sorted(group.sync_set))
        header = ElectMasterHeader("TestCluster", BROKER, chosen, True)
        await self._ask_controllers(RequestCode.CONTROLLER_ELECT_MASTER, header)

    async def _ask_controllers(self, code: RequestCode, header: object) -> bool:
        """Ask the leader; return whether it says that it is done."""
        addresses = [
            f"{self.cluster.services[name].address}:{CONTROLLER_PORT}" for name in self.controllers
        ]
        try:
            async with Connector() as connector:
                await Controllers(addresses, connector).call(code, header)
        except (RemotingError, TrioMQError):
            return False
        return True

    # An operator changes the controllers

    def _operate(self, work: Callable[[], Awaitable[None]]) -> None:
        """One thing after the other, and only while all three have their disks."""
        if not self.changing and len(self.controllers) == 3:
            self.changing = True
            self._on("shop-1", self._until_done, work)

    async def _until_done(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        finally:
            self.changing = False

    async def _lose_controller(self) -> None:
        """A controller comes back with an empty disk: it follows when it was removed and added."""
        choose = self.simulation.random
        name = choose.choice(self.controllers)
        if not self.cluster.services[name].running:
            return
        self.cluster.lose_disk(name)
        await trio.sleep(choose.uniform(0.1, RESTART_SECONDS_MAX))
        self._start(name)
        await trio.sleep(choose.uniform(0.0, 10.0))
        await self._change("remove", name)
        await self._change("add", name)

    async def _replace_controller(self) -> None:
        """A fourth controller comes, and one of the others goes for good."""
        name = f"controller-{len(self.cluster.controller_ids) + 1}"
        self.cluster.add_controllers([name])
        await self._change("add", name)
        self.controllers.append(name)
        old = self.simulation.random.choice(self.controllers)
        await self._change("remove", old)
        self.controllers.remove(old)
        self.cluster.crash(old, power=False)
        self.cluster.services[old].gone = True

    async def _change(self, change: str, name: str) -> None:
        """Add or remove a controller, as often as it needs."""
        controller_id, _, address = self.cluster.controller_ids[name].partition("-")
        header = ChangeControllersHeader(change, controller_id, address)
        while not await self._ask_controllers(RequestCode.CHANGE_CONTROLLERS, header):
            if change == "remove" and not self._is_controller(controller_id):
                return  # an earlier request did it, and its answer was lost
            await trio.sleep(0.5)

    def _is_controller(self, controller_id: str) -> bool:
        """Whether the newest controller has it in its log."""
        nodes = [groups.log.lasting.node for groups in self.witness.controllers.values()]
        newest = max(nodes, key=lambda node: (node.log.last_term, node.state.commit_index))
        return controller_id in newest.log.configuration_at(newest.state.commit_index).members

    # Afterwards

    async def _history(self) -> History | None:
        return await super()._history() if self._is_whole() else None

    def _log_differences(self) -> list[str]:
        self.witness.compare_epochs()
        return [*super()._log_differences(), *self.witness.queue_offsets()]
