"""A name server, a master, a slave and their clients, each a process in a network namespace of its
own, to be killed, stopped, filled and cut off. ``fault_controllers`` has controllers and replicas
in their place.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import ClassVar

import attrs
import fault_clock
from delayed_history import BrokerStart
from fault_clients import DRAIN_SECONDS, GROUPS, run_clients
from fault_delays import LEVELS
from fault_disk import Controls, Lost, cut_power
from fault_history import Clocks, Events, read_events
from fault_network import Network
from fault_process import Faults, flood, serve, start
from fault_relay import run_relay
from history import LogPart
from small_file_system import SmallFileSystem

from triomq.remoting.core.process import ExitCode

BROKERS = ("master", "slave")
SEGMENT_BYTES = 1 << 20
SECONDS_MAX = 150
STOPPING_SECONDS = 30
RELAY_PORT = 10999
FILES = 256
"""Files and sockets of a server that may have few."""
IDLE_CONNECTIONS = 400
NOWHERE = "127.0.0.1:1"
SETTINGS = {
    "brokerClusterName": "FaultTests",
    "brokerName": "broker-a",
    "listenPort": 10911,
    "haListenPort": 10912,
    "grpcServerPort": 0,
    "mappedFileSizeCommitLog": SEGMENT_BYTES,
    "mappedFileSizeConsumeQueue": 20 * 1000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 20_000,
    "flushIntervalConsumeQueue": 200,
    "flushConsumeQueueThoroughInterval": 700,
    "registerNameServerPeriod": 10_000,
    "slaveReadEnable": "true",
    "slaveTimeout": 1_000,
    "haSendHeartbeatInterval": 500,
    "haHousekeepingInterval": 3_000,
    "fileReservedTime": 24 * 365,
    "messageDelayLevel": LEVELS,
    "cleanFileForciblyEnable": "false",  # here a full disk must not delete messages
    "cleanResourceInterval": 1_000,
}


@attrs.frozen
class Mode:
    """What senders wait for."""

    flush: str = "SYNC_FLUSH"
    replication: str = "SYNC_MASTER"

    def __str__(self) -> str:
        return f"{self.flush} {self.replication}"


class EndedByItself(AssertionError):
    """A server ended, and the test has not killed it."""


@attrs.define(eq=False)
class FaultCluster:
    """``with FaultCluster(folder) as cluster``: everything runs, and at the end nothing does. Files
    stay.
    """

    NAMES: ClassVar[tuple[str, ...]] = ("names",)
    BROKERS: ClassVar[tuple[str, ...]] = BROKERS

    folder: Path
    mode: Mode = attrs.field(factory=Mode)
    rules: dict[str, str] = attrs.field(factory=dict)
    """Host -> the rule that its broker breaks (``fault_process``)."""
    sync_seconds: float = 0.0
    relayed: bool = False
    """Whether the slave reaches its master through a relay that can delay."""
    acting: bool = False
    """Whether the slave acts for a master that is down."""
    small: tuple[str, ...] = ()
    """Brokers whose disk is a small file system of its own, which can be filled."""
    few_files: tuple[str, ...] = ()
    """Servers that may have no more than ``FILES`` files and sockets open."""
    delays: bool = False
    """Whether clients send delayed messages, and give some back."""
    consumers: bool = True
    pause_seconds: float = 0.002
    drain_seconds: float = DRAIN_SECONDS
    seed: int = 0
    network: Network = attrs.field(init=False)
    processes: dict[str, BaseProcess] = attrs.field(factory=dict, init=False)
    disks: dict[str, SmallFileSystem] = attrs.field(factory=dict, init=False)
    waiting_for_room: set[str] = attrs.field(factory=set, init=False)
    """Brokers that could not start on a full disk."""
    promoted: bool = attrs.field(default=False, init=False)
    """Whether the slave starts as master."""
    detached: bool = attrs.field(default=False, init=False)
    """Whether the slave, from its next start on, finds its master's tables, and not its log."""
    clock_settings: list[tuple[float, str, float]] = attrs.field(
        default=attrs.Factory(
            lambda self: [(0.0, broker, 0.0) for broker in self.BROKERS], takes_self=True
        ),
        init=False,
    )
    power_losses: list[float] = attrs.field(factory=list, init=False)
    _orders: Connection = attrs.field(init=False)
    _stack: contextlib.ExitStack = attrs.field(factory=contextlib.ExitStack, init=False)
    _counted: int = attrs.field(default=0, init=False)
    """Bytes of the history that ``answered`` has counted, and what it found."""
    _answers: dict[str, int] = attrs.field(
        factory=lambda: dict.fromkeys(("acknowledged", "stored"), 0), init=False
    )

    def __attrs_post_init__(self) -> None:
        self.network = Network((*self.servers, "clients"))

    @property
    def servers(self) -> tuple[str, ...]:
        return (*self.NAMES, *self.BROKERS)

    def __enter__(self) -> FaultCluster:
        self.folder.mkdir(parents=True, exist_ok=True)
        for host in self.network.hosts:
            self.controls(host).set(sync_seconds=self.sync_seconds)
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.network)
            for host in self.small:
                self.disks[host] = stack.enter_context(SmallFileSystem(self.disk_path(host)))
            stack.callback(self._kill_all)
            for host in self.servers:
                self.start(host)
            if self.relayed:
                self._spawn(
                    "relay",
                    "slave",
                    run_relay,
                    RELAY_PORT,
                    self.network.address("master"),
                    10912,
                    self.controls_path("relay"),
                )
            self._start_clients()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    # Where things are

    def disk_path(self, broker: str) -> Path:
        return self.folder / broker / "disk"

    def store(self, broker: str) -> Path:
        return self.disk_path(broker) / "store"

    def kept_path(self, broker: str) -> Path:
        """Where a disk that forgets keeps what was removed."""
        return self.disk_path(broker) / "removed"

    def clock_path(self, host: str) -> Path:
        return self.folder / f"{host}.clock"

    def set_clock(self, host: str, seconds: float) -> None:
        """How far its wall clock is from the real one, from now on."""
        if host in self.BROKERS:
            self.clock_settings.append((time.monotonic(), host, seconds))
        fault_clock.set_clock(self.clock_path(host), seconds)

    def starts_path(self, host: str) -> Path:
        return self.folder / f"{host}.starts"

    def clocks(self) -> Clocks:
        """What the wall clocks of the brokers have been like so far."""
        lines = [
            line
            for host in self.BROKERS
            if self.starts_path(host).exists()
            for line in self.starts_path(host).read_text().splitlines()
        ]
        ahead = time.time() - time.monotonic()
        starts = [(float(steady), float(wall)) for steady, wall in map(json.loads, lines)]
        return Clocks(
            self.clock_settings,
            [BrokerStart(steady, wall - steady - ahead) for steady, wall in starts],
        )

    def controls_path(self, host: str) -> Path:
        return self.folder / f"{host}.controls"

    def controls(self, host: str) -> Controls:
        return Controls(self.controls_path(host))

    @property
    def history_path(self) -> Path:
        return self.folder / "history.jsonl"

    def events(self) -> Events:
        return read_events(self.history_path) if self.history_path.exists() else Events()

    def answered(self) -> dict[str, int]:
        """Sends that were so far, by outcome: "acknowledged", "stored"."""
        if self.history_path.exists():
            with self.history_path.open("rb") as file:
                file.seek(self._counted)
                fresh = file.read()
            fresh = fresh[: fresh.rfind(b"\n") + 1]
            self._counted += len(fresh)
            for outcome in self._answers:
                self._answers[outcome] += fresh.count(b'"%s"' % outcome.encode())
        return self._answers

    def acknowledged(self) -> int:
        return self.answered()["acknowledged"]

    # Processes

    def _spawn(
        self, name: str, host: str, program: Callable[..., int | None], *arguments: object
    ) -> None:
        self.processes[name] = start(
            self.network.name(host), self.folder / f"{name}.log", program, *arguments
        )

    def start(self, host: str) -> None:
        assert not self.is_up(host), f"{host} runs"
        files = FILES if host in self.few_files else 0
        if host in self.NAMES:
            self._spawn(
                host,
                host,
                serve,
                "namesrv",
                self._name_server_words(host),
                Faults(self.controls_path(host), self.clock_path(host), files=files),
            )
        else:
            faults = Faults(
                self.controls_path(host),
                self.clock_path(host),
                self.folder / host / "journal",
                self.kept_path(host),
                self.rules.get(host, ""),
                self.starts_path(host),
                files,
            )
            self._spawn(host, host, serve, "broker", ["-c", str(self._write_conf(host))], faults)

    def _name_server_words(self, host: str) -> list[str]:
        return ["-p", "9876"]

    @property
    def namesrv(self) -> str:
        return ";".join(f"{self.network.address(host)}:9876" for host in self.NAMES)

    def _write_conf(self, host: str) -> Path:
        address = self.network.address(host)
        values: dict[str, object] = {
            **SETTINGS,
            "brokerIP1": address,
            "brokerIP2": address,
            "namesrvAddr": self.namesrv,
            "storePathRootDir": self.store(host),
            "flushDiskType": self.mode.flush,
            **self._role_settings(host),
        }
        conf = self.folder / host / "broker.conf"
        conf.parent.mkdir(exist_ok=True)
        conf.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        return conf

    def _role_settings(self, host: str) -> dict[str, object]:
        values: dict[str, object] = {
            "brokerRole": self.mode.replication,
            "brokerId": 0,
            "enableSlaveActingMaster": str(self.acting).lower(),
        }
        if host == "slave" and self.promoted:
            values |= {"brokerRole": "ASYNC_MASTER"}  # it has no slave
        elif host == "slave":
            values |= {"brokerRole": "SLAVE", "brokerId": 1} | (
                {"haMasterAddress": f"127.0.0.1:{RELAY_PORT}"} if self.relayed else {}
            )
            values |= {"haMasterAddress": NOWHERE} if self.detached else {}
        return values

    def _start_clients(self) -> None:
        brokers = {host: f"{self.network.address(host)}:10911" for host in self.BROKERS}
        orders, self._orders = multiprocessing.Pipe(duplex=False)
        with orders:
            self._spawn(
                "clients",
                "clients",
                run_clients,
                self.namesrv,
                brokers,
                self.history_path,
                self.seed,
                orders,
                GROUPS if self.consumers else {},
                self.pause_seconds,
                self.delays,
                self.drain_seconds,
            )

    def tell_clients(self, brokers_left: tuple[str, ...], *, consume: bool) -> None:
        """Let all clients expect no other brokers, and consumers begin again or end."""
        self._orders.send((brokers_left, consume))

    def flood(self, host: str) -> None:
        """Let idle connections come to it, more than it may have."""
        port = 9876 if host in self.NAMES else 10911
        self._spawn(
            f"flood-{host}", "clients", flood, self.network.address(host), port, IDLE_CONNECTIONS
        )

    def end_flood(self, host: str) -> None:
        self.kill(f"flood-{host}")

    def is_up(self, host: str) -> bool:
        """Return whether it was started and not killed. Raises: EndedByItself."""
        process = self.processes.get(host)
        if process is None:
            return False
        if process.exitcode is not None:
            if self._found_no_room(host, process):
                del self.processes[host]
                if host in self.disks and self.disks[host].full:
                    self.waiting_for_room.add(host)
                    return False
                self.start(host)
                return True
            raise EndedByItself(
                f"{host} ended by itself with {process.exitcode}; its log ends"
                f" with\n{self.log_tail(host)}"
            )
        return True

    def _found_no_room(self, host: str, process: BaseProcess) -> bool:
        """Return whether it could not start on a full disk, and said so. It is started again when
        there is room, as a service manager does.
        """
        lines = self.log_lines(host)
        return (
            host in self.BROKERS
            and process.exitcode == ExitCode.FAILED
            and bool(lines)
            and lines[-1].endswith(
                "no space left; free some space on its file system, then start the broker again"
            )
        )

    def fill(self, host: str) -> None:
        """Its disk has no block left."""
        self.disks[host].fill()

    def make_room(self, host: str) -> None:
        """The disk is full no more."""
        self.disks[host].free()
        if host in self.waiting_for_room:
            self.waiting_for_room.discard(host)
            if not self.is_up(host):
                self.start(host)

    def log_tail(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-3000:]

    def log_lines(self, name: str) -> list[str]:
        return (self.folder / f"{name}.log").read_text(errors="replace").splitlines()

    def kill(self, host: str) -> None:
        """SIGKILL; the page cache stays."""
        self.is_up(host)
        process = self.processes.pop(host)
        process.kill()
        process.join()

    def lose_power(self, host: str, seed: object, *, everything: bool = False) -> Lost:
        """What was not forced out is gone, too; all of it, or by chance."""
        self.kill(host)
        self.power_losses.append(time.monotonic())
        disk = self.disks.get(host)
        full = disk is not None and disk.full
        if disk is not None and full:  # what comes back needs its room
            disk.free()
        lost = cut_power(
            self.folder / host / "journal", self.kept_path(host), seed, everything=everything
        )
        if disk is not None and full:
            disk.fill()
        return lost

    def signal(self, host: str, number: int) -> None:
        if self.is_up(host):
            os.kill(self.processes[host].pid or 0, number)

    def stop_in_order(self, host: str) -> None:
        """SIGTERM; it must end well."""
        process = self.processes.pop(host)
        process.terminate()
        process.join(STOPPING_SECONDS)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise AssertionError(f"{host} does not stop within {STOPPING_SECONDS} s")
        assert process.exitcode == 0, (
            f"{host} stopped with {process.exitcode}: {self.log_tail(host)}"
        )

    def _kill_all(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.join()
        self.processes.clear()

    # Waiting

    def wait(self, what: str, condition: Callable[[], bool], seconds: float = SECONDS_MAX) -> None:
        """Until a condition holds. Raises AssertionError in words, EndedByItself."""
        assert self.holds(condition, seconds), f"after {seconds:g} s not yet: {what}"

    def holds(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Whether it does so within this time. Raises EndedByItself."""
        deadline = time.monotonic() + seconds
        while not condition():
            for host in list(self.processes):
                self.is_up(host)
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        return True

    def wait_acknowledged(self, more: int, what: str) -> None:
        """Wait until ``more`` further sends have been answered OK."""
        target = self.acknowledged() + more
        self.wait(
            f"{what}: {more} more messages acknowledged", lambda: self.acknowledged() >= target
        )

    def finish_clients(self) -> Events:
        """They send no more, consume and read all, and end."""
        process = self.processes["clients"]
        self.is_up("clients")
        self._orders.close()
        deadline = time.monotonic() + SECONDS_MAX + 30
        while process.exitcode is None:
            for host in list(self.processes):
                if host != "clients":
                    self.is_up(host)
            assert time.monotonic() < deadline, "the clients do not end"
            time.sleep(0.02)
        assert self.processes.pop("clients").exitcode == 0, self.log_tail("clients")
        return self.events()


def log_part(store: Path) -> LogPart:
    """A log as its files have it, without the zeros behind its end."""
    paths = sorted((store / "commitlog").iterdir()) if (store / "commitlog").is_dir() else []
    return LogPart(
        store.parent.parent.name,
        int(paths[0].name) if paths else 0,
        b"".join(path.read_bytes() for path in paths).rstrip(b"\0"),
    )
