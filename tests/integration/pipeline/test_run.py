"""Pipelines with real brokers and real Spark: every row is somewhere once, also after failures."""

from __future__ import annotations

import collections
import json
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pyarrow as pa
import pytest
from pipeline_files import HOURLY, good, orders, orders_file
from pyarrow import dataset

from tests.support.pipeline_processes import PipelineProcess, pipeline_process
from tests.support.spark_peers import Cluster, cluster, need_spark, open_session, wait_for
from triomq.client.pipeline.batch import BatchWork
from triomq.client.pipeline.checkpoints import RUN
from triomq.client.pipeline.core import spec as core_spec
from triomq.client.pipeline.core.errors import ReadRefused, SpecError
from triomq.client.pipeline.core.origin import DATE, VALUE
from triomq.client.pipeline.core.spec import TableSpec
from triomq.client.pipeline.dead_letters import DeadLetters
from triomq.client.pipeline.replay import LOST, REPLAYED_FROM, Replayed, replay
from triomq.client.pipeline.run import PipelineRun
from triomq.client.pipeline.spec_file import read_spec
from triomq.client.pipeline.status import PipelineStatus, read_status
from triomq.client.pipeline.tables.hadoop_files import HadoopFiles
from triomq.client.pipeline.tables.locks import LockHeld, locked
from triomq.client.pipeline.tables.opening import open_table
from triomq.client.pipeline.tables.parquet import ParquetTable
from triomq.client.pipeline.upkeep import keep_up
from triomq.client.spark.sink import delivery
from triomq.client.spark.sink.sink_options import parse_sink_options
from triomq.client.spark.sink.writer import TaskWriter

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("spark")
    need_spark(folder)
    session = open_session(folder / "local")
    yield session
    session.stop()


def run(spark: Any, file: Path) -> PipelineStatus:
    """Run a pipeline to the end of its topics."""
    pipeline = PipelineRun(spark, read_spec(file))
    pipeline.start()
    status = pipeline.wait()
    assert read_status(str(file.parent / "checkpoint")) == status
    return status


def write(spark: Any, to: Cluster, topic: str, rows: list[tuple[Any, Any]]) -> None:
    """Send bodies and headers with the sink."""
    frame = spark.createDataFrame(rows, "value string, headers map<string,string>").coalesce(1)
    sink = frame.write.format("rocketmq").option("nameServer", to.namesrv)
    sink.option("topic", topic).mode("append").save()


def lake(spark: Any, folder: Path, name: str = "lake") -> list[Any]:
    return spark.read.parquet(str(folder / name)).collect()


def place(row: Any) -> tuple[str, int, int]:
    return row.mq_broker, row.mq_queue, row.mq_offset


@pytest.mark.loss
@pytest.mark.feature("202b", "203a", "205a")
def test_every_row_is_good_bad_or_kept_out(spark: Any, running: Cluster, tmp_path: Path) -> None:
    running.create_topic("Orders", 2)
    windows = HOURLY.format(time="store")
    file = orders_file(tmp_path, running.namesrv, "Orders", windows=windows, rows_per_batch=150)
    sent = dict(zip(running.send("Orders", orders(range(400))), range(400)))
    status = run(spark, file)
    rows = status.queries["rows"]
    assert (status.state, status.cause) == ("stopped", "")
    assert (rows.rows, rows.good, rows.kept_out, rows.lag) == (400, 280, 40, 0)
    assert sum(rows.bad.values()) == 80
    assert rows.bad["the amount is negative"] == 40
    assert rows.batch >= 2
    found, dead = lake(spark, tmp_path), lake(spark, tmp_path, "dead")
    assert sorted(row.id for row in found) == good(range(400))
    assert all(row.cents == row.id * 25 and sent[place(row)] == row.id for row in found)
    assert {sent[place(row)] for row in dead} == {n for n in range(400) if n % 10 in (3, 7)}
    assert all(bytes(row.mq_value) == orders([sent[place(row)]])[0] for row in dead)
    assert {row.mq_reason for row in dead if sent[place(row)] % 10 == 7} == {
        "the amount is negative"
    }
    assert VALUE not in found[0].asDict()
    assert {str(row[DATE]) for row in found} <= {
        path.name.partition("=")[2] for path in (tmp_path / "lake" / "mq_topic=Orders").iterdir()
    }

    # Later messages close the windows of the first ones.
    time.sleep(2.5)
    running.send("Orders", orders(range(400, 410)))
    status = run(spark, file)
    assert (status.cause, status.queries["rows"].rows) == ("", 10)
    totals = lake(spark, tmp_path, "totals")
    counted: dict[Any, list[int]] = collections.defaultdict(lambda: [0, 0])
    for row in lake(spark, tmp_path):
        counted[row.mq_time.replace(microsecond=0), row.shop][0] += 1
        counted[row.mq_time.replace(microsecond=0), row.shop][1] += row.cents
    last = max(begin for begin, _ in counted)
    assert {(row.window_start, row.shop): [row.orders, row.cents] for row in totals} == {
        key: numbers for key, numbers in counted.items() if key[0] < last
    }
    assert sum(row.orders for row in totals) == 280
    assert len(totals) == len({(row.window_start, row.shop) for row in totals})

    # Nothing is open after the end: also files of today can be merged.
    before = datetime.now(UTC).date() + timedelta(days=2)
    done = {Path(each.place).name: each for each in keep_up(spark, read_spec(file), before=before)}
    for name in ("lake", "dead"):
        assert done[name].files_merged >= rows.batch + 2, "one file a batch, or more"
        assert len(list((tmp_path / name).rglob("*.parquet"))) <= 2, "one for each date"
    assert sorted(row.id for row in lake(spark, tmp_path)) == good(range(410))
    assert len(lake(spark, tmp_path, "totals")) == len(totals)


