"""Spark's rates with our brokers, beside a null source and beside Spark's Kafka source and sink,
in one run: ``make bench-spark`` (about six minutes).

    python tests/bench/spark_side_by_side.py [--rounds 3] [--rows 500000] [--json FILE] [--no-kafka]

Two of our brokers with four queues of each topic, and Kafka 3.9.1 with eight partitions on one
node, all with their defaults. Ours have the SDK's batches, Kafka has what Spark's Kafka sink wrote:
the same number of rows with keys and bodies of the same size. A query reads its topic into
``noop``. Beside the null source, which repeats ready record batches, the installed PySpark reads;
beside Kafka PySpark 4.2.0, the newest for which Spark's Kafka source is published. Everything
shares the machine's cores, so only rates of one run may be compared.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import trio

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

import processes
from kafka_side_by_side import Kafka, java, kafka_node, need_kafka, run
from verdict_table import Missing, Report, Row, surely_ending

from triomq import Message, Producer
from triomq.client.admin.admin import Admin

HERE = Path(__file__).resolve().parent
SPARK_KAFKA = processes.PEERS / "spark-kafka-4.2.0"
BROKERS = ("broker-a", "broker-b")
QUEUES_EACH = 4
SECONDS_MAX = 1800
BODIES = {"Spark1024": 1024, "Spark200": 200}
SMALL_FACTOR = 2
"""a topic of small bodies has more rows, so that a query is not all start-up"""
SINK_SHARE = 2
"""rows of a topic : rows that a sink sends in a round"""
SDK_BATCH_BYTES = 64 * 1024
SDK_TASKS = 4
SESSION_SECONDS_MAX = 900


def need_spark_kafka() -> None:
    need_kafka()
    if not (SPARK_KAFKA / ".complete").exists():
        raise Missing(
            "Spark's Kafka source is missing: run `python tests/compat/install_peers.py --kafka"
            " --spark-kafka`, or give --no-kafka"
        )


async def create_topics(namesrv: str, addresses: list[str], topics: list[str]) -> None:
    async with Admin(namesrv) as admin:
        for topic in topics:
            for address in addresses:
                answers = await admin.update_topic(
                    topic, address=address, read_queues=QUEUES_EACH, write_queues=QUEUES_EACH
                )
                if answers.failures:
                    raise SystemExit(f"{topic} was not created: {answers.failures}")


async def fill(namesrv: str, topic: str, rows: int, size: int) -> None:
    """Send rows with a key and a tag, in batches."""
    each = SDK_BATCH_BYTES // (size + 100)
    async with Producer(namesrv, group="bench-spark") as producer:

        async def send(first: int, end: int) -> None:
            for start in range(first, end, each):
                await producer.send_batch(
                    [
                        Message(
                            topic=topic,
                            body=str(row).encode().ljust(size, b"x"),
                            keys=[f"key-{row}"],
                            tag=f"tag{row % 8}",
                        )
                        for row in range(start, min(end, start + each))
                    ]
                )

        async with trio.open_nursery() as nursery:
            for task in range(SDK_TASKS):
                nursery.start_soon(send, rows * task // SDK_TASKS, rows * (task + 1) // SDK_TASKS)


def create_kafka_topic(kafka: Kafka, topic: str) -> None:
    arguments = ["--bootstrap-server", kafka.address, "--create", "--topic", topic]
    partitions = str(QUEUES_EACH * len(BROKERS))
    run(java("org.apache.kafka.tools.TopicCommand", *arguments, "--partitions", partitions))


@contextmanager
def our_cluster(folder: Path) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield the name server, and address -> process id of the brokers."""
    with ExitStack() as stack:
        namesrv = stack.enter_context(processes.our_name_server(folder))
        brokers = [
            stack.enter_context(processes.our_broker(folder / name, name, namesrv))
            for name in BROKERS
        ]
        yield namesrv, {address: process.pid for address, process in brokers}


