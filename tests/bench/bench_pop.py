"""POP by the remoting protocol, at our broker and at Java's broker 5.5.0, in turns: ``make
bench-pop``.

    python tests/bench/bench_pop.py [--rounds 3] [--seconds 5] [--uncounted 5] [--warm-up 20]
        [--backlog 400000] [--json FILE] [--no-java-broker]

Two consumers empty a topic of eight queues with messages of 1 KiB: Java's ``DefaultMQPushConsumer``
in POP mode (``PopLoad`` in tests/compat/java: the broker assigns queues, 20 threads, 32 messages a
request), and a simple consumer of our SDK, eight loops that receive 32 and acknowledge each. Both
acknowledge one by one, which is Java's default; the SDK sends what is acknowledged in one turn as a
batch. Each run has a group of its own that begins with the first message. CPU is that of the broker
in the seconds that count, check points and their timers included, by message. Both brokers run all
the time with their default configuration; the consumers share the cores with them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from bench_broker import call, connect, create_topic, frame, run_shape
from broker_pair import TOPIC, Broker, broker_pair, processes
from java_programs import CLIENT_HEAP, VERSION, Measurements, route_known
from side_by_side import cpu_seconds
from verdict_table import Missing, Report, surely_ending

SECONDS_MAX = 1200
WAIT_SECONDS_MAX = 120
JAVA_CLIENT = "Java's push consumer in POP mode"
SDK = "simple consumer of our SDK"


def pop_mode(broker: Broker, group: str) -> None:
    """Create a group, and have its consumers pop."""
    mode = {"topic": TOPIC, "consumerGroup": group, "mode": "POP", "popShareQueueNum": -1}
    with connect(broker.address) as sock:
        for code, body in ((200, {"groupName": group}), (401, mode)):
            header, _ = call(sock, frame(code, {}, json.dumps(body).encode()))
            if header["code"] != 0:
                raise SystemExit(f"{broker.name} refuses request {code} for {group}: {header}")


class PopBench(Measurements):
    """Rates of the consumers, and CPU of the broker."""

    def consumes(self, broker: Broker, number: int) -> None:
        for client in (JAVA_CLIENT, SDK):
            self.runs += 1
            group = f"pop_{number}_{self.runs}"
            pop_mode(broker, group)
            self._consume(broker, client, group)

    def _consume(self, broker: Broker, client: str, group: str) -> None:
        seconds = str(self.options.uncounted), str(self.options.seconds)
        arguments = [broker.namesrv, TOPIC, group, *seconds]
        if client == SDK:
            command = [sys.executable, str(Path(__file__).with_name("pop_client.py")), *arguments]
        else:
            home = self.folder / "client"
            command = processes.java_command(
                VERSION, "PopLoad", *arguments, home=home, heap=CLIENT_HEAP
            )
        log = self.folder / f"{group}.log"
        with (
            log.open("wb") as errors,
            subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True
            ) as process,
        ):
            try:
                self._read(process, "BEGIN", log)
                cpu = cpu_seconds(broker.side.pid)
                _, count, lasted = self._read(process, "POP", log)
                cpu = cpu_seconds(broker.side.pid) - cpu
            finally:
                process.kill()
        self.note(client, broker, int(count) / float(lasted))
        self.note(f"{client}, CPU of the broker", broker, cpu / max(int(count), 1) * 1e6)
        if int(count) * 1.5 > self.options.backlog:
            self.report.notes.append(
                f"{client} at {broker.name} may have emptied the topic; raise --backlog"
            )

    def _read(self, process: subprocess.Popen[str], word: str, log: Path) -> list[str]:
        assert process.stdout is not None
        for line in process.stdout:
            if line.split()[:1] == [word]:
                return line.split()
        raise SystemExit(f"a consumer ended early:\n{log.read_text(errors='replace')[-3000:]}")


def measure(brokers: list[Broker], options: argparse.Namespace, report: Report) -> None:
    bench = PopBench(brokers[0].folder.parent, options, report)
    for broker in brokers:
        create_topic(broker.address, TOPIC)
        route_known(broker, TOPIC)
        if options.warm_up:
            warm_up = options.warm_up if broker.name == "Java" else options.warm_up / 10
            run_shape(broker.address, TOPIC, 8, 8, warm_up)
        missing = options.backlog - sum(broker.end_offsets())
        if missing > 0:
            broker.fill(missing)
    for number in range(options.rounds):
        for broker in brokers:
            bench.consumes(broker, number)
    rows = report.table("POP, messages of 1 KiB", f"Java {VERSION}").rows
    for client in (JAVA_CLIENT, SDK):
        rows.append(bench.row(client, "msgs/s"))
        cpu = f"{client}, CPU of the broker"
        rows.append(bench.row(cpu, "µs a message", less_is_better=True))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="that count, of each run")
    parser.add_argument("--uncounted", type=float, default=5.0, help="of each run, before")
    parser.add_argument("--warm-up", type=float, default=20.0, help="seconds of sends, for Java")
    parser.add_argument("--backlog", type=int, default=400_000, help="messages of the topic")
    parser.add_argument("--json", type=Path, help="for the figures (.bench/pop.json)")
    parser.add_argument("--no-java-broker", action="store_true", help="our broker alone")
    options = parser.parse_args()
    home = processes.java_home(VERSION)
    if home is None or not (home / "classes" / "PopLoad.class").exists():
        raise Missing("RocketMQ's client, or PopLoad (tests/compat/java), is missing: `make peers`")
    report = Report("pop")
    with surely_ending(SECONDS_MAX), broker_pair(with_java=not options.no_java_broker) as brokers:
        measure(brokers, options, report)
        report.finish(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