@pytest.mark.loss
@pytest.mark.feature("205a")
def test_late_rows_are_counted_and_kept(
    spark: Any, running: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer whose clock is an hour behind sends after the others; the sink is a topic."""
    running.create_topic("Late", 1)
    windows = HOURLY.format(time="born")
    sink = 'topic = "Clean"\noptions = { compressOverBytes = "1g" }'
    running.create_topic("Clean", 1)
    file = orders_file(tmp_path, running.namesrv, "Late", windows=windows, sink=sink)
    running.send("Late", orders(range(10)))
    assert run(spark, file).queries["by-second"].late == 0
    options = parse_sink_options({"nameServer": running.namesrv, "topic": "Late"}, streaming=False)
    behind = time.time_ns() - 3600 * 10**9
    clock = SimpleNamespace(time_ns=lambda: behind, monotonic=time.monotonic, sleep=time.sleep)
    with monkeypatch.context() as patch:
        patch.setattr(delivery, "time", clock)
        batch = pa.RecordBatch.from_pydict({"value": orders([12])})
        TaskWriter(options, {"value": 0}, "test").write(iter([batch]))
    status = run(spark, file)
    assert (status.queries["by-second"].late, status.queries["rows"].good) == (1, 1)
    reader = spark.read.format("rocketmq").option("nameServer", running.namesrv)
    bodies = [json.loads(row.value) for row in reader.option("subscribe", "Clean").load().collect()]
    assert sorted(body["id"] for body in bodies) == [*good(range(10)), 12]
    assert bodies[0].keys() == {"id", "shop", "amount", "cents"}

    # Compressed it fits into its topic, and as it is not into the sink's.
    large = json.dumps({"id": 20, "shop": "s" * 6_000_000, "amount": 1})
    write(spark, running, "Late", [(large, None)])
    running.send("Late", orders([21]))
    rows = run(spark, file).queries["rows"]
    assert (rows.good, sum(rows.bad.values())) == (1, 1)
    (found,) = (row for row in lake(spark, tmp_path, "dead") if len(row.mq_value) > 1_000_000)
    assert bytes(found.mq_value).decode() == large
    assert found.mq_reason.startswith("the broker refuses the message: ")
    assert reader.option("subscribe", "Clean").load().count() == 9


@pytest.mark.loss
@pytest.mark.feature("203a", "203b", "205b")
def test_dead_letters_come_back(spark: Any, running: Cluster, tmp_path: Path) -> None:
    """From a topic of dead letters to the topic that they came from; the sink keeps changes."""
    for topic in ("Changes", "Dead"):
        running.create_topic(topic, 1)
    file = orders_file(
        tmp_path,
        running.namesrv,
        "Changes",
        sink='path = "lake"\nmode = "changes"\nkey = ["id"]',
        dead_letters='topic = "Dead"\noptions = { compressOverBytes = "1g" }',
    )
    spec = read_spec(file)
    running.send("Changes", orders(range(20)), tag=lambda number: f"tag{number}")
    # A tombstone, one whose properties leave no room for the reason, one that the topic refuses.
    write(
        spark,
        running,
        "Changes",
        [(None, None), ("[", {"h": "字" * 10_700}), ("[" * (6 << 20), {})],
    )
    assert sum(run(spark, file).queries["rows"].bad.values()) == 7
    with pytest.raises(ReadRefused, match=r"'mq_topc = 1' does not fit.*columns: mq_topic"):
        replay(spark, spec, where="mq_topc = 1")
    with pytest.raises(ReadRefused, match=r"limit is 0; give a number of rows from 1"):
        replay(spark, spec, limit=0)
    negative = "mq_reason = 'the amount is negative'"
    assert replay(spark, spec, where=negative, limit=1) == Replayed(sent=1, left_out=0)
    assert replay(spark, spec, where=negative) == Replayed(sent=1, left_out=1)
    assert replay(spark, spec, where=negative) == Replayed(sent=0, left_out=2)
    assert replay(spark, spec, where=negative, again=True) == Replayed(sent=2, left_out=0)
    whole = "length(mq_value) < 2 AND NOT map_contains_key(mq_headers, 'mq_value_lost')"
    assert replay(spark, spec, where=whole) == Replayed(sent=2, left_out=0)
    lost = replay(spark, spec, where="mq_headers['mq_value_lost'] = 6291456")
    assert lost == Replayed(sent=0, left_out=0, refused={LOST: 1})
    reader = spark.read.format("rocketmq").option("nameServer", running.namesrv)
    reader = reader.option("subscribe", "Changes").option("includeHeaders", "true")
    back = [row for row in reader.load().collect() if REPLAYED_FROM in row.headers]
    places = {(row.brokerName, row.queueId) for row in reader.load().collect()}
    assert sorted(bytes(row.value) for row in back if len(row.value) < 2) == [b"", b"["]
    orders_back = [row for row in back if len(row.value) > 1]
    assert len(orders_back) == 4
    for row in orders_back:
        number = json.loads(row.value)["id"]
        topic, broker, queue, offset = row.headers[REPLAYED_FROM].split("/")
        assert (topic, row.tags, row.key) == ("Changes", f"tag{number}", str(number))
        assert number % 10 == 7
        assert (broker, int(queue)) in places
        assert int(offset) < 20
    again = run(spark, file).queries["rows"]
    assert (again.rows, sum(again.bad.values())) == (6, 6)
    found = lake(spark, tmp_path)
    assert sorted(row.id for row in found) == good(range(20))


def test_a_backlog_is_read_in_batches_and_good_ones_write_no_dead_letters(
    spark: Any, running: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.create_topic("Backlog", 1)
    file = orders_file(tmp_path, running.namesrv, "Backlog")
    spec = read_spec(file)
    running.send("Backlog", orders(n for n in range(100) if n % 10 in (0, 1)))
    monkeypatch.setattr(core_spec, "BATCH_BYTES", "1k")
    written = []
    append = ParquetTable.append

    def noted(table: ParquetTable, frame: Any, batch: int) -> None:
        written.append((VALUE in frame.columns, batch))
        append(table, frame, batch)

    monkeypatch.setattr(ParquetTable, "append", noted)
    unlimited = attrs.evolve(spec.source, options={"maxRecordsPerPartition": "1000"})
    pipeline = PipelineRun(spark, attrs.evolve(spec, source=unlimited))
    pipeline.start()
    rows = pipeline.wait().queries["rows"]
    assert rows.good == 20
    assert rows.batch >= 2
    assert [batch for is_dead, batch in written if is_dead] == [0], (
        "an earlier run may have left some"
    )
    assert [batch for is_dead, batch in written if not is_dead] == list(range(rows.batch + 1))


@pytest.mark.loss
def test_a_batch_that_fails_names_the_cause_and_is_repeated(
    spark: Any, running: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and behind each of the two tables."""
    running.create_topic("Failing", 2)
    file = orders_file(tmp_path, running.namesrv, "Failing")
    running.send("Failing", orders(range(20)))

    def fail(*_: Any) -> None:
        raise OSError("No space left on device")

    def fail_behind(owner: Any, method: str) -> Any:
        original = getattr(owner, method)

        def both(*arguments: Any) -> None:
            original(*arguments)
            fail()

        return both

    breaks = {
        "before both": (BatchWork, "take", fail),
        "between": (DeadLetters, "write", fail_behind(DeadLetters, "write")),
        "behind both": (BatchWork, "take", fail_behind(BatchWork, "take")),
    }
    for owner, method, broken in breaks.values():
        with monkeypatch.context() as patch:
            patch.setattr(owner, method, broken)
            status = run(spark, file)
        assert status.state == "failed"
        assert status.cause.startswith("No space left on device; remove the cause and start")
    spec = read_spec(file)
    again = attrs.evolve(spec.sink, path=None, topic="Failing")
    with pytest.raises(SpecError, match=r"sink.topic: the pipeline reads this topic"):
        PipelineRun(spark, attrs.evolve(spec, sink=again)).start()
    with locked(HadoopFiles(spark), str(tmp_path / "checkpoint"), RUN):
        with pytest.raises(LockHeld, match=r"process \d+ on .* stop that process"):
            run(spark, file)
    assert run(spark, file).state == "stopped"
    assert sorted(row.id for row in lake(spark, tmp_path)) == good(range(20))
    dead = lake(spark, tmp_path, "dead")
    assert len(dead) == len({place(row) for row in dead}) == 4
    with monkeypatch.context() as patch:
        patch.setattr(ParquetTable, "__init__", fail)
        with pytest.raises(OSError, match="No space left"):
            run(spark, file)
    assert read_status(str(tmp_path / "checkpoint")).state == "failed"


def numbers_in(folder: Path) -> set[int]:
    """Return the batches that Spark has noted."""
    return {int(path.name) for path in folder.glob("*") if path.name.isdecimal()}


@pytest.mark.loss
@pytest.mark.feature("204a")
def test_a_killed_pipeline_keeps_every_row_once(running: Cluster, tmp_path: Path) -> None:
    """SIGKILL between two files of a table, and between the tables and Spark's commit."""
    need_spark(tmp_path)
    running.create_topic("Killed", 2)
    folder = tmp_path / "pipeline"
    parts = {"trigger": "1 second", "rows_per_batch": 120, "rows_per_task": 40}
    file = orders_file(folder, running.namesrv, "Killed", **parts)
    checkpoint = folder / "checkpoint" / "rows"
    total = 300
    running.send("Killed", orders(range(total)))
    # A batch has three tasks or more, so three files of good rows.
    points = (
        {"hold": "HadoopFiles.rename", "calls": 2, "among": "/lake/"},
        {"hold": "ParquetTable.append", "calls": 3, "after": True},
    )
    for number, point in enumerate(points):
        marker = tmp_path / f"holds-{number}"
        with pipeline_process(tmp_path, file, marker=str(marker), **point) as started:
            wait_for(partial(is_over, marker, started), f"a hold, see {started.log}", 250)
            assert marker.exists(), started.log.read_text()[-3000:]
            open_batches = numbers_in(checkpoint / "offsets") - numbers_in(checkpoint / "commits")
            assert open_batches == {number}, "the kill falls into a batch"
            assert number > 0 or 1 <= len(files_of_rows(folder)) <= 2, "and between two files"
            started.kill()
        assert read_status(str(folder / "checkpoint")).state == "killed"
    assert len(files_of_rows(folder)) > 4
    with pipeline_process(tmp_path, file) as last:
        wait_for(
            lambda: len(numbers_in(checkpoint / "commits")) == 3 or last.has_ended,
            f"the rest to be read, see {last.log}",
            250,
        )
        last.process.send_signal(signal.SIGTERM)
        assert last.process.wait(timeout=60) == 0, last.log.read_text()[-3000:]
    assert read_status(str(folder / "checkpoint")).state == "stopped"
    found, dead = (
        dataset.dataset(folder / name, format="parquet", partitioning="hive").to_table()
        for name in ("lake", "dead")
    )
    assert sorted(found["id"].to_pylist()) == good(range(total))
    places = list(zip(*(dead[name].to_pylist() for name in ("mq_broker", "mq_queue", "mq_offset"))))
    assert len(places) == len(set(places)) == total // 5


def files_of_rows(folder: Path) -> list[Path]:
    """Return the files of the lake that readers see."""
    files = (folder / "lake").rglob("*.parquet")
    return [file for file in files if not any(part[0] in "._" for part in file.parts)]


def is_over(marker: Path, started: PipelineProcess) -> bool:
    return marker.exists() or started.has_ended


def test_two_pipelines_may_have_one_topic_as_sink(
    spark: Any, running: Cluster, tmp_path: Path
) -> None:
    """The topic has the rows of both, each pipeline's once."""
    running.create_topic("both", 2)
    spec = TableSpec(kind="topic", topic="both", name_server=running.namesrv)

    def fill(number: int) -> None:
        table = open_table(spark, spec, str(tmp_path / f"checkpoint {number}"))
        for batch in range(2):
            first = 100 * number + 10 * batch
            frame = spark.range(first, first + 10, numPartitions=2)
            place = ("'t' AS mq_topic", "'b' AS mq_broker", "0 AS mq_queue", "id AS mq_offset")
            refused = table.append(frame.selectExpr("cast(id AS string) AS value", *place), batch)
            assert refused is not None
            assert refused.isEmpty()
            refused.unpersist()

    with ThreadPoolExecutor() as threads:
        list(threads.map(fill, range(2)))
    read = open_table(spark, spec, str(tmp_path / "checkpoint 0")).read()
    found = sorted(int(row[VALUE]) for row in read.select(VALUE).collect())
    assert found == [*range(20), *range(100, 120)]
