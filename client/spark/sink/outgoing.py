"""From rows to batches of messages. Pure: this file does not send.

A message is one element of the body of SEND_BATCH_MESSAGE, which is joined from its pieces.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count, repeat
from typing import NamedTuple

import attrs
import pyarrow as pa

from triomq.client.spark.errors import RowRefused
from triomq.client.spark.sink.property_texts import ORIGIN, property_texts
from triomq.remoting.protocol.batch import ELEMENT_BYTES, ELEMENT_HEAD, ELEMENT_LENGTH
from triomq.remoting.protocol.compression import compress_body
from triomq.remoting.protocol.framing import FRAME_BYTES_MAX
from triomq.remoting.protocol.ids import HEX, UniqueIds
from triomq.remoting.protocol.message_properties import PROPERTIES_BYTES_MAX, UNIQ_KEY, WAIT

MESSAGES_MAX = 4096
"""messages of a batch"""
PIECES = 4
"""of a message in the body of a request"""
BODY_BYTES_MAX = FRAME_BYTES_MAX - (64 << 10)
"""a frame also has a header of 32 KiB of properties, and less than 1 KiB of other fields"""
TEXTS = (pa.string(), pa.large_string())
Refuse = Callable[[object, str], None]
"""takes the mark of a row, and the reason why it is not sent"""


class QueueWish(NamedTuple):
    """Where a row wants to go."""

    topic: str
    broker: str | None = None
    """with ``queue_id``: exactly this queue"""
    queue_id: int = -1
    sharding_key: str | None = None

    @property
    def is_any(self) -> bool:
        return self.broker is None and self.sharding_key is None


CELL_COLUMNS = (
    *("value", "topic", "shardingKey", "brokerName", "queueId", "delayLevel", "deliverTimestamp"),
    "flag",
)
"""The cells of a row, in this order; None for columns that are not there."""


@attrs.define(eq=False)
class SinkBatch:
    """Messages for one request; ``sys_flag`` says how their bodies are compressed."""

    wish: QueueWish
    sys_flag: int = 0
    pieces: list[bytes] = attrs.field(factory=list)
    """of the elements, in order"""
    marks: list[object] = attrs.field(factory=list)
    """what names the rows if a broker refuses them"""
    size_bytes: int = 0
    first_try: float = -1.0
    tries: int = 0
    retry_at: float = 0.0

    def halves(self) -> "list[SinkBatch]":
        """Return two batches instead of this one."""
        middle = len(self.marks) // 2
        return [
            SinkBatch(
                self.wish,
                self.sys_flag,
                self.pieces[part.start * PIECES : part.stop * PIECES],
                self.marks[part],
            )
            for part in (slice(0, middle), slice(middle, len(self.marks)))
        ]


@attrs.define(eq=False)
class OutgoingRows:
    """Turns the record batches of one task into batches of messages.

    Messages for one queue keep their order. ``places``: column → position. ``origin``: the first
    part of ``__SPARK``. ``place`` finds the queue of a sharding key.
    """

    places: Mapping[str, int]
    topic: str | None
    origin: str
    compress_over_bytes: int
    batch_bytes: int
    ids: UniqueIds
    place: Callable[[QueueWish], QueueWish]
    marks: tuple[int, ...] = ()
    """positions of the columns that name a row"""
    refuse: Refuse | None = None
    """takes rows that cannot be messages; without it they raise"""
    bytes_max: int = 32 * 1024 * 1024
    """limit of all open batches; then the largest is sent although it is not full"""
    _count: int = attrs.field(default=0, init=False)
    _anywhere: dict[str, QueueWish] = attrs.field(factory=dict, init=False)
    """by topic: the wish of all rows that may go to any queue"""
    _open: dict[tuple[QueueWish, int], SinkBatch] = attrs.field(factory=dict, init=False)
    """by what must be equal in a batch"""
    _bytes: int = attrs.field(default=0, init=False)
    """of all open batches"""

    def of(self, batch: pa.RecordBatch, now_ms: int) -> Iterator[SinkBatch]:
        """Take the rows of a record batch; yield the batches that are to be sent now.

        The sink's time is spent here, 1 µs a plain row, so the common way through it calls no
        method of ours.

        Raises: RowRefused for a row that cannot be a message, unless ``refuse`` takes it. It names
            the row, never its body. SourceError, Unreachable of ``place``.
        """
        columns: list[Iterable[object]] = [
            cells_of(batch, name, self.places.get(name)) for name in CELL_COLUMNS
        ]
        marks: Iterable[object] = repeat(None)
        if self.marks:
            marks = zip(*(batch.column(place).to_pylist() for place in self.marks))
        properties = property_texts(batch, self.places)
        stamp, id_number = self.ids.series(now_ms, batch.num_rows)
        begin = f"{WAIT}\x01true\x02{UNIQ_KEY}\x01{stamp}"
        middle = f"\x02{ORIGIN}\x01{self.origin}/"
        head, length = ELEMENT_HEAD.pack, ELEMENT_LENGTH.pack
        fixed, anywhere, batch_bytes = self.topic, self._anywhere, self.batch_bytes
        large = min(self.compress_over_bytes, BODY_BYTES_MAX + 1)
        last = SinkBatch(QueueWish(""))  # not an open one: no row wants it
        wish_of_last: QueueWish | None = None
        flag_of_last = size_of_last = 0
        pieces, marked = last.pieces, last.marks.append
        first, self._count = self._count, self._count + batch.num_rows
        id_number -= first
        for number, cells, more, mark in zip(count(first), zip(*columns), properties, marks):
            body, topic, sharding_key, broker, queue_id, level, moment, flag = cells
            # Without a body the message is a tombstone: in a compaction topic it deletes its key.
            body = body or b""
            sys_flag = 0
            alone = level or moment is not None
            try:
                if more is None:
                    raise RowRefused(
                        "cannot be a message: property names and values must not contain the"
                        " characters 0x01 and 0x02"
                    )
                counter = (id_number + number) & 0xFFFF
                high, low = HEX[counter >> 8], HEX[counter & 0xFF]
                text = f"{more}{begin}{high}{low}{middle}{number}\x02".encode()
                if len(text) > PROPERTIES_BYTES_MAX:
                    raise RowRefused(
                        f"has properties of {len(text)} bytes, the limit is {PROPERTIES_BYTES_MAX}:"
                        " shorten its headers"
                    )
                if len(body) >= large:
                    body, sys_flag = packed(body, self.compress_over_bytes)
                wish = anywhere.get(fixed or topic)
                if wish is None or not (broker is queue_id is sharding_key is None):
                    wish = self._wish(fixed or topic, sharding_key, broker, queue_id)
            except RowRefused as error:
                refused = RowRefused(f"row {number} of this task {error}")
                if self.refuse is None:
                    raise refused from error
                self.refuse(mark, str(refused))
                continue
            size = ELEMENT_BYTES + len(body) + len(text)
            if (
                wish is not wish_of_last
                or sys_flag != flag_of_last
                or alone
                or size_of_last + size > batch_bytes
                or len(pieces) >= PIECES * MESSAGES_MAX
            ):
                self._grew(last, size_of_last)
                last, full = self._batch(wish, sys_flag, size, bool(alone))
                yield from full
                wish_of_last, flag_of_last, size_of_last = wish, sys_flag, last.size_bytes
                pieces, marked = last.pieces, last.marks.append
            pieces += (head(size, 0, 0, flag or 0, len(body)), body, length(len(text)), text)
            marked(mark)
            size_of_last += size
            if alone:
                self._grew(last, size_of_last)
                yield self._close(last)
                wish_of_last = None
        self._grew(last, size_of_last)

    def rest(self) -> Iterator[SinkBatch]:
        """Yield all batches that are not full."""
        while self._open:
            yield self._close(next(iter(self._open.values())))

    def _wish(
        self, topic: str | None, sharding_key: str | None, broker: str | None, queue_id: int | None
    ) -> QueueWish:
        """Return where a row goes. Raises: RowRefused, and what ``place`` raises."""
        if not topic:
            raise RowRefused("has no topic")
        if (broker is None) != (queue_id is None):
            raise RowRefused("has one of brokerName and queueId; a queue needs both, or neither")
        if broker is None and sharding_key is None:
            return self._anywhere.setdefault(topic, QueueWish(topic))
        return self.place(
            QueueWish(topic, broker, -1 if queue_id is None else queue_id, sharding_key)
        )

    def _batch(
        self, wish: QueueWish, sys_flag: int, size: int, alone: bool
    ) -> tuple[SinkBatch, list[SinkBatch]]:
        """Return the batch that takes a message, and those that are to be sent before."""
        full = []
        if self._open and self._bytes + size > self.bytes_max:
            full.append(self._close(max(self._open.values(), key=lambda each: each.size_bytes)))
        key = key_of(wish, sys_flag)
        batch = self._open.get(key)
        if batch is not None and (
            alone
            or batch.sys_flag != sys_flag
            or batch.size_bytes + size > self.batch_bytes
            or len(batch.marks) >= MESSAGES_MAX
        ):
            full.append(self._close(batch))
            batch = None
        if batch is None:
            batch = self._open[key] = SinkBatch(wish, sys_flag)
        return batch, full

    def _grew(self, batch: SinkBatch, size_bytes: int) -> None:
        self._bytes += size_bytes - batch.size_bytes
        batch.size_bytes = size_bytes

    def _close(self, batch: SinkBatch) -> SinkBatch:
        del self._open[key_of(batch.wish, batch.sys_flag)]
        self._bytes -= batch.size_bytes
        return batch


def key_of(wish: QueueWish, sys_flag: int) -> tuple[QueueWish, int]:
    """Return what must be equal in a batch; 0 is of messages that keep their order."""
    return wish, sys_flag if wish.is_any else 0


def cells_of(batch: pa.RecordBatch, name: str, place: int | None) -> Iterable[object]:
    """Return the cells of a column; None for each row if it is not there."""
    if place is None:
        return repeat(None)
    column = batch.column(place)
    if name == "value" and column.type in TEXTS:
        column = column.cast(pa.large_binary())
    return column.to_pylist()  # type: ignore[no-any-return]


def packed(body: bytes, over_bytes: int) -> tuple[bytes, int]:
    """Return a large body, compressed if that helps, and its flag. Raises: RowRefused."""
    if len(body) > BODY_BYTES_MAX:
        raise RowRefused(
            f"has a body of {len(body)} bytes; no broker takes a request of more than"
            f" {FRAME_BYTES_MAX >> 20} MiB: send a reference to the content"
        )
    small, sys_flag = compress_body(body, threshold_bytes=over_bytes)
    return (small, sys_flag) if len(small) < len(body) else (body, 0)
