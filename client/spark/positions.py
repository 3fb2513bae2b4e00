"""Decisions of the driver about positions. Pure, except for warnings in the log.

The begin of a query, new queues, lost messages, and the end of an AvailableNow run.
"""

import logging
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

import attrs

from triomq.client.spark.errors import OptionError, data_loss, lost
from triomq.client.spark.offset_options import EARLIEST, GROUP, LATEST, OffsetOption
from triomq.client.spark.offsets import Bounds, Offsets, Position, Queue

logger = logging.getLogger(__name__)


def resolve(
    option: str,
    start: OffsetOption,
    bounds: Mapping[Queue, Bounds],
    *,
    fail_on_data_loss: bool,
    committed: Mapping[Queue, int] = MappingProxyType({}),
) -> Offsets:
    """Return the offset of each queue. ``committed``: those of the group, where wanted.

    Raises: OptionError for queues that ``start`` leaves out, that do not exist, or that end before
        the wanted offset; DataLoss for offsets that are gone already.
    """
    absent = [str(queue) for queue in start.queues() if queue not in bounds]
    if absent:
        raise OptionError(
            f"option {option!r} names queues that do not exist or are not read: {', '.join(absent)}"
        )
    offsets: Offsets = {}
    losses = []
    for queue, found in sorted(bounds.items()):
        wanted = start.of(queue)
        if wanted == GROUP:
            wanted = committed[queue]
        if wanted is None:
            raise OptionError(
                f'option {option!r} has no entry for {queue}; add the queue, or "*": -2 for the'
                " earliest offset of all others (-1 for the latest)"
            )
        if wanted == EARLIEST:
            offsets[queue] = found.least
        elif wanted == LATEST:
            offsets[queue] = found.end
        else:
            if wanted > found.end:
                raise OptionError(
                    f"option {option!r} wants offset {wanted} of {queue}, which ends at {found.end}"
                )
            if wanted < found.least:
                losses.append(lost(*queue, wanted, found.least, f"earliest is {found.least}"))
            offsets[queue] = max(wanted, found.least)
    report_losses(losses, fail_on_data_loss=fail_on_data_loss)
    return offsets


def at_timestamps(
    found: Offsets, bounds: Mapping[Queue, Bounds], times: Mapping[Queue, int], strategy: str
) -> Offsets:
    """Return offsets by time.

    For a queue without a message of that time or later, the broker answers with the queue's end.
    For an empty queue that is no mistake of the user.

    Raises: OptionError for such a queue, if ``strategy`` is ``error``.
    """
    old = sorted(
        f"{queue} at {times[queue]}"
        for queue, offset in found.items()
        if offset >= bounds[queue].end > bounds[queue].least
    )
    if old and strategy == "error":
        raise OptionError(
            f"no message was stored then or later: {', '.join(old)}; choose an earlier time, or set"
            " startingOffsetsByTimestampStrategy=latest to begin at the end of these queues"
        )
    return {queue: min(offset, bounds[queue].end) for queue, offset in found.items()}


def report_losses(losses: Iterable[str], *, fail_on_data_loss: bool) -> None:
    """Warn about each loss, or raise one error for all.

    Raises: DataLoss with ``fail_on_data_loss``.
    """
    messages = list(losses)
    if messages and fail_on_data_loss:
        raise data_loss(messages)
    for message in messages:
        logger.warning("%s; they are skipped", message)


@attrs.frozen
class QueueChanges:
    """New queues and lost messages since a query's position."""

    born: Offsets
    """first offset of queues that begin, or begin again, in the next batch"""
    losses: list[str]


def recreated_queues(position: Position, stored: Mapping[Queue, int | None]) -> set[Queue]:
    """Return the queues whose topic is not the one that the query has read.

    ``stored``: the store time (ms) now of the message before the next one; None if it is gone, and
    then a change cannot be seen.
    """
    return {
        queue
        for queue, known in position.stored.items()
        if (found := stored.get(queue)) is not None and found != known
    }


def changes_since(
    position: Position,
    bounds: Mapping[Queue, Bounds],
    begins: Mapping[Queue, int],
    recreated: Collection[Queue] = (),
    unread: Mapping[Queue, int] = MappingProxyType({}),
) -> QueueChanges:
    """Compare a query's position with the bounds of the queues.

    ``begins``: the first offset to read of queues that the position does not have. ``unread``: the
    first offset, stored later than the last message that was read, of queues that end before the
    position. Lost are offsets that retention deleted before they were read, offsets of a topic that
    was created again or of a broker that failed over, and the deleted begin of a new queue of a
    known topic.
    """
    born: Offsets = {}
    losses: list[str] = []
    topics = {queue.topic for queue in position.next}
    for queue, found in sorted(bounds.items()):
        here = position.next.get(queue)
        if here is None:
            if queue not in begins:
                continue
            born[queue] = begins[queue]
            if 0 < found.least == begins[queue] and queue.topic in topics:
                losses.append(
                    lost(
                        *queue,
                        0,
                        found.least,
                        f"the queue is new to this query and begins at {found.least}",
                    )
                )
        elif queue in recreated:
            born[queue] = found.least
            losses.append(
                f"topic {queue.topic} on {queue.broker} was deleted and created again after the"
                f" query had read {queue} up to {here}; the queue begins at {found.least} now"
            )
        elif here < found.least:
            born[queue] = found.least
            losses.append(lost(*queue, here, found.least, f"earliest is {found.least}"))
        elif here > found.end:
            begin = born[queue] = min(max(unread.get(queue, found.end), found.least), found.end)
            losses.append(
                f"{queue} ends at {found.end}, but the query has read up to {here}: the topic was"
                " deleted and created again, or a broker failed over and lost messages; what was"
                f" stored after the last message that was read begins at {begin}"
            )
    return QueueChanges(born, losses)


@attrs.define(eq=False)
class AvailableNowTarget:
    """The end of an AvailableNow run: the ends of the queues at its first poll."""

    offsets: Offsets

    @classmethod
    def at(
        cls, position: Position, born: Mapping[Queue, int], heads: Mapping[Queue, int]
    ) -> "AvailableNowTarget":
        """Fix the target, for no queue before the start of the run."""
        begins = {**position.next, **born}
        return cls({queue: max(begin, heads.get(queue, begin)) for queue, begin in begins.items()})

    def heads(self, bounds: Mapping[Queue, Bounds]) -> Offsets:
        """Return the end of each queue that can be read now, for this run.

        A target beyond the queue's end is lowered, so that the run ends; a slave that is behind its
        master lowers none.
        """
        for queue, found in bounds.items():
            if queue in self.offsets and found.end < self.offsets[queue] and not found.of_slave:
                self.offsets[queue] = found.end
        return {
            queue: min(target, bounds[queue].end)
            for queue, target in self.offsets.items()
            if queue in bounds
        }

    def unreached(self, position: Position) -> list[Queue]:
        """Return the queues that the run has not read to their targets. Sorted."""
        here = position.next
        return sorted(
            queue for queue, target in self.offsets.items() if here.get(queue, target) < target
        )
