"""The classes that Spark calls to write: one for batch queries, one for streams.

Spark pickles a writer to every task. Both write at least once: a task that fails is repeated from
its first row. What only tasks need is loaded there: Spark makes a writer for each micro-batch.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from triomq.client.spark.shipped import Shipped
from triomq.client.spark.sink.sink_options import SinkOptions

if TYPE_CHECKING:
    from triomq.client.spark.name_servers import TopicAddresses
    from triomq.client.spark.sink.delivery import Delivery
    from triomq.client.spark.sink.outgoing import Refuse
    from triomq.remoting.protocol.ids import UniqueIds

logger = logging.getLogger(__name__)


@attrs.frozen
class TaskDone(WriterCommitMessage):
    """What one task has sent."""

    acknowledged: Mapping[str, int]
    """topic → messages"""
    stored_less_safely: int


@attrs.frozen
class TaskWriter:
    """Writes the rows of one task; the same for both kinds of queries."""

    options: SinkOptions
    places: Mapping[str, int]
    query: str
    """names the write of a batch query in ``__SPARK``; a stream has the id of its query"""
    marks: tuple[int, ...] = ()
    """positions of the columns that name a row which is refused"""

    def write(self, batches: Iterator[pa.RecordBatch]) -> TaskDone:
        """Send every row, and wait for all acknowledgements.

        Raises: RowRefused, NotDelivered, SourceError, Unreachable.
        """
        delivery = self._delivery(None)
        for _ in self._sent(batches, delivery, None):
            pass
        return TaskDone(delivery.acknowledged, delivery.stored_less_safely)

    def refused(self, batches: Iterator[pa.RecordBatch]) -> Iterator[list[tuple[Any, str]]]:
        """Send every row, and yield the mark and the reason of those that are refused, in parts.

        Raises: NotDelivered, SourceError, Unreachable.
        """
        found: list[tuple[object, str]] = []

        def refuse(mark: object, reason: str) -> None:
            found.append((mark, reason))

        delivery = self._delivery(refuse)
        for _ in self._sent(batches, delivery, refuse):
            if found:
                yield found.copy()
                found.clear()

    def _delivery(self, refuse: Refuse | None) -> Delivery:
        from triomq.client.spark.sink.delivery import Delivery  # a driver sends nothing

        return Delivery(self.options, self._find_route, refuse=refuse)

    def _sent(
        self,
        batches: Iterator[pa.RecordBatch],
        delivery: Delivery,
        refuse: Refuse | None,
    ) -> Iterator[None]:
        """Yield behind each record batch, and when all is acknowledged."""
        from triomq.client.spark.sink.outgoing import OutgoingRows  # as above

        context = TaskContext.get()
        query, batch_id, partition = self.query, "0", 0
        if context is not None:
            query = context.getLocalProperty("sql.streaming.queryId") or query
            batch_id = context.getLocalProperty("streaming.sql.batchId") or batch_id
            partition = context.partitionId()
        outgoing = OutgoingRows(
            self.places,
            self.options.topic,
            f"{query}/{batch_id}/{partition}",
            self.options.compress_over_bytes,
            self.options.batch_bytes,
            unique_ids(),
            delivery.wish_of,
            self.marks,
            refuse,
        )
        try:
            for batch in batches:
                for full in outgoing.of(batch, time.time_ns() // 1_000_000):
                    delivery.submit(full)
                yield
            for rest in outgoing.rest():
                delivery.submit(rest)
            delivery.finish()
            yield
        finally:
            delivery.close()

    def _find_route(self, topic: str) -> TopicAddresses | None:
        from triomq.client.spark.name_servers import RouteReader, writable  # as above

        with RouteReader(self.options.name_server, self.options.access) as name_servers:
            return name_servers.routes([topic], writable)[topic]


def unique_ids() -> UniqueIds:
    """Return the ids of one task's messages."""
    from triomq.remoting.protocol.ids import UniqueIds  # as above

    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        address = "127.0.0.1"
    return UniqueIds(socket.inet_aton(address), os.getpid(), secrets.randbits(32))


def log_totals(messages: list[WriterCommitMessage | None], what: str) -> None:
    """Log what all tasks of a write have sent."""
    done = [message for message in messages if isinstance(message, TaskDone)]
    totals: dict[str, int] = {}
    for each in done:
        for topic, count in each.acknowledged.items():
            totals[topic] = totals.get(topic, 0) + count
    logger.info("%s: messages sent by topic: %s", what, totals)
    less_safely = sum(each.stored_less_safely for each in done)
    if less_safely:
        logger.warning(
            "%s: %d messages are stored, but their brokers have not flushed or copied them in time;"
            " check disks and slaves",
            what,
            less_safely,
        )


class RocketMQBatchWriter(DataSourceArrowWriter, metaclass=Shipped):
    """The writer of a batch query."""

    def __init__(self, options: SinkOptions, places: Mapping[str, int]) -> None:
        self._task = TaskWriter(options, dict(places), uuid.uuid4().hex)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task, in an executor."""
        return self._task.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        log_totals(messages, "write")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        log_totals(messages, "a write that failed")


class RocketMQStreamWriter(DataSourceStreamArrowWriter, metaclass=Shipped):
    """The writer of a stream. Spark makes a new one for each micro-batch."""

    def __init__(self, options: SinkOptions, places: Mapping[str, int]) -> None:
        self._task = TaskWriter(options, dict(places), "stream")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task, in an executor."""
        return self._task.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        log_totals(messages, f"batch {batchId}")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        log_totals(messages, f"batch {batchId}, which failed,")
