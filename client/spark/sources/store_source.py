"""The entry point for Spark: ``format("rocketmq-store")``.

Spark discovers one source per installed module, which is ``rocketmq``; this one is registered once:

    from triomq.spark import RocketMQStoreDataSource
    spark.dataSource.register(RocketMQStoreDataSource)
"""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from triomq.client.spark.columns import arrow_schema, check_schema, schema_for
from triomq.client.spark.decode import RecordDecoder
from triomq.client.spark.shipped import Shipped
from triomq.client.spark.store.store_options import StoreOptions, parse_store_options
from triomq.client.spark.store.store_planning import plan_store
from triomq.client.spark.store.store_task import StoreTask


class RocketMQStoreDataSource(DataSource, metaclass=Shipped):
    """The messages of a store directory as a DataFrame: ``format("rocketmq-store")``."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq-store"

    def schema(self) -> StructType:
        """Return the columns of a query that names none."""
        return schema_for(self.options)

    def reader(self, schema: StructType) -> "StoreBatchReader":
        """Check options and schema, and return the reader. Raises: OptionError."""
        options = parse_store_options(dict(self.options.items()))
        check_schema(schema)
        return StoreBatchReader(options, schema)


class StoreBatchReader(DataSourceReader, metaclass=Shipped):
    """The reader of a query."""

    def __init__(self, options: StoreOptions, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(schema)

    def partitions(self) -> list[InputPartition]:
        """Fix the begin and the end of the query, and cut it into tasks.

        Raises: OptionError, SourceError, StoreInUse, StoreFileDamaged, DataLoss.
        """
        return [InputPartition(ranges) for ranges in plan_store(self._options).tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task's messages, in an executor."""
        if partition.value is None:  # so Spark marks an empty partition
            return iter(())
        decoder = RecordDecoder(self._schema, frozenset(self._options.tags) or None)
        return StoreTask(partition.value, self._options, decoder).batches()
