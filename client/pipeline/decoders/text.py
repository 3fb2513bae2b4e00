"""The formats ``bytes`` and ``string``: the body as it is, in the column ``value``."""

from __future__ import annotations

import attrs
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import BinaryType, StringType, StructType

from triomq.client.pipeline.core.origin import REASON, VALUE

COLUMN = "value"


@attrs.frozen
class BytesDecoder:
    """Takes every body."""

    @property
    def schema(self) -> StructType:
        return StructType().add(COLUMN, BinaryType())

    def decode(self, frame: DataFrame) -> DataFrame:
        """Return the frame with ``value`` and an empty ``mq_reason``."""
        return frame.withColumns({COLUMN: sf.col(VALUE), REASON: sf.lit(None).cast("string")})


@attrs.frozen
class StringDecoder:
    """Takes bodies that are UTF-8."""

    @property
    def schema(self) -> StructType:
        return StructType().add(COLUMN, StringType())

    def decode(self, frame: DataFrame) -> DataFrame:
        """Return the frame with ``value``; a body that is not UTF-8 is bad, and not changed."""
        return frame.withColumn(COLUMN, valid_text()).withColumn(
            REASON, sf.when(sf.col(COLUMN).isNull(), sf.lit("the body is not UTF-8"))
        )


def valid_text(body: Column | None = None) -> Column:
    """Return a body, by default the whole one, as text; null if it is not UTF-8."""
    return sf.try_validate_utf8((sf.col(VALUE) if body is None else body).cast("string"))
