"""Pull answers as columns of numbers: many records of one buffer, read field by field with numpy.

``remoting/protocol/record.py`` has the layout of a record. Only the walk from record to record is a
Python loop (about 0.1 µs each); everything else works on whole arrays, which takes a quarter of the
time of reading the records as objects.
"""

import struct
from collections.abc import Sequence

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from triomq.client.spark.errors import SourceError
from triomq.client.spark.offsets import Queue
from triomq.remoting.core.errors import ProtocolError
from triomq.remoting.protocol.inner_batch import INNER_FLAGS, unwrapped
from triomq.remoting.protocol.record import (
    MAGIC_V1,
    MAGIC_V2,
    QUEUE_OFFSET_AT,
    SYS_FLAG_AT,
    StoredMessage,
    encode_record,
)
from triomq.remoting.protocol.record_reader import RECORD_BYTES_MIN, decode_records
from triomq.remoting.protocol.sys_flags import BORN_HOST_V6, STORE_HOST_V6

Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]

FLAG_AT = 16
BORN_TIMESTAMP_AT = 40
BORN_HOST_AT = 48
TIME_END = BORN_HOST_AT + 20 + 8
"""A record's store time ends here at the latest."""
PADDING = bytes(16)
"""Follows the last record, so that the fields of a damaged one cannot point outside the buffer."""

read_int = struct.Struct(">i").unpack_from
read_long = struct.Struct(">q").unpack_from


@attrs.frozen
class Block:
    """The body of one pull answer, its queue, and the range of wanted offsets."""

    queue: Queue
    first: int
    end: int
    body: bytes | memoryview


@attrs.frozen
class LastMessage:
    """The newest message of a batch in one queue, when the batch was planned.

    A topic that is deleted and created again has the same name and the same offsets. Its messages
    are newer than this one.
    """

    offset: int
    stored_ms: int
    """epoch, ms"""


def store_time_of(record: bytes | memoryview) -> int:
    """Return the store time (ms) of a record, of which the first ``TIME_END`` bytes are needed."""
    (sys_flag,) = read_int(record, SYS_FLAG_AT)
    (stored_ms,) = read_long(record, BORN_HOST_AT + (20 if sys_flag & BORN_HOST_V6 else 8))
    return int(stored_ms)


def first_store_time(body: bytes | memoryview) -> int | None:
    """Return the store time (ms) of an answer's first record, None if it has none."""
    return store_time_of(body) if len(body) >= TIME_END else None


@attrs.frozen(kw_only=True)
class Span:
    """One field of variable length of every record: position and length of its bytes."""

    starts: Integers
    lengths: Integers

    def only(self, rows: "Integers | Booleans") -> "Span":
        return Span(starts=self.starts[rows], lengths=self.lengths[rows])


@attrs.define(eq=False, kw_only=True)
class Records:
    """Records in one buffer, in the order in which they become rows."""

    raw: bytes
    starts: Integers
    """The position of each record in ``raw``."""
    queues: Sequence[Queue]
    owner: Integers
    """The queue of each record: a position in ``queues``."""
    queue_offset: Integers
    sys_flag: Integers
    size: Integers
    body: Span
    properties: Span

    def __len__(self) -> int:
        return len(self.starts)

    def only(self, rows: Integers | Booleans) -> "Records":
        """Return these rows: numbers, or a mask."""
        return attrs.evolve(
            self,
            starts=self.starts[rows],
            owner=self.owner[rows],
            queue_offset=self.queue_offset[rows],
            sys_flag=self.sys_flag[rows],
            size=self.size[rows],
            body=self.body.only(rows),
            properties=self.properties.only(rows),
        )

    def field(self, at: Integers | int, kind: str) -> Integers:
        """Return the number of numpy type ``kind`` at ``at`` bytes from each record's start."""
        return numbers(self.raw, self.starts + at, kind)

    @property
    def born_host_bytes(self) -> Integers | int:
        return host_bytes(self.sys_flag, BORN_HOST_V6)

    @property
    def store_host_bytes(self) -> Integers | int:
        return host_bytes(self.sys_flag, STORE_HOST_V6)

    @property
    def store_timestamp(self) -> Integers:
        return self.field(BORN_HOST_AT + self.born_host_bytes, ">i8")

    @property
    def store_host_at(self) -> Integers | int:
        return BORN_HOST_AT + self.born_host_bytes + 8

    @property
    def reconsume_times(self) -> Integers:
        return self.field(self.store_host_at + self.store_host_bytes, ">i4")


