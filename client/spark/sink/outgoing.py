"""From rows to batches of messages. Pure: this file does not send.

A message is one element of the body of SEND_BATCH_MESSAGE: flag, body, properties.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import attrs
import pyarrow as pa

from triomq.client.spark.errors import RowRefused
from triomq.remoting.core.errors import LocalProtocolError
from triomq.remoting.protocol.batch import ELEMENT_BYTES
from triomq.remoting.protocol.compression import compress_body
from triomq.remoting.protocol.framing import FRAME_BYTES_MAX
from triomq.remoting.protocol.ids import UniqueIds
from triomq.remoting.protocol.message_properties import (
    DELAY,
    KEYS,
    PROPERTIES_BYTES_MAX,
    RESERVED_PROPERTIES,
    SHARDING_KEY,
    TAGS,
    TIMER_DELIVER_MS,
    UNIQ_KEY,
    WAIT,
    encode_properties,
)

ORIGIN = "__SPARK"
"""property: ``queryId/batchId/partition/row``, equal for a row that a repeated task sends again"""
MESSAGES_MAX = 4096
"""messages of a batch"""
BODY_BYTES_MAX = FRAME_BYTES_MAX - (64 << 10)
"""a frame also has a header of 32 KiB of properties, and less than 1 KiB of other fields"""
Refuse = Callable[[object, str], None]
"""takes the mark of a row, and the reason why it is not sent"""


class Element(NamedTuple):
    """One message; ``sys_flag`` says how the body is compressed."""

    flag: int
    body: bytes
    properties: bytes
    sys_flag: int = 0
    mark: object = None
    """what names the row if a broker refuses it"""

    @property
    def size_bytes(self) -> int:
        return ELEMENT_BYTES + len(self.body) + len(self.properties)


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
    *("value", "topic", "key", "tags", "headers", "shardingKey", "brokerName", "queueId"),
    *("delayLevel", "deliverTimestamp", "flag"),
)
"""The cells of a row, in this order; None for columns that are not there."""


class Row(NamedTuple):
    """One row as a message."""

    wish: QueueWish
    element: Element
    alone: bool
    """whether it cannot share a request: brokers do not take delayed messages in batches"""


@attrs.define(eq=False)
class Rows:
    """Turns the record batches of one task into messages.

    ``places``: column → position. ``origin``: the first part of ``__SPARK``.
    """

    places: Mapping[str, int]
    topic: str | None
    origin: str
    compress_over_bytes: int
    ids: UniqueIds
    marks: tuple[int, ...] = ()
    """positions of the columns that name a row"""
    refuse: Refuse | None = None
    """takes rows that cannot be messages; without it they raise"""
    _count: int = 0
    _anywhere: dict[str, QueueWish] = attrs.field(factory=dict, init=False)
    """by topic: the wish of all rows that may go to any queue"""

    def of(self, batch: pa.RecordBatch, now_ms: int) -> Iterator[Row]:
        """Yield the rows of a record batch.

        Raises: RowRefused for a row that cannot be a message, unless ``refuse`` takes it. It names
            the row, never its body.
        """
        columns: list[Iterable[object]] = [
            batch.column(self.places[name]).to_pylist() if name in self.places else repeat(None)
            for name in CELL_COLUMNS
        ]
        marks: Iterable[object] = repeat(None)
        if self.marks:
            marks = zip(*(batch.column(place).to_pylist() for place in self.marks))
        for cells, mark in zip(zip(*columns), marks):
            try:
                row = self._row(cells, mark, now_ms)
            except RowRefused as error:
                if self.refuse is None:
                    raise
                self.refuse(mark, str(error))
            else:
                yield row
            self._count += 1

    def _row(self, cells: tuple[Any, ...], mark: object, now_ms: int) -> Row:
        """Return one row as a message. The sink's time is spent here: a plain row takes 2 µs."""
        body, topic, key, tags, headers, sharding_key, broker, queue_id, level, moment, flag = cells
        # Without a body the message is a tombstone: in a compaction topic it deletes its key.
        body = body or b""
        if isinstance(body, str):
            body = body.encode()
        topic = self.topic if self.topic is not None else topic
        if not topic:
            raise self._refused("has no topic")
        properties = self._headers(headers) if headers else {}
        if tags:
            properties[TAGS] = tags
        if key:
            properties[KEYS] = key if isinstance(key, str) else key.decode("utf-8", "replace")
        if sharding_key is not None:
            properties[SHARDING_KEY] = sharding_key
        if level:
            properties[DELAY] = str(level)
        if moment is not None:
            properties[TIMER_DELIVER_MS] = str(round(moment.timestamp() * 1000))
        text = (
            f"{WAIT}\x01true\x02{UNIQ_KEY}\x01{self.ids.next(now_ms)}\x02"
            f"{ORIGIN}\x01{self.origin}/{self._count}\x02"
        ).encode()
        if properties:
            try:
                text = encode_properties(properties) + text
            except LocalProtocolError as error:
                raise self._refused(f"cannot be a message: {error}") from error
        if len(text) > PROPERTIES_BYTES_MAX:
            raise self._refused(
                f"has properties of {len(text)} bytes, the limit is {PROPERTIES_BYTES_MAX}: shorten"
                " its headers"
            )
        if len(body) > BODY_BYTES_MAX:
            raise self._refused(
                f"has a body of {len(body)} bytes; no broker takes a request of more than"
                f" {FRAME_BYTES_MAX >> 20} MiB: send a reference to the content"
            )
        packed, sys_flag = body, 0
        if len(body) >= self.compress_over_bytes:
            packed, sys_flag = compress_body(body, threshold_bytes=self.compress_over_bytes)
            if len(packed) >= len(body):
                packed, sys_flag = body, 0
        if broker is None and queue_id is None and sharding_key is None:
            wish = self._anywhere.get(topic)
            if wish is None:
                wish = self._anywhere[topic] = QueueWish(topic)
        elif (broker is None) != (queue_id is None):
            raise self._refused("has one of brokerName and queueId; a queue needs both, or neither")
        else:
            wish = QueueWish(topic, broker, -1 if queue_id is None else queue_id, sharding_key)
        element = Element(flag or 0, packed, text, sys_flag, mark)
        return Row(wish, element, bool(level) or moment is not None)

    def _headers(self, headers: Any) -> dict[str, str]:
        """Return a row's headers without those that RocketMQ sets itself.

        The source's column ``headers`` has these, too. Arrow gives a map as pairs.
        """
        return {
            name: value
            for name, value in headers
            if value and name and name not in RESERVED_PROPERTIES and name != ORIGIN
        }

    def _refused(self, what: str) -> RowRefused:
        return RowRefused(f"row {self._count} of this task {what}")


