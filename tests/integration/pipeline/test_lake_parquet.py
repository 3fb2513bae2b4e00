"""Parquet tables take a batch once: each step of an append, a merge and an upsert is broken off."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from tests.support.spark_peers import need_spark, open_session
from triomq.client.pipeline.errors import PipelineError
from triomq.client.pipeline.spec import TableSpec
from triomq.client.pipeline.tables.hadoop_files import HadoopFiles
from triomq.client.pipeline.tables.opening import open_table
from triomq.client.pipeline.tables.parquet import ParquetTable

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


class Crash(Exception):
    """The process ends here."""


class FailingFiles(HadoopFiles):
    """Ends at the n-th change of the file system, before or after it."""

    def __init__(self, session: Any) -> None:
        super().__init__(session)
        self.left: int | None = None
        self.done = 0

    def _step(self, change: Callable[[], None]) -> None:
        self.done += 1
        if self.left is not None and self.left <= 0:
            raise Crash
        change()
        if self.left is not None:
            self.left -= 1

    def make_folder(self, path: str) -> None:
        self._step(lambda: super(FailingFiles, self).make_folder(path))

    def rename(self, old: str, new: str) -> None:
        self._step(lambda: super(FailingFiles, self).rename(old, new))

    def delete(self, path: str) -> None:
        self._step(lambda: super(FailingFiles, self).delete(path))


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


def count_files(folder: Path) -> int:
    return sum(1 for _ in (folder / "lake").rglob("*.parquet"))


def opened(spark: Any, folder: Path, files: HadoopFiles, **more: Any) -> ParquetTable:
    return ParquetTable(spark, spec(folder / "lake", **more), str(folder / "checkpoint"), files)


def crash_everywhere(
    files: FailingFiles, work: Callable[[], object], again: Callable[[], object]
) -> int:
    """Break ``work`` off at each of its steps; after each crash, ``again`` sets things right."""
    for step in range(200):
        files.left = step
        try:
            work()
        except Crash:
            files.left = None
            again()
            continue
        files.left = None
        return step
    raise AssertionError("the work never ends")


@pytest.mark.loss
def test_a_batch_that_is_run_again_is_there_once(spark: Any, tmp_path: Path) -> None:
    files = FailingFiles(spark)
    batch = 0

    def append() -> None:
        opened(spark, tmp_path, files).append(rows(spark, 10 * batch, 10 * batch + 10), batch)

    def again() -> None:
        nonlocal batch
        opened(spark, tmp_path, files).append(rows(spark, 10 * batch, 10 * batch + 10), batch)
        assert numbers(opened(spark, tmp_path, files)) == list(range(10 * batch + 10))
        batch += 1

    steps = crash_everywhere(files, append, again)
    assert steps >= 5, "two folders, two files, the hidden folder"
    assert batch == steps


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
    files = FailingFiles(spark)
    checkpoint = tmp_path / "checkpoint"
    table = opened(spark, tmp_path, files)
    for batch in range(2):
        table.append(rows(spark, 6 * batch, 6 * batch + 6), batch)
        commit(checkpoint, batch)
    table.append(rows(spark, 12, 18), 2)  # not committed
    assert count_files(tmp_path) == 6

    def compact() -> None:
        opened(spark, tmp_path, files).compact(date(2026, 1, 2))

    def again() -> None:
        assert numbers(opened(spark, tmp_path, files)) == list(range(18))

    steps = crash_everywhere(files, compact, again)
    assert steps >= 3
    opened(spark, tmp_path, files).append(rows(spark, 12, 18), 2)
    assert numbers(opened(spark, tmp_path, files)) == list(range(18))
    assert count_files(tmp_path) == 5, "only the closed day, only what is committed"
    assert opened(spark, tmp_path, files).compact(date(2026, 1, 2)) == 0


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
def test_the_newest_row_of_a_key_stays(spark: Any, tmp_path: Path) -> None:
    files = FailingFiles(spark)
    version = 0

    def values() -> dict[int, str]:
        found = opened(spark, tmp_path, files).read().collect()
        assert len({row.number for row in found}) == len(found)
        return {row.number: row.value for row in found}

    def upsert() -> None:
        table = opened(spark, tmp_path, files)
        table.upsert(rows(spark, version, version + 4, version=version), ["number"])

    def again() -> None:
        nonlocal version
        upsert()
        known = values()
        assert known == {n: f"{n}/{min(n, version)}" for n in range(version + 4)}
        upsert()
        table = opened(spark, tmp_path, files)
        table.upsert(rows(spark, 0, 4, version=-1), ["number"])  # older rows change nothing
        assert values() == known
        version += 1

    assert crash_everywhere(files, upsert, again) >= 4


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
