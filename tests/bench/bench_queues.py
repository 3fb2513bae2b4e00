"""From 1 to 50,000 queues on one broker, ours and the Java broker 5.5.0: rate of sends, memory,
time to start again.

    python tests/bench/bench_queues.py [--counts 1,8,64,1000,10000,50000] [--seconds 5]
        [--rounds 3] [--no-java] [--java-max 50000] [--plot FOLDER] [--steps FILE]

Topics of eight queues each. For every number of queues both brokers begin with an empty store;
every queue gets a message first, then sends of 1 KiB go to all of them in turn, 64 in flight on one
connection. Memory is what the process has for itself (RssAnon) after that. Then the broker is
stopped and started: seconds until it answers. ``--plot`` writes ``queues-rate.svg`` and
``queues-memory.svg``. Java is warmed up at every step, since each has a new process. ``--steps``
keeps the figures of all runs in a file, so that they may come in parts: a later run replaces those
of its own brokers and numbers of queues.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from bench_broker import call, connect, frame, run_shape
from broker_pair import Broker, broker_pair, end_offset_of, warm_up
from figures import add_record_option, record
from line_plot import line_plot
from side_by_side import anonymous_mb

COUNTS = "1,8,64,1000,10000,50000"
PER_TOPIC = 8
TOPICS_A_REQUEST = 500


@dataclass
class Step:
    """What one broker gave with one number of queues."""

    name: str
    queues: int
    rate: float
    p99_ms: float
    memory_mb: float
    memory_before_mb: float
    start_seconds: float


def topic_names(queues: int) -> list[str]:
    return [f"Queues{number:05d}" for number in range(max(1, queues // PER_TOPIC))]


def create_topics(broker: Broker, topics: list[str], per_topic: int) -> None:
    """Many topics a request (UPDATE_AND_CREATE_TOPIC_LIST)."""
    with connect(broker.address) as sock:
        sock.settimeout(600)
        for start in range(0, len(topics), TOPICS_A_REQUEST):
            configs = [
                {
                    "topicName": topic,
                    "readQueueNums": per_topic,
                    "writeQueueNums": per_topic,
                    "perm": 6,
                    "topicFilterType": "SINGLE_TAG",
                    "topicSysFlag": 0,
                    "order": False,
                    "attributes": {},
                }
                for topic in topics[start : start + TOPICS_A_REQUEST]
            ]
            header, _ = call(sock, frame(18, {}, json.dumps({"topicConfigList": configs}).encode()))
            if header["code"] != 0:
                raise SystemExit(f"{broker.name} does not create topics: {header}")


def measure(broker: Broker, queues: int, options: argparse.Namespace) -> Step:
    topics, per_topic = topic_names(queues), min(PER_TOPIC, queues)
    memory_before = anonymous_mb(broker.side.pid)
    create_topics(broker, topics, per_topic)
    first = run_shape(
        broker.address,
        topics[0],
        1,
        64,
        3600,
        requests_max=max(queues, 64),
        topics=topics,
        per_topic=per_topic,
    )
    if first.failed:
        raise SystemExit(
            f"{broker.name} refused {first.failed} of the first messages to {queues} queues"
        )
    time.sleep(min(2.0, options.seconds))  # their files are made
    runs = [
        run_shape(
            broker.address, topics[0], 1, 64, options.seconds, topics=topics, per_topic=per_topic
        )
        for _ in range(options.rounds)
    ]
    if failed := sum(run.failed for run in runs):
        raise SystemExit(f"{broker.name} refused {failed} messages")
    memory = anonymous_mb(broker.side.pid)
    with connect(broker.address) as sock:
        last = end_offset_of(sock, topics[-1], per_topic - 1)
    broker.stop()
    started = broker.start()
    with connect(broker.address) as sock:
        if end_offset_of(sock, topics[-1], per_topic - 1) != last:
            raise SystemExit(f"{broker.name} has lost messages of {topics[-1]}")
    return Step(
        broker.name,
        queues,
        statistics.median(run.rate for run in runs),
        statistics.median(run.p99_ms for run in runs),
        memory,
        memory_before,
        started,
    )


def plot(steps: list[Step], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = list(dict.fromkeys(step.name for step in steps))
    for file, title, y_name, value in (
        (
            "queues-rate.svg",
            "Sends of 1 KiB, 64 in flight",
            "messages a second",
            lambda step: step.rate,
        ),
        ("queues-memory.svg", "Memory without the page cache", "MB", lambda step: step.memory_mb),
    ):
        series = {
            name: [(step.queues, value(step)) for step in steps if step.name == name]
            for name in names
        }
        (folder / file).write_text(line_plot(title, "queues", y_name, series))


def load_steps(path: Path | None) -> list[Step]:
    return (
        [Step(**step) for step in json.loads(path.read_text())]
        if path is not None and path.exists()
        else []
    )


def save_steps(steps: list[Step], path: Path | None) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps([asdict(step) for step in steps], indent=1))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--counts", default=COUNTS)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm-up", type=float, default=20.0)
    parser.add_argument("--no-java", action="store_true")
    parser.add_argument(
        "--java-max",
        type=int,
        default=50_000,
        help="the largest number of queues that Java is asked for",
    )
    parser.add_argument("--plot", type=Path, help="folder for the plots")
    parser.add_argument(
        "--steps",
        type=Path,
        help="file with the figures of earlier runs; those of this one are added",
    )
    add_record_option(parser)
    options = parser.parse_args(argv)
    steps = load_steps(options.steps)
    print(
        "| queues | broker | sends /s | p99 ms | memory MB | of it for the queues | start s"
        " |\n|---:|---|---:|---:|---:|---:|---:|"
    )
    for queues in map(int, options.counts.split(",")):
        with broker_pair(with_java=not options.no_java and queues <= options.java_max) as brokers:
            warm_up(brokers, options.warm_up)
            for broker in brokers:
                step = measure(broker, queues, options)
                steps = sorted(
                    [
                        *(old for old in steps if (old.name, old.queues) != (step.name, queues)),
                        step,
                    ],
                    key=lambda each: (each.name, each.queues),
                )
                save_steps(steps, options.steps)
                own = step.memory_mb - step.memory_before_mb
                print(
                    f"| {queues:,} | {step.name} | {step.rate:,.0f} | {step.p99_ms:.1f} |"
                    f" {step.memory_mb:.0f} | {own:.0f} | {step.start_seconds:.2f} |",
                    flush=True,
                )
                broker.stop()
    if options.plot is not None:
        plot(steps, options.plot)
    ours = [step for step in steps if step.name == "ours"]
    few = next((step for step in ours if step.queues == PER_TOPIC), ours[0])
    more_kb = max(0.0, ours[-1].memory_mb - few.memory_mb) * 1000
    more_queues = max(1, ours[-1].queues - few.queues)
    print(
        f"\nours: {ours[-1].queues:,} queues give {ours[-1].rate / few.rate:.2f} of the rate of"
        f" {few.queues}; {more_kb / more_queues:.1f} KB of memory a queue"
    )
    record(
        options.record,
        "153b",
        ours[-1].rate / few.rate,
        f"{few.rate:,.0f} sends a second with {few.queues} queues, {ours[-1].rate:,.0f} with"
        f" {ours[-1].queues:,}",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
