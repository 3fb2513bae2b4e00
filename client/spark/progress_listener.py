"""ProgressListener: rows, rate and lag of streaming queries, as Prometheus text and in the log.

Spark calls it in the driver after each micro-batch. Only sources that write our offsets count.
"""

import json
import logging
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from triomq.client.spark.errors import OffsetError
from triomq.client.spark.offsets import Position, Queue, read_position

logger = logging.getLogger(__name__)

LAG = "triomq_spark_lag_messages"
ROWS = "triomq_spark_rows_total"
RATE = "triomq_spark_rows_per_second"
HELP = (
    (LAG, "gauge", "Messages of a queue that the query has not read."),
    (ROWS, "counter", "Rows that the query has read since the listener was added."),
    (RATE, "gauge", "Rows per second of the last micro-batch."),
)
Labels = tuple[tuple[str, str], ...]


class ProgressListener(StreamingQueryListener):
    """Add it with ``spark.streams.addListener(ProgressListener())``.

    ``path``: a file that always has the latest text, for a collector of text files; it is replaced
    as a whole. ``log``: one line for each micro-batch.
    """

    def __init__(self, path: str | Path | None = None, *, log: bool = True) -> None:
        self._path = Path(path) if path is not None else None
        self._log = log
        self._lock = threading.Lock()
        self._values: dict[tuple[str, Labels], float] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Do nothing: there is no progress yet."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Do nothing: an idle query has no new numbers."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Take the numbers of a micro-batch."""
        progress = event.progress
        query = progress.name or str(progress.id)
        ours = [source for source in progress.sources if position_of(source.endOffset) is not None]
        if not ours:
            return
        lag = lag_of_all(ours)
        rows = sum(source.numInputRows for source in ours)
        rate = sum(source.processedRowsPerSecond for source in ours)
        labels = (("query", query),)
        with self._lock:
            self._forget(query)
            for queue, count in lag.items():
                self._values[LAG, labels_of(query, queue)] = count
            self._values[ROWS, labels] = self._values.get((ROWS, labels), 0) + rows
            self._values[RATE, labels] = rate
        if self._log:
            logger.info(
                "query %s, batch %d: %d rows, %.0f rows/s, %d messages behind in %d queues",
                query,
                progress.batchId,
                rows,
                rate,
                sum(lag.values()),
                sum(1 for count in lag.values() if count),
            )
        self._write()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Log the end of a query with its error."""
        if self._log:
            logger.info(
                "query %s ended%s", event.id, f": {event.exception}" if event.exception else ""
            )

    def text(self) -> str:
        """Return all numbers in Prometheus' text format."""
        with self._lock:
            values = dict(self._values)
        lines = []
        for name, kind, meaning in HELP:
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
            for (found, labels), value in sorted(values.items()):
                if found == name:
                    shown = ",".join(f'{key}="{escaped(text)}"' for key, text in labels)
                    number = int(value) if value == int(value) else value
                    lines.append(f"{name}{{{shown}}} {number}")
        return "\n".join(lines) + "\n"

    def _forget(self, query: str) -> None:
        """Drop the lag of queues that the query may not read any more."""
        for name, labels in list(self._values):
            if name == LAG and labels[0] == ("query", query):
                del self._values[name, labels]

    def _write(self) -> None:
        if self._path is None:
            return
        new = self._path.with_name(f"{self._path.name}.new")
        try:
            new.write_text(self.text())
            new.replace(self._path)
        except OSError as error:  # an error in a listener would be lost in Spark's log
            logger.warning("the numbers of queries cannot be written: %s", error)


def position_of(offset: object) -> Position | None:
    """Return an offset of a progress event; None if it is not one of ours."""
    try:
        return read_position(json.loads(offset) if isinstance(offset, str) else offset)
    except (OffsetError, ValueError):
        return None


def lag_of(done: Position, heads: Position | None) -> dict[Queue, int]:
    """Return the number of unread messages of each queue."""
    ends: Mapping[Queue, int] = heads.next if heads is not None else {}
    return {queue: max(0, ends.get(queue, read) - read) for queue, read in done.next.items()}


def lag_of_all(sources: Iterable[Any]) -> dict[Queue, int]:
    """Return the unread messages of each queue; of two sources that read it, the later one's."""
    lag: dict[Queue, int] = {}
    for source in sources:
        done, heads = position_of(source.endOffset), position_of(source.latestOffset)
        for queue, count in (lag_of(done, heads) if done is not None else {}).items():
            lag[queue] = max(count, lag.get(queue, 0))
    return lag


def labels_of(query: str, queue: Queue) -> Labels:
    return (
        ("query", query),
        ("topic", queue.topic),
        ("broker", queue.broker),
        ("queue", str(queue.queue_id)),
    )


def escaped(text: str) -> str:
    """Return the value of a label as Prometheus reads it."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
