"""`mqlocal`: a whole cluster on this machine, as child processes, with one command.

Starts the name servers, waits until they answer; starts the brokers, waits until every name server lists every broker and every broker
answers; says where things are; stops all of it in reverse order on Ctrl-C, SIGTERM or SIGHUP.  Readiness is always a real request over a
real socket.  When a child dies, the others are stopped and its last log line is the error.  Children end with this process, however it ends
(`triomq.child`).

Everything lies below one folder: `conf/` (written anew at each start), `store/` (messages; kept) and `logs/` (of this start; the previous
ones end in `.old`).
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

from triomq.client.admin.arguments import Option, UsageError, Values, filled, parse, whole
from triomq.client.errors import TrioMQError
from triomq.remoting.properties import format_properties
from triomq.remoting.settings import ConfigError
from triomq.remoting.tls.client import TLS_FILE_VARIABLE, Tls

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_PORT_IN_USE, EXIT_IN_USE = 0, 1, 2, 3, 4
READY_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 15.0
PROBE_SECONDS = 0.02
NAMESRV_PORT = 9876
BROKER_PORT = 10911
BROKER_PORT_STEP = 10
FAST_PORT_BELOW, HA_PORT_ABOVE = 2, 1
"""a broker's other ports, as in RocketMQ"""
FREE_PORTS = range(20_000, 32_768)
"""Below those that Linux gives to outgoing connections: one of them may come at any moment between the look and the use."""
HOST = "127.0.0.1"


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ValueError("write key=value, with a key of broker.conf")
    return key.strip(), value.strip()


OPTIONS: Sequence[Option] = (
    Option("", "namesrvs", "how many name servers", whole(1, 9), default=1, placeholder="N"),
    Option(
        "", "brokers", "how many brokers (masters: broker-a, broker-b, …)", whole(1, 26), default=1, placeholder="N"
    ),
    Option(
        "",
        "port",
        "port of the first name server, the next ones follow; 0 = free ports everywhere",
        whole(0, 65000),
        default=NAMESRV_PORT,
        placeholder="PORT",
    ),
    Option(
        "",
        "broker-port",
        f"port of the first broker, the next ones {BROKER_PORT_STEP} higher; 0 = free ports (default {BROKER_PORT}, or 0 with --port 0)",
        whole(0, 65000),
        placeholder="PORT",
    ),
    Option(
        "",
        "dir",
        "folder of stores, logs and configurations (default: triomq/local below $XDG_STATE_HOME or ~/.local/state)",
        filled,
        placeholder="DIR",
    ),
    Option("", "cluster", "name of the cluster", filled, default="DefaultCluster", placeholder="NAME"),
    Option(
        "",
        "set",
        "a line of broker.conf for every broker; may be given several times",
        _setting,
        placeholder="KEY=VALUE",
    ),
    Option("", "tls", "encrypt every connection, with certificates made for this cluster in DIR/tls", None),
    Option("", "quiet", "print nothing unless something fails", None),
    Option("", "json", "print one line of JSON when ready, and nothing else", None),
    Option("h", "help", "describe the options and stop", None),
)


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
    process: subprocess.Popen[bytes] | None = None
    ended: trio.Event = attrs.field(factory=trio.Event)

    def start(self) -> None:
        """Start the process; its output goes to the log, its standard input is the pipe that `triomq.child` watches."""
        if self.log.exists():
            self.log.replace(self.log.with_suffix(".log.old"))
        # -P: a file of the user named like one of our dependencies must not come first.
        command = [sys.executable, "-P", "-m", "triomq.child", self.service, "-c", str(self.conf)]
        with self.log.open("wb") as log:
            # In a group of its own, or Ctrl-C would reach the children at the same time as us and there would be no order in stopping.
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, process_group=0)

    def last_line(self) -> str:
        """Return the last thing the process said."""
        with contextlib.suppress(OSError):
            lines = [line.strip() for line in self.log.read_bytes()[-16384:].decode(errors="replace").splitlines()]
            return next((line for line in reversed(lines) if line), "")
        return ""

    def obituary(self) -> str:
        """Say in one line how the process ended."""
        assert self.process is not None
        code = self.process.returncode
        how = (
            f"was killed by {signal.Signals(-code).name}"
            if code is not None and code < 0
            else f"ended with exit code {code}"
        )
        last = self.last_line()
        return f"{self.name} ({self.address}) {how}{f': {last}' if last else ''}; its log is {self.log}"

    def describe(self) -> dict[str, object]:
        """Return what programs may want to know."""
        assert self.process is not None
        description: dict[str, object] = {
            "name": self.name,
            "address": self.address,
            "pid": self.process.pid,
            "config": str(self.conf),
            "log": str(self.log),
        }
        if self.store is not None:
            description["store"] = str(self.store)
        return description