def numbers(raw: bytes, positions: Integers, kind: str) -> Integers:
    """Return the number of numpy type ``kind`` at each position.

    The buffer is an array of overlapping numbers: 14 ns each.
    """
    width = np.dtype(kind).itemsize
    overlapping: npt.NDArray[np.int64] = np.ndarray((len(raw) - width + 1,), kind, raw, 0, (1,))
    return overlapping[positions].astype(np.int64)


def host_bytes(sys_flag: Integers, v6_bit: int) -> Integers | int:
    """Return the length of a host field: the address and four bytes of port.

    One number if all records have addresses of four bytes.
    """
    is_v6 = sys_flag & v6_bit
    return np.where(is_v6, 20, 8) if is_v6.any() else 8


def record_starts(raw: bytes, begin: int, end: int, queue: Queue) -> list[int]:
    """Return the positions of the records of ``raw[begin:end]``.

    Raises: SourceError if a length cannot be right.
    """
    starts: list[int] = []
    add = starts.append
    position, size = begin, 0
    while position < end:
        add(position)
        (size,) = read_int(raw, position)  # near the end this reads padding: no valid size
        if size < RECORD_BYTES_MIN:
            break
        position += size
    if position != end:
        at = starts[-1] - begin
        raise damaged(queue, f"record at byte {at} of {end - begin} claims {size} bytes")
    return starts


def damaged(queue: Queue, what: str) -> SourceError:
    """Return the error for an answer that is not a sequence of records."""
    return SourceError(
        f"the broker's answer for {queue} is damaged: {what}; check that the broker and the source"
        " speak the same RocketMQ version"
    )


def read_records(blocks: Sequence[Block]) -> Records:
    """Return the records of all blocks that have wanted offsets.

    Raises: SourceError for a damaged answer, and for offsets below the wanted ones.
    """
    raw, at, owner = joined(blocks)
    packed = numbers(raw, at + SYS_FLAG_AT, ">i4") & INNER_FLAGS == INNER_FLAGS
    if packed.any():
        with_batches = set(owner[packed].tolist())
        blocks = [
            with_single_records(block) if number in with_batches else block
            for number, block in enumerate(blocks)
        ]
        raw, at, owner = joined(blocks)
    offsets = numbers(raw, at + QUEUE_OFFSET_AT, ">i8")
    early = offsets < np.array([block.first for block in blocks], np.int64)[owner]
    if early.any():
        raise damaged(
            blocks[int(owner[early][0])].queue,
            f"it holds offset {offsets[early][0]}, which lies before the wanted ones",
        )
    wanted = offsets < np.array([block.end for block in blocks], np.int64)[owner]
    if not wanted.all():
        at, owner, offsets = at[wanted], owner[wanted], offsets[wanted]
    queues = [block.queue for block in blocks]
    records, whole = laid_out(raw, queues, at, owner, offsets)
    if not whole.all():
        bad = int(np.argmin(whole))
        raise damaged(
            queues[int(owner[bad])],
            f"the lengths inside the record at offset {offsets[bad]} do not add up to its"
            f" {records.size[bad]} bytes",
        )
    return records


def joined(blocks: Sequence[Block]) -> tuple[bytes, Integers, Integers]:
    """Return all bodies in one buffer, the position of each record, and the number of its block.

    Raises: SourceError if a length cannot be right.
    """
    raw = b"".join([*(block.body for block in blocks), PADDING])
    starts: list[int] = []
    counts = []
    position = 0
    for block in blocks:
        found = record_starts(raw, position, position + len(block.body), block.queue)
        counts.append(len(found))
        starts += found
        position += len(block.body)
    return raw, np.array(starts, np.int64), np.repeat(np.arange(len(blocks)), counts)


def with_single_records(block: Block) -> Block:
    """Return the block with a record for each message of an inner batch (topics of BatchCQ).

    Messages before the wanted ones are left out: a broker sends whole batches.

    Raises: SourceError for a damaged answer.
    """
    try:
        body = b"".join(
            record_of(message) for message in unwrapped(decode_records(block.body), block.first)
        )
    except ProtocolError as error:
        raise damaged(block.queue, str(error)) from error
    return attrs.evolve(block, body=body)


