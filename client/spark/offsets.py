"""The source's position in its queues, and its JSON form in Spark's checkpoint. Pure.

    {"v":2, "began":1764000000000, "q":{"orders":{"broker-a":{"0":1200,"1":1187}}},
     "stored":{"orders":{"broker-a":{"0":1763999999871,"1":1763999999630}}},
     "from":{"orders":{"broker-a":{"0":0}}}}

``began`` is the time when the query began (epoch, ms). ``q`` is the next offset to read of every
known queue. ``from`` is the first offset of the queues that the batch's start does not have: all
queues in the first batch, later only new queues. Spark does not log the start of the first batch,
so without ``from`` a replay of that batch would begin at the present offsets, and lose messages
silently.

``stored`` is the store time (ms) of the message before the next one: if it has another store time
later, the topic has been deleted and created again.

The JSON is built in one order (topics, brokers, queue numbers): Spark compares offsets as text, and
another order would look like a new batch. Version 1 lacks ``began`` and ``stored``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import attrs

from triomq.client.spark.errors import OffsetError

VERSION = 2
VERSIONS_READ = (1, VERSION)


class Queue(NamedTuple):
    """One queue of one broker, by the broker's name: its address may change."""

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker}/{self.queue_id}"


def recreated_before(queue: Queue, first: int, end: int) -> str:
    """Return a sentence about messages [first, end) that are gone with their topic."""
    return (
        f"topic {queue.topic} on {queue.broker} was deleted and created again before offsets"
        f" [{first}, {end}) of {queue} were read"
    )


Offsets = dict[Queue, int]


@attrs.frozen
class Bounds:
    """The messages of a queue that a broker has: offsets [least, end)."""

    least: int
    end: int
    of_slave: bool = False
    """whether a slave answered, which may lack the newest messages"""


@attrs.frozen(kw_only=True)
class Position:
    """The position of a query: one entry of Spark's offset log."""

    next: Offsets
    """queue → offset of the next message to read"""
    first: Offsets = attrs.field(factory=dict)
    """queue → begin of this batch, for queues that its start does not have"""
    filter_hash: str | None = None
    """hash of the tag expression; None for all messages"""
    began_ms: int | None = None
    """when the query began; None in a checkpoint of version 1"""
    stored: Mapping[Queue, int] = attrs.field(factory=dict)
    """queue → store time (ms) of the message before ``next``, if there is one"""

    @property
    def is_initial(self) -> bool:
        """Whether nothing has been read yet.

        That is the result of ``initialOffset``, or an empty first batch.
        """
        return self.first == self.next

    def only(self, is_read: Callable[[Queue], bool]) -> Position:
        """Return the position without the queues that the query does not read any more."""
        return attrs.evolve(
            self,
            next={queue: offset for queue, offset in self.next.items() if is_read(queue)},
            first={queue: offset for queue, offset in self.first.items() if is_read(queue)},
            stored={queue: time for queue, time in self.stored.items() if is_read(queue)},
        )

    def to_json(self) -> dict[str, object]:
        """Return the object for Spark's offset log; equal positions give equal text."""
        document: dict[str, object] = {"v": VERSION}
        if self.began_ms is not None:
            document["began"] = self.began_ms
        document["q"] = nested(self.next)
        if self.stored:
            document["stored"] = nested(self.stored)
        if self.first:
            document["from"] = nested(self.first)
        if self.filter_hash is not None:
            document["fh"] = self.filter_hash
        return document


def read_position(document: object) -> Position:
    """Read the result of ``Position.to_json``, of this version or version 1.

    Raises: OffsetError for another version or another shape.
    """
    if not isinstance(document, dict) or "v" not in document:
        raise OffsetError(
            f"the checkpoint holds {document!r}, which this source did not write; use another"
            " checkpointLocation for this query"
        )
    if document["v"] not in VERSIONS_READ:
        raise OffsetError(
            f"the checkpoint holds offsets of version {document['v']}, and this release of triomq"
            f" reads versions 1 to {VERSION}; run the query with the release that wrote them, or"
            " start with a new checkpointLocation"
        )
    return Position(
        next=flat(document.get("q"), "q"),
        first=flat(document.get("from", {}), "from"),
        filter_hash=document.get("fh"),
        began_ms=document.get("began"),
        stored=flat(document.get("stored", {}), "stored"),
    )


def nested(offsets: Mapping[Queue, int]) -> dict[str, dict[str, dict[str, int]]]:
    """Return {topic: {broker: {queue number: offset}}}, sorted; queue numbers by value."""
    result: dict[str, dict[str, dict[str, int]]] = {}
    for queue in sorted(offsets):
        result.setdefault(queue.topic, {}).setdefault(queue.broker, {})[str(queue.queue_id)] = (
            offsets[queue]
        )
    return result


def flat(document: Any, where: str) -> Offsets:
    """Return the inverse of ``nested``.

    Raises: OffsetError that names the member ``where``.
    """
    result: Offsets = {}
    try:
        for topic, brokers in document.items():
            for broker, queues in brokers.items():
                for queue_id, offset in queues.items():
                    if type(offset) is not int:
                        raise TypeError(f"{offset!r} is not an offset")
                    result[Queue(topic, broker, int(queue_id))] = offset
    except (AttributeError, TypeError, ValueError) as error:
        raise OffsetError(
            f"member {where!r} of the offsets is not {{topic: {{broker: {{queue: offset}}}}}}:"
            f" {error}"
        ) from error
    return result


def advance(start: Position, heads: Mapping[Queue, int], born: Mapping[Queue, int]) -> Position:
    """Return the end of a batch that starts at ``start`` and reads up to ``heads``.

    Queues that ``heads`` leaves out do not move. ``born``: the first offset of queues that
    ``start`` does not know, and of known queues that begin again (failOnDataLoss=false after a
    topic was deleted and created again).
    """
    begins = {**start.next, **born}
    ends = {queue: max(begin, heads.get(queue, begin)) for queue, begin in begins.items()}
    return attrs.evolve(start, next=ends, first=begins if start.is_initial else dict(born))


def batch_starts(start: Position, end: Position) -> Offsets:
    """Return the begin of each queue of ``end`` in the batch (start, end).

    Raises: OffsetError if neither position has it: the offset log is damaged.
    """
    starts: Offsets = {}
    for queue in end.next:
        first = end.first.get(queue, start.next.get(queue))
        if first is None:
            raise OffsetError(
                f"the offset log does not say where {queue} begins; the checkpoint is damaged,"
                " start with a new checkpointLocation"
            )
        starts[queue] = first
    return starts
