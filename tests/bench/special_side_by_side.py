"""Timed messages, requests with replies and recalls on our broker and the Java broker 5.5.0, in
turns, with the official Java client: ``make bench-special``.

    python tests/bench/special_side_by_side.py [--rounds 2] [--only timers,requests,recalls]
        [--json FILE] [--no-java-broker]

``TimerProducer`` and ``TimerConsumer`` are RocketMQ's own, unmodified. The producer gives each
message a time of delivery that lies two minutes ahead and more, in slots of one second (10 ms after
the full second), and prints its rate every ten seconds: the best line is the figure. First it sends
a few thousand for the lateness, then as fast as it can, with times in the next 28 hours; while the
former wait, requests and recalls are measured. TimerConsumer says how much later than its time a
message came to the listener. Its percentiles are those of a set: a lateness that a thousand
messages had counts once. So the store times of all messages are read from the log as well.

``RequestLoad`` (``DefaultMQProducer.request``, a push consumer that replies) and ``RecallLoad``
(``recallMessage``) are in tests/compat/java; each is one JVM, which shares the cores with the
broker. How busy the broker and that JVM were stands in the table: where the JVM has most of the
machine, it is the limit. Both brokers run with their default configuration and
``recallMessageEnable``. Java is warmed up first.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench_broker import QUEUES, call, connect, create_topic, frame
from broker_pair import Broker, broker_pair, end_offset_of, warm_up
from java_programs import (
    CLIENT_HEAP,
    SNAPSHOTS,
    VERSION,
    Measurements,
    Stalled,
    need_peers,
    printed_rate,
    processes,
    program,
    route_known,
)
from side_by_side import cpu_seconds
from verdict_table import Missing, Report, surely_ending

from triomq.remoting.protocol.record_reader import decode_records

PARTS = ("timers", "requests", "recalls")
SECONDS_MAX = 1800
THREADS = (64, 8, 1)
FACTORS = {64: 1.0, 8: 1.2, 1: 1.2}
"""With 64 threads the client is the limit: its JVM has most of the two cores."""
TIMED_FACTOR = 1.2
LATE_FACTOR = 10.0
WHEEL_TOPIC = "rmq_sys_wheel_timer"
"""Both brokers keep what waits in its queue 0."""
RATE_THREADS = 16
"""TimerProducer's default"""
LATE_THREADS = 10
FIRST_AFTER = 120
"""Seconds from TimerProducer's start to its first time of delivery."""
SENT = re.compile(r"Send TPS: (\d+), .*Send Failed: (\d+), Response Failed: (\d+)")
LATE = re.compile(
    r"Consume TPS: (\d+), Avg delayedDuration: +(-?[\d.]+|NaN), Max delayedDuration: (-?\d+),"
    r" .*%50: (-?\d+); .*%99: (-?\d+);"
)


def need_loads() -> None:
    need_peers()
    home = processes.java_home(VERSION)
    if home and not (home / "classes" / "RecallLoad.class").exists():
        raise Missing("RecallLoad (tests/compat/java) is not compiled: run `make peers`")


@dataclass
class Waiting:
    """Timed messages of one broker, and when they are due at the earliest and the latest."""

    broker: Broker
    topic: str
    count: int
    first: float
    last: float
    log: Path


def waiting_count(broker: Broker) -> int:
    with connect(broker.address) as sock:
        return end_offset_of(sock, WHEEL_TOPIC, 0)


def until(reached: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.1)


def ready_topic(broker: Broker, topic: str) -> None:
    create_topic(broker.address, topic)
    route_known(broker, topic)


