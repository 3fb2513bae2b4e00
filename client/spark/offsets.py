"""The source's position in its queues, and the JSON form that Spark keeps in the checkpoint.

    {"v":1, "q":{"orders":{"broker-a":{"0":1200,"1":1187}}}, "from":{"orders":{"broker-a":{"0":0}}}}

`q` is the next offset to read of every known queue, always.  `from` is the first offset of the queues that are not part of the
batch's start: all of them in the first batch, later only new ones.  Spark does not log where the first batch starts, so without
`from` a replay of that batch would begin wherever the queues stand by then, and lose messages without a word.

The law of this file: pure values; and the JSON is built in one order (topics, brokers, queue numbers), because Spark compares
offsets as text and would run empty batches for ever.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import attrs

from triomq.client.spark.errors import OffsetError

VERSION = 1


class Queue(NamedTuple):
    """One queue of one broker, by names that outlive addresses."""

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker}/{self.queue_id}"


Offsets = dict[Queue, int]


@attrs.frozen
class Bounds:
    """What a broker holds of a queue: offsets [least, end)."""

    least: int
    end: int


@attrs.frozen(kw_only=True)
class Position:
    """Where a query stands: what one entry of Spark's offset log says."""

    next: Offsets
    """queue → offset of the next message to read"""
    first: Offsets = attrs.field(factory=dict)
    """queue → offset where this batch begins, for queues that its start does not have"""
    filter_hash: str | None = None
    """hash of the tag expression; None for all messages"""

    @property
    def is_initial(self) -> bool:
        """Whether nothing has been read yet: this is what `initialOffset` returned, or an empty first batch."""
        return self.first == self.next

    def to_json(self) -> dict[str, Any]:
        """The object for Spark's offset log; equal positions give equal text."""
        document: dict[str, Any] = {"v": VERSION, "q": nested(self.next)}
        if self.first:
            document["from"] = nested(self.first)
        if self.filter_hash is not None:
            document["fh"] = self.filter_hash
        return document


def read_position(document: Any) -> Position:
    """Read what `Position.to_json` made.

    Raises OffsetError for another version or another shape.
    """
    if not isinstance(document, dict) or "v" not in document:
        raise OffsetError(
            f"the checkpoint holds {document!r}, which this source did not write; use another checkpointLocation for this query"
        )
    if document["v"] != VERSION:
        raise OffsetError(
            f"the checkpoint holds offsets of version {document['v']}, and this release of triomq reads version {VERSION}; "
            "run the query with the release that wrote them, or start with a new checkpointLocation"
        )
    filter_hash = document.get("fh")
    return Position(
        next=flat(document.get("q"), "q"), first=flat(document.get("from", {}), "from"), filter_hash=filter_hash
    )


def nested(offsets: Mapping[Queue, int]) -> dict[str, dict[str, dict[str, int]]]:
    """{topic: {broker: {queue number: offset}}} in sorted order, queue numbers as numbers."""
    result: dict[str, dict[str, dict[str, int]]] = {}
    for queue in sorted(offsets):
        result.setdefault(queue.topic, {}).setdefault(queue.broker, {})[str(queue.queue_id)] = offsets[queue]
    return result


def flat(document: Any, where: str) -> Offsets:
    """The inverse of `nested`.  Raises OffsetError that names the member *where*."""
    result: Offsets = {}
    try:
        for topic, brokers in document.items():
            for broker, queues in brokers.items():
                for queue_id, offset in queues.items():
                    if type(offset) is not int:
                        raise TypeError(f"{offset!r} is no offset")
                    result[Queue(topic, broker, int(queue_id))] = offset
    except (AttributeError, TypeError, ValueError) as error:
        raise OffsetError(
            f"member {where!r} of the offsets is not {{topic: {{broker: {{queue: offset}}}}}}: {error}"
        ) from error
    return result


def advance(
    start: Position, heads: Mapping[Queue, int], born: Mapping[Queue, int], filter_hash: str | None = None
) -> Position:
    """The end of a batch that starts at *start* and reads up to *heads*.

    *heads* may leave queues out: those stand still.  *born* gives the first offset of queues that *start* does not know, and of
    known queues that begin anew (failOnDataLoss=false after a topic was deleted and created again).
    """
    begins = {**start.next, **born}
    ends = {queue: max(begin, heads.get(queue, begin)) for queue, begin in begins.items()}
    return Position(next=ends, first=begins if start.is_initial else dict(born), filter_hash=filter_hash)


def batch_starts(start: Position, end: Position) -> Offsets:
    """Where each queue of *end* begins in the batch (start, end).

    Raises OffsetError when neither side knows: that would be a hole in the log.
    """
    starts: Offsets = {}
    for queue in end.next:
        first = end.first.get(queue, start.next.get(queue))
        if first is None:
            raise OffsetError(
                f"the offset log does not say where {queue} begins; the checkpoint is damaged, start with a new checkpointLocation"
            )
        starts[queue] = first
    return starts
