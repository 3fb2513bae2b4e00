"""Master and slave, ours and Java's of 5.5.0, in one run: ``make bench-replication``.

    python tests/bench/replication_side_by_side.py sync|lag|catch-up|all [--seconds 3]
        [--rounds 2] [--warm-up 30] [--gib 1] [--json FILE] [--no-java]

sync       SYNC_MASTER and SLAVE, inSyncReplicas=2: raw sends, connections x in flight, and Java's
           own Producer with 64 threads. First each slave is stopped (SIGSTOP): a send that is
           answered SEND_OK meanwhile ends the run, since it waited for nothing
lag        the same brokers at 50,000 messages a second that wait for no slave: how long after the
           master's answer the slave shows a message
catch-up   ASYNC_MASTER and a slave that was stopped while the master took --gib of messages: how
           fast it copies them

All four brokers run at the same time; the load goes to one pair at a time, in turns. Java is warmed
up first. Flushing is ASYNC_FLUSH, all else the default.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from batch_load import run_batches
from bench_broker import call, connect, create_topic, frame, parse_shapes, run_shape
from broker_pair import (
    GIB,
    TOPIC,
    Broker,
    end_offset_of,
    java_server,
    our_server,
    processes,
    telling_of_the_dead,
)
from java_programs import need_peers, producer_rate, route_known
from side_by_side import cpu_seconds
from store_side_by_side import RECORD_BYTES
from verdict_table import Report, Row, surely_ending

SHAPES = "1x1,1x64,1x256,64x1"
GOAL = 1.2
SECONDS_MAX = 1200
WAIT_SECONDS_MAX = 120
LAG_RATE = 50_000
LAG_PAUSE_SECONDS = 0.02
CANARY = "LagCanary"
"""A topic of one queue, with only the messages whose way to the slave is timed."""


@dataclass
class Pair:
    """A master and its slave."""

    name: str
    master: Broker
    slave: Broker

    @property
    def cpu(self) -> float:
        return cpu_seconds(self.master.side.pid) + cpu_seconds(self.slave.side.pid)

    def follows(self) -> bool:
        return self.master.end_offsets() == self.slave.end_offsets()


@contextmanager
def pairs(role: str, *, with_java: bool) -> Iterator[list[Pair]]:
    """Started, the slaves following; everything is ended and removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="replication-", dir=os.environ.get("BENCH_DIR")))
    try:
        with ExitStack() as stack:
            found = []
            namesrv = stack.enter_context(processes.our_name_server(folder / "ours"))
            servers = [("ours", our_server, namesrv)]
            if with_java:
                servers.append(
                    (
                        "Java",
                        java_server,
                        stack.enter_context(
                            processes.java_name_server("5.5.0", folder / "java" / "namesrv")
                        ),
                    )
                )
            for name, make, address in servers:
                brokers = [
                    make(
                        folder / name / f"broker-{number}",
                        address,
                        f"group-{name}",
                        brokerId=number,
                        brokerRole="SLAVE" if number else role,
                        inSyncReplicas=2,
                    )
                    for number in (0, 1)
                ]
                for broker in brokers:
                    stack.callback(broker.stop)
                    broker.start()
                pair = Pair(name, *brokers)
                found.append(pair)
                create_topic(pair.master.address, TOPIC)
                route_known(pair.master, TOPIC)
            for pair in found:
                wait_for(
                    lambda pair=pair: answered(pair) and pair.follows(),
                    f"the slave of {pair.name} to follow",
                )
            with telling_of_the_dead(
                [broker for pair in found for broker in (pair.master, pair.slave)]
            ):
                yield found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def wait_for(
    condition: Callable[[], object],
    what: str,
    pause: float = 0.1,
    seconds: float = WAIT_SECONDS_MAX,
) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {seconds:g} s without success for {what}")
        time.sleep(pause)


def answered(pair: Pair) -> bool:
    """Whether a send is answered SEND_OK."""
    return run_shape(pair.master.address, TOPIC, 1, 1, 60, requests_max=1).failed == 0


# sync