class Special:
    """What is measured on one broker at a time."""

    def __init__(self, found: Measurements, options: argparse.Namespace) -> None:
        self.found, self.options = found, options
        self.logs = 0

    def warm_java(self, broker: Broker) -> None:
        """Its compiler needs the load that is measured; what is noted here does not count."""
        ready_topic(broker, "Warm")
        seconds = self.options.warm_up / 2
        self._calls(broker, "RequestLoad", "Warm", 0, seconds, max(THREADS))
        self._calls(broker, "RecallLoad", "Warm", seconds / 2, 0, seconds / 2, max(THREADS))
        self.found.values.clear()

    def log(self, name: str) -> Path:
        self.logs += 1
        return self.found.folder / f"{name}-{self.logs}.log"

    def send_timed(self, broker: Broker, topic: str) -> Waiting:
        """So many messages for each of the next slots; return when all wait."""
        ready_topic(broker, topic)
        each = max(1, self.options.due // LATE_THREADS)
        count, before = LATE_THREADS * each * self.options.slots, waiting_count(broker)
        begun = time.time()
        words = ["-n", broker.namesrv, "-t", topic, "-tc", str(LATE_THREADS), "-mt", str(each)]
        words += ["-st", str(self.options.slots)]
        with program("timer.TimerProducer", *words, log=self.log("timed")):
            until(
                lambda: waiting_count(broker) - before >= count,
                FIRST_AFTER / 2,
                f"{count} messages of TimerProducer in {WHEEL_TOPIC} of {broker.name}",
            )
        first, last = begun + FIRST_AFTER - 1, time.time() + FIRST_AFTER + self.options.slots + 1
        return Waiting(broker, topic, count, first, last, self.log("late"))

    def timed_rate(self, broker: Broker, topic: str) -> None:
        """What TimerProducer says when it sends as fast as it can; what it has sent until then is
        due in 100 seconds out of 1,000 slots.
        """
        ready_topic(broker, topic)
        before, cpu, log = waiting_count(broker), cpu_seconds(broker.side.pid), self.log("timed")
        words = ["-n", broker.namesrv, "-t", topic, "-tc", str(RATE_THREADS)]
        words += ["-st", "1000", "-sd", "100000", "-mt", "200"]
        with program("timer.TimerProducer", *words, log=log) as process:
            rate = printed_rate(log, process, SENT, SNAPSHOTS - 1 + self.options.lines)
            spent, count = cpu_seconds(broker.side.pid) - cpu, waiting_count(broker) - before
        if count < rate:
            raise SystemExit(
                f"TimerProducer says {rate:,.0f} a second, but {count} messages wait in"
                f" {broker.name}"
            )
        self.found.note("TimerProducer", broker, rate)
        self.found.note("TimerProducer, CPU", broker, spent / count * 1e6)

    def lateness(self, waiting: Waiting) -> None:
        """What TimerConsumer has printed when all have come, and what the log says."""
        broker, count = waiting.broker, waiting.count
        until(
            lambda: sum(broker.end_offsets(waiting.topic, QUEUES)) >= count,
            max(0.0, waiting.last - time.time()) + 60,
            f"delivery of {count} timed messages by {broker.name}",
        )
        time.sleep(1)  # until the consumer has the last one
        seen = len(printed(waiting.log))
        until(
            lambda: len(printed(waiting.log)) > seen,
            30,
            f"TimerConsumer's figures in {waiting.log}",
        )
        lines = [line for line in printed(waiting.log) if line[1] != "NaN"]
        if not lines:
            raise SystemExit(f"TimerConsumer got nothing from {broker.name}: see {waiting.log}")
        weight = sum(int(line[0]) for line in lines)
        mean = sum(int(line[0]) * float(line[1]) for line in lines) / max(weight, 1)
        self.found.note("TimerConsumer, mean", broker, mean)
        for what, text in zip(("longest", "p50", "p99"), lines[-1][2:], strict=True):
            self.found.note(f"TimerConsumer, {what}", broker, float(text))
        late = sorted(stored_late(broker, waiting.topic))
        if len(late) != count:
            raise SystemExit(f"{broker.name} delivered {len(late)} of {count} timed messages")
        self.found.note("log, p50", broker, late[len(late) // 2])
        self.found.note("log, p99", broker, late[len(late) * 99 // 100])
        self.found.note("log, longest", broker, late[-1])

    def requests(self, broker: Broker, number: int) -> None:
        topic = f"Requests{number}"
        ready_topic(broker, topic)
        seconds = [self.options.calls_warm_up, self.options.calls_seconds]
        self._calls(broker, "RequestLoad", topic, *seconds, *self.options.threads)

    def recalls(self, broker: Broker, number: int) -> None:
        topic, before = f"Recalls{number}", waiting_count(broker)
        ready_topic(broker, topic)
        seconds = [self.options.recalls_sent, self.options.calls_warm_up / 5]
        seconds.append(self.options.calls_seconds)
        # The fewest first: the last ones may run out of messages, and end earlier.
        threads = sorted(self.options.threads)
        counted = self._calls(broker, "RecallLoad", topic, *seconds, *threads)
        if (stored := waiting_count(broker) - before) < counted:
            raise SystemExit(
                f"RecallLoad says {counted} sends and recalls, but {broker.name} has stored"
                f" {stored} of them"
            )

    def _calls(self, broker: Broker, load: str, topic: str, *numbers: float) -> int:
        """Run a load, and note what it prints; return the number of its calls that counted."""
        command = processes.java_command(
            VERSION,
            load,
            broker.namesrv,
            topic,
            *map(str, numbers),
            home=self.found.folder / "client",
            heap=CLIENT_HEAP,
        )
        log, total = self.log(load), 0
        cpu = client = 0.0
        with log.open("wb") as errors:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                kind, *fields = line.rstrip("\n").split("\t")
                if kind == "BEGIN":
                    cpu, client = cpu_seconds(broker.side.pid), cpu_seconds(process.pid)
                elif kind == "CALLS":
                    what, calls, seconds = named(*fields[:2]), int(fields[2]), float(fields[3])
                    total += calls
                    cpu = cpu_seconds(broker.side.pid) - cpu
                    client = cpu_seconds(process.pid) - client
                    if int(fields[6]):
                        self.found.report.notes.append(
                            f"{what} on {broker.name}: {fields[6]} calls failed, as they do where"
                            " a broker waits for a processor"
                        )
                    self.found.note(what, broker, calls / seconds)
                    self.found.note(f"{what}, p50", broker, float(fields[4]))
                    self.found.note(f"{what}, p99", broker, float(fields[5]))
                    self.found.note(f"{what}, CPU", broker, cpu / calls * 1e6)
                    self.found.note(f"{what}, broker busy", broker, cpu / seconds)
                    self.found.note(f"{what}, client busy", broker, client / seconds)
            process.wait(timeout=20)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        if process.returncode:
            raise Stalled(f"{load} ended with {process.returncode}:\n{log.read_text()[-3000:]}")
        return total


def named(kind: str, threads: str) -> str:
    return f"{kind}, {threads} {'thread' if threads == '1' else 'threads'}"


def printed(log: Path) -> list[tuple[str, ...]]:
    return LATE.findall(log.read_text(errors="replace"))


def stored_late(broker: Broker, topic: str) -> list[int]:
    """Store time minus time of delivery of each message of a topic, in ms."""
    late: list[int] = []
    fields = {
        "consumerGroup": "bench", "topic": topic, "maxMsgNums": "32", "sysFlag": "4",
        "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
    }  # fmt: skip
    with connect(broker.address) as sock:
        for queue, end in enumerate(broker.end_offsets(topic, QUEUES)):
            offset = 0
            while offset < end:
                place = {"queueId": str(queue), "queueOffset": str(offset)}
                header, body = call(sock, frame(11, {**fields, **place}))
                if header["code"] != 0:
                    raise SystemExit(f"{broker.name} does not give message {offset}: {header}")
                messages = list(decode_records(body))
                offset += len(messages)
                late += [
                    message.store_timestamp - int(message.properties["MY_RECORD_TIMER_DELIVER_MS"])
                    for message in messages
                ]
    return late


def one_round(special: Special, brokers: list[Broker], number: int) -> None:
    """While the timed messages wait, the rest is measured, but nothing when the first are due."""
    only, options, waits = special.options.only, special.options, []
    for broker in brokers if "timers" in only else ():
        waits.append(special.send_timed(broker, f"Timed{number}"))
        special.timed_rate(broker, f"TimedRate{number}")
    lasts = options.calls_warm_up + len(options.threads) * (options.calls_seconds + 1) + 8
    jobs = [
        (measured, broker, lasts + more)
        for part, measured, more in (
            ("requests", special.requests, 0.0),
            ("recalls", special.recalls, options.recalls_sent * len(options.threads)),
        )
        for broker in brokers
        if part in only
    ]
    first = min((waiting.first for waiting in waits), default=float("inf"))
    with contextlib.ExitStack() as stack:
        for waiting in waits:
            words = ["-n", waiting.broker.namesrv, "-t", waiting.topic]
            stack.enter_context(program("timer.TimerConsumer", *words, log=waiting.log))
        while jobs and time.time() + jobs[0][2] < first:
            measured, broker, _ = jobs.pop(0)
            measured(broker, number)
        for waiting in waits:
            special.lateness(waiting)
    for measured, broker, _ in jobs:
        measured(broker, number)


def fill_in(report: Report, found: Measurements, options: argparse.Namespace) -> None:
    java = f"Java {VERSION}"
    timed = report.table(
        f"TimerProducer ({RATE_THREADS} threads) and TimerConsumer ({options.due:,} due in each of"
        f" {options.slots} seconds), 1 KiB",
        java,
    )
    timed.rows = [
        found.row("TimerProducer", "msgs/s", factor=TIMED_FACTOR),
        found.row("TimerProducer, CPU", "µs of the broker a message", less_is_better=True),
        found.row("TimerConsumer, mean", "ms late", less_is_better=True),
        found.row("TimerConsumer, p50", "ms late", less_is_better=True, note="of the set"),
        found.row(
            "TimerConsumer, p99",
            "ms late",
            less_is_better=True,
            factor=LATE_FACTOR,
            note="of the set",
        ),
        found.row("TimerConsumer, longest", "ms late", less_is_better=True),
        found.row("log, p50", "ms late", less_is_better=True),
        found.row("log, p99", "ms late", less_is_better=True, factor=LATE_FACTOR),
        found.row("log, longest", "ms late", less_is_better=True),
    ]
    for kind, heading in (("requests", "Requests with replies, 1 KiB"), ("recalls", "Recalls")):
        table = report.table(heading, java)
        for threads in options.threads:
            what = named(kind, str(threads))
            table.rows += [
                found.row(what, "/s", factor=FACTORS.get(threads), note=busy(found, what)),
                found.row(f"{what}, p50", "ms", less_is_better=True),
                found.row(f"{what}, p99", "ms", less_is_better=True),
                found.row(f"{what}, CPU", "µs of the broker each", less_is_better=True),
            ]
        if kind == "recalls":
            sends = named("timed sends", "64")
            table.rows.append(found.row(sends, "/s", note=busy(found, sends)))
    for table in report.tables:
        table.rows = [row for row in table.rows if row.ours is not None]  # --only leaves some out
    report.tables = [table for table in report.tables if table.rows]


def busy(found: Measurements, what: str) -> str:
    """Say how many cores the broker and the client's JVM had."""
    parts = []
    for name in ("ours", "Java"):
        broker = found.median(f"{what}, broker busy", name)
        client = found.median(f"{what}, client busy", name)
        if broker is not None and client is not None:
            parts.append(f"{name} {broker:.2f} + {client:.2f}")
    return "cores of broker + client: " + ", ".join(parts) if parts else ""


def parsed(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--warm-up", type=float, default=20.0, help="seconds of load on Java before all"
    )
    parser.add_argument(
        "--lines", type=int, default=2, help="lines of TimerProducer, one every ten seconds"
    )
    parser.add_argument("--due", type=int, default=1000, help="messages due in each second")
    parser.add_argument("--slots", type=int, default=15, help="seconds in which some are due")
    parser.add_argument("--calls-seconds", type=float, default=4.0, help="for each --threads")
    parser.add_argument(
        "--calls-warm-up", type=float, default=10.0, help="of RequestLoad; a fifth of RecallLoad"
    )
    parser.add_argument(
        "--recalls-sent", type=float, default=4.0, help="seconds of sends before each --threads"
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
    parser.add_argument("--json", type=Path, help="where the figures go (.bench/special.json)")
    parser.add_argument("--no-java-broker", action="store_true", help="our broker alone")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    options = parsed(argv)
    need_loads()
    report = Report("special")
    settings = {"recallMessageEnable": "true"}
    with (
        surely_ending(SECONDS_MAX),
        broker_pair(with_java=not options.no_java_broker, **settings) as brokers,
    ):
        found = Measurements(brokers[0].folder.parent, options, report)
        special = Special(found, options)
        warm_up(brokers, options.warm_up / 2)
        for broker in brokers if options.warm_up else ():
            if broker.name == "Java":
                special.warm_java(broker)
        for number in range(options.rounds):
            one_round(special, brokers, number)
        fill_in(report, found, options)
        report.finish(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
