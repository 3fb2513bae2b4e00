"""The cluster of ``mqlocal``: name servers and brokers as child processes.

The name servers start first. When they answer, the brokers start; when every name server lists
every broker and every broker answers, the cluster is ready, and its addresses are printed.
Readiness is always a real request over a real socket. Ctrl-C, SIGTERM and SIGHUP stop all in
reverse order. When a child dies, the others are stopped, and its last log line is the error.
Children end with this process, in whatever way it ends (``triomq.child``).

Everything is in one folder: ``conf/`` (written anew at each start), ``store/`` (messages; kept) and
``logs/`` (of this start; the previous ones end in ``.old``).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import attrs
import trio

from triomq.client.admin.arguments import Values
from triomq.client.core.errors import TrioMQError
from triomq.local_options import (
    BROKER_PORT,
    BROKER_PORT_STEP,
    EXIT_FAILED,
    EXIT_IN_USE,
    EXIT_OK,
    EXIT_PORT_IN_USE,
    EXIT_USAGE,
)
from triomq.remoting.core.properties_file import format_properties
from triomq.remoting.core.settings import ConfigError
from triomq.remoting.tls.client import TLS_FILE_VARIABLE, Tls

READY_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 15.0
PROBE_SECONDS = 0.02
FAST_PORT_BELOW, HA_PORT_ABOVE = 2, 1
"""Distances of a broker's other ports, as in RocketMQ."""
FREE_PORTS = range(20_000, 32_768)
"""Ports below Linux's for outgoing connections, which may take one between check and use."""
HOST = "127.0.0.1"


class LocalError(Exception):
    """The cluster cannot run; the text is one line with cause and fix."""

    def __init__(self, text: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(text)
        self.exit_code = exit_code


@attrs.define(eq=False)
class Child:
    """One server of the cluster and its process."""

    name: str
    service: str
    address: str
    conf: Path
    log: Path
    store: Path | None = None
    process: trio.Process = attrs.field(init=False)

    async def start(self) -> None:
        """Start the process: output to the log, the pipe of ``triomq.child`` as standard input."""
        if self.log.exists():
            self.log.replace(self.log.with_suffix(".log.old"))
        # -P: a user's file named like one of the dependencies must not be imported instead.
        command = [sys.executable, "-P", "-m", "triomq.child", self.service, "-c", str(self.conf)]
        with self.log.open("wb") as log:
            # In a process group of its own: otherwise Ctrl-C would stop the children at the same
            # time as this process, without an order.
            self.process = await trio.lowlevel.open_process(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, process_group=0
            )

    def last_line(self) -> str:
        """Return the last line that the process logged."""
        with contextlib.suppress(OSError):
            lines = [
                line.strip()
                for line in self.log.read_bytes()[-16384:].decode(errors="replace").splitlines()
            ]
            return next((line for line in reversed(lines) if line), "")
        return ""

    def exit_report(self) -> str:
        """Return one line about how the process ended."""
        code = self.process.returncode
        how = (
            f"was killed by {signal.Signals(-code).name}"
            if code is not None and code < 0
            else f"ended with exit code {code}"
        )
        last = self.last_line()
        return (
            f"{self.name} ({self.address}) {how}{f': {last}' if last else ''}; its log is"
            f" {self.log}"
        )

    def describe(self) -> dict[str, object]:
        """Return the description for ``--json``."""
        return {
            "name": self.name,
            "address": self.address,
            "pid": self.process.pid,
            "config": str(self.conf),
            "log": str(self.log),
            **({} if self.store is None else {"store": str(self.store)}),
        }


@attrs.frozen(kw_only=True)
class Plan:
    """Which servers to start, and where."""

    folder: Path
    namesrvs: Sequence[Child]
    brokers: Sequence[Child]
    controllers: Sequence[str] = ()
    """their addresses"""
    replicas: int = 1
    """brokers of each name"""
    tls_config: Path | None = None
    """the ``tls.properties`` file of a cluster with TLS"""

    @property
    def namesrv_text(self) -> str:
        """The name servers' addresses as clients take them."""
        return ";".join(child.address for child in self.namesrvs)


# Planning


def default_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder for state that users do not edit, by the XDG rules."""
    state = environment.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "triomq" / "local"


def free_ports(count: int, beside: Sequence[int] = ()) -> list[int]:
    """Return ``count`` free ports; those at the distances ``beside`` are also free."""
    chosen: list[int] = []
    with contextlib.ExitStack() as held:  # until all are found, so that none is found twice
        for port in random.sample(FREE_PORTS, len(FREE_PORTS)):
            try:
                for distance in (0, *beside):
                    held.enter_context(socket.socket()).bind((HOST, port + distance))
            except OSError:
                continue
            chosen.append(port)
            if len(chosen) == count:
                return chosen
    raise LocalError(
        f"no free ports from {FREE_PORTS[0]} to {FREE_PORTS[-1]}: stop what holds them, or choose"
        " ports with --port and --broker-port",
        EXIT_PORT_IN_USE,
    )


def check_free(port: int, option: str) -> None:
    """Refuse a port that is in use."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise LocalError(
                f"port {port} cannot be used ({error.strerror}): is a cluster running already? Stop"
                f" it, or choose other ports with {option} (0 = free ones)",
                EXIT_PORT_IN_USE,
            ) from None