def prove_waiting(pair: Pair) -> str:
    """Stop the slave, and the master must not say SEND_OK."""
    os.kill(pair.slave.side.pid, signal.SIGSTOP)
    try:
        if answered(pair):
            raise SystemExit(
                f"{pair.name} answered SEND_OK while its slave was stopped: it does not wait, so"
                " nothing can be compared"
            )
    finally:
        os.kill(pair.slave.side.pid, signal.SIGCONT)
    wait_for(lambda: answered(pair), f"the slave of {pair.name} to go on")
    return (
        f"{pair.name}: with its slave stopped the master did not answer SEND_OK, afterwards it did"
    )


def measure_sync(options: argparse.Namespace, report: Report, both: list[Pair]) -> None:
    report.notes += [prove_waiting(pair) for pair in both]
    table = report.table("SYNC_MASTER that waits for its slave, ASYNC_FLUSH, 1 KiB", "Java 5.5.0")
    for pair in both:
        if options.warm_up:
            run_shape(
                pair.master.address,
                TOPIC,
                8,
                8,
                options.warm_up if pair.name == "Java" else options.warm_up / 10,
            )
    figures: dict[tuple[str, str], list[tuple[float, float]]] = {}

    def note(what: str, pair: Pair, rate: float, cpu: float, messages: int) -> None:
        figures.setdefault((what, pair.name), []).append((rate, cpu / max(messages, 1) * 1e6))
        print(
            f"{pair.name:5} {what}: {rate:,.0f} /s, {cpu / max(messages, 1) * 1e6:.1f} µs of master"
            " and slave",
            flush=True,
        )

    for number in range(options.rounds):
        for connections, in_flight in parse_shapes(options.shapes):
            for pair in both:
                cpu = pair.cpu
                result = run_shape(
                    pair.master.address, TOPIC, connections, in_flight, options.seconds
                )
                if result.failed:
                    raise SystemExit(
                        f"{pair.name}: {result.failed} sends were not answered SEND_OK"
                    )
                note(
                    f"raw {connections} × {in_flight}",
                    pair,
                    result.rate,
                    pair.cpu - cpu,
                    result.messages,
                )
        for pair in both if options.producer_seconds else ():
            cpu, before = pair.cpu, sum(pair.master.end_offsets())
            log = pair.master.folder / f"producer-{number}.log"
            rate = producer_rate(pair.master, log, options.producer_seconds, 64)
            note(
                "Java's Producer, 64 threads",
                pair,
                rate,
                pair.cpu - cpu,
                sum(pair.master.end_offsets()) - before,
            )
    for what in dict.fromkeys(what for what, _ in figures):
        medians = [
            [statistics.median(run[place] for run in figures[what, pair.name]) for pair in both]
            for place in (0, 1)
        ]
        table.rows.append(row(what, "msgs/s", medians[0], factor=GOAL))
        table.rows.append(
            row(f"{what}, CPU of master and slave", "µs a message", medians[1], less_is_better=True)
        )
    for pair in both:
        wait_for(pair.follows, f"the slave of {pair.name} to have everything")


def row(what: str, unit: str, values: list[float], **more: object) -> Row:
    return Row(what, unit, values[0], values[1] if len(values) > 1 else None, **more)  # type: ignore[arg-type]


# lag


def create_canary(pair: Pair) -> None:
    create_topic(pair.master.address, CANARY)
    with connect(pair.master.address) as master, connect(pair.slave.address) as slave:
        wait_for(lambda: send_canary(master) is not None, f"{pair.name} to take a message")
        wait_for(
            lambda: end_offset_of(slave, CANARY, 0) == end_offset_of(master, CANARY, 0) > 0,
            f"the slave of {pair.name} to have topic {CANARY}",
        )


SYSTEM_BUSY = 2


