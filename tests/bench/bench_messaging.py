"""Clients of RocketMQ 5 at our broker's gRPC endpoint and at Java's broker 5.5.0 with its proxy in
one process (``-pm local``), in one run: ``make bench-grpc``.

    python tests/bench/bench_messaging.py [--seconds 2] [--rounds 3] [--warm-up 90]
        [--consumers 1000] [--server-cpus 0] [--load-cpus 1] [--json FILE] [--no-java] [--profile]

SendMessage of 1 KiB with 1, 64 and 256 in flight on one connection; ReceiveMessage of 32 with eight
in flight, and an AckMessage for each message or for all of a receive; then receives that wait for
nothing, on 20 connections, and sends beside them. Both servers run at the same time with their
default configuration on one core, the load generator (``grpc_load.py``: grpcio, a process of its
own) on the other; the load goes to one server at a time, in turns, while the other is stopped. Java
is warmed up first. Each row is the median of the rounds. The load generator is Python as well:
where the server spends less than it, the row shows the load generator, and CPU is the row to
compare.

``--profile`` runs our broker alone under cProfile, 64 sends in flight.
"""

from __future__ import annotations

import argparse
import json
import os
import pstats
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import attrs
from grpc_servers import VERSION, GrpcServed, alone, need_peers, pinned, served
from side_by_side import anonymous_mb, processes
from verdict_table import Report, Row, surely_ending

TOPIC, IDLE_TOPIC = NAMES = ("SideBySide", "Idle")
"""Topics, and their groups."""
IN_FLIGHT = (1, 64, 256)
ACKNOWLEDGED = {1: "an AckMessage each", 32: "an AckMessage for each receive"}
CONNECTIONS = 20
CONSUMED_PER_SECOND_MAX = 30_000
"""As many messages wait when a round of receives begins, for each of its seconds."""
FILL_BATCH = 32
FILL_SECONDS_MAX = 60
SECONDS_MAX = 1200
SETTLE_SECONDS_MAX = 60
SETTLE_STEP = 0.5
IDLE_SHARE = 0.1
"""of a core that a server with idle consumers may take"""
PROFILED_IN_FLIGHT = 64
PROFILED_LINES = 25


@attrs.define(eq=False)
class Findings:
    """What was measured, in the order of the first measurement."""

    rows: dict[str, Row] = attrs.field(factory=dict)
    values: dict[tuple[str, str], list[float]] = attrs.field(factory=dict)

    def note(self, server: str, what: str, unit: str, value: float) -> None:
        """Keep one value of a row; of all units but messages a second less is better."""
        self.rows.setdefault(what, Row(what, unit, less_is_better=unit != "msgs/s"))
        self.values.setdefault((what, server), []).append(value)

    def table(self) -> list[Row]:
        """Return the rows with the medians of both servers."""
        for what, row in self.rows.items():
            row.ours, row.peer = (
                statistics.median(values) if (values := self.values.get((what, server))) else None
                for server in ("ours", "Java")
            )
        return list(self.rows.values())


@attrs.define(eq=False)
class LoadProcess:
    """The process of ``grpc_load.py``."""

    process: subprocess.Popen[str]

    def ask(self, address: str, do: str, **request: Any) -> dict[str, float]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        line = json.dumps({"address": address, "do": do, **request})
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"the load generator ended at {line}")
        return json.loads(answer)  # type: ignore[no-any-return]


