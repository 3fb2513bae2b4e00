"""Record batches from pull answers: the columns of a query's schema, and only those, for about one MiB of messages at a time."""

import ipaddress
import logging
import struct
import zlib
from collections.abc import Callable, Sequence

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from triomq.client.spark import records as layout
from triomq.client.spark.properties import (
    KEYS,
    SHARDING_KEY,
    TAGS,
    UNIQUE_KEY,
    PropertyTable,
    checked_text,
    find_properties,
)
from triomq.client.spark.records import Block, Integers, Records, Span, cut, read_records

logger = logging.getLogger(__name__)

INFLATED_BYTES_MAX = 1 << 30
"""what the compressed messages of one record batch may grow to together"""
BATCH_BYTES_MAX = 32 << 20
"""larger record batches (compressed messages) are handed on in slices"""
MILLISECONDS_LEAST, MILLISECONDS_MOST = -62_135_596_800_000, 253_402_300_799_999
"""the years 1 to 9999, which Spark and Python can show; producers may claim any time"""
COMPRESSIONS = {0x000: "zlib", 0x100: "lz4", 0x200: "zstd", 0x300: "zlib"}
"""sysFlag bits 8-10 → codec; 0 is what old clients send.  Source: common/…/compression/CompressionType.java"""


@attrs.frozen
class Decoder:
    """Turns blocks into record batches of one schema.

    *tags*: the wanted tags, or None for all messages.  Brokers match tags by hash, so the text is compared here again.
    """

    schema: pa.Schema
    tags: frozenset[str] | None = None

    def decode(self, blocks: Sequence[Block]) -> list[pa.RecordBatch]:
        """The messages of *blocks* in their order; mostly one batch, more when compressed messages grow a lot.

        Raises SourceError for answers that are not what the protocol says.
        """
        table = Columns(records=read_records(blocks), blocks=blocks)
        arrays = [table.column(field) for field in self.schema]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        if self.tags is not None and len(table.records):
            batch = batch.filter(pc.is_in(table.property_column(TAGS), pa.array(sorted(self.tags), pa.string())))
        if batch.num_rows == 0:
            return []
        parts = min(batch.num_rows, -(-batch.nbytes // BATCH_BYTES_MAX))
        rows = -(-batch.num_rows // parts)
        return [batch.slice(start, rows) for start in range(0, batch.num_rows, rows)]

    def empty(self) -> pa.RecordBatch:
        """A batch without rows: a sign of life while a task waits for a broker."""
        return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in self.schema], schema=self.schema)


@attrs.define(eq=False, kw_only=True)
class Columns:
    """Builds the columns of some records; what several columns need is made once."""

    records: Records
    blocks: Sequence[Block]
    _properties: PropertyTable | None = None

    def column(self, field: pa.Field) -> pa.Array:
        """The column *field* of the schema, of exactly its type."""
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
        if (self.records.sys_flag & layout.COMPRESSED).any():
            return cut(*inflated(self.records, self.blocks))
        return cut(self.records.raw, self.records.body)

    def of_block(self, values: list[str]) -> pa.Array:
        """A column that is constant within each block."""
        return pa.DictionaryArray.from_arrays(
            pa.array(self.records.block, pa.int32()), pa.array(values, pa.string())
        ).dictionary_decode()

    def message_ids(self) -> pa.Array:
        unique = self.property_column(UNIQUE_KEY)
        return pc.coalesce(unique, pa.array(self.offset_message_ids(), pa.string())) if unique.null_count else unique

    def offset_message_ids(self) -> list[str]:
        """Hex of store host (address, port) and log offset.  Source: common/…/MessageDecoder.java#createMessageId"""
        raw, records = self.records.raw, self.records
        host_at = (records.starts + records.store_host_at).tolist()
        host_ends = (records.starts + records.store_host_at + records.store_host_bytes).tolist()
        log_at = (records.starts + layout.LOG_OFFSET_AT).tolist()
        return [
            (raw[host:end] + raw[log : log + 8]).hex().upper()
            for host, end, log in zip(host_at, host_ends, log_at, strict=True)
        ]

    def hosts(self, at: Integers | int, size: Integers) -> pa.Array:
        """`ip:port` texts; there are few different hosts, so each is formatted once."""
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
    "topic": lambda table: table.of_block([block.queue.topic for block in table.blocks]),
    "brokerName": lambda table: table.of_block([block.queue.broker for block in table.blocks]),
    "queueId": lambda table: pa.array(
        np.array([block.queue.queue_id for block in table.blocks], np.int32)[table.records.block], pa.int32()
    ),
    "offset": lambda table: pa.array(table.records.queue_offset),
    "timestamp": lambda table: timestamps(table.records.store_timestamp),
    "tags": lambda table: table.property_column(TAGS),
    "headers": lambda table: table.properties.maps(),
    "bornTimestamp": lambda table: timestamps(table.records.field(layout.BORN_TIMESTAMP_AT, ">i8")),
    "msgId": lambda table: table.message_ids(),
    "messageGroup": lambda table: table.property_column(SHARDING_KEY),
    "flag": lambda table: pa.array(table.records.field(16, ">i4"), pa.int32()),
    "sysFlag": lambda table: pa.array(table.records.sys_flag, pa.int32()),
    "reconsumeTimes": lambda table: pa.array(table.records.reconsume_times, pa.int32()),
    "bornHost": lambda table: table.hosts(layout.BORN_HOST_AT, table.records.born_host_bytes),
    "storeHost": lambda table: table.hosts(table.records.store_host_at, table.records.store_host_bytes),
    "storeSize": lambda table: pa.array(table.records.size, pa.int32()),
    "commitLogOffset": lambda table: pa.array(table.records.field(layout.LOG_OFFSET_AT, ">i8")),
    "properties": lambda table: table.raw_properties(),
}