def send_canary(sock: object) -> int | None:
    """Its queue offset; None: the broker is too busy."""
    fields = {
        "a": "bench", "b": CANARY, "c": "TBW102", "d": "1", "e": "0", "f": "0",
        "g": str(int(time.time() * 1000)), "h": "0", "i": "WAIT\x01false\x02",
        "j": "0", "k": "false", "m": "false", "n": "broker-a",
    }  # fmt: skip
    header, _ = call(sock, frame(310, fields, b"canary"))  # type: ignore[arg-type]
    if header["code"] == SYSTEM_BUSY:
        return None
    if header["code"] != 0:
        raise SystemExit(f"the message whose lag is timed was refused: {header}")
    answer = header["extFields"]
    assert isinstance(answer, dict)
    return int(answer["queueOffset"])


def lags_of(pair: Pair, seconds: float) -> list[float]:
    """In seconds, sorted: from the master's answer until the slave's queue has the message. A slave
    that has it at the first look has a lag of that question's round trip.
    """
    found = []
    with connect(pair.master.address) as master, connect(pair.slave.address) as slave:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            offset = send_canary(master)
            if offset is None:
                continue
            begun = time.perf_counter()
            while end_offset_of(slave, CANARY, 0) <= offset:
                if time.perf_counter() > begun + WAIT_SECONDS_MAX:
                    raise SystemExit(
                        f"the slave of {pair.name} does not show a message that its master has"
                    )
            found.append(time.perf_counter() - begun)
            time.sleep(LAG_PAUSE_SECONDS)
    if not found:
        raise SystemExit(
            f"{pair.name} refused every message whose lag was to be timed: it is too busy"
        )
    return sorted(found)


