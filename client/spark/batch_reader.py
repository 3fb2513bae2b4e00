"""The batch side: one query over what the topics hold between two positions, both fixed when the query is planned."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from triomq.client.spark.cluster import Cluster
from triomq.client.spark.columns import arrow_schema
from triomq.client.spark.offsets import Offsets
from triomq.client.spark.options import SourceOptions
from triomq.client.spark.planning import QueueRange
from triomq.client.spark.positions import at_timestamp, resolve
from triomq.client.spark.stream_reader import initial_offsets, readable_bounds
from triomq.client.spark.task import partitions_of, read_task


class RocketMQBatchReader(DataSourceReader):
    """Reads topics once.  `pushFilters` stays undefined: an accepted filter would leak into other queries on the same DataFrame."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(schema)

    def partitions(self) -> list[InputPartition]:
        """Fix where the query begins and ends, and cut what lies between into tasks.

        Raises OptionError, SourceError, DataLoss or Unreachable.
        """
        cluster = Cluster(self._options)
        try:
            begins = initial_offsets(self._options, cluster)
            ends = ending_offsets(self._options, cluster)
            ranges = [
                QueueRange(queue, begin, ends[queue])
                for queue, begin in sorted(begins.items())
                if queue in ends and begin < ends[queue]
            ]
            return partitions_of(ranges, self._options, cluster.addresses)
        finally:
            cluster.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task's messages, in an executor."""
        return read_task(partition, self._options, self._schema)


def ending_offsets(options: SourceOptions, cluster: Cluster) -> Offsets:
    """Where a batch query ends, exclusive, by `endingTimestamp` or `endingOffsets`."""
    bounds = readable_bounds(options, cluster)
    if options.ending_timestamp is not None:
        found = cluster.offsets_at(sorted(bounds), options.ending_timestamp)
        return at_timestamp(found, bounds, options.ending_timestamp, "latest")
    return resolve("endingOffsets", options.ending_offsets, bounds, fail_on_data_loss=options.fail_on_data_loss)