@contextmanager
def load_process(cpus: str) -> Iterator[LoadProcess]:
    command = [sys.executable, Path(__file__).with_name("grpc_load.py")]
    process = subprocess.Popen(
        pinned(command, cpus), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield LoadProcess(process)
    finally:
        process.kill()
        process.wait()


@attrs.define(eq=False)
class MessagingBench:
    """The measurements, which note what they find."""

    load: LoadProcess
    seconds: float
    findings: Findings = attrs.field(factory=Findings)
    notes: list[str] = attrs.field(factory=list)

    def send(self, server: GrpcServed, in_flight: int, **more: Any) -> dict[str, float]:
        request = {"topic": TOPIC, "in_flight": in_flight, "seconds": self.seconds, **more}
        found = self.load.ask(server.address, "send", **request)
        server.waiting += int(found["messages"])
        if found["failed"]:
            self.notes.append(f"{server.name}: {found['failed']} sends were refused")
        return found

    def consume(
        self, server: GrpcServed, entries: int, seconds: float | None = None
    ) -> dict[str, float]:
        asked = {"entries": entries, "seconds": seconds or self.seconds}
        found = self.load.ask(server.address, "consume", topic=TOPIC, **asked)
        server.waiting -= int(found["messages"])
        if found["failed"] or found["empty"]:
            self.notes.append(
                f"{server.name}: {found['empty']} receives were empty, {found['failed']} messages"
                " not acknowledged"
            )
        return found

    def warm_up(self, server: GrpcServed, seconds: float) -> None:
        """Two thirds sends; the rest receives, of both kinds."""
        self.send(server, 64, seconds=seconds * 2 / 3)
        for entries in ACKNOWLEDGED:
            self.consume(server, entries, seconds / 6)
        self.notes.clear()

    def sends(self, server: GrpcServed, in_flight: int) -> None:
        what, cpu = f"sends, {in_flight} in flight", server.cpu()
        found = self.send(server, in_flight)
        self._note_rate(server, what, found, server.cpu() - cpu)
        for name in ("p50", "p99"):
            self.findings.note(server.name, f"{what}, {name}", "ms", found[name])

    def receives(self, server: GrpcServed, entries: int) -> None:
        missing = int(CONSUMED_PER_SECOND_MAX * self.seconds) - server.waiting
        if missing > 0:
            each = {"each": FILL_BATCH, "requests_max": missing // FILL_BATCH + 1}
            self.send(server, 8, seconds=FILL_SECONDS_MAX, **each)
        cpu = server.cpu()
        found = self.consume(server, entries)
        what = f"receives of 32, {ACKNOWLEDGED[entries]}"
        self._note_rate(server, what, found, server.cpu() - cpu)

    def _note_rate(
        self, server: GrpcServed, what: str, found: dict[str, float], cpu: float
    ) -> None:
        count, name = max(found["messages"], 1), server.name
        self.findings.note(name, what, "msgs/s", found["messages"] / found["seconds"])
        self.findings.note(name, f"{what}, CPU of the server", "µs a message", cpu / count * 1e6)
        print(f"{name:5} {what}: {found['messages'] / found['seconds']:,.0f} /s", flush=True)

    def memory(self, server: GrpcServed, when: str) -> None:
        note = self.findings.note
        note(server.name, f"resident {when}", "MB", server.resident_mb())
        note(server.name, f"anonymous memory {when}", "MB", anonymous_mb(server.pid))

    def settle(self, server: GrpcServed) -> None:
        """Wait until the server has taken the consumers in, which costs it work."""
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        cpu = server.cpu()
        while time.monotonic() < deadline:
            time.sleep(SETTLE_STEP)
            before, cpu = cpu, server.cpu()
            if cpu - before < IDLE_SHARE * SETTLE_STEP:
                return
        self.notes.append(f"{server.name} was still busy with its idle consumers")

    def idle(self, server: GrpcServed, consumers: int) -> None:
        self.memory(server, "after the load")
        parked = {"consumers": consumers, "connections": CONNECTIONS}
        self.load.ask(server.address, "park", topic=IDLE_TOPIC, **parked)
        self.settle(server)
        self.memory(server, f"with {consumers:,} idle consumers")
        found = self.send(server, 1)
        self.findings.note(server.name, "a send beside them, p50", "ms", found["p50"])
        self.load.ask(server.address, "leave")


def profile(options: argparse.Namespace, folder: Path, stack: ExitStack) -> None:
    """Print the functions of our broker by their own time."""
    namesrv = stack.enter_context(processes.our_name_server(folder))
    bench = MessagingBench(stack.enter_context(load_process(options.load_cpus)), options.seconds)
    dump = folder / "profile"
    with served(
        "ours", folder / "ours", namesrv, NAMES, options.server_cpus, profile=dump
    ) as server:
        found = bench.send(server, PROFILED_IN_FLIGHT)
    print(f"{found['messages']:,} sends of {PROFILED_IN_FLIGHT} in flight, under cProfile")
    pstats.Stats(str(dump)).sort_stats("tottime").print_stats(PROFILED_LINES)


def compare(options: argparse.Namespace, folder: Path, stack: ExitStack) -> None:
    """Measure, print the table, write the file."""
    report = Report("messaging")
    names = ["ours"] if options.no_java else ["ours", "Java"]
    servers = []
    for name in names:
        namesrv = stack.enter_context(processes.our_name_server(folder / name))
        servers.append(
            stack.enter_context(served(name, folder / name, namesrv, NAMES, options.server_cpus))
        )
    bench = MessagingBench(stack.enter_context(load_process(options.load_cpus)), options.seconds)
    for server in servers:
        share = 1.0 if server.name == "Java" else 0.1
        bench.warm_up(server, options.warm_up * share)
    for _ in range(options.rounds):
        for in_flight in IN_FLIGHT:
            for server in servers:
                with alone(server, servers):
                    bench.sends(server, in_flight)
        for entries in ACKNOWLEDGED:
            for server in servers:
                with alone(server, servers):
                    bench.receives(server, entries)
    for server in servers:
        with alone(server, servers):
            bench.idle(server, options.consumers)
    report.table("Clients of RocketMQ 5 (gRPC)", f"Java {VERSION}").rows += bench.findings.table()
    report.notes += bench.notes
    report.finish(options.json)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm-up", type=float, default=90.0, help="seconds of load, for Java")
    parser.add_argument("--consumers", type=int, default=1000, help="idle ones")
    parser.add_argument("--server-cpus", default="0", help="the cores of both servers")
    parser.add_argument("--load-cpus", default="1" if (os.cpu_count() or 1) > 1 else "0")
    parser.add_argument("--json", type=Path, help="for the figures (.bench/messaging.json)")
    parser.add_argument("--no-java", action="store_true", help="our broker alone")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    if not options.no_java and not options.profile:
        need_peers()
    folder = Path(tempfile.mkdtemp(prefix="messaging-", dir=os.environ.get("BENCH_DIR")))
    try:
        with surely_ending(SECONDS_MAX), ExitStack() as stack:
            (profile if options.profile else compare)(options, folder, stack)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