def record_of(message: StoredMessage) -> bytes:
    """Return the message as a record of its own."""
    return encode_record(
        topic=message.topic,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        log_offset=message.log_offset,
        body=message.body,
        properties=message.properties_bytes,
        born_timestamp=message.born_timestamp,
        born_host=message.born_host_bytes,
        store_timestamp=message.store_timestamp,
        store_host=message.store_host_bytes,
        flag=message.flag,
        sys_flag=message.sys_flag,
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
    )


def laid_out(
    raw: bytes, queues: Sequence[Queue], at: Integers, owner: Integers, offsets: Integers
) -> tuple[Records, Booleans]:
    """Return the records with their bodies and properties, and which of them are whole.

    A record is whole if the lengths inside it add up to its size; the places of another mean
    nothing. ``at``: positions of records whose sizes do not reach beyond ``raw``.
    """
    size = numbers(raw, at, ">i4")
    magic = numbers(raw, at + 4, ">u4")
    sys_flag = numbers(raw, at + SYS_FLAG_AT, ">i4")
    body_at = (
        BORN_HOST_AT
        + host_bytes(sys_flag, BORN_HOST_V6)
        + 8
        + host_bytes(sys_flag, STORE_HOST_V6)
        + 4
        + 8
    )
    limit = len(raw) - 4
    body_bytes = numbers(raw, np.minimum(at + body_at, limit), ">i4")
    topic_at = body_at + 4 + body_bytes
    good = (body_bytes >= 0) & (topic_at < size) & ((magic == MAGIC_V1) | (magic == MAGIC_V2))
    topic_start = np.where(good, at + topic_at, 0)
    is_v2 = magic == MAGIC_V2
    topic_bytes = numbers(raw, topic_start, "i1")
    properties_at = topic_at + 1 + topic_bytes
    if is_v2.any():
        topic_bytes = np.where(is_v2, numbers(raw, topic_start, ">i2"), topic_bytes)
        properties_at = np.where(is_v2, topic_at + 2 + topic_bytes, properties_at)
    good &= (topic_bytes >= 0) & (properties_at < size)
    properties_bytes = numbers(raw, np.where(good, at + properties_at, 0), ">i2")
    good &= (properties_bytes >= 0) & (properties_at + 2 + properties_bytes == size)
    records = Records(
        raw=raw,
        starts=at,
        queues=queues,
        owner=owner,
        queue_offset=offsets,
        sys_flag=sys_flag,
        size=size,
        body=Span(starts=at + body_at + 4, lengths=body_bytes),
        properties=Span(starts=at + properties_at + 2, lengths=properties_bytes),
    )
    return records, good


VIEW = np.dtype([("length", "<i4"), ("prefix", "<i4"), ("buffer", "<i4"), ("position", "<i4")])
"""An Arrow view of a value longer than ``INLINE_BYTES``. Only comparisons read the prefix."""
INLINE_BYTES = 12
INLINE_VIEW = np.dtype([("length", "<i4"), ("value", f"V{INLINE_BYTES}")])
"""An Arrow view of a shorter value. What follows the value in it is never read."""


def cut(raw: bytes, span: Span) -> pa.Array:
    """Return the bytes of ``span`` as a binary array: Arrow views made by numpy, copied in C++.

    `raw`: must go on for 11 bytes after the last start.
    """
    rows = len(span.starts)
    views = np.zeros(rows, VIEW)
    views["length"] = span.lengths
    views["position"] = span.starts
    short = np.flatnonzero(span.lengths <= INLINE_BYTES)
    if len(short):
        overlapping: npt.NDArray[np.void] = np.ndarray(
            (len(raw) - INLINE_BYTES + 1,), f"V{INLINE_BYTES}", raw, 0, (1,)
        )
        views.view(INLINE_VIEW)["value"][short] = overlapping[span.starts[short]]
    return pa.Array.from_buffers(
        pa.binary_view(), rows, [None, pa.py_buffer(views), pa.py_buffer(raw)]
    ).cast(pa.binary())
