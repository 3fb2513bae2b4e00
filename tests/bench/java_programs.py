"""RocketMQ's own benchmark programs, unmodified, against our broker and the Java broker 5.5.0 in
turns: ``make bench-java-programs``.

    python tests/bench/java_programs.py [--rounds 2] [--seconds 20] [--warm-up 30]
        [--json FILE] [--no-java-broker]

Producer, BatchProducer, TransactionProducer and Consumer of ``rocketmq-example`` 5.5.0 print what
they reach over the last ten snapshots, one a second; that line is the figure here (the best one of
a run: the first ones have the JVM's start in them: with one thread it takes more than ten seconds
until the client's code is compiled). They say nothing about percentiles (Consumer: average and
largest, in whole ms), so latency is measured by ``LatencyPeer``, the official producer and push
consumer in one JVM, the same for both brokers. A push consumer of Java's may stand still for up to
30 s after its start, when a heartbeat of its own is left out (RocketMQ's broker refuses its pulls
until the next one); such a start is tried again, and reported. Both brokers run all the time
with their default configuration; the load goes to one at a time. Java is warmed up first.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from bench_broker import QUEUES, call, connect, create_topic, frame, run_shape
from broker_pair import TOPIC, Broker, broker_pair, processes
from figures import add_record_option, record
from side_by_side import cpu_seconds
from verdict_table import Missing, Report, Row, surely_ending

VERSION = "5.5.0"
PACKAGE = "org.apache.rocketmq.example.benchmark."
CLIENT_HEAP = "512m"
THREADS = (64, 8, 1)
PARTS = ("producer", "batch", "transactions", "consumer", "latency")
FACTORS = {64: 1.3, 8: 1.3, 1: 1.5}
SECONDS_MAX = 1800
SNAPSHOTS = 10
"""The programs print nothing before they have this number of snapshots, one a second."""
START_SECONDS_MAX = 60
STARTS_MAX = 3
STALLED_MS = 1000
BATCH = 16
LATENCY_RATE = 1000
LATENCY_TOPIC = "LatencyBench"
"""Empty when it is measured: a new consumer group begins with what a topic has."""

SENT = re.compile(r"Send TPS: (\d+) .*Send Failed: (\d+)[ |]+Response Failed: (\d+)")
BATCHES_SENT = re.compile(r"Send MPS: (\d+) .*Send Failed: (\d+)[ |]+Send Message Failed: (\d+)")
COMMITTED = re.compile(r"Send TPS: +(\d+) .*Send Failed: (\d+) .*DuplicatedCheck: (\d+)")
CONSUMED = re.compile(r"Consume TPS: (\d+) .*Consume Fail: (\d+)")


class Stalled(SystemExit):
    """A program printed too few figures, or delivered nothing."""


def need_peers() -> None:
    if shutil.which("java") is None:
        raise Missing(
            "java is missing: install a JDK of at least 17 (Debian: apt-get install"
            " openjdk-17-jdk-headless), then run `make peers`"
        )
    home = processes.java_home(VERSION)
    missing = [] if home else [f"RocketMQ {VERSION}"]
    if home and not (home / "jars" / f"rocketmq-example-{VERSION}.jar").exists():
        missing.append(f"org.apache.rocketmq:rocketmq-example:{VERSION} (the benchmark programs)")
    if home and not (home / "classes" / "LatencyPeer.class").exists():
        missing.append("LatencyPeer (tests/compat/java)")
    if missing:
        raise Missing(
            f"missing: {', '.join(missing)}; run `make peers` (needs Maven: apt-get install maven)"
        )


@contextlib.contextmanager
def program(name: str, *arguments: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """One of the programs, ended with the block: by itself it runs for ever."""
    command = processes.java_command(
        VERSION, PACKAGE + name, *arguments, home=log.parent / "client", heap=CLIENT_HEAP
    )
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def printed_rate(
    log: Path, process: subprocess.Popen[bytes], pattern: re.Pattern[str], seconds: float
) -> float:
    """Run a program until its lines cover ``seconds``; return the best line. Failed requests end
    the benchmark.
    """
    deadline = time.monotonic() + START_SECONDS_MAX + seconds
    wanted = max(1, round(seconds) - SNAPSHOTS + 1)
    while len(lines := pattern.findall(log.read_text(errors="replace"))) < wanted:
        if process.poll() is not None or time.monotonic() > deadline:
            raise Stalled(
                f"{process.args!r} printed {len(lines)} figures instead of {wanted}; its output"
                f" ends with\n{log.read_text(errors='replace')[-3000:]}"
            )
        time.sleep(0.1)
    if failed := sum(int(count) for count in lines[-1][1:] if count):
        raise SystemExit(
            f"{failed} requests of {process.args!r}"
            f" failed:\n{log.read_text(errors='replace')[-1000:]}"
        )
    return max(float(line[0]) for line in lines)


def producer_rate(
    broker: Broker,
    log: Path,
    seconds: float,
    threads: int,
    *more: str,
    name: str = "Producer",
    pattern: re.Pattern[str] = SENT,
    at_the_end: Callable[[], None] = lambda: None,
) -> float:
    """What Producer or BatchProducer says; ``at_the_end`` is called while it still sends."""
    before = stored(broker)
    with program(
        name,
        "-n",
        broker.namesrv,
        "-t",
        TOPIC,
        "-w",
        str(threads),
        "-s",
        "1024",
        "-ri",
        "1000",
        *more,
        log=log,
    ) as process:
        rate = printed_rate(log, process, pattern, seconds)
        at_the_end()
    if (count := stored(broker) - before) < rate:
        raise SystemExit(
            f"{name} says {rate:,.0f} a second, but {broker.name} has only {count} more messages"
        )
    return rate


def memory_mb(pid: int) -> tuple[float, float]:
    """(resident, of it anonymous), from smaps_rollup."""
    fields = dict(
        line.split(":", 1)
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    )
    resident, anonymous = (int(fields[name].split()[0]) / 1024 for name in ("Rss", "Anonymous"))
    return resident, anonymous


def stored(broker: Broker) -> int:
    return sum(broker.end_offsets(queues=QUEUES))


def route_known(broker: Broker, topic: str) -> None:
    """Wait until the name server has the route of a topic."""
    deadline = time.monotonic() + 60
    while True:
        with connect(broker.namesrv) as sock:
            header, _ = call(sock, frame(105, {"topic": topic}))
        if header["code"] == 0:
            return
        if time.monotonic() > deadline:
            raise SystemExit(f"the name server of {broker.name} does not know {topic}: {header}")
        time.sleep(0.1)


def start_group(broker: Broker, group: str, backlog: int) -> None:
    """A consumer group that has so many of the newest messages before it, whatever a broker thinks
    of new groups.
    """
    body = (
        b'{"groupName":"%s","consumeEnable":true,"consumeFromMinEnable":true,'
        b'"consumeBroadcastEnable":true,"brokerId":0,"retryQueueNums":1,"retryMaxTimes":16,'
        b'"whichBrokerWhenConsumeSlowly":1}'
    )
    with connect(broker.address) as sock:
        requests = [frame(200, None, body % group.encode())]
        for queue, end in enumerate(broker.end_offsets(queues=QUEUES)):
            start = max(0, end - backlog // QUEUES)
            requests.append(
                frame(
                    15,
                    {
                        "consumerGroup": group,
                        "topic": TOPIC,
                        "queueId": str(queue),
                        "commitOffset": str(start),
                    },
                )
            )
        for request in requests:
            header, _ = call(sock, request)
            if header["code"] != 0:
                raise SystemExit(f"{broker.name} did not take the group's start: {header}")


def committed(broker: Broker, group: str) -> int:
    """Return the sum of a group's committed offsets over all queues."""
    total = 0
    with connect(broker.address) as sock:
        for queue in range(QUEUES):
            header, _ = call(
                sock, frame(14, {"consumerGroup": group, "topic": TOPIC, "queueId": str(queue)})
            )
            fields = header.get("extFields")
            total += (
                int(fields["offset"]) if header["code"] == 0 and isinstance(fields, dict) else 0
            )
    return total