@attrs.frozen(kw_only=True)
class Plan:
    """What to start, and where."""

    folder: Path
    namesrvs: Sequence[Child]
    brokers: Sequence[Child]
    tls_config: Path | None = None
    """the `tls.properties` of a cluster that encrypts"""

    @property
    def namesrv_text(self) -> str:
        """Return the addresses as clients take them."""
        return ";".join(child.address for child in self.namesrvs)


# --- planning --------------------------------------------------------------------------------------------------------------------------


def default_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder for state that no user edits, by the XDG rules."""
    state = environment.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "triomq" / "local"


def free_ports(count: int, beside: Sequence[int] = ()) -> list[int]:
    """Return ports that nobody uses just now, each together with those at these distances from it."""
    chosen: list[int] = []
    with contextlib.ExitStack() as held:  # held until all are found, so that none is found twice
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
        f"no free ports from {FREE_PORTS[0]} to {FREE_PORTS[-1]}: stop what holds them, or choose ports with --port and --broker-port",
        EXIT_PORT_IN_USE,
    )


def check_free(port: int, option: str) -> None:
    """Refuse a port that somebody listens on."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise LocalError(
                f"port {port} cannot be used ({error.strerror}): is a cluster running already? Stop it, or choose other ports with {option} (0 = free ones)",
                EXIT_PORT_IN_USE,
            ) from None


def ports_of(options: Values) -> tuple[list[int], list[int]]:
    """Return the ports of the name servers and of the brokers."""
    namesrvs, brokers, first = options.number("namesrvs"), options.number("brokers"), options.number("port")
    first_broker = options.maybe_number("broker-port")
    if first_broker is None:
        first_broker = BROKER_PORT if first else 0
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