def measured(python: str, job: dict[str, Any], folder: Path) -> dict[str, dict[str, float]]:
    """Run a session; return what it measured -> name of the figure -> median."""
    (folder / "job.json").write_text(json.dumps(job))
    found: dict[str, dict[str, list[float]]] = {}
    process = subprocess.Popen(
        [python, str(HERE / "bench_spark.py"), str(folder / "job.json")],
        stdout=subprocess.PIPE,
        stderr=(log := (folder / "session.log").open("w")),
        stdin=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if not line.startswith("{"):
                continue
            print(line.rstrip(), flush=True)
            result = json.loads(line)
            figures = found.setdefault(result.pop("what"), {})
            for name, value in result.items():
                figures.setdefault(name, []).append(value)
        if process.wait(SESSION_SECONDS_MAX):
            raise SystemExit(f"the session failed:\n{(folder / 'session.log').read_text()[-4000:]}")
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
        log.close()
    return {
        what: {name: statistics.median(values) for name, values in figures.items()}
        for what, figures in found.items()
    }


def measure(options: argparse.Namespace, report: Report) -> None:
    folder = Path(tempfile.mkdtemp(prefix="spark-bench-", dir=os.environ.get("BENCH_DIR")))
    topics = {
        topic: (options.rows * (1 if size >= 1024 else SMALL_FACTOR), size)
        for topic, size in BODIES.items()
    }
    sink_topics = {
        f"{topic}Sink": (rows // SINK_SHARE, size) for topic, (rows, size) in topics.items()
    }
    try:
        with ExitStack() as stack:
            namesrv, brokers = stack.enter_context(our_cluster(folder / "ours"))
            trio.run(create_topics, namesrv, list(brokers), [*topics, *sink_topics, "SparkLatency"])
            for topic, (rows, size) in topics.items():
                trio.run(fill, namesrv, topic, rows, size)
            job = {
                "namesrv": namesrv,
                "pids": list(brokers.values()),
                "rounds": options.rounds,
                "topics": topics,
                "sink_topics": sink_topics,
            }
            alone = measured(sys.executable, {**job, "latency_seconds": 15.0}, folder)
            beside: dict[str, dict[str, float]] = {}
            if not options.no_kafka:
                kafka = stack.enter_context(kafka_node(folder / "kafka"))
                for topic in (*topics, *sink_topics):
                    create_kafka_topic(kafka, topic)
                jars = ",".join(str(jar) for jar in sorted((SPARK_KAFKA / "jars").glob("*.jar")))
                python = str(SPARK_KAFKA / "venv" / "bin" / "python")
                job["pids"] = [*brokers.values(), kafka.pid]
                beside = measured(python, {**job, "kafka": kafka.address, "jars": jars}, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    add_tables(report, alone, beside)


def add_tables(
    report: Report, alone: dict[str, dict[str, float]], beside: dict[str, dict[str, float]]
) -> None:
    table = report.table("Reads beside a source that repeats ready batches", "null source")
    for size in BODIES.values():
        for what, factor in (
            ("all columns", 0.55),
            ("value", None),
            ("count()", None),
            ("count() of offsets", None),
        ):
            peer = f"{size} B, null source"
            table.rows.append(compared(alone, f"{size} B, ours, {what}", peer, factor))
    waited = alone["from send to foreachBatch"]
    note = f"p99 {waited['p99_ms']:.0f} ms"
    table.rows.append(Row("from send to foreachBatch, p50", "ms", waited["p50_ms"], note=note))
    if not beside:
        return
    table = report.table("PySpark 4.2.0, beside its Kafka source and sink", "Kafka 3.9.1")
    for size in BODIES.values():
        for ours, peer, factor in (
            ("ours, all columns", "Kafka, all columns", 1.5 if size >= 1024 else 0.8),
            ("ours, value", "Kafka, value", 1.0),
            ("our sink", "Kafka's sink", 1.0),
        ):
            table.rows.append(compared(beside, f"{size} B, {ours}", f"{size} B, {peer}", factor))


def compared(found: dict[str, dict[str, float]], ours: str, peer: str, factor: float | None) -> Row:
    our_cpu, peer_cpu = found[ours]["cpu"], found[peer]["cpu"]
    note = f"CPU, µs a row: {our_cpu:.1f}, {peer_cpu:.1f}; {peer_cpu / our_cpu:.2f}"
    rates = found[ours]["rate"], found[peer]["rate"]
    return Row(ours, "rows/s", *rates, factor=factor, note=note)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=500_000, help="rows of 1 KiB")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--no-kafka", action="store_true")
    options = parser.parse_args()
    if not options.no_kafka:
        need_spark_kafka()
    report = Report("spark")
    with surely_ending(SECONDS_MAX):
        measure(options, report)
    report.finish(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