class Measurements:
    """Rates, CPU and memory of both brokers by name of the measurement."""

    def __init__(self, folder: Path, options: argparse.Namespace, report: Report) -> None:
        self.folder, self.options, self.report = folder, options, report
        self.values: dict[tuple[str, str], list[float]] = {}
        self.loaded: dict[str, tuple[float, float]] = {}
        self.runs = 0

    def note(self, what: str, broker: Broker, value: float) -> None:
        self.values.setdefault((what, broker.name), []).append(value)
        print(f"{broker.name:5} {what}: {value:,.2f}", flush=True)

    def median(self, what: str, name: str) -> float | None:
        values = self.values.get((what, name))
        return statistics.median(values) if values else None

    def row(self, what: str, unit: str, **target: object) -> Row:
        return Row(what, unit, self.median(what, "ours"), self.median(what, "Java"), **target)  # type: ignore[arg-type]

    def _log(self) -> Path:
        self.runs += 1
        return self.folder / f"program-{self.runs}.log"

    def sends(
        self, broker: Broker, name: str, pattern: re.Pattern[str], threads: int, *more: str
    ) -> None:
        what, before, cpu = title(name, threads), stored(broker), cpu_seconds(broker.side.pid)

        def at_the_end() -> None:
            self.loaded[broker.name] = max(
                self.loaded.get(broker.name, (0.0, 0.0)), memory_mb(broker.side.pid)
            )
            spent, count = cpu_seconds(broker.side.pid) - cpu, stored(broker) - before
            self.note(f"{what}, CPU", broker, spent / max(count, 1) * 1e6)

        self.note(
            what,
            broker,
            producer_rate(
                broker,
                self._log(),
                self.options.seconds,
                threads,
                *more,
                name=name,
                pattern=pattern,
                at_the_end=at_the_end,
            ),
        )

    def trying(self, measured: Callable[[], None], name: str, broker: Broker) -> None:
        """Again if it stalls, with a note."""
        for start in range(1, STARTS_MAX + 1):
            try:
                measured()
                return
            except Stalled as stalled:
                if start == STARTS_MAX:
                    raise SystemExit(f"{name} stalled {start} times: {stalled}") from stalled
                self.report.notes.append(
                    f"{name} on {broker.name} stood still and was started again"
                )

    def consumes(self, broker: Broker, number: int) -> None:
        group, log = f"benchmark_consumer_{number}_{self.runs}", self._log()
        start_group(broker, group, self.options.backlog)
        begun = committed(broker, group)
        cpu = cpu_seconds(broker.side.pid)
        with program(
            "Consumer",
            "-n",
            broker.namesrv,
            "-t",
            TOPIC,
            "-g",
            group,
            "-p",
            "false",
            "-ri",
            "1000",
            log=log,
        ) as process:
            rate = printed_rate(log, process, CONSUMED, self.options.consumer_seconds)
            spent = cpu_seconds(broker.side.pid) - cpu
            self.loaded[broker.name] = max(
                self.loaded.get(broker.name, (0.0, 0.0)), memory_mb(broker.side.pid)
            )
            deadline = time.monotonic() + 20  # it commits every five seconds
            while (done := committed(broker, group)) <= begun and time.monotonic() < deadline:
                time.sleep(0.2)
        if done <= begun:
            raise SystemExit(
                f"Consumer says {rate:,.0f} a second, but {broker.name} knows of no consumed"
                " message"
            )
        if done >= stored(broker):
            self.report.notes.append(
                f"Consumer emptied the queues of {broker.name} ({done - begun:,} messages) within"
                " its run: its best window may have idle time in it; raise --backlog"
            )
        self.note("Consumer", broker, rate)
        self.note(
            "Consumer, CPU", broker, spent / max(rate * self.options.consumer_seconds, 1) * 1e6
        )

    def latency(self, broker: Broker) -> None:
        seconds = self.options.latency_seconds
        create_topic(broker.address, LATENCY_TOPIC)
        route_known(broker, LATENCY_TOPIC)
        arguments = [
            broker.namesrv,
            LATENCY_TOPIC,
            str(LATENCY_RATE),
            str(seconds / 2),
            str(seconds),
        ]
        command = processes.java_command(
            VERSION, "LatencyPeer", *arguments, home=self.folder / "client", heap=CLIENT_HEAP
        )
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=120 + seconds * 2,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        line = next(
            (line for line in done.stdout.splitlines() if line.startswith("LATENCY\t")), None
        )
        if done.returncode or line is None:
            raise Stalled(
                "LatencyPeer ended with"
                f" {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
            )
        _, _, rate, p50, p99, largest, send_p50, send_p99, _ = line.split("\t")
        if float(p50) > STALLED_MS:
            raise Stalled(f"half of the messages took {float(p50):,.0f} ms and more")
        self.note("latency, p50", broker, float(p50))
        self.note("latency, p99", broker, float(p99))
        self.note("latency, largest", broker, float(largest))
        self.note("send, p50", broker, float(send_p50))
        self.note("send, p99", broker, float(send_p99))
        if float(rate) < LATENCY_RATE * 0.97:
            self.report.notes.append(
                f"latency of {broker.name}: only {float(rate):,.0f} messages a second were reached"
            )


