"""Decode records into Arrow record batches, with only the columns that the query reads.

Each batch is decoded from about ``recordBatchBytes`` of answers (1 MiB by default).
"""

import ipaddress
import logging
import struct
import zlib
from collections.abc import Callable, Sequence

import attrs
import numpy as np
import pyarrow as pa

from triomq.client.spark.properties import (
    KEYS,
    SHARDING_KEY,
    TAGS,
    UNIQUE_KEY,
    PropertyTable,
    checked_text,
    find_properties,
)
from triomq.client.spark.records import (
    BORN_HOST_AT,
    BORN_TIMESTAMP_AT,
    FLAG_AT,
    PADDING,
    Block,
    Integers,
    Records,
    Span,
    cut,
    read_records,
)
from triomq.remoting.protocol.compression import ZLIB_OR_GZIP
from triomq.remoting.protocol.record import LOG_OFFSET_AT
from triomq.remoting.protocol.sys_flags import (
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_MASK,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
)

logger = logging.getLogger(__name__)

INFLATED_BYTES_MAX = 1 << 30
"""The maximum size of all compressed bodies of one record batch after decompression."""
BATCH_BYTES_MAX = 32 << 20
"""A larger record batch, such as one of decompressed bodies, is returned in slices."""
MILLISECONDS_LEAST, MILLISECONDS_MOST = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999, all that Spark and Python can show. A producer may send any timestamp."""
COMPRESSIONS = {
    0: "zlib",  # old clients compress with zlib and set no codec
    COMPRESSION_LZ4: "lz4",
    COMPRESSION_ZSTD: "zstd",
    COMPRESSION_ZLIB: "zlib",
}
"""Codec bits of sysFlag -> Arrow's name of the codec."""


