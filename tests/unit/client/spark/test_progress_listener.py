"""The listener's numbers from events as Spark sends them."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from triomq.client.spark.offsets import Position, Queue
from triomq.client.spark.progress_listener import ProgressListener

A0, B1 = Queue("orders", "broker-a", 0), Queue("orders", "broker-b", 1)


def event(name: str, done: dict[Queue, int], heads: dict[Queue, int] | None, rows: int) -> Any:
    def text(offsets: dict[Queue, int] | None) -> str | None:
        return None if offsets is None else json.dumps(Position(next=offsets).to_json())

    source = SimpleNamespace(
        endOffset=text(done),
        latestOffset=text(heads),
        numInputRows=rows,
        processedRowsPerSecond=5.0,
    )
    other = SimpleNamespace(endOffset="7", latestOffset=None, numInputRows=1)
    return SimpleNamespace(
        progress=SimpleNamespace(name=name, id="id", batchId=3, sources=[source, other])
    )


def test_rows_rate_and_lag(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    path = tmp_path / "queries.prom"
    listener = ProgressListener(path)
    listener.onQueryProgress(event('q"1', {A0: 10, B1: 4}, {A0: 25, B1: 3}, 14))
    listener.onQueryProgress(event('q"1', {A0: 20}, {A0: 25}, 10))
    listener.onQueryProgress(event("idle", {A0: 1}, None, 0))
    assert path.read_text() == listener.text()
    lines = [line for line in listener.text().splitlines() if not line.startswith("#")]
    assert lines == [
        'triomq_spark_lag_messages{query="idle",topic="orders",broker="broker-a",queue="0"} 0',
        'triomq_spark_lag_messages{query="q\\"1",topic="orders",broker="broker-a",queue="0"} 5',
        'triomq_spark_rows_total{query="idle"} 0',
        'triomq_spark_rows_total{query="q\\"1"} 24',
        'triomq_spark_rows_per_second{query="idle"} 5',
        'triomq_spark_rows_per_second{query="q\\"1"} 5',
    ]
    assert 'query q"1, batch 3: 14 rows, 5 rows/s, 15 messages behind in 1 queues' in caplog.text


def test_all_sources_of_a_query_count() -> None:
    """Of a queue that two of them read, the one that is farther behind."""
    listener = ProgressListener(log=False)
    first, second = (event("q", done, {A0: 25, B1: 9}, 10) for done in ({A0: 20}, {A0: 22, B1: 4}))
    first.progress.sources += second.progress.sources
    for _ in range(2):
        listener.onQueryProgress(first)
    assert [line for line in listener.text().splitlines() if not line.startswith("#")] == [
        'triomq_spark_lag_messages{query="q",topic="orders",broker="broker-a",queue="0"} 5',
        'triomq_spark_lag_messages{query="q",topic="orders",broker="broker-b",queue="1"} 5',
        'triomq_spark_rows_total{query="q"} 40',
        'triomq_spark_rows_per_second{query="q"} 10',
    ]


def test_a_path_that_cannot_be_written_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    listener = ProgressListener(tmp_path / "none" / "x.prom", log=False)
    listener.onQueryProgress(event("q", {A0: 1}, None, 1))
    assert "cannot be written" in caplog.text
    listener.onQueryTerminated(SimpleNamespace(id="id", exception="broken"))  # type: ignore[arg-type]
    assert "ended" not in caplog.text
