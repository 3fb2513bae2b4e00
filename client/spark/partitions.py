"""The partitions of the source: the input of a task, and how an executor reads it.

Spark pickles one reader for the whole query and one partition per task. What a reader learns while
the query runs stays in the driver, so everything that a task needs and that may change is in its
partition: ranges and broker addresses. A pickled reader arrives as a ``TaskReader``: a task loads
no module that only the driver needs, and the driver none that only tasks need.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import attrs
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from triomq.client.spark.errors import SourceError
from triomq.client.spark.offsets import Queue
from triomq.client.spark.options import SourceOptions
from triomq.client.spark.planning import QueueRange, TaskSizes, plan_tasks
from triomq.client.spark.records import Block, LastMessage
from triomq.client.spark.shipped import Shipped

logger = logging.getLogger(__name__)

TASK_FORMAT = 3
"""increased when a release changes ``TaskInput``: driver and executors must have the same"""


@attrs.frozen
class TaskInput:
    """The ranges that one task reads."""

    ranges: tuple[QueueRange, ...]
    addresses: Mapping[str, str]
    """broker name → address when the task was planned"""
    slaves: frozenset[str] = frozenset()
    """the brokers whose address is a slave's"""
    last: Mapping[Queue, LastMessage] = attrs.field(factory=dict)
    """the newest message of the batch in each queue, of a stream"""
    skip_after_ms: int | None = None
    """after this time the queues of a broker that does not answer are skipped; None: never"""
    task_format: int = TASK_FORMAT


def partitions_of(
    ranges: Sequence[QueueRange],
    options: SourceOptions,
    addresses: Mapping[str, str],
    slaves: frozenset[str],
    last: Mapping[Queue, LastMessage] = MappingProxyType({}),
    skip_after_ms: int | None = None,
) -> list[InputPartition]:
    """Cut ``ranges`` into the partitions of one batch; the rest as in ``TaskInput``."""
    sizes = TaskSizes(
        min_partitions=options.min_partitions,
        max_records=options.max_records_per_partition,
        min_records=options.min_records_per_partition,
    )
    partitions = []
    for task in plan_tasks(ranges, sizes):
        queues = {each.queue for each in task}
        brokers = {queue.broker for queue in queues}
        partitions.append(
            InputPartition(
                TaskInput(
                    task,
                    {broker: address for broker, address in addresses.items() if broker in brokers},
                    slaves & brokers,
                    {queue: message for queue, message in last.items() if queue in queues},
                    skip_after_ms,
                )
            )
        )
    return partitions


def read_task(
    partition: InputPartition, options: SourceOptions, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of one task as record batches of about ``recordBatchBytes``.

    An empty batch from time to time while waiting.

    Raises: SourceError, DataLoss, Unreachable.
    """
    from triomq.client.spark.decode import RecordDecoder  # a driver only plans: its start-up time
    from triomq.client.spark.task_pull import TaskPull  # as above

    work: TaskInput | None = partition.value
    if work is None:  # so Spark marks an empty partition
        return
    if getattr(work, "task_format", None) != TASK_FORMAT:
        raise SourceError(
            "driver and executors run different releases of triomq; install the same release on"
            " all machines"
        )
    decoder = RecordDecoder(schema, frozenset(options.tags) or None)
    joined: list[Block] = []
    joined_bytes = rows = 0
    pull = TaskPull(
        work.ranges, options, work.addresses, work.slaves, work.last, work.skip_after_ms
    )
    for block in pull.blocks():
        if block is None:
            yield decoder.empty()
            continue
        joined.append(block)
        joined_bytes += len(block.body)
        if joined_bytes >= options.record_batch_bytes:
            for batch in decoder.decode(joined):
                rows += batch.num_rows
                yield batch
            joined, joined_bytes = [], 0
    if joined:
        for batch in decoder.decode(joined):
            rows += batch.num_rows
            yield batch
    logger.debug("task read %d rows from %s", rows, work.ranges)


class TaskReader(metaclass=Shipped):
    """The reader of a query as its tasks have it."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task's messages; errors as of ``read_task``."""
        return read_task(partition, self._options, self._schema)
