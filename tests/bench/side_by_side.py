"""Our broker and the Java broker 5.5.0 under the same load, in one run, on this machine: ``make
bench``.

    python tests/bench/side_by_side.py [--seconds 5] [--rounds 3] [--warm-up 40] [--markdown]

Both brokers run at the same time with their default configuration (ours is the installed
``mqbroker``, index and flush included); the load goes to one at a time, in turns, so that a noisy
minute hits both. Java is warmed up first: a cold JIT would flatter us. Each cell is the median of
the rounds. A second table asks both for a queue's maximum offset, which shows the stages without
the store, with and without TLS; a third one pulls. Afterwards the official Java consumer reads
every message that our broker acknowledged, and the Java client finds 100 of them by their keys.
"""

from __future__ import annotations

import argparse
import operator
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

import processes
import psutil
import tls_files
from bench_broker import (
    PULL_COUNT,
    PULL_OFFSETS,
    SHAPES,
    ShapeResult,
    create_topic,
    end_offset,
    parse_shapes,
    run_shape,
)
from figures import add_record_option, record

TOPIC = "SideBySide"
FILLED = PULL_OFFSETS.start + 10_000
"""messages in a queue before it is pulled"""


@dataclass(frozen=True)
class Load:
    """connections × requests in flight each; ``request``: see bench_broker."""

    connections: int
    in_flight: int
    request: str = "send"
    tls: bool = False

    def __str__(self) -> str:
        return f"{self.connections} x {self.in_flight}" + (" TLS" if self.tls else "")


RECORDED = Load(64, 8)
"""The load of clause 152a."""


def broker_script() -> str:
    script = Path(sys.executable).parent / "mqbroker"
    if not script.exists():
        raise SystemExit("mqbroker is not installed beside this Python: run `make bench`")
    return str(script)


@dataclass
class Side:
    """One of the two brokers: its address, its process, and what it gave for each kind of load."""

    address: str
    pid: int
    results: dict[Load, list[tuple[ShapeResult, float]]] = field(default_factory=dict)

    def measure(
        self, load: Load, seconds: float, prefix: str = "", requests_max: int | None = None
    ) -> ShapeResult:
        before = cpu_seconds(self.pid)
        result = run_shape(
            self.address,
            TOPIC,
            load.connections,
            load.in_flight,
            seconds,
            prefix=prefix or None,
            request=load.request,
            tls=load.tls,
            requests_max=requests_max,
        )
        cpu = (cpu_seconds(self.pid) - before) / max(result.messages, 1) * 100_000
        self.results.setdefault(load, []).append((result, cpu))
        return result

    def median(self, load: Load, value: Callable[[ShapeResult], float]) -> float:
        return statistics.median(value(result) for result, _ in self.results[load])

    def cpu(self, load: Load) -> float:
        return statistics.median(cpu for _, cpu in self.results[load])


def start_ours(stack: ExitStack, folder: Path, files: tls_files.Files) -> tuple[str, Side]:
    """(name server, broker); the configuration names identity, places and the certificate only."""
    namesrv = stack.enter_context(processes.our_name_server(folder))
    port = processes.free_port(span=2)
    settings = {"tls.server.certPath": files.certificate, "tls.server.keyPath": files.key}
    conf = processes.write_broker_conf(folder, "broker-ours", namesrv, port, **settings)
    process = stack.enter_context(
        processes.running([broker_script(), "-c", str(conf)], folder / "broker.log", port=port)
    )
    return namesrv, Side(f"127.0.0.1:{port}", process.pid)


def start_java(stack: ExitStack, folder: Path, files: tls_files.Files) -> Side:
    namesrv = stack.enter_context(processes.java_name_server("5.5.0", folder / "namesrv"))
    define = [
        "tls.test.mode.enable=false",
        f"tls.server.certPath={files.certificate}",
        f"tls.server.keyPath={files.key}",
    ]
    address = stack.enter_context(
        processes.java_broker(
            "5.5.0", folder / "broker", "broker-java", namesrv, heap="4g", define=define
        )
    )
    port = int(address.rpartition(":")[2])
    pids = {
        c.pid
        for c in psutil.net_connections("tcp")
        if c.laddr and c.laddr.port == port and c.status == psutil.CONN_LISTEN
    }
    return Side(address, pids.pop() or 0)


