"""How is a frame sent so that one bad row does not end the query? Refused rows are a frame.

``write.format("rocketmq")`` fails with the first row that cannot be a message, or that a broker
refuses for what it is, as for its size. Here such rows come back with the reason.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StringType, StructType

from triomq.client.spark.sink.sink_columns import check_sink_schema
from triomq.client.spark.sink.sink_options import parse_sink_options
from triomq.client.spark.sink.writer import TaskWriter

REASON = "refused_because"
"""column of refused rows"""


def send_rows(frame: DataFrame, options: Mapping[str, str], marks: Sequence[str]) -> DataFrame:
    """Send a frame that has the columns of the sink and ``marks``, which name a row.

    Returns: the refused rows, with ``marks`` and ``refused_because``. An action sends: persist the
        frame first, and look at it once.
    Raises: OptionError.
    """
    columns = [name for name in frame.columns if name not in marks]
    ordered = frame.select(*columns, *marks)
    fields = ordered.schema.fields
    parsed = parse_sink_options(options, streaming=False)
    places = check_sink_schema(StructType(fields[: len(columns)]), parsed.topic)
    positions = tuple(range(len(columns), len(fields)))
    writer = TaskWriter(parsed, places, uuid.uuid4().hex, positions)
    refused = StructType(fields[len(columns) :]).add(REASON, StringType())
    return ordered.mapInArrow(partial(_refused, writer, tuple(marks)), refused)


def _refused(
    writer: TaskWriter, marks: Sequence[str], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    names = [*marks, REASON]
    kinds: list[pa.DataType] = []

    def seen() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            kinds[:] = [batch.column(place).type for place in writer.marks]
            yield batch

    for part in writer.refused(seen()):
        columns = zip(*((*mark, reason) for mark, reason in part))
        arrays = [pa.array(cells, kind) for cells, kind in zip(columns, [*kinds, pa.string()])]
        yield pa.RecordBatch.from_arrays(arrays, names)