def ports_of(options: Values) -> tuple[list[int], list[int]]:
    """Return the ports of the name servers and of the brokers."""
    first, first_broker = options.number("port"), options.maybe_number("broker-port")
    if first_broker is None:
        first_broker = BROKER_PORT if first else 0
    namesrvs = max(options.number("namesrvs"), options.number("controllers"))
    brokers = options.number("brokers") * options.number("replicas")
    if first:
        namesrv_ports = [first + index for index in range(namesrvs)]
        for port in namesrv_ports:
            check_free(port, "--port")
    else:
        namesrv_ports = free_ports(namesrvs)
    if first_broker:
        broker_ports = [first_broker + BROKER_PORT_STEP * index for index in range(brokers)]
        for port in broker_ports:
            check_free(port, "--broker-port")
            if port > FAST_PORT_BELOW:
                check_free(port - FAST_PORT_BELOW, "--broker-port")
    else:
        broker_ports = free_ports(brokers, (-FAST_PORT_BELOW, HA_PORT_ABOVE))
    return namesrv_ports, broker_ports


def controllers_of(folder: Path, count: int, taken: set[int]) -> list[str]:
    """Return the addresses of the controllers, for ever the same: their log names them.

    ``taken``: ports of other servers.
    """
    kept = folder / "store" / "controllers.json"
    if not count:
        return []
    if kept.exists():
        known: list[str] = json.loads(kept.read_text())
        if len(known) != count:
            raise LocalError(
                f"{folder} has the log of {len(known)} controllers: give --controllers {len(known)}"
                " or another --dir",
                EXIT_USAGE,
            )
        for address in known:
            check_free(int(address.rpartition(":")[2]), "--dir")
        return known
    free = [port for port in free_ports(count + len(taken)) if port not in taken]
    made = [f"{HOST}:{port}" for port in free[:count]]
    kept.write_text(json.dumps(made))
    return made