@attrs.define(eq=False)
class SinkBatch:
    """Messages for one request."""

    wish: QueueWish
    elements: list[Element] = attrs.field(factory=list)
    size_bytes: int = 0
    first_try: float = -1.0
    tries: int = 0
    retry_at: float = 0.0

    @property
    def sys_flag(self) -> int:
        return self.elements[0].sys_flag

    def halves(self) -> "tuple[SinkBatch, SinkBatch]":
        """Return two batches instead of this one."""
        middle = len(self.elements) // 2
        first, second = self.elements[:middle], self.elements[middle:]
        return SinkBatch(self.wish, first), SinkBatch(self.wish, second)


@attrs.define(eq=False)
class Packer:
    """Collects messages until a batch is full. Messages for one queue keep their order."""

    batch_bytes: int
    _open: dict[tuple[QueueWish, int], SinkBatch] = attrs.field(factory=dict, init=False)
    """by what must be equal in a batch; the second part is 0 for messages that keep their order"""
    _bytes: int = attrs.field(default=0, init=False)
    bytes_max: int = 32 * 1024 * 1024
    """limit of all open batches; then the largest is sent although it is not full"""

    def add(self, wish: QueueWish, row: Row) -> Sequence[SinkBatch]:
        """Add a message that goes to ``wish``. Returns: the batches that are to be sent now."""
        element = row.element
        size = element.size_bytes
        anywhere = wish.is_any
        key = wish, element.sys_flag if anywhere else 0
        batch = self._open.get(key)
        full: list[SinkBatch] = []
        if batch is not None and (
            row.alone
            or (not anywhere and batch.sys_flag != element.sys_flag)
            or batch.size_bytes + size > self.batch_bytes
            or len(batch.elements) >= MESSAGES_MAX
        ):
            full.append(self._close(key))
            batch = None
        if batch is None:
            batch = self._open[key] = SinkBatch(wish)
        batch.elements.append(element)
        batch.size_bytes += size
        self._bytes += size
        if row.alone:
            full.append(self._close(key))
        elif self._bytes > self.bytes_max:
            fullest = max(self._open, key=lambda each: self._open[each].size_bytes)
            full.append(self._close(fullest))
        return full

    def rest(self) -> Iterator[SinkBatch]:
        """Yield all batches that are not full."""
        while self._open:
            yield self._close(next(iter(self._open)))

    def _close(self, key: tuple[QueueWish, int]) -> SinkBatch:
        batch = self._open.pop(key)
        self._bytes -= batch.size_bytes
        return batch