def timestamps(milliseconds: Integers) -> pa.Array:
    """Milliseconds of the epoch as Spark's microseconds; absurd ones are held within what can be shown."""
    micros = np.clip(milliseconds, MILLISECONDS_LEAST, MILLISECONDS_MOST) * 1000
    return pa.array(micros).cast(pa.timestamp("us", tz="UTC"))


def host_text(host: bytes) -> str:
    """`ip:port` of a stored host: address of 4 or 16 bytes, port as four."""
    (port,) = struct.unpack(">i", host[-4:])
    address = ipaddress.ip_address(host[:-4])
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def inflated(records: Records, blocks: Sequence[Block]) -> tuple[bytes, Span]:
    """The bodies with compressed ones opened: these lie behind the original buffer, the others stay where they are.

    A body that does not open is handed on as stored, with a warning: whoever may send to the topic could otherwise stop the query
    for good with one message.
    """
    starts, lengths = records.body.starts.copy(), records.body.lengths.copy()
    opened = []
    end = len(records.raw)
    budget = INFLATED_BYTES_MAX
    for row in np.flatnonzero(records.sys_flag & layout.COMPRESSED).tolist():
        body = records.raw[starts[row] : starts[row] + lengths[row]]
        codec = COMPRESSIONS.get(int(records.sys_flag[row]) & 0x700, "")
        plain = inflate(body, codec, budget)
        if plain is None:
            logger.warning(
                "%s offset %d: the body claims to be compressed (%s) and does not open; it is handed on as it is stored",
                blocks[int(records.block[row])].queue,
                records.queue_offset[row],
                codec or "unknown codec",
            )
            continue
        starts[row], lengths[row] = end, len(plain)
        end += len(plain)
        budget -= len(plain)
        opened.append(plain)
    return b"".join([records.raw, *opened, layout.PADDING]), Span(starts=starts, lengths=lengths)


def inflate(body: bytes, codec: str, budget_bytes: int) -> bytes | None:
    """Decompress one body; None when it is damaged, cut off, of an unknown kind, or larger than the budget."""
    try:
        if codec == "zlib":
            machine = zlib.decompressobj()
            plain = machine.decompress(body, budget_bytes)
            return plain if machine.eof else None
        if codec:
            with pa.CompressedInputStream(pa.py_buffer(body), codec) as stream:
                plain = stream.read(budget_bytes)
            return plain if len(plain) < budget_bytes else None
    except (zlib.error, OSError, pa.ArrowException) as error:
        logger.debug("cannot decompress a body as %s: %s", codec, error)
    return None