@attrs.frozen
class RecordDecoder:
    """The decoder of one task: from blocks (pull answers) to record batches of one schema."""

    schema: pa.Schema
    tags: frozenset[str] | None = None
    """Only messages with these tags are returned; None returns all. Brokers compare hashes of tags,
    so the tags themselves are compared here.
    """

    def decode(self, blocks: Sequence[Block]) -> list[pa.RecordBatch]:
        """Return the messages of all blocks, in order, as ``batches`` does.

        Raises: SourceError for answers that do not follow the protocol.
        """
        return self.batches(read_records(blocks))

    def batches(self, records: Records) -> list[pa.RecordBatch]:
        """Return the messages of the records, in order.

        Usually this is one batch. It is split if it is larger than ``BATCH_BYTES_MAX``, and left
        out if no message has a wanted tag.
        """
        table = Columns(records=records)
        arrays = [table.column(field) for field in self.schema]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        if self.tags is not None and len(table.records):
            # Start-up time: a quarter of what the import of a reader costs.
            import pyarrow.compute as pc

            wanted = pa.array(sorted(self.tags), pa.string())
            batch = batch.filter(pc.is_in(table.property_column(TAGS), wanted))
        if batch.num_rows == 0:
            return []
        parts = min(batch.num_rows, -(-batch.get_total_buffer_size() // BATCH_BYTES_MAX))
        rows = -(-batch.num_rows // parts)
        return [batch.slice(start, rows) for start in range(0, batch.num_rows, rows)]

    def empty(self) -> pa.RecordBatch:
        """Return a batch without rows, which tells Spark that a waiting task is alive."""
        return pa.RecordBatch.from_arrays(
            [pa.array([], field.type) for field in self.schema], schema=self.schema
        )


@attrs.define(eq=False, kw_only=True)
class Columns:
    """The columns of some records. Properties, which several columns need, are parsed once."""

    records: Records
    _properties: PropertyTable | None = None

    def column(self, field: pa.Field) -> pa.Array:
        """Return the column for a field of the schema, in exactly the field's type."""
        make = COLUMN_MAKERS[field.name]
        array = make(self)
        if array.type == field.type:
            return array
        return checked_text(array) if field.type == pa.string() else array.cast(field.type)

    def property_column(self, name: str) -> pa.Array:
        return self.properties.column(name)

    @property
    def properties(self) -> PropertyTable:
        if self._properties is None:
            self._properties = find_properties(self.raw_properties())
        return self._properties

    def raw_properties(self) -> pa.Array:
        return cut(self.records.raw, self.records.properties)

    def body(self) -> pa.Array:
        if (self.records.sys_flag & COMPRESSED).any():
            return cut(*inflated(self.records))
        return cut(self.records.raw, self.records.body)

    def of_queue(self, values: list[str] | list[int], kind: pa.DataType) -> pa.Array:
        """Return a column with the value of each row's queue."""
        if len(set(values)) == 1:  # fast path: usually all rows are of one queue
            return pa.repeat(pa.scalar(values[0], kind), len(self.records))
        return pa.array(values, kind).take(pa.array(self.records.owner))

    def message_ids(self) -> pa.Array:
        unique = self.property_column(UNIQUE_KEY)
        if not unique.null_count:
            return unique
        import pyarrow.compute as pc  # start-up time, as above

        return pc.coalesce(unique, pa.array(self.offset_message_ids(), pa.string()))

    def offset_message_ids(self) -> list[str]:
        """Return the offset id of each record: store host (address, port) and log offset, in hex.

        Source: common/…/MessageDecoder.java#createMessageId.
        """
        raw, records = self.records.raw, self.records
        host_at = (records.starts + records.store_host_at).tolist()
        host_ends = (records.starts + records.store_host_at + records.store_host_bytes).tolist()
        log_at = (records.starts + LOG_OFFSET_AT).tolist()
        return [
            (raw[host:end] + raw[log : log + 8]).hex().upper()
            for host, end, log in zip(host_at, host_ends, log_at, strict=True)
        ]

    def hosts(self, at: Integers | int, size: Integers | int) -> pa.Array:
        """Return hosts as ``ip:port``, from ``size`` bytes at ``at`` in each record.

        Most records share a few hosts, so each host is formatted once.
        """
        starts = self.records.starts + at
        raw = self.records.raw
        texts: dict[bytes, str] = {}
        result = []
        for start, end in zip(starts.tolist(), (starts + size).tolist(), strict=True):
            host = raw[start:end]
            text = texts.get(host)
            if text is None:
                text = texts[host] = host_text(host)
            result.append(text)
        return pa.array(result, pa.string())


COLUMN_MAKERS: dict[str, Callable[[Columns], pa.Array]] = {
    "key": lambda table: table.property_column(KEYS),
    "value": lambda table: table.body(),
    "topic": lambda table: table.of_queue(
        [queue.topic for queue in table.records.queues], pa.string()
    ),
    "brokerName": lambda table: table.of_queue(
        [queue.broker for queue in table.records.queues], pa.string()
    ),
    "queueId": lambda table: table.of_queue(
        [queue.queue_id for queue in table.records.queues], pa.int32()
    ),
    "offset": lambda table: pa.array(table.records.queue_offset),
    "timestamp": lambda table: timestamps(table.records.store_timestamp),
    "tags": lambda table: table.property_column(TAGS),
    "headers": lambda table: table.properties.maps(),
    "bornTimestamp": lambda table: timestamps(table.records.field(BORN_TIMESTAMP_AT, ">i8")),
    "msgId": lambda table: table.message_ids(),
    "messageGroup": lambda table: table.property_column(SHARDING_KEY),
    "flag": lambda table: pa.array(table.records.field(FLAG_AT, ">i4"), pa.int32()),
    "sysFlag": lambda table: pa.array(table.records.sys_flag, pa.int32()),
    "reconsumeTimes": lambda table: pa.array(table.records.reconsume_times, pa.int32()),
    "bornHost": lambda table: table.hosts(BORN_HOST_AT, table.records.born_host_bytes),
    "storeHost": lambda table: table.hosts(
        table.records.store_host_at, table.records.store_host_bytes
    ),
    "storeSize": lambda table: pa.array(table.records.size, pa.int32()),
    "commitLogOffset": lambda table: pa.array(table.records.field(LOG_OFFSET_AT, ">i8")),
    "properties": lambda table: table.raw_properties(),
}


def timestamps(milliseconds: Integers) -> pa.Array:
    """Convert ms since 1970 to a column in Spark's microseconds, clipped to what Spark can show."""
    micros = np.clip(milliseconds, MILLISECONDS_LEAST, MILLISECONDS_MOST) * 1000
    return pa.array(micros).view(pa.timestamp("us", tz="UTC"))


def host_text(host: bytes) -> str:
    """Return ``ip:port`` of a stored host: an address of 4 or 16 bytes, then a port of 4 bytes."""
    (port,) = struct.unpack(">i", host[-4:])
    address = ipaddress.ip_address(host[:-4])
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def inflated(records: Records) -> tuple[bytes, Span]:
    """Return a buffer with all bodies decompressed, and the position of each body in it.

    Decompressed bodies are appended to the original buffer; all others stay where they are. A body
    that cannot be decompressed is returned as stored, with a warning: if it were an error, a single
    message from any producer of the topic could stop the query for good.
    """
    starts, lengths = records.body.starts.copy(), records.body.lengths.copy()
    opened = []
    end = len(records.raw)
    budget = INFLATED_BYTES_MAX
    for row in np.flatnonzero(records.sys_flag & COMPRESSED).tolist():
        body = records.raw[starts[row] : starts[row] + lengths[row]]
        codec = COMPRESSIONS.get(int(records.sys_flag[row]) & COMPRESSION_MASK, "")
        plain = inflate(body, codec, budget)
        if plain is None:
            logger.warning(
                "%s offset %d: the body is marked as compressed (%s) and cannot be decompressed;"
                " its row has the bytes as stored",
                records.queues[int(records.owner[row])],
                records.queue_offset[row],
                codec or "unknown codec",
            )
            continue
        starts[row], lengths[row] = end, len(plain)
        end += len(plain)
        budget -= len(plain)
        opened.append(plain)
    return b"".join([records.raw, *opened, PADDING]), Span(starts=starts, lengths=lengths)


def inflate(body: bytes, codec: str, budget_bytes: int) -> bytes | None:
    """Return a decompressed body, or None if that is not possible.

    Then the body is damaged or cut off, decompresses to more than the budget, or has an unknown
    codec.
    """
    try:
        if codec == "zlib":
            machine = zlib.decompressobj(ZLIB_OR_GZIP)
            plain = machine.decompress(body, budget_bytes)
            return plain if machine.eof else None
        if codec:
            with pa.CompressedInputStream(pa.py_buffer(body), codec) as stream:
                plain = stream.read(budget_bytes)
            return plain if len(plain) < budget_bytes else None
    except (zlib.error, OSError, pa.ArrowException) as error:
        logger.debug("cannot decompress a body as %s: %s", codec, error)
    return None