def measure_lag(options: argparse.Namespace, report: Report, both: list[Pair]) -> None:
    table = report.table(
        f"Replication lag at {options.rate:,.0f} messages a second of 1 KiB", "Java 5.5.0"
    )
    reached, p50, p99 = [], [], []
    for pair in both:
        create_canary(pair)
        if pair.name == "Java" and options.warm_up:
            paced(pair, options.rate, options.warm_up / 6).communicate()
        process = paced(pair, options.rate, options.seconds * 2 + 1)
        time.sleep(0.5)
        try:
            lags = lags_of(pair, options.seconds * 2)
            said, error = process.communicate(timeout=WAIT_SECONDS_MAX)
        finally:
            process.kill()
        if process.returncode:
            raise SystemExit(f"the paced load of {pair.name} failed: {error}")
        _, messages, refused, seconds = said.split("\t")
        reached.append(int(messages) / float(seconds))
        p50.append(lags[len(lags) // 2] * 1000)
        p99.append(lags[len(lags) * 99 // 100] * 1000)
        print(
            f"{pair.name:5} lag p50 {p50[-1]:.2f} ms, p99 {p99[-1]:.2f} ms at {reached[-1]:,.0f}"
            f" /s, {len(lags)} samples",
            flush=True,
        )
        if int(refused):
            report.notes.append(f"lag of {pair.name}: the master refused {refused} messages")
        if reached[-1] < options.rate * 0.98:
            report.notes.append(
                f"lag of {pair.name}: {options.rate:,.0f} messages a second were not reached, but"
                f" {reached[-1]:,.0f}"
            )
        wait_for(pair.follows, f"the slave of {pair.name} to have everything")
    table.rows += [
        row("rate that was reached", "msgs/s", reached),
        row("lag, p50", "ms", p50, less_is_better=True, factor=GOAL),
        row("lag, p99", "ms", p99, less_is_better=True, factor=GOAL),
    ]


def paced(pair: Pair, rate: float, seconds: float) -> subprocess.Popen[str]:
    script = Path(__file__).resolve().parent / "paced_load.py"
    command = [
        sys.executable,
        str(script),
        pair.master.address,
        "--topic",
        TOPIC,
        "--rate",
        str(rate),
        "--seconds",
        str(seconds),
    ]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


# catch-up


def log_end(broker: Broker) -> int:
    """Log offset behind the last message, as GET_BROKER_RUNTIME_INFO (28) says. A Java broker
    leaves it out in the first moments after its start.
    """
    while True:
        with connect(broker.address) as sock:
            _, body = call(sock, frame(28, None))
        found = re.search(r'"commitLogMaxOffset":"(\d+)"', body.decode())
        if found is not None:
            return int(found[1])
        time.sleep(0.02)


@dataclass
class CatchUp:
    mib_per_second: float
    whole_seconds: float
    cpu_us_per_kib: float


def catch_up(pair: Pair, size: int) -> CatchUp:
    """Let the slave miss ``size`` bytes, and start it again."""
    pair.slave.stop()
    behind = log_end(pair.master)
    while (missing := size - (log_end(pair.master) - behind)) > RECORD_BYTES * 60:
        run_batches(
            pair.master.address, TOPIC, 1, 4, 3600, messages_max=missing // RECORD_BYTES + 1
        )
    goal, missed = log_end(pair.master), log_end(pair.master) - behind
    cpu = cpu_seconds(pair.master.side.pid)
    launched = time.perf_counter()
    pair.slave.start()
    samples = [(time.perf_counter(), log_end(pair.slave))]
    while samples[-1][1] < goal:
        if time.perf_counter() > launched + 600:
            raise SystemExit(
                f"the slave of {pair.name} has copied only {samples[-1][1] - behind} of {missed}"
                " bytes"
            )
        time.sleep(0.02)
        samples.append((time.perf_counter(), log_end(pair.slave)))
    wait_for(pair.follows, f"the queues of the slave of {pair.name} to have everything", pause=0.02)
    spent = cpu_seconds(pair.master.side.pid) - cpu + cpu_seconds(pair.slave.side.pid)
    moving = max(
        index for index, (_, offset) in enumerate(samples) if offset <= max(behind, samples[0][1])
    )  # the last look before it grew
    (begun, first), (ended, last) = samples[moving], samples[-1]
    return CatchUp(
        (last - first) / (1 << 20) / max(ended - begun, 1e-3),
        time.perf_counter() - launched,
        spent / (missed / 1024) * 1e6,
    )


def measure_catch_up(options: argparse.Namespace, report: Report) -> None:
    with pairs("ASYNC_MASTER", with_java=not options.no_java) as both:
        table = report.table(f"A slave that is {options.gib:g} GiB behind", "Java 5.5.0")
        found = []
        for pair in both:
            found.append(catch_up(pair, int(options.gib * GIB)))
            print(f"{pair.name:5} {found[-1]}", flush=True)
        table.rows += [
            row(
                "log copied, while it copies",
                "MiB/s",
                [one.mib_per_second for one in found],
                factor=GOAL,
            ),
            row(
                "from the start of its process until its queues have all",
                "s",
                [one.whole_seconds for one in found],
                less_is_better=True,
            ),
            row(
                "CPU of master and slave, the slave's start included",
                "µs a KiB",
                [one.cpu_us_per_kib for one in found],
                less_is_better=True,
            ),
        ]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("sync", "lag", "catch-up", "all"))
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="per measurement; lag takes twice as long"
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--warm-up", type=float, default=30.0, help="seconds of load before Java is measured"
    )
    parser.add_argument("--shapes", default=SHAPES, help="connections x in flight")
    parser.add_argument(
        "--producer-seconds", type=float, default=20.0, help="of Java's Producer; 0: leave it out"
    )
    parser.add_argument("--rate", type=float, default=LAG_RATE, help="messages a second for lag")
    parser.add_argument(
        "--gib", type=float, default=1.0, help="how far behind the slave is for catch-up (up to 4)"
    )
    parser.add_argument(
        "--json", type=Path, help="where to write the figures (.bench/replication.json)"
    )
    parser.add_argument("--no-java", action="store_true", help="our brokers alone")
    options = parser.parse_args(argv)
    if not options.no_java or options.producer_seconds:
        need_peers()
    report = Report("replication")
    with surely_ending(SECONDS_MAX):
        if options.part != "catch-up":
            with pairs("SYNC_MASTER", with_java=not options.no_java) as both:
                if options.part != "lag":
                    measure_sync(options, report, both)
                if options.part != "sync":
                    measure_lag(options, report, both)
        if options.part in ("catch-up", "all"):
            measure_catch_up(options, report)
        report.finish(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
