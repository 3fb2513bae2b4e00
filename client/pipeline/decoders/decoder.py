"""What every decoder is."""

from __future__ import annotations

from typing import Protocol

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType


class Decoder(Protocol):
    """From bodies to columns. Good rows and bad rows together are all rows."""

    @property
    def schema(self) -> StructType:
        """The columns that ``decode`` adds."""

    def decode(self, frame: DataFrame) -> DataFrame:
        """Return the frame with the columns of the schema, and ``mq_reason``.

        ``mq_reason`` is null for a good row. In a bad row it says why, without any part of the
        body, and the other new columns are null.
        """
