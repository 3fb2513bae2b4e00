"""The processes of a fault test: our name server, our brokers with faults built in, clients, a
relay; each in a network namespace, with a log of its own.

No configuration of a release can choose any of this. A broker's disk forgets what was not synced
(``fault_disk``), the test sets the wall clocks (``fault_clock``), and a rule of the product may be
broken, so that the history checker can be shown to notice.

Processes are forked from a server that has everything imported (multiprocessing's "forkserver"), so
that a start costs what the program costs, without Python's imports. They die with that server, and
the server dies with the test.
"""

from __future__ import annotations

import ctypes
import functools
import json
import multiprocessing
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from multiprocessing import forkserver, resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import attrs
import fault_clock
from fault_disk import Controls, ForgetfulDisk

from triomq.broker import __main__ as broker
from triomq.broker import serve as broker_serve
from triomq.broker.replication.slave import ReplicationSlave
from triomq.broker.roles.role import Role
from triomq.broker.services.delay import DelayedMessages
from triomq.namesrv.__main__ import main as namesrv_main
from triomq.remoting.core import open_files

SUPPORT = Path(__file__).resolve().parent
PR_SET_PDEATHSIG = 1
RULES = ("acknowledge-without-slave", "acknowledge-before-fsync", "slave-acknowledges-before-fsync")
"""Each is found in the stores of dead brokers. Rules of ``broken_clusters`` can be broken, too, and
more than one.
"""


def start(
    namespace: str, log: Path, program: Callable[..., int | None], *arguments: object
) -> BaseProcess:
    """Run ``program(*arguments)`` in a process of its own; what it returns is the exit code."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fault_process", "fault_clients", "fault_relay"])
    resource_tracker.ensure_running()  # else the server would start it, with our environment
    path = os.environ.get("PYTHONPATH")
    # Before 3.13 the server does not get our sys.path.
    changed = {
        "PYTHONPATH": os.pathsep.join([str(SUPPORT), *([path] if path else [])]),
        **fault_clock.environment(),
    }
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        forkserver.ensure_running()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    process = context.Process(target=_run, args=(namespace, log, program, arguments), daemon=True)
    process.start()
    return process


def _run(
    namespace: str, log: Path, program: Callable[..., int | None], arguments: tuple[object, ...]
) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number in (1, 2):
        os.dup2(output, number)
    file = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    if libc.setns(file, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), namespace)
    os.close(file)
    os.environ["HOME"] = str(log.parent)
    sys.exit(program(*arguments))


@attrs.frozen
class Faults:
    """What is built into a server."""

    controls: Path
    clock: Path
    journal: Path | None = None
    """Of a disk that forgets."""
    kept: Path | None = None
    """Where it keeps removed files: on the same file system."""
    rule: str = ""
    """The one that it breaks; or more, with blanks between them."""
    starts: Path | None = None
    """Where it notes the two clocks, each time that the due times of delayed messages begin."""
    files: int = 0
    """How many files and sockets it may have open; 0: as many as this process."""


def serve(service: str, arguments: list[str], faults: Faults) -> int:
    controls = Controls(faults.controls)
    fault_clock.follow(faults.clock)
    for rule in faults.rule.split():
        break_rule(rule)
    if faults.starts is not None:
        note_starts(faults.starts)
    if faults.files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (faults.files, faults.files))
    if faults.journal is not None and faults.kept is not None:
        run: Any = functools.partial(
            broker_serve.run_broker, disk=ForgetfulDisk(faults.journal, faults.kept, controls)
        )
        broker_serve.run_broker = run
    return broker.main(arguments) if service == "broker" else namesrv_main(arguments)


def break_rule(rule: str) -> None:
    if rule == "acknowledge-without-slave":
        # A SYNC_MASTER answers as soon as it has the message itself.
        Role.durability = property(lambda self: self.store.flusher)  # type: ignore[assignment,method-assign]
    elif rule == "acknowledge-before-fsync":  # `flushed` moves without an fsync
        sync_path = ForgetfulDisk.sync_path
        ForgetfulDisk.sync_path = lambda disk, path: (
            None if path.parent.name == "commitlog" else sync_path(disk, path)
        )  # type: ignore[method-assign]
        ForgetfulDisk.open_sync_queue = lambda disk: None  # type: ignore[method-assign]
    elif rule == "slave-acknowledges-before-fsync":  # as Java's does
        ReplicationSlave.position = property(lambda self: self.store.appended)  # type: ignore[assignment,method-assign]
    elif rule == "connections-take-all-files":
        no_limit = open_files.RAISED_MAX
        open_files.ConnectionBudget.of_process = classmethod(
            lambda cls: cls(*(open_files.Places(no_limit) for _ in range(3)))
        )  # type: ignore[method-assign,assignment]
    else:
        import broken_clusters  # pytest and the simulation, which no other server needs

        broken_clusters.BROKEN[rule](broken_clusters.pytest.MonkeyPatch())


def note_starts(path: Path) -> None:
    """Note the steady and the wall clock when a broker has read the wall clock for its due
    times.
    """
    start_clock = DelayedMessages.start_clock

    def start(self: DelayedMessages) -> None:
        start_clock(self)
        with path.open("a") as file:
            file.write(json.dumps([time.monotonic(), time.time()]) + "\n")

    DelayedMessages.start_clock = start  # type: ignore[method-assign]


def flood(host: str, port: int, count: int) -> int:
    """A program that connects, and says nothing until it is killed."""
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (count + 100, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    )
    connections = [socket.socket() for _ in range(count)]
    for connection in connections:
        connection.setblocking(False)
        connection.connect_ex((host, port))
    while True:
        fault_clock.sleep(60)
