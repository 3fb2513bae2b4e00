"""The entry point for Spark: ``format("rocketmq")``."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from triomq.client.spark.columns import check_schema, schema_for
from triomq.client.spark.errors import OptionError, SourceError
from triomq.client.spark.options import parse_options
from triomq.client.spark.shipped import Shipped

if TYPE_CHECKING:
    from triomq.client.spark.batch_reader import RocketMQBatchReader
    from triomq.client.spark.sink.sink_options import SinkOptions
    from triomq.client.spark.sink.writer import RocketMQBatchWriter, RocketMQStreamWriter
    from triomq.client.spark.stream_reader import RocketMQStreamReader


class RocketMQDataSource(DataSource, metaclass=Shipped):
    """Topics of a RocketMQ-compatible cluster as DataFrames: ``format("rocketmq")``."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        # Pickled with the source, so driver and tasks have the same name.
        self._query = uuid.uuid4().hex[:12]

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> StructType:
        """Return the columns of a query that names none."""
        return schema_for(self.options)

    def streamReader(self, schema: StructType) -> RocketMQStreamReader:  # noqa: N802
        """Check options and schema, and return the reader of a stream.

        Raises: OptionError; SourceError for a PySpark that is too old for streams.
        """
        try:
            from triomq.client.spark.stream_reader import RocketMQStreamReader  # start-up time
        except ModuleNotFoundError as error:
            if error.name != "pyspark.sql.streaming.datasource":
                raise
            raise SourceError(
                f"streams need PySpark 4.2 or newer, and this is {pyspark.__version__}; install a"
                " newer one"
            ) from None

        options = parse_options(self._plain_options(), streaming=True, query=self._query)
        check_schema(schema)
        return RocketMQStreamReader(options, schema)

    def reader(self, schema: StructType) -> RocketMQBatchReader:
        """Check options and schema, and return the reader of a batch query.

        Raises: OptionError.
        """
        from triomq.client.spark.batch_reader import RocketMQBatchReader  # start-up time

        options = parse_options(self._plain_options(), streaming=False, query=self._query)
        check_schema(schema)
        return RocketMQBatchReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> RocketMQBatchWriter:
        """Check options and schema, and return the writer of a batch query.

        Raises: OptionError.
        """
        from triomq.client.spark.sink.writer import RocketMQBatchWriter  # start-up time

        how = '.mode("append"), or INSERT INTO'
        return RocketMQBatchWriter(*self._sink(schema, overwrite, how, streaming=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> RocketMQStreamWriter:  # noqa: N802
        """Check options and schema, and return the writer of a stream.

        Raises: OptionError.
        """
        from triomq.client.spark.sink.writer import RocketMQStreamWriter  # as above

        how = '.outputMode("append") or "update"'
        return RocketMQStreamWriter(*self._sink(schema, overwrite, how, streaming=True))

    def _sink(
        self, schema: StructType, overwrite: bool, how: str, *, streaming: bool
    ) -> tuple[SinkOptions, dict[str, int]]:
        """Return the checked options, and the position of each column. Raises: OptionError."""
        from triomq.client.spark.sink.sink_columns import check_sink_schema  # as above
        from triomq.client.spark.sink.sink_options import parse_sink_options  # as above

        if overwrite:
            raise OptionError(f"a topic cannot be overwritten: write with {how}")
        options = parse_sink_options(self._plain_options(), streaming=streaming)
        return options, check_sink_schema(schema, options.topic)

    def _plain_options(self) -> dict[str, str]:
        return dict(self.options.items())
