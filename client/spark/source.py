"""What Spark sees: `format("rocketmq")`."""

import uuid

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from triomq.client.spark.batch_reader import RocketMQBatchReader
from triomq.client.spark.columns import check_schema, default_schema
from triomq.client.spark.options import parse_options
from triomq.client.spark.stream_reader import RocketMQStreamReader


class RocketMQDataSource(DataSource):
    """Topics of a RocketMQ-compatible cluster as DataFrames: `spark.readStream.format("rocketmq")`, `spark.read.format("rocketmq")`."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._query = uuid.uuid4().hex[:12]  # made once, pickled with the source: the same name for driver and tasks

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> StructType:
        """The columns of a query that names none."""
        wish = {key.lower(): value for key, value in self.options.items()}
        headers = wish.get("includeheaders", wish.get("includeproperties", "false"))
        return default_schema(include_headers=headers.strip().lower() == "true")

    def streamReader(self, schema: StructType) -> RocketMQStreamReader:  # noqa: N802
        """Check options and schema.  Raises OptionError."""
        options = parse_options(self._plain_options(), streaming=True, query=self._query)
        check_schema(schema)
        return RocketMQStreamReader(options, schema)

    def reader(self, schema: StructType) -> RocketMQBatchReader:
        """Check options and schema.  Raises OptionError."""
        options = parse_options(self._plain_options(), streaming=False, query=self._query)
        check_schema(schema)
        return RocketMQBatchReader(options, schema)

    def _plain_options(self) -> dict[str, str]:
        return dict(self.options.items())
