"""Three controllers and three replicas of one group as processes in network namespaces: faults hit
whoever is master, slave or leading controller when they come.

A process of its own asks all controllers all the time, and notes what the leading one says of the
group whenever that changes.
"""

from __future__ import annotations

import functools
import json
import os
import random
import shutil
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import attrs
import fault_clock
from fault_campaign import Campaign
from fault_clients import SENDERS
from fault_cluster import FaultCluster
from fault_history import TOPIC, Events, Group, complain, read_events
from fault_schedules import WINDOW_SECONDS, Schedule, ScheduleRun, Step, draw, read_log
from processes import java_command, java_home

from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.protocol.bodies.controller import SyncStateData
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.command import request

CONTROLLERS = ("n0", "n1", "n2")
REPLICAS = ("b1", "b2", "b3")
SERVERS = (*CONTROLLERS, *REPLICAS)
GROUP = "broker-a"
JAVA, JAVA_SENDER = "5.5.0", "java-sender"
CONTROLLER_PORT = 9878
COPIES = 2
"""How many disks have what was acknowledged: ``minInSyncReplicas`` unless it is set."""
KINDS = (
    *(f"kill {target}" for target in ("master", "slave", "leader", "all")),
    *(f"power {target}" for target in ("master", "slave", "all")),
    *(f"hang {target}" for target in ("master", "slave", "leader")),
    *(f"stop {target}" for target in ("master", "leader")),
    "restart all",
    "wipe slave",
    *(f"cut {link}" for link in ("master", "leader", "replicas", "controllers")),
    *(f"cut master {way}" for way in ("there", "back")),
    *(f"loss {target}" for target in ("master", "leader")),
    *(f"slow {target}" for target in ("master", "slave")),
    *(f"full {target}" for target in ("master", "slave")),
    *(f"clock {target}" for target in ("master", "slave", "leader")),
)
HEARTBEAT_SECONDS = 6.0
"""Of silence make a controller elect another master: 3 s on a machine of its own, where a process
that does nothing wrong gets its turn.
"""
DRAIN_SECONDS = 140.0
"""Seven processes on a busy machine may answer no pull for a minute."""
WHOLE_SECONDS_MAX = 400
"""Six JVMs that start at once on a busy machine take minutes."""
HANG_SECONDS = (7.0, 9.0)