def cpu_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def anonymous_mb(pid: int) -> float:
    """What a process has for itself; the files that it has mapped belong to the page cache."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1000
    return 0.0


def check_with_java(namesrv: str, acknowledged: int, keys: list[str]) -> list[str]:
    """What the official consumer sees of our broker's store; empty when everything is there exactly
    once.
    """
    wrong = []
    heap = f"{512 + acknowledged // 3000}m"  # it keeps every message id
    drained = processes.java_peer(
        "5.5.0",
        "drain",
        namesrv,
        TOPIC,
        "side-by-side",
        str(acknowledged),
        "600",
        seconds=700,
        heap=heap,
    )[-1]
    print(
        f"\nJava consumer: {drained[1]} of {acknowledged} messages, delivered {drained[2]} times,"
        f" in {float(drained[3]):.1f} s"
    )
    if int(drained[1]) != acknowledged:
        wrong.append(f"the Java consumer saw {drained[1]} messages of {acknowledged}")
    found = 0
    for first in range(0, len(keys), 20):
        lines = processes.java_peer(
            "5.5.0", "unique", namesrv, TOPIC, ",".join(keys[first : first + 20]), seconds=180
        )
        found += len({line[1] for line in lines if line[0] == "FOUND"})
    print(f"Java client: {found} of {len(keys)} messages found by key")
    if found != len(keys):
        wrong.append(f"only {found} of {len(keys)} keys were found")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm-up", type=float, default=40.0)
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument(
        "--markdown", action="store_true", help="print the table for docs/performance.md"
    )
    parser.add_argument("--no-echo", action="store_true", help="no echoes")
    parser.add_argument("--no-pull", action="store_true", help="no pulls")
    parser.add_argument("--no-java-check", action="store_true")
    add_record_option(parser)
    options = parser.parse_args()
    if processes.java_home("5.5.0") is None:
        raise SystemExit("the Java broker is not installed: run `make peers`")
    folder = Path(tempfile.mkdtemp(prefix="side-by-side-", dir=os.environ.get("BENCH_DIR")))
    loads = [Load(*shape) for shape in parse_shapes(options.shapes)]
    echoes = (
        []
        if options.no_echo
        else [
            Load(connections, 1, "echo", tls)
            for connections in (1, 64, 500)
            for tls in (False, True)
        ]
    )
    pulls = (
        []
        if options.no_pull
        else [
            Load(connections, in_flight, "pull")
            for connections, in_flight in ((1, 1), (1, 8), (8, 4))
        ]
    )
    acknowledged, run_keys = 0, []
    try:
        with ExitStack() as stack:
            files = tls_files.write(folder / "tls")
            namesrv, ours = start_ours(stack, folder / "ours", files)
            java = start_java(stack, folder / "java", files)
            for side in (ours, java):
                create_topic(side.address, TOPIC)
            print(f"warming Java up for {options.warm_up:.0f} s ...", flush=True)
            for load, share in (
                (Load(1, 64), 0.8),
                *((echo, 0.2 / len(echoes)) for echo in echoes),
            ):
                run_shape(
                    java.address,
                    TOPIC,
                    load.connections,
                    load.in_flight,
                    options.warm_up * share,
                    request=load.request,
                    tls=load.tls,
                )
            for side in (ours, java) if pulls else ():
                while end_offset(side.address, TOPIC) < FILLED:
                    filled = run_shape(
                        side.address,
                        TOPIC,
                        1,
                        64,
                        2,
                        prefix=f"{side.pid:08X}{end_offset(side.address, TOPIC):08X}",
                    )
                    acknowledged += filled.messages if side is ours else 0
            for pull in pulls:
                run_shape(
                    java.address,
                    TOPIC,
                    pull.connections,
                    pull.in_flight,
                    options.warm_up * 0.1,
                    request="pull",
                )
            for round_number in range(options.rounds):
                for load in loads:
                    key = f"{round_number:04X}{load.connections:04X}{load.in_flight:08X}"
                    for side in (ours, java):
                        result = side.measure(load, options.seconds, key)
                        if result.failed:
                            print(
                                f"{side.address} {load}: {result.failed} requests failed",
                                file=sys.stderr,
                            )
                        if side is ours:
                            acknowledged += result.messages
                            run_keys += [
                                f"{key}{number:016X}"
                                for number in range(
                                    0, result.messages, max(1, result.messages // 9)
                                )
                            ][:9]
                        time.sleep(0.2)
                for load in (*echoes, *pulls):
                    for side in (ours, java):
                        side.measure(load, options.seconds / 2)
            print("\nSEND_MESSAGE_V2, 1 KiB")
            print_table(loads, ours, java, markdown=options.markdown)
            if RECORDED in loads:
                rate, other = (
                    side.median(RECORDED, lambda result: result.rate) for side in (ours, java)
                )
                said = f"{rate:,.0f} messages a second over {RECORDED}, Java's broker {other:,.0f}"
                record(options.record, "152a", rate / other, said)
            if echoes:
                print("\nGET_MAX_OFFSET (the stages without the store)")
                print_table(echoes, ours, java, markdown=options.markdown)
            if pulls:
                print(
                    f"\nPULL_MESSAGE, {PULL_COUNT} messages of 1 KiB each from the page cache, in"
                    " messages"
                )
                print_table(pulls, ours, java, markdown=options.markdown)
            print(
                "\nmemory after the load, without the page cache: ours"
                f" {anonymous_mb(ours.pid):.0f} MB, Java {anonymous_mb(java.pid):.0f} MB (heap of"
                " 4 GB)"
            )
            wrong = (
                []
                if options.no_java_check
                else check_with_java(namesrv, acknowledged, run_keys[:100])
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


COLUMNS = (
    "conn x flight",
    "ours /s",
    "Java /s",
    "ours : Java",
    "CPU s/100k ours",
    "Java",
    "p50 ms ours",
    "Java",
    "p99 ours",
    "Java",
    "p99.9 ours",
    "Java",
)


def print_table(loads: list[Load], ours: Side, java: Side, *, markdown: bool) -> None:
    widths = [max(len(name), 8) for name in COLUMNS]
    rows: list[Sequence[str]] = [COLUMNS]
    for load in loads:
        rates = [side.median(load, lambda result: result.rate) for side in (ours, java)]
        row = [
            str(load),
            *(f"{rate:,.0f}" for rate in rates),
            f"{rates[0] / rates[1]:.2f}",
            *(f"{side.cpu(load):.2f}" for side in (ours, java)),
        ]
        for name in ("p50_ms", "p99_ms", "p999_ms"):
            row += [f"{side.median(load, operator.attrgetter(name)):.2f}" for side in (ours, java)]
        rows.append(row)
    for number, row in enumerate(rows):
        cells = [f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)]
        print("| " + " | ".join(cells) + " |" if markdown else "  ".join(cells))
        if markdown and not number:
            print("|" + "---:|" * len(cells))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.TimeoutExpired as error:
        sys.exit(f"the Java client did not finish: {error}")