def hold(folder: Path) -> IO[str]:
    """Lock the folder for this process, until the returned file is closed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "mqlocal.lock").open("a+")
    except OSError as error:
        raise LocalError(
            f"folder {folder} cannot be used ({error.strerror}): choose another one with --dir",
            EXIT_USAGE,
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.seek(0)
        owner = lock.read().strip() or "unknown"
        lock.close()
        raise LocalError(
            f"folder {folder} is in use by another mqlocal (process {owner}): stop it, or choose"
            " another folder with --dir",
            EXIT_IN_USE,
        ) from None
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return lock


def make_plan(folder: Path, options: Values, settings: Sequence[tuple[str, str]]) -> Plan:
    """Choose ports, make the folders and write the configuration files."""
    namesrv_ports, broker_ports = ports_of(options)
    tls_config = tls_files(folder / "tls") if options.flag("tls") else None
    encrypt = (
        {"tls.config.file": str(tls_config), "tls.server.mode": "enforcing", "tls.enable": "true"}
        if tls_config is not None
        else {}
    )
    logs, confs = folder / "logs", folder / "conf"
    for needed in (logs, confs, folder / "store"):
        needed.mkdir(parents=True, exist_ok=True)

    def child(
        service: str, name: str, port: int, lines: Mapping[str, str], store: Path | None = None
    ) -> Child:
        conf = confs / f"{name}.conf"
        lines = {"bindAddress": HOST, "listenPort": str(port), **encrypt, **lines}
        conf.write_text("# written by mqlocal at each start\n" + format_properties(lines))
        return Child(name, service, f"{HOST}:{port}", conf, logs / f"{name}.log", store)

    distances = (0, -FAST_PORT_BELOW, HA_PORT_ABOVE)
    taken = {port + distance for port in broker_ports for distance in distances}
    controllers = controllers_of(folder, options.number("controllers"), taken | {*namesrv_ports})
    peers = ";".join(f"n{number}-{address}" for number, address in enumerate(controllers, 1))
    namesrvs = []
    for number, port in enumerate(namesrv_ports, 1):
        name = f"namesrv-{number}"
        state = folder / "store" / name
        lines = {"kvConfigPath": str(state / "kvConfig.json")}
        if number <= len(controllers):
            lines |= {
                "enableControllerInNamesrv": "true",
                "controllerDLegerGroup": "local",
                "controllerDLegerPeers": peers,
                "controllerDLegerSelfId": f"n{number}",
                "controllerStorePath": str(state / "controller"),
            }
        namesrvs.append(child("namesrv", name, port, lines))
    brokers, replicas = [], options.number("replicas")
    role = (
        {"enableControllerMode": "true", "controllerAddr": ";".join(controllers)}
        if controllers
        else {"brokerId": "0"}
    )
    for number, port in enumerate(broker_ports):
        group = f"broker-{chr(ord('a') + number // replicas)}"
        name = f"{group}-{number % replicas + 1}" if replicas > 1 else group
        store = folder / "store" / name
        lines = {
            "brokerClusterName": options.text("cluster"),
            "brokerName": group,
            **role,
            "brokerIP1": HOST,
            "enablePropertyFilter": "true",  # what production switches on where it is used
            "recallMessageEnable": "true",
            "namesrvAddr": ";".join(namesrv.address for namesrv in namesrvs),
            "storePathRootDir": str(store),
            **({"grpcServerPort": "0"} if number else {}),
            **dict(settings),
        }
        brokers.append(child("broker", name, port, lines, store))
    return Plan(
        folder=folder,
        namesrvs=namesrvs,
        brokers=brokers,
        controllers=controllers,
        replicas=replicas,
        tls_config=tls_config,
    )


def tls_files(folder: Path) -> Path:
    """Make the certificates that are missing; return the ``tls.properties`` file."""
    from triomq.remoting.tls.development import initialise  # cryptography, only with TLS

    config = folder / "tls.properties"
    try:
        return (
            config
            if config.exists()
            else initialise(folder, [HOST, "localhost", "::1", socket.gethostname()]).config
        )
    except (ConfigError, OSError) as error:
        raise LocalError(f"certificates cannot be made in {folder}: {error}", EXIT_USAGE) from None


# Running


async def run(plan: Plan, on_ready: Callable[[Plan], None]) -> None:
    """Run the cluster until a signal.

    Raises: ``LocalError`` if it cannot run, or a server ended.
    """
    started: list[Child] = []
    dead: list[Child] = []
    failure: LocalError | None = None
    stopping = False
    signals_seen = 0

    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        async with trio.open_nursery() as nursery:
            serving = trio.CancelScope()

            async def watch(child: Child) -> None:
                await child.process.wait()
                if not stopping:
                    dead.append(child)
                    serving.cancel()

            async def stop_by_signal() -> None:
                nonlocal signals_seen
                async for _ in signals:
                    signals_seen += 1
                    serving.cancel()
                    if signals_seen > 1:  # a second signal: do not wait for orderly stops
                        for child in started:
                            child.process.kill()

            nursery.start_soon(stop_by_signal)
            with serving:
                try:
                    for group in (plan.namesrvs, plan.brokers):
                        for child in group:
                            await child.start()
                            started.append(child)
                            nursery.start_soon(watch, child)
                        await wait_ready(plan, brokers=group is plan.brokers)
                    on_ready(plan)
                    await trio.sleep_forever()
                except LocalError as error:
                    failure = error
            stopping = True
            with trio.CancelScope(shield=True):
                for child in reversed(started):
                    await stop(child.process)
            nursery.cancel_scope.cancel()
    if dead:
        code = dead[0].process.returncode  # the child's own code if it reports an error
        raise LocalError(dead[0].exit_report(), code if code and code > 0 else EXIT_FAILED)
    if failure is not None:
        raise failure


async def wait_ready(plan: Plan, *, brokers: bool) -> None:
    """Wait until every name server answers.

    With ``brokers`` each name server must also list every broker, and each broker must answer; in
    controller mode all brokers of a name must be in its sync state set.
    """
    with trio.move_on_after(READY_SECONDS_MAX):
        async with trio.open_nursery() as nursery:
            for namesrv in plan.namesrvs:
                addresses = [broker.address for broker in plan.brokers] if brokers else []
                nursery.start_soon(_wait_namesrv, namesrv.address, addresses, plan.tls_config)
            if brokers and plan.controllers:
                nursery.start_soon(_wait_sets, plan)
        return
    raise LocalError(
        f"the cluster was not ready within {READY_SECONDS_MAX:g} s: see the logs in"
        f" {plan.folder / 'logs'}"
    )


async def _wait_namesrv(address: str, brokers: Sequence[str], tls_config: Path | None) -> None:
    # Imported while the children start, so that the cluster is ready earlier.
    from triomq.client.admin.admin import Admin

    tls = Tls.from_file(tls_config) if tls_config is not None else None
    async with Admin(address, timeout_seconds=2, tls=tls) as admin:
        while True:
            with contextlib.suppress(TrioMQError):
                known = {broker.address for broker in await admin.brokers()}
                if known.issuperset(brokers):
                    for broker in brokers:
                        await admin.broker_status(broker)
                    return
            await trio.sleep(PROBE_SECONDS)


async def _wait_sets(plan: Plan) -> None:
    from triomq.client.admin.admin import Admin  # while the children start
    from triomq.remoting.protocol.bodies.controller import SyncStateData  # likewise
    from triomq.remoting.protocol.codes import RequestCode  # likewise

    groups = len(plan.brokers) // plan.replicas
    body = json.dumps([f"broker-{chr(ord('a') + number)}" for number in range(groups)]).encode()
    tls = Tls.from_file(plan.tls_config) if plan.tls_config is not None else None
    async with Admin((), timeout_seconds=2, tls=tls) as admin:
        while True:
            for address in plan.controllers:
                with contextlib.suppress(TrioMQError):  # it does not lead
                    code = RequestCode.CONTROLLER_GET_SYNC_STATE_DATA
                    answer = await admin.ask(address, code, None, body)
                    known = SyncStateData.decode(bytes(answer.body)).replicas_info_table
                    sizes = [len(group.in_sync_replicas) for group in known.values()]
                    if sizes == [plan.replicas] * groups:
                        return
            await trio.sleep(PROBE_SECONDS)


async def stop(process: trio.Process) -> None:
    """Stop a process by SIGTERM, and by SIGKILL after ``STOP_SECONDS_MAX``."""
    process.terminate()
    with trio.move_on_after(STOP_SECONDS_MAX):
        await process.wait()
        return
    process.kill()
    await process.wait()


# What is printed


def ready_text(plan: Plan, seconds: float) -> Iterator[str]:
    """Yield the lines that say where the servers are and what to try."""
    width = max(len(child.name) for child in (*plan.namesrvs, *plan.brokers))
    yield f"The cluster is ready ({seconds:.2f} s)."
    for child in (*plan.namesrvs, *plan.brokers):
        yield (
            f"  {child.name:{width}}  {child.address:21} "
            f" {f'store {child.store}' if child.store else ''}".rstrip()
        )
    if plan.controllers:
        yield f"  {'controllers':{width}}  {';'.join(plan.controllers)}"
    yield f"  {'logs':{width}}  {plan.folder / 'logs'}"
    yield "Try in another terminal:"
    yield f"  export NAMESRV_ADDR='{plan.namesrv_text}'"
    if plan.tls_config is not None:
        yield f"  export {TLS_FILE_VARIABLE}='{plan.tls_config}'"
    yield "  mqadmin cluster list"
    yield "  mqadmin message send -t hello -p 'Hello, world'"
    yield "  mqadmin message read -t hello"
    yield "Ctrl-C stops it."


def ready_document(plan: Plan, seconds: float) -> dict[str, object]:
    """Return the document for ``--json``."""
    return {
        "namesrvAddr": plan.namesrv_text,
        "nameServers": [child.describe() for child in plan.namesrvs],
        "brokers": [child.describe() for child in plan.brokers],
        "controllers": list(plan.controllers),
        "dir": str(plan.folder),
        "tls": str(plan.tls_config) if plan.tls_config is not None else None,
        "pid": os.getpid(),
        "readySeconds": round(seconds, 3),
    }


def run_cluster(options: Values, settings: Sequence[tuple[str, str]], begun: float) -> int:
    """Run the described cluster until a signal; return the exit code.

    ``begun``: when the program started, by ``time.monotonic``.
    """
    folder = (
        Path(options.text("dir")).expanduser().resolve() if "dir" in options else default_folder()
    )

    def report(plan: Plan) -> None:
        seconds = time.monotonic() - begun
        if options.flag("json"):
            print(json.dumps(ready_document(plan, seconds), separators=(",", ":")), flush=True)
        elif not options.flag("quiet"):
            print("\n".join(ready_text(plan, seconds)), flush=True)

    try:
        with hold(folder):
            trio.run(run, make_plan(folder, options, settings), report)
    except LocalError as error:
        print(f"mqlocal: {error}", file=sys.stderr)
        return error.exit_code
    return EXIT_OK
