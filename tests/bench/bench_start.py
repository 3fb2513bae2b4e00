"""How soon something can be used, and how soon it is gone: servers, ``mqadmin``, a cluster inside
this loop, producer and consumer.

    python tests/bench/bench_start.py [--starts 9] [--record]

A server: from the start of its process to its first answer, byte code cached, and what is resident
then. ``mqadmin``: whole runs of the command. Clients: how long their ``async with`` takes to end,
with a consumer that holds a pull at the broker. ``examples/registration.py``: what its user waits.
Nothing is asserted; medians, and the least and the largest of all starts.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import trio
from bench_broker import call, connect, frame
from figures import add_record_option, record
from java_programs import memory_mb

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from processes import ROOT, free_port

from triomq import Producer, PullConsumer, PushConsumer
from triomq.testing import local_cluster

PROGRAMS = Path(sys.executable).parent
CLUSTER_INFO = 106
RUNTIME_INFO = 28
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if name not in ("PYTHONDONTWRITEBYTECODE", "NAMESRV_ADDR")
}
"""Of the programs; ``main`` adds a folder for byte code, which the first start of each fills."""


def first_answer(command: list[str], port: int, code: int) -> tuple[float, float]:
    """(seconds from the start of the process to its first answer, MB resident then)."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=ENVIRONMENT,
    )
    try:
        while True:
            if process.poll() is not None:
                raise SystemExit(f"{command[0]} ended with code {process.returncode}")
            try:
                with connect(f"127.0.0.1:{port}") as sock:
                    call(sock, frame(code, {}))
                break
            except OSError:
                time.sleep(0.002)
        seconds = time.perf_counter() - begin
        return seconds, memory_mb(process.pid)[0]
    finally:
        process.terminate()
        process.wait(timeout=30)


def name_server(folder: Path) -> tuple[float, float]:
    port = free_port()
    return first_answer(
        [str(PROGRAMS / "mqnamesrv"), "-p", str(port), "-D", f"kvConfigPath={folder}/kv.json"],
        port,
        CLUSTER_INFO,
    )


def broker(folder: Path) -> tuple[float, float]:
    port = free_port()
    settings = {"listenPort": port, "brokerIP1": "127.0.0.1", "storePathRootDir": folder / "store"}
    words = [word for key, value in settings.items() for word in ("-D", f"{key}={value}")]
    return first_answer([str(PROGRAMS / "mqbroker"), *words], port, RUNTIME_INFO)


def mqadmin(*words: str) -> float:
    begin = time.perf_counter()
    subprocess.run(
        [PROGRAMS / "mqadmin", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        check=True,
        env=ENVIRONMENT,
    )
    return time.perf_counter() - begin


def registration(namesrv: str) -> tuple[float, float]:
    """What the user of the example waits, in ms: for four calls, and for one call and one send."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "registration.py"), namesrv],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        env=ENVIRONMENT,
    )
    four, one = re.findall(r": (\d+) ms", done.stdout)
    return float(four), float(one)


def show(what: str, unit: str, figures: list[float]) -> str:
    """Print a row; return it as words."""
    median, least, most = statistics.median(figures), min(figures), max(figures)
    print(f"| {what} | {unit} | {median:.3g} | {least:.3g} to {most:.3g} |", flush=True)
    return f"{what}: {median:.3g} {unit} ({least:.3g} to {most:.3g}), median of {len(figures)}"


async def inside(starts: int, file: Path | None) -> None:
    """A cluster in this loop, and clients of it; the first one loads what the others have."""
    ready, producer_ends, push_ends, pull_ends, admin = [], [], [], [], []
    waits = []
    for _ in range(starts + 1):
        async with AsyncExitStack() as stack:
            begin = time.perf_counter()
            cluster = await stack.enter_async_context(local_cluster())
            ready.append((time.perf_counter() - begin) * 1000)
            admin.append(
                await trio.to_thread.run_sync(mqadmin, "topicList", "-n", cluster.namesrv_address)
            )
            waits.append(await trio.to_thread.run_sync(registration, cluster.namesrv_address))
            async with Producer(cluster.namesrv_address, group="p") as producer:
                await producer.send("T", b"x")
                begin = time.perf_counter()
            producer_ends.append(time.perf_counter() - begin)
            async with PushConsumer(
                cluster.namesrv_address, group="push", subscriptions="T", consume_from="first"
            ) as push:
                await (await anext(push)).ack()
                await trio.sleep(0.1)  # the next pull is held at the broker
                begin = time.perf_counter()
            push_ends.append(time.perf_counter() - begin)
            async with PullConsumer(
                cluster.namesrv_address, group="pull", subscriptions="T", consume_from="first"
            ) as pull:
                await pull.poll()
                await trio.sleep(0.1)
                begin = time.perf_counter()
            pull_ends.append(time.perf_counter() - begin)
    said = show("a cluster in this loop, ready", "ms", ready[1:])
    record(file, "180b", statistics.median(ready[1:]), said)
    said = show("mqadmin topic list, whole run", "s", admin[1:])
    record(file, "170e", statistics.median(admin[1:]), said)
    all_ends = {
        "Producer": producer_ends[1:],
        "PushConsumer": push_ends[1:],
        "PullConsumer": pull_ends[1:],
    }
    rows = [show(f"{name}, end of its block", "s", ends) for name, ends in all_ends.items()]
    record(file, "171d", max(map(max, all_ends.values())), "; ".join(rows))
    four, one = ([pair[which] for pair in waits[1:]] for which in (0, 1))
    rows = [
        show("registration, four calls of 50 ms", "ms", four),
        show("registration, one call and one send", "ms", one),
    ]
    record(file, "155b", statistics.median(one) - 50, "; ".join(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--starts", type=int, default=9)
    add_record_option(parser)
    options = parser.parse_args()
    print("| | unit | median | least to most |\n|---|---|---:|---:|")
    with tempfile.TemporaryDirectory() as cache:
        ENVIRONMENT["PYTHONPYCACHEPREFIX"] = cache
        servers(options.starts, options.record)
        trio.run(inside, options.starts, options.record)


def servers(starts: int, file: Path | None) -> None:
    programs: dict[str, Callable[[Path], tuple[float, float]]] = {
        "mqnamesrv": name_server,
        "mqbroker": broker,
    }
    seconds: dict[str, float] = {}
    memory: dict[str, float] = {}
    for name, start in programs.items():
        figures = []
        for _ in range(starts + 1):
            with tempfile.TemporaryDirectory() as folder:
                figures.append(start(Path(folder)))
        answers, sizes = ([pair[which] for pair in figures[1:]] for which in (0, 1))
        seconds[show(f"{name}, first answer", "s", answers)] = statistics.median(answers)
        memory[show(f"{name}, resident when idle", "MB", sizes)] = statistics.median(sizes)
    record(file, "179b", max(seconds.values()), "; ".join(seconds))
    record(file, "179c", max(memory.values()), "; ".join(memory))
    show("mqadmin --help, whole run", "s", [mqadmin("--help") for _ in range(starts + 1)][1:])


if __name__ == "__main__":
    main()
