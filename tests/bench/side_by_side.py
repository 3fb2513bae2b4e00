"""Our broker and the Java broker 5.5.0 under the same load, in one run, on this machine: `make bench`.

    python tests/bench/side_by_side.py [--seconds 5] [--rounds 3] [--warm-up 40] [--markdown]

Both brokers run at the same time with their default configuration (ours is the installed `mqbroker`, index and flush included); the load goes to one at a time,
in turns, so that a noisy minute hits both. Java is warmed up first: a cold JIT would flatter us. Each cell is the median of the rounds. Afterwards the official
Java consumer reads every message that our broker acknowledged, and the Java client finds 100 of them by their keys.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

import processes
import psutil
from bench_broker import SHAPES, create_topic, parse_shapes, run_shape

TOPIC = "SideBySide"


def broker_script() -> str:
    script = Path(sys.executable).parent / "mqbroker"
    if not script.exists():
        raise SystemExit("mqbroker is not installed beside this Python: run `make bench`")
    return str(script)


def start_ours(stack: ExitStack, folder: Path) -> tuple[str, str, int]:
    """(name server, broker address, pid); the configuration names identity and places only."""
    namesrv = stack.enter_context(processes.our_name_server(folder))
    port = processes.free_port()
    conf = processes.write_broker_conf(folder, "broker-ours", namesrv, port)
    process = stack.enter_context(processes.running([broker_script(), "-c", str(conf)], folder / "broker.log", port=port))
    return namesrv, f"127.0.0.1:{port}", process.pid


def start_java(stack: ExitStack, folder: Path) -> str:
    namesrv = stack.enter_context(processes.java_name_server("5.5.0", folder / "namesrv"))
    return stack.enter_context(processes.java_broker("5.5.0", folder / "broker", "broker-java", namesrv, heap="4g"))


def cpu_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def check_with_java(namesrv: str, acknowledged: int, keys: list[str]) -> list[str]:
    """What the official consumer sees of our broker's store; empty when everything is there exactly once."""
    wrong = []
    drained = processes.java_peer("5.5.0", "drain", namesrv, TOPIC, "side-by-side", str(acknowledged), "600", seconds=700)[-1]
    print(f"\nJava consumer: {drained[1]} of {acknowledged} messages, delivered {drained[2]} times, in {float(drained[3]):.1f} s")
    if int(drained[1]) != acknowledged:
        wrong.append(f"the Java consumer saw {drained[1]} messages of {acknowledged}")
    found = 0
    for first in range(0, len(keys), 20):
        lines = processes.java_peer("5.5.0", "unique", namesrv, TOPIC, ",".join(keys[first : first + 20]), seconds=180)
        found += len({line[1] for line in lines if line[0] == "FOUND"})
    print(f"Java client: {found} of {len(keys)} messages found by key")
    if found != len(keys):
        wrong.append(f"only {found} of {len(keys)} keys were found")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm-up", type=float, default=40.0)
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--markdown", action="store_true", help="print the table for docs/performance.md")
    parser.add_argument("--no-java-check", action="store_true")
    options = parser.parse_args()
    if processes.java_home("5.5.0") is None:
        raise SystemExit("the Java broker is not installed: run `make peers`")
    folder = Path(tempfile.mkdtemp(prefix="side-by-side-", dir=os.environ.get("BENCH_DIR")))
    rates: dict[tuple[int, int], dict[str, list[float]]] = {shape: {"ours": [], "java": []} for shape in parse_shapes(options.shapes)}
    cpu: dict[tuple[int, int], list[float]] = {shape: [] for shape in rates}
    acknowledged, run_keys = 0, []
    try:
        with ExitStack() as stack:
            namesrv, ours, pid = start_ours(stack, folder / "ours")
            java = start_java(stack, folder / "java")
            for address in (ours, java):
                create_topic(address, TOPIC)
            print(f"warming Java up for {options.warm_up:.0f} s ...", flush=True)
            run_shape(java, TOPIC, 1, 64, options.warm_up)
            for round_number in range(options.rounds):
                for connections, in_flight in rates:
                    for side, address in (("ours", ours), ("java", java)):
                        key = f"{round_number:04X}{connections:04X}{in_flight:08X}"
                        before = cpu_seconds(pid)
                        result = run_shape(address, TOPIC, connections, in_flight, options.seconds, prefix=key)
                        rates[connections, in_flight][side].append(result.rate)
                        if result.failed:
                            print(f"{side} {connections}x{in_flight}: {result.failed} requests failed", file=sys.stderr)
                        if side == "ours":
                            acknowledged += result.messages
                            cpu[connections, in_flight].append((cpu_seconds(pid) - before) / max(result.messages, 1) * 100_000)
                            run_keys += [f"{key}{number:016X}" for number in range(0, result.messages, max(1, result.messages // 9))][:9]
                        time.sleep(0.2)
            print_table(rates, cpu, markdown=options.markdown)
            print(f"\nmemory of our broker after the load: {psutil.Process(pid).memory_full_info().uss / 1e6:.0f} MB of its own")
            wrong = [] if options.no_java_check else check_with_java(namesrv, acknowledged, run_keys[:100])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


def print_table(rates: dict[tuple[int, int], dict[str, list[float]]], cpu: dict[tuple[int, int], list[float]], *, markdown: bool) -> None:
    edge = "| " if markdown else ""
    bar = " | " if markdown else "  "
    print("\n" + edge + bar.join(f"{text:>14}" for text in ("conn x flight", "ours msgs/s", "java msgs/s", "ours : java", "CPU s / 100k")) + (" |" if markdown else ""))
    if markdown:
        print("|---:" * 5 + "|")
    for (connections, in_flight), sides in rates.items():
        ours, java = statistics.median(sides["ours"]), statistics.median(sides["java"])
        cells = (f"{connections} x {in_flight}", f"{ours:,.0f}", f"{java:,.0f}", f"{ours / java:.2f}", f"{statistics.median(cpu[connections, in_flight]):.2f}")
        print(edge + bar.join(f"{cell:>14}" for cell in cells) + (" |" if markdown else ""))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.TimeoutExpired as error:
        sys.exit(f"the Java client did not finish: {error}")
