"""Parquet tables with real Spark; ``test_table_commits.py`` breaks off each step of a commit."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pytest
from pages import one
from pyarrow import dataset
from pyspark.sql import DataFrameWriter, Observation

from tests.support.spark_peers import need_spark, open_session
from triomq.client.pipeline import replay as replay_module
from triomq.client.pipeline.batch import BatchWork
from triomq.client.pipeline.checkpoints import RUN, rows_checkpoint
from triomq.client.pipeline.core.errors import PipelineError
from triomq.client.pipeline.core.origin import PLACE, SOURCE_SCHEMA, with_origin
from triomq.client.pipeline.core.spec import DecodeSpec, RunSpec, SourceSpec, Spec, TableSpec
from triomq.client.pipeline.dead_letters import open_dead_letters
from triomq.client.pipeline.replay import Replayed
from triomq.client.pipeline.tables import parquet
from triomq.client.pipeline.tables.hadoop_files import HadoopFiles
from triomq.client.pipeline.tables.locks import locked
from triomq.client.pipeline.tables.opening import open_table
from triomq.client.pipeline.upkeep import keep_up

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("spark")
    need_spark(folder)
    session = open_session(folder / "local")
    yield session
    session.stop()


def rows(spark: Any, first: int, end: int, *, version: int = 0) -> Any:
    """Rows of two dates; ``version`` is in the value, and later in time."""
    return spark.range(first, end, numPartitions=1).selectExpr(
        "'t' AS mq_topic",
        "'broker-a' AS mq_broker",
        "0 AS mq_queue",
        f"id + {version} * 1000 AS mq_offset",
        f"timestamp_seconds(1700000000 + id + {version}) AS mq_time",
        "cast(id AS int) AS number",
        f"concat(id, '/', {version}) AS value",
        "date_add(date'2026-01-01', cast(id % 2 AS int)) AS mq_date",
    )


def spec(path: Path, **more: Any) -> TableSpec:
    return TableSpec(path=str(path), **more)


def numbers(table: Any) -> list[int]:
    return sorted(row.number for row in table.read().select("number").collect())


def commit(checkpoint: Path, batch: int) -> None:
    """Note a batch as Spark does."""
    (checkpoint / "commits").mkdir(parents=True, exist_ok=True)
    (checkpoint / "commits" / str(batch)).write_text("v1\n{}")


def lake_files(folder: Path) -> list[Path]:
    return list((folder / "lake").rglob("*.parquet"))


def count_files(folder: Path) -> int:
    return len(lake_files(folder))


@pytest.mark.loss
def test_a_batch_with_other_rows_replaces_its_first_run(spark: Any, tmp_path: Path) -> None:
    table = open_table(spark, spec(tmp_path / "lake"), str(tmp_path / "checkpoint"))
    table.append(rows(spark, 0, 10), 7)
    table.append(rows(spark, 5, 8), 7)
    assert numbers(table) == [5, 6, 7]
    table.append(rows(spark, 8, 9), 8)
    other = open_table(spark, spec(tmp_path / "lake"), str(tmp_path / "other checkpoint"))
    other.append(rows(spark, 20, 22), 7)
    assert numbers(table) == [5, 6, 7, 8, 20, 21], "batches are counted for each checkpoint"


@pytest.mark.loss
@pytest.mark.feature("204c")
def test_merged_files_have_the_same_rows(spark: Any, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    table = open_table(spark, spec(tmp_path / "lake"), str(checkpoint))
    for batch in range(2):
        table.append(rows(spark, 6 * batch, 6 * batch + 6), batch)
        commit(checkpoint, batch)
    table.append(rows(spark, 12, 18), 2)  # not committed
    assert count_files(tmp_path) == 6
    kinds = {dataset.dataset(file).schema.field("mq_time").type for file in lake_files(tmp_path)}
    assert kinds == {pa.timestamp("us", tz="UTC")}
    assert table.compact(date(2026, 1, 2)) == 2
    assert numbers(table) == list(range(18))
    again = open_table(spark, spec(tmp_path / "lake"), str(checkpoint))
    again.append(rows(spark, 12, 18), 2)
    assert numbers(table) == list(range(18))
    assert count_files(tmp_path) == 5, "only the closed day, only what is committed"
    assert again.compact(date(2026, 1, 2)) == 0


@pytest.mark.feature("204c")
def test_old_dates_are_deleted(spark: Any, tmp_path: Path) -> None:
    table = open_table(spark, spec(tmp_path / "lake"), str(tmp_path / "checkpoint"))
    table.append(rows(spark, 0, 12), 0)
    assert table.expire(date(2026, 1, 2)) == 1
    assert numbers(table) == [1, 3, 5, 7, 9, 11]
    assert table.expire(date(2026, 1, 2)) == 0
    flat = open_table(
        spark, spec(tmp_path / "flat", partition_by=("mq_topic",)), str(tmp_path / "checkpoint")
    )
    flat.append(rows(spark, 0, 2), 0)
    with pytest.raises(PipelineError, match=r"add mq_date to partition_by"):
        flat.expire(date(2026, 1, 2))


@pytest.mark.loss
@pytest.mark.feature("205b")
def test_the_newest_row_of_a_key_stays(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers that know nothing of versions find one of them, whatever happens meanwhile."""
    folder = tmp_path / "lake" / "customers"
    changes = spec(folder, mode="changes", key=("number",))
    table = open_table(spark, changes, str(tmp_path / "checkpoint"))
    states: list[dict[int, str]] = []
    found: list[dict[int, str]] = []
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            rows_of_reader = spark.read.parquet(str(folder)).collect()
            found.append({row.number: row.value for row in rows_of_reader})
            assert len(found[-1]) == len(rows_of_reader)

    with ThreadPoolExecutor(1) as readers:
        for version in range(4):
            table.upsert(rows(spark, version, version + 4, version=version), ["number"])
            states.append({n: f"{n}/{min(n, version)}" for n in range(version + 4)})
            if version == 0:
                reading = readers.submit(read)
        over.set()
        reading.result()
    assert all(state in states for state in found)
    table.upsert(rows(spark, 0, 4, version=-1), ["number"])  # older rows change nothing
    assert {row.number: row.value for row in table.read().collect()} == states[-1]
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(one("docs/pipeline.md", "_spark_metadata"), names)
    files = [unquote(urlsplit(uri).path) for uri in names["files"]]
    assert sorted(dataset.dataset(files).to_table()["number"].to_pylist()) == list(range(7))
    with pytest.raises(PipelineError, match=r"is a table of changes, whose readers would not see"):
        open_table(spark, spec(folder), str(tmp_path / "checkpoint"))


