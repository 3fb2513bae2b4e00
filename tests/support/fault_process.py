"""The processes of a fault test: our name server, our brokers with faults built in, clients, a relay; each in a network namespace, with a log of its own.

No release configuration can choose any of this. A broker's disk forgets what was not forced out (``fault_disk``), wall clocks are in the hands of the test
(``fault_clock``), and a rule of the product may be broken, so that the history checker can be shown to notice.

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
from collections.abc import Callable
from multiprocessing import forkserver, resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import attrs
import fault_clock
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
    resource_tracker.ensure_running()  # else the server would start it, with our environment
    path = os.environ.get("PYTHONPATH")
    # Before 3.13 the server does not get our sys.path.
    changed = {"PYTHONPATH": os.pathsep.join([str(SUPPORT), *([path] if path else [])]), **fault_clock.environment()}
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
    clock: Path
    journal: Path | None = None
    """Of a disk that forgets."""
    kept: Path | None = None
    """Where it keeps removed files: on the same file system."""
    rule: str = ""
    """The one that it breaks."""


def serve(service: str, arguments: list[str], faults: Faults) -> int:
    controls = Controls(faults.controls)
    fault_clock.follow(faults.clock)
    if faults.rule:
        break_rule(faults.rule)
    if faults.journal is not None and faults.kept is not None:
        run: Any = functools.partial(broker.run_broker, disk=ForgetfulDisk(faults.journal, faults.kept, controls))
        broker.run_broker = run
    return broker.main(arguments) if service == "broker" else namesrv_main(arguments)


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
