"""Decisions of the driver about positions: where a query begins, what is new, what is lost, and when an AvailableNow run is over.

The law of this file: pure; offsets of the cluster come in as arguments.  Warnings go to the log.
"""

import logging
from collections.abc import Iterable, Mapping

import attrs

from triomq.client.spark.errors import OptionError, data_loss, lost
from triomq.client.spark.offsets import Bounds, Offsets, Position, Queue
from triomq.client.spark.starting import EARLIEST, LATEST, Start

logger = logging.getLogger(__name__)


def resolve(option: str, start: Start, bounds: Mapping[Queue, Bounds], *, fail_on_data_loss: bool) -> Offsets:
    """The offset of each queue that *start* stands for.

    Raises OptionError for queues that it leaves out, that do not exist, or that end before the wanted offset; DataLoss for offsets
    that are gone already.
    """
    absent = [str(queue) for queue in start.queues() if queue not in bounds]
    if absent:
        raise OptionError(f"option {option!r} names queues that do not exist or are not read: {', '.join(absent)}")
    offsets: Offsets = {}
    losses = []
    for queue, found in sorted(bounds.items()):
        wanted = start.of(queue)
        if wanted is None:
            raise OptionError(
                f'option {option!r} says nothing about {queue}; name it, or add "*": -2 for the earliest offset of all others (-1 for the latest)'
            )
        if wanted == EARLIEST:
            offsets[queue] = found.least
        elif wanted == LATEST:
            offsets[queue] = found.end
        else:
            if wanted > found.end:
                raise OptionError(f"option {option!r} wants offset {wanted} of {queue}, which ends at {found.end}")
            if wanted < found.least:
                losses.append(lost(*queue, wanted, found.least, f"earliest is {found.least}"))
            offsets[queue] = max(wanted, found.least)
    report_losses(losses, fail_on_data_loss=fail_on_data_loss)
    return offsets


def at_timestamp(found: Offsets, bounds: Mapping[Queue, Bounds], timestamp_ms: int, strategy: str) -> Offsets:
    """Offsets by time.  A broker without any message that young answers with the queue's end, which *strategy* judges.

    Raises OptionError.
    """
    old = sorted(str(queue) for queue, offset in found.items() if offset >= bounds[queue].end)
    if old and strategy == "error":
        raise OptionError(
            f"no message of {', '.join(old)} was stored at {timestamp_ms} or later; choose an earlier startingTimestamp, "
            "or set startingOffsetsByTimestampStrategy=latest to begin at the end of these queues"
        )
    return {queue: min(offset, bounds[queue].end) for queue, offset in found.items()}


def report_losses(losses: Iterable[str], *, fail_on_data_loss: bool) -> None:
    """Raise DataLoss, or warn, about each of *losses*."""
    messages = list(losses)
    if messages and fail_on_data_loss:
        raise data_loss(messages)
    for message in messages:
        logger.warning("%s; they are skipped", message)


@attrs.frozen
class Changes:
    """What a look at the cluster says about a query that stands at a certain position."""

    born: Offsets
    """queues that begin (or begin anew) in the next batch, and where"""
    losses: list[str]


def changes_since(position: Position, bounds: Mapping[Queue, Bounds]) -> Changes:
    """Compare a query's position with what the brokers hold.

    New queues begin at their earliest offset.  Lost are offsets that retention took before they were read, offsets of a topic that
    was made anew, and the beginning of a new queue of a topic that the query was reading already.
    """
    born: Offsets = {}
    losses: list[str] = []
    topics = {queue.topic for queue in position.next}
    for queue, found in sorted(bounds.items()):
        here = position.next.get(queue)
        if here is None:
            born[queue] = found.least
            if found.least > 0 and queue.topic in topics:
                losses.append(
                    lost(*queue, 0, found.least, f"the queue is new to this query and begins at {found.least}")
                )
        elif here < found.least:
            born[queue] = found.least
            losses.append(lost(*queue, here, found.least, f"earliest is {found.least}"))
        elif here > found.end:
            born[queue] = found.least
            losses.append(
                f"{queue} ends at {found.end}, but the query has read up to {here}: the topic was deleted and created again, "
                f"or a broker failed over and lost messages; what the queue holds now begins at {found.least}"
            )
    return Changes(born, losses)


@attrs.define(eq=False)
class AvailableNowTarget:
    """Where an AvailableNow run ends: the heads at its first look, never before its start."""

    offsets: Offsets

    @classmethod
    def at(cls, position: Position, born: Mapping[Queue, int], heads: Mapping[Queue, int]) -> "AvailableNowTarget":
        begins = {**position.next, **born}
        return cls({queue: max(begin, heads.get(queue, begin)) for queue, begin in begins.items()})

    def heads(self, bounds: Mapping[Queue, Bounds]) -> Offsets:
        """What to read up to now.  A queue that no longer reaches its target has the target lowered: the run must end."""
        for queue, found in bounds.items():
            if queue in self.offsets and found.end < self.offsets[queue]:
                self.offsets[queue] = found.end
        return dict(self.offsets)