def hold(folder: Path) -> IO[str]:
    """Take the folder for this process, until the file that this returns is closed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "mqlocal.lock").open("a+")
    except OSError as error:
        raise LocalError(
            f"folder {folder} cannot be used ({error.strerror}): choose another one with --dir", EXIT_USAGE
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.seek(0)
        owner = lock.read().strip() or "unknown"
        lock.close()
        raise LocalError(
            f"folder {folder} is in use by another mqlocal (process {owner}): stop it, or choose another folder with --dir",
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
    namesrvs = []
    for number, port in enumerate(namesrv_ports, 1):
        name = f"namesrv-{number}"
        lines = {
            "bindAddress": HOST,
            "listenPort": str(port),
            "kvConfigPath": str(folder / "store" / name / "kvConfig.json"),
            **encrypt,
        }
        conf = _write_conf(confs / f"{name}.conf", lines)
        namesrvs.append(Child(name, "namesrv", f"{HOST}:{port}", conf, logs / f"{name}.log"))
    namesrv_text = ";".join(child.address for child in namesrvs)
    brokers = []
    for number, port in enumerate(broker_ports):
        name = f"broker-{chr(ord('a') + number)}"
        store = folder / "store" / name
        lines = {
            "brokerClusterName": options.text("cluster"),
            "brokerName": name,
            "brokerId": "0",
            "brokerIP1": HOST,
            "bindAddress": HOST,
            "listenPort": str(port),
            "namesrvAddr": namesrv_text,
            "storePathRootDir": str(store),
            **encrypt,
            **dict(settings),
        }
        conf = _write_conf(confs / f"{name}.conf", lines)
        brokers.append(Child(name, "broker", f"{HOST}:{port}", conf, logs / f"{name}.log", store))
    return Plan(folder=folder, namesrvs=namesrvs, brokers=brokers, tls_config=tls_config)


def tls_files(folder: Path) -> Path:
    """Make the certificates that are missing; return the `tls.properties` file."""
    from triomq.remoting.tls.development import initialise  # cryptography, only with TLS

    config = folder / "tls.properties"
    try:
        return (
            config if config.exists() else initialise(folder, [HOST, "localhost", "::1", socket.gethostname()]).config
        )
    except (ConfigError, OSError) as error:
        raise LocalError(f"certificates cannot be made in {folder}: {error}", EXIT_USAGE) from None


def _write_conf(path: Path, lines: Mapping[str, str]) -> Path:
    path.write_text("# written by mqlocal at each start\n" + format_properties(lines))
    return path


# --- running ---------------------------------------------------------------------------------------------------------------------------


async def run(plan: Plan, on_ready: Callable[[Plan], None]) -> None:
    """Run the cluster until a signal; raise `LocalError` when it cannot go on."""
    started: list[Child] = []
    dead: list[Child] = []
    trouble: LocalError | None = None
    stopping = False
    signals_seen = 0

    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        async with trio.open_nursery() as nursery:
            serving = trio.CancelScope()

            async def watch(child: Child) -> None:
                assert child.process is not None
                await trio.to_thread.run_sync(
                    child.process.wait, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1)
                )
                child.ended.set()
                if not stopping:
                    dead.append(child)
                    serving.cancel()

            async def heed_signals() -> None:
                nonlocal signals_seen
                async for _ in signals:
                    signals_seen += 1
                    serving.cancel()
                    if signals_seen > 1:  # somebody is in a hurry
                        for child in started:
                            if child.process is not None and not child.ended.is_set():
                                child.process.kill()

            nursery.start_soon(heed_signals)
            with serving:
                try:
                    for group in (plan.namesrvs, plan.brokers):
                        for child in group:
                            child.start()
                            started.append(child)
                            nursery.start_soon(watch, child)
                        await wait_ready(plan, brokers=group is plan.brokers)
                    on_ready(plan)
                    await trio.sleep_forever()
                except LocalError as error:
                    trouble = error
            stopping = True
            with trio.CancelScope(shield=True):
                for child in reversed(started):
                    await stop(child)
            nursery.cancel_scope.cancel()
    if dead:
        raise LocalError(dead[0].obituary(), _code_of(dead[0]))
    if trouble is not None:
        raise trouble


def _code_of(child: Child) -> int:
    """Pass a child's own exit code on, if it says something."""
    code = child.process.returncode if child.process is not None else None
    return code if code is not None and code > 0 else EXIT_FAILED


async def wait_ready(plan: Plan, *, brokers: bool) -> None:
    """Ask until every name server answers and, with `brokers`, lists each broker, and each broker answers itself."""
    with trio.move_on_after(READY_SECONDS_MAX):
        async with trio.open_nursery() as nursery:
            for namesrv in plan.namesrvs:
                addresses = [broker.address for broker in plan.brokers] if brokers else []
                nursery.start_soon(_wait_namesrv, namesrv.address, addresses, plan.tls_config)
        return
    raise LocalError(
        f"the cluster was not ready within {READY_SECONDS_MAX:g} s: see the logs in {plan.folder / 'logs'}"
    )


async def _wait_namesrv(address: str, brokers: Sequence[str], tls_config: Path | None) -> None:
    from triomq.client.admin.admin import Admin  # loads while the children do, so the cluster is ready earlier

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