def title(name: str, threads: int) -> str:
    return (
        f"{name}, {threads} threads" + (f" × {BATCH}" if name == "BatchProducer" else "")
        if threads > 1
        else f"{name}, 1 thread"
    )


def fill(broker: Broker, backlog: int) -> None:
    """So many messages in all for the Consumer."""
    while (missing := backlog - stored(broker)) > 0:
        run_shape(broker.address, TOPIC, 1, 64, 3600, requests_max=max(missing, 64))


def measure(
    brokers: list[Broker], folder: Path, options: argparse.Namespace, report: Report
) -> None:
    found = Measurements(folder, options, report)
    time.sleep(min(3.0, options.seconds))
    idle = {broker.name: memory_mb(broker.side.pid) for broker in brokers}
    for broker in brokers:
        create_topic(broker.address, TOPIC)
        route_known(broker, TOPIC)
        if options.warm_up:
            run_shape(
                broker.address,
                TOPIC,
                8,
                8,
                options.warm_up if broker.name == "Java" else options.warm_up / 10,
            )
    for _ in range(options.rounds):
        for threads in options.threads if "producer" in options.only else ():
            for broker in brokers:
                found.sends(broker, "Producer", SENT, threads)
        for broker in brokers if "batch" in options.only else ():
            found.sends(broker, "BatchProducer", BATCHES_SENT, options.threads[0], "-b", str(BATCH))
        for threads in options.threads if "transactions" in options.only else ():
            for broker in brokers:
                found.sends(broker, "TransactionProducer", COMMITTED, threads)
    for number in range(options.rounds if "consumer" in options.only else 0):
        for broker in brokers:
            fill(broker, options.backlog)
            found.trying(partial(found.consumes, broker, number), "Consumer", broker)
    for broker in brokers if "latency" in options.only else ():
        found.trying(partial(found.latency, broker), "LatencyPeer", broker)

    rates = report.table("RocketMQ's benchmark programs, 1 KiB", f"Java {VERSION}")
    for threads in options.threads:
        rates.rows.append(
            found.row(title("Producer", threads), "msgs/s", factor=FACTORS.get(threads))
        )
    for threads in options.threads:
        what = title("TransactionProducer", threads)
        rates.rows.append(found.row(what, "msgs/s", factor=1.2))
    rates.rows += [
        found.row(title("BatchProducer", options.threads[0]), "msgs/s"),
        found.row("Consumer", "msgs/s", factor=1.0),
    ]
    for what in sorted({what for what, _ in found.values if what.endswith(", CPU")}):
        rates.rows.append(found.row(what, "µs of the broker a message", less_is_better=True))
    latencies = report.table(
        f"From send() to the listener at {LATENCY_RATE} messages a second, 1 KiB", f"Java {VERSION}"
    )
    for what, limit in (
        ("latency, p50", 0.6),
        ("latency, p99", 3.0),
        ("latency, largest", None),
        ("send, p50", None),
        ("send, p99", None),
    ):
        latencies.rows.append(found.row(what, "ms", less_is_better=True, limit=limit))
    for table in report.tables:
        table.rows = [row for row in table.rows if row.ours is not None]  # --only leaves some out
    memory = report.table("Memory of the broker", f"Java {VERSION}, heap up to 4 GB")
    for state, sample in (("idle", idle), ("under load, largest", found.loaded)):
        for place, kind in enumerate(("resident", "anonymous")):
            ours, java = (
                sample[name][place] if name in sample else None for name in ("ours", "Java")
            )
            memory.rows.append(
                Row(
                    f"{kind}, {state}",
                    "MiB",
                    ours,
                    java,
                    less_is_better=True,
                    limit=150.0 if kind == "anonymous" and state != "idle" else None,
                )
            )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--seconds",
        type=float,
        default=20.0,
        help="what the figures of a producer cover, at least 10",
    )
    parser.add_argument(
        "--consumer-seconds",
        type=float,
        default=14.0,
        help="what the Consumer's figures cover, at least 10; longer needs more --backlog",
    )
    parser.add_argument(
        "--warm-up", type=float, default=30.0, help="seconds of load before Java is measured"
    )
    parser.add_argument(
        "--threads", type=lambda text: tuple(map(int, text.split(","))), default=THREADS
    )
    parser.add_argument(
        "--only",
        type=lambda text: tuple(text.split(",")),
        default=PARTS,
        help=f"some of {','.join(PARTS)}",
    )
    parser.add_argument(
        "--backlog", type=int, default=2_500_000, help="messages that wait for the Consumer"
    )
    parser.add_argument(
        "--latency-seconds", type=float, default=20.0, help="after half as many that do not count"
    )
    parser.add_argument(
        "--json", type=Path, help="where to write the figures (.bench/java-programs.json)"
    )
    add_record_option(parser)
    parser.add_argument("--no-java-broker", action="store_true", help="our broker alone")
    options = parser.parse_args(argv)
    need_peers()
    report = Report("java-programs")
    with surely_ending(SECONDS_MAX), broker_pair(with_java=not options.no_java_broker) as brokers:
        measure(brokers, brokers[0].folder.parent, options, report)
        report.finish(options.json)
    record_latency(report, options.record)
    return 0


def record_latency(report: Report, file: Path | None) -> None:
    """The clauses about the time from send() to the listener."""
    rows = {row.what: row for table in report.tables for row in table.rows}
    p50, p99 = rows.get("latency, p50"), rows.get("latency, p99")
    if p50 is None or p99 is None or p50.ours is None or p99.ours is None:
        return  # --only has left it out
    if any(note.startswith("latency of ours: only") for note in report.notes):
        return  # these are not the latencies at this rate
    said = (
        f"{p50.ours:.2f} ms (p50), {p99.ours:.2f} ms (p99) from send() to the listener of a push"
        f" consumer at {LATENCY_RATE} messages a second"
    )
    if p50.peer is not None and p99.peer is not None:
        said += f"; {p50.peer:.2f} and {p99.peer:.2f} ms with the Java broker"
    record(file, "42a", p50.ours, said)
    record(file, "86b", p99.ours, said)
    record(file, "154b", p99.ours, said)


if __name__ == "__main__":
    sys.exit(main())