def test_rows_that_do_not_arrive_end_the_batch(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task's file is gone when the batch is counted, as if it were on another machine's disk."""
    table = open_table(spark, spec(tmp_path / "lake"), str(tmp_path / "checkpoint"))
    write = DataFrameWriter.parquet

    def write_and_lose(writer: DataFrameWriter, folder: str) -> None:
        write(writer, folder)
        next(Path(folder.removeprefix("file:")).rglob("*.parquet")).unlink()

    with monkeypatch.context() as patch:
        patch.setattr(DataFrameWriter, "parquet", write_and_lose)
        with pytest.raises(PipelineError, match=r"of 4 rows, 2 have arrived in .*lake/_staging/"):
            table.append(rows(spark, 0, 4), 0)
    table.append(rows(spark, 0, 4), 0)
    assert numbers(table) == list(range(4))


@pytest.mark.loss
def test_rows_are_counted_though_spark_tells_no_number(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event with the number is lost, or it has no number."""
    checkpoint = str(tmp_path / "checkpoint")
    table = open_table(spark, spec(tmp_path / "lake"), checkpoint)
    over = threading.Event()
    monkeypatch.setattr(parquet, "OBSERVED_SECONDS", 0.1)
    monkeypatch.setattr(Observation, "get", property(lambda _: over.wait(600) and {}))
    try:
        table.append(rows(spark, 0, 4), 0)
    finally:
        over.set()
    table.append(rows(spark, 4, 8), 1)
    assert numbers(table) == list(range(8))


@pytest.mark.loss
def test_files_are_merged_and_dates_deleted_beside_the_writer(spark: Any, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    writer = open_table(spark, spec(tmp_path / "lake"), str(checkpoint))
    merging = open_table(spark, spec(tmp_path / "lake"), str(checkpoint))
    over = threading.Event()

    def merge() -> int:
        merged = 0
        while not over.is_set():
            merged += merging.compact(date(2026, 1, 3))
            merging.expire(date(2026, 1, 2))
        return merged

    writer.append(rows(spark, 0, 6), 0)
    commit(checkpoint, 0)
    with ThreadPoolExecutor() as threads:
        merges = threads.submit(merge)
        try:
            for batch in range(1, 8):
                writer.append(rows(spark, 6 * batch, 6 * batch + 6), batch)
                commit(checkpoint, batch)
        finally:
            over.set()
    assert merges.result() > 2
    merging.expire(date(2026, 1, 2))
    assert numbers(writer) == list(range(1, 48, 2)), "the day that stays has each row once"


@pytest.mark.loss
def test_a_reader_beside_the_writer_sees_whole_files(spark: Any, tmp_path: Path) -> None:
    table = open_table(spark, spec(tmp_path / "lake"), str(tmp_path / "checkpoint"))
    table.append(rows(spark, 0, 6), 0)
    failures: list[BaseException] = []
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            try:
                assert numbers(table)[:6] == list(range(6))
            except BaseException as error:
                failures.append(error)
                return

    reader = threading.Thread(target=read)
    reader.start()
    for batch in range(1, 6):
        table.append(rows(spark, 6 * batch, 6 * batch + 6), batch)
    over.set()
    reader.join()
    assert failures == []
    assert numbers(table) == list(range(36))


def pipeline(folder: Path, sink: TableSpec, dead_letters: TableSpec) -> Spec:
    return Spec(
        name="orders",
        source=SourceSpec(name_server="127.0.0.1:1", topics=("t",)),
        decode=DecodeSpec(format="string"),
        sink=sink,
        dead_letters=dead_letters,
        run=RunSpec(checkpoint=str(folder / "checkpoint")),
    )


def test_a_batch_caches_one_frame_and_a_good_one_has_fewer_jobs(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decoded rows are cached, since they are counted and written; nothing else is."""
    made = pipeline(tmp_path, spec(tmp_path / "lake"), spec(tmp_path / "dead"))
    checkpoint = rows_checkpoint(made.run.checkpoint)
    sink, dead = (
        open_table(spark, made.sink, checkpoint),
        open_dead_letters(spark, made, checkpoint),
    )
    work = BatchWork(spec=made, sink=sink, dead_letters=dead)
    cached = []
    frames: Any = type(spark.range(0))
    persist = frames.persist
    monkeypatch.setattr(
        frames, "persist", lambda each, *a: cached.append(each) or persist(each, *a)
    )

    def jobs_of(batch: int, *bodies: bytes) -> int:
        spark.sparkContext.setJobGroup(f"batch {batch}", "")
        now = datetime(2026, 1, 1)
        rows = [
            ("t", "b", 0, 10 * batch + number, now, now, None, None, {}, bytearray(body))
            for number, body in enumerate(bodies)
        ]
        work.take(with_origin(spark.createDataFrame(rows, SOURCE_SCHEMA)), batch)
        assert len(cached) == batch + 1
        assert not cached[-1].is_cached
        return len(spark.sparkContext.statusTracker().getJobIdsForGroup(f"batch {batch}"))

    first, good, bad = jobs_of(0, b"a", b"b"), jobs_of(1, b"c", b"d"), jobs_of(2, b"e", b"\xff")
    assert 0 < good < first, "the first one replaces what an earlier run has left"
    assert good < bad
    assert sorted(row.value for row in sink.read().collect()) == ["a", "b", "c", "d", "e"]


@pytest.mark.loss
def test_compact_leaves_versions_and_topics_alone(spark: Any, tmp_path: Path) -> None:
    """``compact`` between two batches of ``run``, which has its lock all the while."""
    folder = tmp_path / "lake"
    sink = spec(folder, mode="changes", key=("number",))
    topic = TableSpec(kind="topic", topic="dead", name_server="127.0.0.1:1")
    made = pipeline(tmp_path, sink, topic)
    files = HadoopFiles(spark)
    with locked(files, files.absolute(made.run.checkpoint), RUN) as lock:
        table = open_table(spark, sink, rows_checkpoint(made.run.checkpoint), lock)
        for version in range(2):
            table.upsert(rows(spark, 0, 4, version=version), ["number"])
        before = sorted(folder.rglob("*"))
        done = keep_up(spark, made, before=date(2027, 1, 1))
        assert [(each.files_merged, each.dates_deleted) for each in done] == [(0, 0), (0, 0)]
        assert sorted(folder.rglob("*")) == before
        table.upsert(rows(spark, 2, 6, version=2), ["number"])
    found = {row.number: row.value for row in spark.read.parquet(str(folder)).collect()}
    assert found == {n: f"{n}/{1 if n < 2 else 2}" for n in range(6)}


@pytest.mark.loss
def test_replay_sends_what_was_there_when_it_began(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``run`` adds dead letters while ``replay`` sends: the next ``replay`` has those."""
    made = pipeline(tmp_path, spec(tmp_path / "lake"), spec(tmp_path / "dead"))
    dead = open_dead_letters(spark, made, rows_checkpoint(made.run.checkpoint))
    assert dead is not None
    more = ["map('a', 'b') AS mq_headers", "cast(value AS binary) AS mq_value"]
    more += ["mq_time AS mq_born", "'k' AS mq_key", "'x' AS mq_tags", "'bad' AS mq_reason"]
    sent: list[list[int]] = []
    batches = iter(range(10))

    def fail(first: int, end: int) -> None:
        frame = rows(spark, first, end).selectExpr("*", *more)
        dead.write(frame, next(batches), end - first)

    def send_beside_the_run(frame: Any, options: object) -> Any:
        fail(10 * len(sent) + 10, 10 * len(sent) + 12)
        sent.append(sorted(row.mq_offset for row in frame.collect()))
        return frame.select(*PLACE).limit(0).selectExpr("*", "'' AS mq_reason").persist()

    monkeypatch.setattr(replay_module, "send", send_beside_the_run)
    fail(0, 4)
    assert replay_module.replay(spark, made) == Replayed(sent=4, left_out=0)
    assert replay_module.replay(spark, made) == Replayed(sent=2, left_out=4)
    assert sent == [[0, 1, 2, 3], [10, 11]]