async def stop(child: Child) -> None:
    """Ask the process to stop, then insist."""
    assert child.process is not None
    if child.ended.is_set():
        return
    child.process.terminate()
    with trio.move_on_after(STOP_SECONDS_MAX):
        await child.ended.wait()
        return
    child.process.kill()
    await child.ended.wait()


# --- what is printed -------------------------------------------------------------------------------------------------------------------


def ready_text(plan: Plan, seconds: float) -> Iterator[str]:
    """Yield the lines that tell people where things are and what to try."""
    width = max(len(child.name) for child in (*plan.namesrvs, *plan.brokers))
    yield f"The cluster is ready ({seconds:.2f} s)."
    for child in (*plan.namesrvs, *plan.brokers):
        yield f"  {child.name:{width}}  {child.address:21}  {f'store {child.store}' if child.store else ''}".rstrip()
    yield f"  {'logs':{width}}  {plan.folder / 'logs'}"
    yield "Try in another terminal:"
    yield f"  export NAMESRV_ADDR='{plan.namesrv_text}'"
    if plan.tls_config is not None:
        yield f"  export {TLS_FILE_VARIABLE}='{plan.tls_config}'"
    yield "  mqadmin clusterList"
    yield "  mqadmin sendMessage -t hello -p 'Hello, world'"
    yield "  mqadmin consumeMessage -t hello"
    yield "Ctrl-C stops it."


def ready_document(plan: Plan, seconds: float) -> dict[str, object]:
    """Return what `--json` prints."""
    return {
        "namesrvAddr": plan.namesrv_text,
        "nameServers": [child.describe() for child in plan.namesrvs],
        "brokers": [child.describe() for child in plan.brokers],
        "dir": str(plan.folder),
        "tls": str(plan.tls_config) if plan.tls_config is not None else None,
        "pid": os.getpid(),
        "readySeconds": round(seconds, 3),
    }


def help_text() -> str:
    """Return what --help prints."""
    lines = ["usage: mqlocal [options]", "", "Start name servers and brokers on this machine; Ctrl-C stops them.", ""]
    for option in OPTIONS:
        name = f"--{option.name}" + (f" {option.placeholder}" if option.kind else "")
        default = f" (default {option.default})" if option.default is not None else ""
        lines.append(f"  {name:20}  {option.meaning}{default}")
    return "\n".join([*lines, "", "example: mqlocal --namesrvs 2 --brokers 2 --dir ~/cluster"])


def _split_settings(arguments: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Take the repeated `--set` out of the arguments."""
    option = next(option for option in OPTIONS if option.name == "set")
    rest, settings, queue = [], [], list(arguments)
    while queue:
        token = queue.pop(0)
        if token == "--set" or token.startswith("--set="):
            text = [token, queue.pop(0)] if token == "--set" and queue else [token]
            settings.append(parse([option], text).value("set"))
        else:
            rest.append(token)
    return rest, settings


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `mqlocal`; return the exit code."""
    begin = time.monotonic()
    try:
        rest, settings = _split_settings(sys.argv[1:] if arguments is None else arguments)
        options = parse(OPTIONS, rest)
        if options.flag("help"):
            print(help_text())
            return EXIT_OK
        folder = Path(options.text("dir")).expanduser().resolve() if "dir" in options else default_folder()

        def report(plan: Plan) -> None:
            seconds = time.monotonic() - begin
            if options.flag("json"):
                print(json.dumps(ready_document(plan, seconds), separators=(",", ":")), flush=True)
            elif not options.flag("quiet"):
                print("\n".join(ready_text(plan, seconds)), flush=True)

        with hold(folder):
            trio.run(run, make_plan(folder, options, settings), report)
    except UsageError as error:
        print(f"mqlocal: {error}", file=sys.stderr)
        return EXIT_USAGE
    except LocalError as error:
        print(f"mqlocal: {error}", file=sys.stderr)
        return error.exit_code
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
