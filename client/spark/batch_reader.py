"""Batch queries: read the topics between two positions, both fixed when the query is planned."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from triomq.client.spark.columns import arrow_schema
from triomq.client.spark.driver_client import DriverClient
from triomq.client.spark.options import SourceOptions
from triomq.client.spark.partitions import TaskReader, partitions_of
from triomq.client.spark.planning import QueueRange
from triomq.client.spark.query_begin import ending_offsets, initial_offsets


class RocketMQBatchReader(DataSourceReader):
    """The reader of a batch query.

    ``pushFilters`` stays undefined: an accepted filter would leak into other queries on the same
    DataFrame.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(schema)

    def partitions(self) -> list[InputPartition]:
        """Fix the begin and the end of the query, and cut it into tasks.

        Raises: OptionError, SourceError, DataLoss, Unreachable.
        """
        cluster = DriverClient(self._options)
        try:
            begins = initial_offsets(self._options, cluster)
            ends = ending_offsets(self._options, cluster)
            ranges = [
                QueueRange(queue, begin, ends[queue])
                for queue, begin in sorted(begins.items())
                if queue in ends and begin < ends[queue]
            ]
            return partitions_of(ranges, self._options, cluster.addresses, cluster.slaves)
        finally:
            cluster.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task's messages, in an executor."""
        return TaskReader(self._options, self._schema).read(partition)

    def __reduce__(self) -> tuple[type[TaskReader], tuple[SourceOptions, pa.Schema]]:
        return TaskReader, (self._options, self._schema)
