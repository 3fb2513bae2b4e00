"""Batched publishing, our broker and Kafka 3.9.1 in one run: ``make bench-kafka``
(``tests/compat/install_peers.py --kafka`` brings Kafka).

    python tests/bench/kafka_side_by_side.py [--seconds 3] [--rounds 3]
        [--records 1500000] [--json FILE] [--no-kafka]

Kafka is one KRaft node with its defaults and eight partitions, under its own ProducerPerformance
(acks=all, linger 5 ms, batches of 64 KiB, records of 1 KiB) and ConsumerPerformance. Of what a
producer prints, the best five seconds count, since the first ones have the JVM's start in them. Our
broker, with its defaults, too, takes batch requests of 64 KiB that were made beforehand
(connections x requests in flight), so that the broker is measured and not a client in Python; what
our SDK reaches is stated beside it. Neither side waits for a disk. Each measurement of ours is made
with two topics: an ordinary one, where every message of a batch becomes a record, and one with
batch consume queues (``queue.type=BatchCQ``), where the batch stays one, as in Kafka. At the end
every message that was acknowledged is read back, once each, or the program fails. Both run all the
time; the load goes to one at a time, in turns.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import trio
from batch_load import BATCH_BYTES, BatchTemplates, Ledger, read_queues, run_batches
from bench_broker import (
    PULL_COUNT,
    QUEUES,
    PullTemplates,
    ShapeResult,
    create_topic,
    end_offset,
    parse_shapes,
    run_shape,
)
from broker_pair import TOPIC, our_server, processes
from java_programs import memory_mb, route_known
from side_by_side import cpu_seconds
from verdict_table import Missing, Report, Row, surely_ending

from triomq import Message, Producer, ProducerSettings, PullConsumer

VERSION = "3.9.1"
HOME = processes.PEERS / f"kafka-{VERSION}"
SECONDS_MAX = 900
SHAPES = "1x1,1x5,4x4"
PULLS = "1x1,1x8"
BATCH_TOPIC = f"{TOPIC}Batches"
KINDS = {TOPIC: "ordinary topic", BATCH_TOPIC: "BatchCQ topic"}
FILLED = 20_000
"""Messages of a queue, at least, before it is read again and again."""
KAFKA_HEAP = "1g"
CLIENT_HEAP = "512m"
CLIENT_SECONDS_MAX = 240
SDK_BATCH = 60
"""messages, so that it is about 64 KiB"""
SDK_TASKS = 256

PRODUCED = re.compile(r"([\d.]+) records/sec \(")


def need_kafka() -> None:
    if shutil.which("java") is None:
        raise Missing(
            "java is missing: install a JDK of at least 17 (Debian: apt-get install"
            " openjdk-17-jdk-headless)"
        )
    if not (HOME / ".complete").exists():
        raise Missing(
            f"Kafka {VERSION} is missing: run `python tests/compat/install_peers.py --kafka` (needs"
            " Maven: apt-get install maven), or give --no-kafka"
        )


def java(main: str, *arguments: str, heap: str = CLIENT_HEAP) -> list[str]:
    return ["java", f"-Xmx{heap}", "-XX:+UseG1GC", "-cp", f"{HOME / 'jars'}/*", main, *arguments]


@dataclass
class Kafka:
    """One node that runs."""

    address: str
    pid: int

    def create_topic(self) -> None:
        run(
            java(
                "org.apache.kafka.tools.TopicCommand",
                "--bootstrap-server",
                self.address,
                "--create",
                "--topic",
                TOPIC,
                "--partitions",
                str(QUEUES),
            )
        )

    def produce(self, records: int) -> float:
        """Records a second."""
        properties = [
            "acks=all",
            "linger.ms=5",
            f"batch.size={BATCH_BYTES}",
            f"bootstrap.servers={self.address}",
        ]
        arguments = [
            "--topic",
            TOPIC,
            "--num-records",
            str(records),
            "--record-size",
            "1024",
            "--throughput",
            "-1",
            "--producer-props",
            *properties,
        ]
        said = run(java("org.apache.kafka.tools.ProducerPerformance", *arguments))
        lines = said.strip().splitlines()
        if not any(line.startswith(f"{records} records sent") for line in lines):
            raise SystemExit(f"ProducerPerformance did not send {records} records:\n{said[-3000:]}")
        return max(float(rate) for rate in PRODUCED.findall(said))

    def consume(self, records: int) -> tuple[float, float]:
        """Records a second, over the whole run and while it fetched."""
        arguments = [
            "--bootstrap-server",
            self.address,
            "--topic",
            TOPIC,
            "--messages",
            str(records),
            "--timeout",
            "30000",
            "--hide-header",
            "--group",
            f"perf-{time.time_ns()}",
        ]
        said = run(java("org.apache.kafka.tools.ConsumerPerformance", *arguments))
        line = next((line for line in said.splitlines() if line.count(",") == 9), None)
        if line is None or float(line.split(",")[4]) < records:
            raise SystemExit(f"ConsumerPerformance did not read {records} records:\n{said[-3000:]}")
        fields = line.split(",")
        return float(fields[5]), float(fields[9])


def run(command: list[str]) -> str:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=CLIENT_SECONDS_MAX,
        check=False,
    )
    if done.returncode:
        raise SystemExit(
            f"{command[-1]}: {command} ended with {done.returncode}:\n{done.stdout[-3000:]}"
        )
    return done.stdout


@contextmanager
def kafka_node(folder: Path) -> Iterator[Kafka]:
    """A broker that is its own controller, on a fresh store."""
    folder.mkdir(parents=True)
    port = processes.free_port(span=2)
    properties = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{port + 1}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{port + 1}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": folder / "data",
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
    }
    conf = folder / "server.properties"
    conf.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    run(java("kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", str(conf)))
    with processes.running(
        java("kafka.Kafka", str(conf), heap=KAFKA_HEAP), folder / "kafka.log", port=port, cwd=folder
    ) as process:
        yield Kafka(f"127.0.0.1:{port}", process.pid)


async def sdk_rates(namesrv: str, topic: str, messages: int) -> dict[str, float]:
    """What one process reaches with our SDK: batch messages, automatic batches, polls."""
    body = b"x" * 1024
    rates = {}

    async def timed(name: str, tasks: int, count: int, work: object) -> None:
        begun = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(tasks):
                nursery.start_soon(work, count // tasks)  # type: ignore[arg-type]
        rates[name] = count // tasks * tasks / (time.perf_counter() - begun)

    async with Producer(namesrv, group="bench-batches") as producer:

        async def batches(count: int) -> None:
            for _ in range(count // SDK_BATCH):
                await producer.send_batch(
                    [Message(topic=topic, body=body, tag="TagA") for _ in range(SDK_BATCH)]
                )

        await timed("SDK, batch messages", 4, messages // (4 * SDK_BATCH) * 4 * SDK_BATCH, batches)
    async with Producer(
        namesrv,
        group="bench-automatic",
        settings=ProducerSettings(auto_batch=True, auto_batch_hold=0),
    ) as producer:

        async def singles(count: int) -> None:
            for _ in range(count):
                await producer.send(topic, body, tag="TagA")

        await timed(f"SDK, automatic batches, {SDK_TASKS} tasks", SDK_TASKS, messages // 2, singles)
    async with PullConsumer(
        namesrv, group=f"bench-{time.time_ns()}", subscriptions=topic, consume_from="first"
    ) as consumer:
        begun, count = time.perf_counter(), 0
        with trio.fail_after(CLIENT_SECONDS_MAX):
            while count < messages:
                count += len(await consumer.poll(max_messages=256))
        rates["SDK, polls of 256"] = count / (time.perf_counter() - begun)
    return rates


def published(kind: str, connections: int, in_flight: int) -> str:
    return f"{kind}, batch requests of 64 KiB, {connections} × {in_flight}"


def pulled(kind: str, step: int, connections: int, in_flight: int) -> str:
    return f"{kind}, pulls of {step}, {connections} × {in_flight}"


def measure(options: argparse.Namespace, report: Report) -> None:
    folder = Path(tempfile.mkdtemp(prefix="kafka-", dir=os.environ.get("BENCH_DIR")))
    figures: dict[str, list[float]] = {}

    def note(what: str, value: float) -> None:
        figures.setdefault(what, []).append(value)
        print(f"{what}: {value:,.1f}", flush=True)

    def median(what: str) -> float | None:
        return statistics.median(figures[what]) if what in figures else None

    try:
        with ExitStack() as stack:
            kafka = None if options.no_kafka else stack.enter_context(kafka_node(folder / "kafka"))
            ours = our_server(
                folder / "ours",
                stack.enter_context(processes.our_name_server(folder / "ours")),
                "broker-ours",
            )
            stack.callback(ours.stop)
            ours.start()
            ledgers = {topic: Ledger() for topic in KINDS}
            steps = {TOPIC: PULL_COUNT, BATCH_TOPIC: BatchTemplates(BATCH_TOPIC, 1).messages_each}
            for topic, attributes in zip(KINDS, ("", "+queue.type=BatchCQ")):
                create_topic(ours.address, topic, attributes)
                route_known(ours, topic)
            if kafka is not None:
                kafka.create_topic()
                kafka.produce(options.records)  # its compiler is warm

            def load(topic: str, *shape: float, **limits: int) -> ShapeResult:
                result = run_batches(
                    ours.address,
                    topic,
                    int(shape[0]),
                    int(shape[1]),
                    shape[2],
                    ledger=ledgers[topic],
                    **limits,
                )
                if result.failed:
                    raise SystemExit(f"{result.failed} batch requests were refused")
                return result

            for topic in KINDS:
                load(topic, 1, 4, min(1.0, options.seconds))
            for _ in range(options.rounds):
                if kafka is not None:
                    cpu = cpu_seconds(kafka.pid)
                    note("Kafka", kafka.produce(options.records))
                    note("Kafka CPU", (cpu_seconds(kafka.pid) - cpu) / options.records * 1e6)
                for topic, kind in KINDS.items():
                    for connections, in_flight in parse_shapes(options.shapes):
                        cpu = cpu_seconds(ours.side.pid)
                        result = load(topic, connections, in_flight, options.seconds)
                        note(published(kind, connections, in_flight), result.rate)
                        note(
                            f"{published(kind, connections, in_flight)}, CPU",
                            (cpu_seconds(ours.side.pid) - cpu) / result.messages * 1e6,
                        )
            for topic in KINDS:
                while ours.end_offsets(topic)[0] < FILLED:
                    load(topic, 1, 4, 60, messages_max=50_000)
            for _ in range(options.rounds):
                if kafka is not None:
                    whole, fetching = kafka.consume(options.records)
                    note("Kafka consumes", whole)
                    note("Kafka fetches", fetching)
                for topic, kind in KINDS.items():
                    for connections, in_flight in parse_shapes(PULLS):
                        templates = PullTemplates(
                            topic, in_flight, end_offset(ours.address, topic), steps[topic]
                        )
                        result = run_shape(
                            ours.address,
                            topic,
                            connections,
                            in_flight,
                            options.seconds / 2,
                            templates=templates,
                        )
                        if result.failed:
                            raise SystemExit(f"{result.failed} pulls gave nothing")
                        note(pulled(kind, steps[topic], connections, in_flight), result.rate)
            for topic, ledger in ledgers.items():
                for data in read_queues(ours.address, topic):
                    ledger.read(data)
                print(
                    f"{KINDS[topic]}: each of {ledger.check():,} messages was read once", flush=True
                )
            sdk = {
                kind: trio.run(sdk_rates, ours.namesrv, topic, options.sdk_messages)
                for topic, kind in KINDS.items()
            }
            memory = [memory_mb(ours.side.pid), memory_mb(kafka.pid) if kafka is not None else None]
    finally:
        shutil.rmtree(folder, ignore_errors=True)

    peer = f"Kafka {VERSION}"
    table = report.table(
        "Batched publishing of 1 KiB records; Kafka: ProducerPerformance with acks=all, 5 ms,"
        " 64 KiB",
        peer,
    )
    for kind in KINDS.values():
        for connections, in_flight in parse_shapes(options.shapes):
            what = published(kind, connections, in_flight)
            table.rows.append(Row(what, "msgs/s", median(what), median("Kafka"), factor=1.0))
            table.rows.append(
                Row(
                    f"{what}, CPU",
                    "µs of the broker a message",
                    median(f"{what}, CPU"),
                    median("Kafka CPU"),
                    less_is_better=True,
                )
            )
        table.rows += [
            Row(
                f"{kind}, {what}",
                "msgs/s",
                rate,
                median("Kafka"),
                note="the client's rate, in Python",
            )
            for what, rate in sdk[kind].items()
            if "poll" not in what
        ]
    table = report.table("Reading them; Kafka: ConsumerPerformance, while it fetches", peer)
    for topic, kind in KINDS.items():
        for connections, in_flight in parse_shapes(PULLS):
            what = pulled(kind, steps[topic], connections, in_flight)
            table.rows.append(Row(what, "msgs/s", median(what), median("Kafka fetches")))
        table.rows += [
            Row(
                f"{kind}, {what}",
                "msgs/s",
                rate,
                median("Kafka consumes"),
                note="the client's rate, in Python; Kafka: over its whole run",
            )
            for what, rate in sdk[kind].items()
            if "poll" in what
        ]
    table = report.table("Memory of the broker afterwards", f"{peer}, heap up to 1 GB")
    for place, kind in enumerate(("resident", "anonymous")):
        values = [sample[place] if sample is not None else None for sample in memory]
        table.rows.append(Row(kind, "MiB", *values, less_is_better=True))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="per measurement of ours")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--records",
        type=int,
        default=1_500_000,
        help="of each run of Kafka's programs; also its warm-up",
    )
    parser.add_argument("--sdk-messages", type=int, default=200_000)
    parser.add_argument("--shapes", default=SHAPES, help="connections x batch requests in flight")
    parser.add_argument("--json", type=Path, help="where to write the figures (.bench/kafka.json)")
    parser.add_argument("--no-kafka", action="store_true", help="our broker alone")
    options = parser.parse_args(argv)
    if not options.no_kafka:
        need_kafka()
    report = Report("kafka")
    with surely_ending(SECONDS_MAX):
        measure(options, report)
        report.finish(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
