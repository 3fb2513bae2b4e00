"""Exactly once across crashes: a streaming query is killed (SIGKILL of driver, JVM and workers) and stopped in the middle, and goes on."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.spark_peers import Cluster, cluster, need_spark, query, wait_for
from triomq.sync import Producer

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

Place = tuple[str, int]


class LiveProducer:
    """Sends numbered messages in a thread until it is told to stop; knows where each one lies."""

    def __init__(self, namesrv: str, topic: str) -> None:
        self.namesrv = namesrv
        self.topic = topic
        self.sent: dict[tuple[str, int, int], str] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with Producer(self.namesrv, group="live") as producer:
            number = 0
            while not self._stop.is_set():
                receipt = producer.send(self.topic, b"live %d" % number, timeout=30)
                self.sent[receipt.queue.broker_name, receipt.queue.queue_id, receipt.queue_offset] = f"live {number}"
                number += 1
                if number > 2000:  # enough for the first batches; then gently, the machine has other work
                    self._stop.wait(0.01)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


@contextmanager
def live_producer(namesrv: str, topic: str) -> Iterator[LiveProducer]:
    producer = LiveProducer(namesrv, topic)
    producer._thread.start()
    try:
        yield producer
    finally:
        producer.stop()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Cluster]:
    need_spark(tmp_path)
    with cluster(tmp_path / "cluster") as running:
        yield running


def log_entry(folder: Path, kind: str, number: int) -> Path:
    return folder / "checkpoint" / kind / str(number)


def logged_offsets(folder: Path, number: int) -> dict[str, dict[str, dict[str, dict[str, int]]]]:
    return json.loads(log_entry(folder, "offsets", number).read_text().splitlines()[2])


def read_output(folder: Path) -> dict[Place, list[tuple[int, str]]]:
    """What the query wrote, by queue, in offset order; only files that Spark's log of committed files names."""
    files = set()
    for entry in (folder / "output" / "_spark_metadata").iterdir():
        if entry.name.isdecimal() or entry.name.endswith(".compact"):
            files |= {
                json.loads(line)["path"].rsplit("/", 1)[1]
                for line in entry.read_text().splitlines()
                if line.startswith("{")
            }
    found: dict[Place, list[tuple[int, str]]] = defaultdict(list)
    for file in files:
        for row in pq.ParquetFile(folder / "output" / file).read().to_pylist():
            found[row["brokerName"], row["queueId"]].append((row["offset"], row["value"]))
    return {place: sorted(rows) for place, rows in found.items()}


@pytest.mark.feature(172)
def test_a_killed_and_stopped_query_reads_every_message_exactly_once(running: Cluster, tmp_path: Path) -> None:
    running.create_topic("live")
    running.send("live", [b"before the query"] * 40)
    folder = tmp_path / "query"
    options = {
        "nameServer": running.namesrv,
        "subscribe": "live",
        "groupId": "spark",
        "maxOffsetsPerTrigger": "400",
        "maxRecordsPerPartition": "150",
    }
    with live_producer(running.namesrv, "live") as producer:
        wait_for(lambda: len(producer.sent) > 50, "the producer to run")
        with query(folder, options=options, slow=2.0) as first:  # begins at `latest`, while messages keep coming
            wait_for(log_entry(folder, "offsets", 0).exists, f"batch 0 to be logged, see {first.log}")
            first.kill()
        assert not log_entry(folder, "commits", 0).exists()
        with query(folder, options=options, slow=2.0) as second:
            wait_for(log_entry(folder, "commits", 0).exists, f"batch 0 to be done, see {second.log}")
            number = wait_for(
                lambda: max(
                    int(entry.name) for entry in (folder / "checkpoint" / "offsets").iterdir() if entry.name.isdecimal()
                ),
                "a later batch to be logged",
            )
            second.kill()
        assert not log_entry(folder, "commits", number + 1).exists()
        with query(folder, options={**options, "maxRecordsPerPartition": "70"}, slow=0.5) as third:
            wait_for(log_entry(folder, "offsets", number + 1).exists, f"the query to go on, see {third.log}")
            third.stop()
        before_the_end = len(producer.sent)
    assert before_the_end > 500
    with query(folder, options={**options, "maxOffsetsPerTrigger": "100000"}, available_now=True) as last:
        last.finish()
    begins = logged_offsets(folder, 0)["from"]["live"]
    output = read_output(folder)
    assert {broker for broker, _ in output} == {"broker-a", "broker-b"}
    for (broker, queue_id), rows in output.items():
        begin = begins[broker][str(queue_id)]
        offsets = [offset for offset, _ in rows]
        assert offsets == list(range(begin, begin + len(rows))), f"{broker}/{queue_id} has holes or repeats"
        assert dict(rows) == {
            offset: body
            for (name, number, offset), body in producer.sent.items()
            if (name, number) == (broker, queue_id) and offset >= begin
        }
    assert running.lag("spark", "live") == 0
