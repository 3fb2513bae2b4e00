"""Limit a batch, and cut it into tasks.

Pure: the same (start, end, options) give the same tasks, so that a replayed batch equals the logged
batch; no clock, no addresses and no live metadata are used.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import attrs

from triomq.client.spark.offsets import Offsets, Position, Queue, batch_starts

UNKNOWN_BYTES = 1024
"""the assumed size of a message if no broker gives a sample"""


class QueueRange(NamedTuple):
    """Messages [first, end) of one queue."""

    queue: Queue
    first: int
    end: int

    @property
    def message_count(self) -> int:
        return self.end - self.first


@attrs.frozen(kw_only=True)
class TaskSizes:
    """The sizes of tasks, in offsets (with a tag filter, rows may be fewer)."""

    min_partitions: int | None = None
    """approximate least number of tasks: large ranges are cut"""
    max_records: int | None = None
    """maximum messages per task"""
    min_records: int = 10_000
    """smaller ranges share a task: a Python task takes 20-60 ms before its first row"""


def ranges_between(start: Position, end: Position) -> list[QueueRange]:
    """Return the non-empty ranges of the batch (start, end), in the order of their queues.

    Raises: OffsetError if the start of a queue is unknown.
    """
    starts = batch_starts(start, end)
    ranges = [
        QueueRange(queue, starts[queue], offset) for queue, offset in sorted(end.next.items())
    ]
    return [each for each in ranges if each.message_count > 0]


def plan_tasks(ranges: Iterable[QueueRange], sizes: TaskSizes) -> list[tuple[QueueRange, ...]]:
    """Cut and pack ``ranges`` into tasks; a task reads its ranges in their order."""
    by_broker = sorted(
        ranges,
        key=lambda each: (each.queue.broker, each.queue.topic, each.queue.queue_id, each.first),
    )
    piece_max = sizes.max_records
    pack_below = sizes.min_records
    total = sum(each.message_count for each in by_broker)
    if sizes.min_partitions and total:
        wanted = -(-total // sizes.min_partitions)
        piece_max = min(piece_max, wanted) if piece_max else wanted
        # Equal cuts may be a little smaller than `wanted`: each stays a task.
        pack_below = min(pack_below, max(1, wanted // 2))
    pieces = [piece for each in by_broker for piece in split(each, piece_max)]
    return pack(pieces, pack_below, sizes.max_records)


def split(whole: QueueRange, piece_max: int | None) -> list[QueueRange]:
    """Cut a range into equal pieces (± 1) of at most ``piece_max`` messages."""
    if piece_max is None or whole.message_count <= piece_max:
        return [whole]
    parts = -(-whole.message_count // piece_max)
    cuts = [whole.first + whole.message_count * part // parts for part in range(parts + 1)]
    return [QueueRange(whole.queue, cuts[part], cuts[part + 1]) for part in range(parts)]


def pack(
    pieces: Sequence[QueueRange], pack_below: int, task_max: int | None
) -> list[tuple[QueueRange, ...]]:
    """Pack neighbours of fewer than ``pack_below`` messages into tasks of about that size.

    No task gets more than ``task_max``.
    """
    tasks: list[tuple[QueueRange, ...]] = []
    open_task: list[QueueRange] = []
    filled = 0
    for piece in pieces:
        if piece.message_count >= pack_below:
            tasks.append((piece,))
            continue
        if open_task and task_max is not None and filled + piece.message_count > task_max:
            tasks.append(tuple(open_task))
            open_task, filled = [], 0
        open_task.append(piece)
        filled += piece.message_count
        if filled >= pack_below:
            tasks.append(tuple(open_task))
            open_task, filled = [], 0
    if open_task:
        tasks.append(tuple(open_task))
    return tasks


def backlog_of(begins: Mapping[Queue, int], heads: Mapping[Queue, int]) -> dict[Queue, int]:
    """Return how many messages wait in each queue that has some, in the order of the queues."""
    return {
        queue: head - begins[queue]
        for queue, head in sorted(heads.items())
        if queue in begins and head > begins[queue]
    }


def largest(backlog: Mapping[Queue, int], count: int) -> list[Queue]:
    """Return the queues with the most messages, at most ``count``."""
    return sorted(backlog, key=lambda queue: (-backlog[queue], queue))[:count]


def messages_in(
    byte_limit: int, backlog: Mapping[Queue, int], mean_bytes: Mapping[Queue, float]
) -> int:
    """Return how many messages of the backlog make about ``byte_limit`` bytes; at least one.

    ``mean_bytes``: of some queues; the others have the mean of these.
    """
    messages = sum(backlog[queue] for queue in mean_bytes)
    if not messages:
        return max(1, byte_limit // UNKNOWN_BYTES)
    mean = sum(backlog[queue] * size for queue, size in mean_bytes.items()) / messages
    return max(1, int(byte_limit / mean))


def limit_heads(
    begins: Mapping[Queue, int], heads: Mapping[Queue, int], limit: int | None
) -> Offsets:
    """Lower ``heads`` so that the batch from ``begins`` has about ``limit`` messages.

    Each queue gets a share in proportion to its backlog, and at least one message, so that no queue
    starves; with more queues than ``limit``, the batch has one message per queue.
    """
    backlog = backlog_of(begins, heads)
    total = sum(backlog.values())
    if limit is None or total <= limit:
        return dict(heads)
    shares = {queue: max(1, limit * waiting // total) for queue, waiting in backlog.items()}
    left = limit - sum(shares.values())
    for queue in sorted(backlog, key=lambda queue: (-(limit * backlog[queue] % total), queue)):
        if left <= 0:
            break
        if shares[queue] < backlog[queue]:
            shares[queue] += 1
            left -= 1
    return {**heads, **{queue: begins[queue] + share for queue, share in shares.items()}}
