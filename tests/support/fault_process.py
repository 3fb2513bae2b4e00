"""The processes of a fault test: our name server, our brokers with faults built in, clients, a relay; each in a network namespace, with a log of its own.

No release configuration can choose any of this. A broker's disk forgets what was not forced out (``fault_disk``), wall clock and free space are in the hands
of the test, and a rule of the product may be broken, so that the history checker can be shown to notice.

Processes are forked from a server that has everything imported (multiprocessing's "forkserver"), so that a start costs what the program costs, and not what Python's
imports cost. They die with it, and it dies with the test.
"""

from __future__ import annotations

import ctypes
import functools
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import attrs
from fault_disk import Controls, ForgetfulDisk

from triomq.broker import __main__ as broker
from triomq.broker.replicating import Replication
from triomq.broker.replication.slave import ReplicationSlave
from triomq.namesrv.__main__ import main as namesrv_main

SUPPORT = Path(__file__).resolve().parent
PR_SET_PDEATHSIG = 1
RULES = ("acknowledge-without-slave", "acknowledge-before-fsync", "slave-acknowledges-before-fsync")


def start(namespace: str, log: Path, program: Callable[..., int | None], *arguments: object) -> BaseProcess:
    """Run ``program(*arguments)`` in a process of its own; what it returns is the exit code."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fault_process", "fault_clients", "fault_relay"])
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(SUPPORT), *([path] if path else [])])  # before 3.13 the server does not get our sys.path
    try:
        forkserver.ensure_running()
    finally:
        if path is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = path
    process = context.Process(target=_run, args=(namespace, log, program, arguments), daemon=True)
    process.start()
    return process


def _run(namespace: str, log: Path, program: Callable[..., int | None], arguments: tuple[object, ...]) -> None:
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
    journal: Path | None = None
    """Of a disk that forgets."""
    rule: str = ""
    """The one that it breaks."""


def serve(service: str, arguments: list[str], faults: Faults) -> int:
    controls = Controls(faults.controls)
    shift_clock(controls)
    if faults.rule:
        break_rule(faults.rule)
    if faults.journal is not None:
        run: Any = functools.partial(broker.run_broker, disk=ForgetfulDisk(faults.journal, controls))
        broker.run_broker = run
    return broker.main(arguments) if service == "broker" else namesrv_main(arguments)


def shift_clock(controls: Controls) -> None:
    """The wall clock, and no other: those that only go forward are not ours to set, on a real machine either."""
    wall, wall_ns = time.time, time.time_ns
    time.time = lambda: wall() + controls.clock_seconds
    time.time_ns = lambda: wall_ns() + int(controls.clock_seconds * 1e9)


def break_rule(rule: str) -> None:
    if rule == "acknowledge-without-slave":  # a SYNC_MASTER that answers as soon as it has the message itself
        Replication.durability = property(lambda self: self.store)  # type: ignore[assignment,method-assign]
    elif rule == "acknowledge-before-fsync":  # `flushed` moves, and nobody has told the disk
        sync_path = ForgetfulDisk.sync_path
        ForgetfulDisk.sync_path = lambda disk, path: None if path.parent.name == "commitlog" else sync_path(disk, path)  # type: ignore[method-assign]
        ForgetfulDisk.open_sync_queue = lambda disk: None  # type: ignore[method-assign]
    elif rule == "slave-acknowledges-before-fsync":  # as Java's does
        ReplicationSlave.position = property(lambda self: self.store.appended)  # type: ignore[assignment,method-assign]
    else:
        raise ValueError(f"no rule {rule}; there are {', '.join(RULES)}")