def watch_group(controllers: dict[str, str], history: Path) -> int:
    """A program that notes what the leading controller says, until it is killed.

    ``controllers``: host -> address.
    """
    output = history.open("a", buffering=1)
    threads = [
        threading.Thread(target=watch_one, args=(host, address, output), daemon=True)
        for host, address in controllers.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 1


def watch_one(host: str, address: str, output: object) -> None:
    asked = request(Code.CONTROLLER_GET_SYNC_STATE_DATA, None, json.dumps([GROUP]).encode())
    last: list[object] = []
    while True:
        try:
            with BlockingConnection(address) as connection:
                while True:
                    answer = connection.invoke(asked, timeout=1)
                    if answer.code == 0:
                        table = SyncStateData.decode(bytes(answer.body)).replicas_info_table
                        if (found := table.get(GROUP)) is not None:
                            members = sorted(one.broker_address for one in found.in_sync_replicas)
                            now = [host, found.master_address or "", found.master_epoch, members]
                            if now != last:
                                event = ["group", time.monotonic(), *now]
                                output.write(json.dumps(event) + "\n")  # type: ignore[attr-defined]
                            last = now
                        fault_clock.sleep(0.02)
                    else:
                        last = []
                        fault_clock.sleep(0.2)
        except (RemotingError, OSError):
            last = []
            fault_clock.sleep(0.05)


def become(command: list[str]) -> int:
    """A program that becomes another one, without the library of the clocks."""
    os.environ.pop("LD_PRELOAD", None)
    os.execvp(command[0], command)


def has_java() -> bool:
    home = java_home(JAVA)
    return home is not None and (home / "classes" / "FaultSender.class").exists()


@attrs.define(eq=False)
class ControlledCluster(FaultCluster):
    """Each of the three name servers has a controller in it."""

    NAMES: ClassVar[tuple[str, ...]] = CONTROLLERS
    BROKERS: ClassVar[tuple[str, ...]] = REPLICAS

    heartbeat_seconds: float = HEARTBEAT_SECONDS
    settings: dict[str, object] = attrs.field(factory=dict)
    """More of each replica."""
    java_sender: bool = False
    """Whether Java's client sends, too."""

    def __enter__(self) -> ControlledCluster:
        FaultCluster.__enter__(self)
        return self

    def _start_clients(self) -> None:
        self._spawn("watch", "clients", watch_group, self.controllers, self.groups_path)
        self.wait_whole()
        FaultCluster._start_clients(self)
        if self.java_sender:
            words = (self.namesrv, TOPIC, str(self.history_path), str(SENDERS))
            command = java_command(JAVA, "FaultSender", *words, home=self.folder)
            self._spawn(JAVA_SENDER, "clients", become, command)

    def finish_clients(self) -> Events:
        if self.java_sender:
            self.kill(JAVA_SENDER)
        return FaultCluster.finish_clients(self)

    @property
    def groups_path(self) -> Path:
        return self.folder / "groups.jsonl"

    @property
    def controllers(self) -> dict[str, str]:
        return {host: f"{self.network.address(host)}:{CONTROLLER_PORT}" for host in CONTROLLERS}

    def controller_settings(self, host: str) -> dict[str, object]:
        peers = ";".join(f"{one}-{address}" for one, address in self.controllers.items())
        return {
            "enableControllerInNamesrv": "true",
            "controllerDLegerGroup": "group1",
            "controllerDLegerPeers": peers,
            "controllerDLegerSelfId": host,
            "controllerStorePath": self.folder / host / "controller",
            "kvConfigPath": self.folder / host / "kvConfig.json",
        }

    def _name_server_words(self, host: str) -> list[str]:
        (self.folder / host).mkdir(exist_ok=True)
        lines = (f"{key}={value}" for key, value in self.controller_settings(host).items())
        return ["-p", "9876", *(word for line in lines for word in ("-D", line))]

    def _role_settings(self, host: str) -> dict[str, object]:
        return {
            "enableControllerMode": "true",
            "controllerAddr": ";".join(self.controllers.values()),
            "controllerHeartBeatTimeoutMills": round(self.heartbeat_seconds * 1000),
            **self.settings,
        }

    # What the controllers say

    def groups(self) -> list[Group]:
        """What was noted so far, with hosts in place of addresses."""
        names = {f"{self.network.address(host)}:10911": host for host in REPLICAS}
        if not self.groups_path.exists():
            return []
        return [
            attrs.evolve(
                one,
                master=names.get(one.master, ""),
                members=tuple(names.get(member, member) for member in one.members),
            )
            for one in read_events(self.groups_path).groups
        ]

    def group(self) -> Group:
        """The newest."""
        return max(self.groups(), key=lambda one: (one.epoch, one.time), default=Group())

    def is_whole(self) -> bool:
        """Whether all run, and all replicas are in the set of a living master."""
        group = self.group()
        return (
            all(self.is_up(host) for host in self.servers)
            and bool(group.master)
            and sorted(group.members) == sorted(REPLICAS)
        )

    def wait_whole(self) -> None:
        self.wait("all replicas are in the set", self.is_whole, WHOLE_SECONDS_MAX)


@attrs.define(eq=False)
class ControlledRun(ScheduleRun):
    """One schedule on three controllers and three replicas."""

    masters: int = 0
    """How often one was elected."""

    @property
    def group(self) -> Group:
        assert isinstance(self.cluster, ControlledCluster)
        return self.cluster.group()

    def _apply(self, step: Step) -> None:
        what, target, *way = step.kind.split()
        getattr(self, f"_{what}")(step, self.resolve(target, step), *way)

    def resolve(self, target: str, step: Step) -> str:
        """The host that has this role now; links keep their names."""
        group = self.group
        if target == "master":
            return group.master or REPLICAS[0]
        if target == "leader":
            return group.leader or CONTROLLERS[0]
        if target == "slave":
            others = [host for host in REPLICAS if host != group.master]
            return random.Random(f"{self.schedule.seed}/{step.at}").choice(others)
        return target

    def _links(self, link: str) -> list[tuple[str, str]]:
        """``replicas``, ``controllers``: the master's to these."""
        cluster = self.cluster
        master = self.group.master or REPLICAS[0]
        source, targets = {
            "replicas": (master, REPLICAS),
            "controllers": (master, CONTROLLERS),
        }.get(link, (link, tuple(cluster.network.hosts)))
        return [(source, target) for target in targets if target != source]

    def _hang(self, step: Step, target: str) -> None:
        """For longer than controllers wait."""
        first, last = HANG_SECONDS
        seconds = first + (last - first) * step.restarts[0] / 1.5
        self._stop(attrs.evolve(step, seconds=seconds), target)

    def _restart(self, step: Step, target: str) -> None:
        """One after the other is stopped in order and started again, as for an upgrade."""
        self._came(step.kind)
        for host in self.cluster.servers:
            if self.cluster.is_up(host):
                self.cluster.signal(host, signal.SIGCONT)  # an earlier fault may hold it
                self.cluster.stop_in_order(host)
                self.cluster.start(host)

    def _wipe(self, step: Step, target: str) -> None:
        """Its disk is lost, when both others are in the set: two copies survive the loss of one."""
        cluster = self.cluster
        assert isinstance(cluster, ControlledCluster)
        if not cluster.is_whole():
            return
        self._came(step.kind)
        cluster.kill(target)
        shutil.rmtree(cluster.store(target))
        shutil.rmtree(cluster.kept_path(target))
        (cluster.folder / target / "journal").unlink()
        self._start_in(target, step.restarts[0])

    def strike(self, final_fault: str, seconds: float = 0.0) -> None:
        assert isinstance(self.cluster, ControlledCluster)
        self.cluster.wait_whole()
        ScheduleRun.strike(self, final_fault, seconds)

    def check_dead(self) -> list[str]:
        """What was acknowledged is on the disks of two replicas at least."""
        acknowledged = self.cluster.events().acknowledged()
        disks = Counter(
            (one.name, one.queue_id, one.queue_offset, one.log_offset)
            for broker in REPLICAS
            for one in set(read_log(self.cluster.store(broker)))
        )
        few = [
            name
            for name, it in acknowledged.items()
            if disks[name, it.queue_id, it.queue_offset, it.log_offset] < COPIES
        ]
        return complain(f"acknowledged, and on fewer than {COPIES} dead disks", few)

    def finish(self, brokers: tuple[str, ...] = ()) -> list[str]:
        assert isinstance(self.cluster, ControlledCluster)
        self.cluster.wait_whole()
        complaints = ScheduleRun.finish(self, brokers)
        self.masters = len({one.epoch for one in self.cluster.groups() if one.master})
        return complaints


def in_a_row(seed: int, count: int) -> Schedule:
    """Return the faults of the first schedules of a seed as one schedule: one start of everything
    for all of them, and one comparison.
    """
    drawn = [draw(seed, number, deck=KINDS, servers=SERVERS) for number in range(count)]
    return attrs.evolve(
        drawn[0],
        steps=tuple(
            attrs.evolve(step, at=step.at + number * WINDOW_SECONDS)
            for number, schedule in enumerate(drawn)
            for step in schedule.steps
        ),
    )


def run_controlled(folder: Path, schedule: Schedule, *, java_sender: bool = False) -> ControlledRun:
    schedule = attrs.evolve(schedule, promotes=False)
    fills = any(step.kind.startswith("full") for step in schedule.steps)
    with ControlledCluster(
        folder,
        sync_seconds=schedule.sync_seconds,
        small=REPLICAS if fills else (),
        drain_seconds=DRAIN_SECONDS,
        seed=schedule.seed,
        java_sender=java_sender,
    ) as cluster:
        run = ControlledRun(cluster, schedule)
        run.run()
        return run


def controlled_campaign(folder: Path, seed: int, **how: Any) -> Campaign:
    """``how``: fields of the campaign, and whether Java's client sends as well."""
    play = functools.partial(run_controlled, java_sender=how.pop("java_sender", False))
    return Campaign(folder, seed, run_one=play, deck=KINDS, servers=SERVERS, **how)
