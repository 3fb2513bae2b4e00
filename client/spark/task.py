"""A task of the source: what travels to an executor, and how it becomes record batches there.

Spark pickles one reader for the whole query and one partition per task.  What a reader learns while the query runs stays in the
driver, so everything that a task needs and that may change travels in its partition: ranges and broker addresses.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence

import attrs
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from triomq.client.spark.decode import Decoder
from triomq.client.spark.errors import SourceError
from triomq.client.spark.options import SourceOptions
from triomq.client.spark.planning import QueueRange, TaskSizes, plan_tasks
from triomq.client.spark.pull import TaskPull
from triomq.client.spark.records import Block

logger = logging.getLogger(__name__)

TASK_FORMAT = 1
"""raised whenever driver and executors of different releases would misunderstand each other"""


@attrs.frozen
class Work:
    """What one task reads."""

    ranges: tuple[QueueRange, ...]
    addresses: Mapping[str, str]
    """broker name → address when the task was planned"""
    task_format: int = TASK_FORMAT


def partitions_of(
    ranges: Sequence[QueueRange], options: SourceOptions, addresses: Mapping[str, str]
) -> list[InputPartition]:
    """Cut *ranges* into the partitions of one batch."""
    sizes = TaskSizes(
        min_partitions=options.min_partitions,
        max_records=options.max_records_per_partition,
        min_records=options.min_records_per_partition,
    )
    partitions = []
    for task in plan_tasks(ranges, sizes):
        brokers = {each.queue.broker for each in task}
        partitions.append(
            InputPartition(Work(task, {broker: address for broker, address in addresses.items() if broker in brokers}))
        )
    return partitions


def read_task(partition: InputPartition, options: SourceOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The messages of one task as record batches of about `recordBatchBytes`; an empty batch now and then while waiting.

    Raises SourceError and its kin.
    """
    work: Work | None = partition.value
    if work is None:  # how Spark asks for nothing
        return
    if getattr(work, "task_format", None) != TASK_FORMAT:
        raise SourceError("driver and executors run different releases of triomq; install the same one on all machines")
    decoder = Decoder(schema, frozenset(options.tags) or None)
    joined: list[Block] = []
    joined_bytes = rows = 0
    for block in TaskPull(work.ranges, options, work.addresses).blocks():
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
