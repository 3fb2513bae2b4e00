"""How long a group of three is without a master that takes messages, and what it loses: the master
is killed or hangs, again and again, under load. Ours beside Java's, with the same schedule.

The load is six senders that send one message after the other, without retries in the SDK; what was
not taken they send again after 20 ms.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import attrs
from fault_controllers import (
    CONTROLLERS,
    JAVA,
    REPLICAS,
    WHOLE_SECONDS_MAX,
    ControlledCluster,
    become,
)
from fault_history import Events, Group
from fault_schedules import LOAD_LEAST
from processes import QUIET_BROKER, java_command, write_logback

HEARTBEAT_SECONDS = 10.0
"""The default of both."""
HANG_SECONDS = 15.0
SLAVES_FIRST = "slaves killed, then the master"
ALONE_SECONDS = 1.0
RETURN_SECONDS = 5.0
"""After which the old master comes back."""


@attrs.define(eq=False)
class JavaCluster(ControlledCluster):
    """The same six processes of Java."""

    def start(self, host: str) -> None:
        folder = self.folder / host
        write_logback(folder)
        if host in CONTROLLERS:
            conf = folder / "namesrv.properties"
            values = {"listenPort": 9876, **self.controller_settings(host)}
            conf.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
            main = "org.apache.rocketmq.namesrv.NamesrvStartup"
        else:
            conf = self._write_conf(host)
            main = "org.apache.rocketmq.broker.BrokerStartup"
        command = java_command(JAVA, main, "-c", str(conf), home=folder)
        self._spawn(host, host, become, command)


@attrs.frozen
class Contestant:
    name: str
    java: bool = False
    settings: dict[str, object] = attrs.field(factory=dict)


CONTESTANTS = (
    Contestant("TrioMQ"),
    Contestant("RocketMQ 5.5.0", java=True, settings={**QUIET_BROKER}),
    Contestant(
        "RocketMQ 5.5.0, `allAckInSyncStateSet=true`",
        java=True,
        settings={**QUIET_BROKER, "allAckInSyncStateSet": "true"},
    ),
)


@attrs.define
class Failovers:
    """What was seen. Times in seconds since each fault."""

    name: str
    fault: str
    rounds: int = 0
    acknowledged: int = 0
    lost: int = 0
    elected: list[float] = attrs.field(factory=list)
    taken: list[float] = attrs.field(factory=list)

    def count(self, came: list[tuple[float, int]], groups: list[Group], events: Events) -> None:
        """``came``: when each fault came, and the epoch then."""
        ends = sorted(
            (attempt.begin, attempt.end)
            for attempt in events.acknowledged().values()
            if attempt.end is not None
        )
        self.rounds = len(came)
        self.acknowledged = len(events.acknowledged())
        for at, epoch in came if self.fault != SLAVES_FIRST else ():
            self.elected.append(
                min(one.time for one in groups if one.epoch > epoch and one.master) - at
            )
            self.taken.append(min(end for begin, end in ends if begin > at) - at)

    def row(self) -> str:
        words = [self.name, self.fault, self.rounds, f"{self.acknowledged:,}", self.lost]
        for times in (self.elected, self.taken):
            words += [f"{share(times, part):.2f} s" if times else "" for part in (0.5, 0.99)]
        return f"| {' | '.join(map(str, words))} |"


def share(times: list[float], part: float) -> float:
    """Return the time that this part of all does not exceed."""
    return sorted(times)[min(len(times) - 1, int(len(times) * part))]


def measure_failovers(
    folder: Path, contestant: Contestant, fault: str, rounds: int, tell: Callable[[str], None]
) -> Failovers:
    """``fault``: "kill" or "hang" of the master, or SLAVES_FIRST, ``rounds`` times."""
    kind = JavaCluster if contestant.java else ControlledCluster
    found = Failovers(contestant.name, fault)
    came: list[tuple[float, int]] = []
    with kind(
        folder, heartbeat_seconds=HEARTBEAT_SECONDS, settings=contestant.settings, consumers=False
    ) as cluster:
        for number in range(rounds):
            cluster.wait_acknowledged(LOAD_LEAST, f"before fault {number}")
            cluster.wait_whole()
            before = cluster.group()
            slaves = [host for host in REPLICAS if host != before.master]
            if fault == SLAVES_FIRST:
                for slave in slaves:
                    cluster.kill(slave)
                time.sleep(ALONE_SECONDS)
            if fault == "hang":
                cluster.signal(before.master, signal.SIGSTOP)
            else:
                cluster.kill(before.master)
            at = time.monotonic()
            came.append((at, before.epoch))

            def another(epoch: int = before.epoch) -> bool:
                return cluster.group().epoch > epoch and bool(cluster.group().master)

            if fault == SLAVES_FIRST:  # who is elected, if anybody, is up to the controllers
                for slave in slaves:
                    cluster.start(slave)
                time.sleep(RETURN_SECONDS)
            else:
                cluster.wait("another master", another, WHOLE_SECONDS_MAX)
                cluster.wait_acknowledged(LOAD_LEAST, f"after fault {number}")
            if fault != "hang":
                cluster.start(before.master)
            else:
                time.sleep(max(0.0, at + HANG_SECONDS - time.monotonic()))
                cluster.signal(before.master, signal.SIGCONT)
            tell(f"{contestant.name}, {fault} {number + 1} of {rounds}: {before.master}")
        cluster.wait_whole()
        master = cluster.group().master
        events = cluster.finish_clients()
        found.count(came, cluster.groups(), events)
        names = {one.name for one in events.on_brokers.get(master, [])}
        found.lost = len(events.acknowledged().keys() - names)
    return found


def failover_table(rows: list[Failovers]) -> list[str]:
    return [
        (
            "| | Fault of the master | Rounds | Acknowledged | Lost | Elected p50 | p99 |"
            " Taken p50 | p99 |"
        ),
        "|---|---|---|---|---|---|---|---|---|",
        *(row.row() for row in rows),
    ]


def measure_all(folder: Path, rounds: int, tell: Callable[[str], None]) -> list[Failovers]:
    """Each contestant, each fault."""
    shutil.rmtree(folder, ignore_errors=True)
    return [
        measure_failovers(folder / f"{number}-{fault}", contestant, fault, rounds, tell)
        for number, contestant in enumerate(CONTESTANTS)
        for fault in ("kill", "hang", SLAVES_FIRST)
    ]
