"""What was popped before a start, at a time that the wall clock has not reached: it was set back.

Timers go by that clock and would hide these messages for as long as it is behind. So each message
is hidden for its whole invisible time from the start of the broker, which the steady clock counts;
further starts go on with it (``clock_marks``).
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import attrs
import trio

from triomq.broker.services.clock_marks import ClockMarks
from triomq.broker.services.pop.pops import Pops
from triomq.broker.services.pop.restoring import some_records
from triomq.remoting.protocol.bodies.check_point import (
    ACK_TAG,
    BATCH_ACK_TAG,
    CHECK_POINT_TAG,
    CheckPoint,
    Key,
)
from triomq.remoting.protocol.java_hash import java_hash
from triomq.remoting.protocol.message_properties import REAL_QUEUE_ID
from triomq.remoting.protocol.names import TIMER_TOPIC

logger = logging.getLogger(__name__)

RECORDS = frozenset(map(java_hash, (CHECK_POINT_TAG, ACK_TAG, BATCH_ACK_TAG)))
"""The codes of the tags that are read: there may be millions of other timed messages."""


@attrs.define(eq=False)
class LaterRecords:
    """What the log has from after ``now``, which is a time of the wall clock in ms."""

    now: int
    points: dict[Key, tuple[CheckPoint, int, int]] = attrs.field(factory=dict)
    """With their revive queues, and where the log has them."""
    acknowledged: dict[Key, set[int]] = attrs.field(factory=dict)
    decided: set[Key] = attrs.field(factory=set)

    async def read(self, pops: Pops, topic: str, queue_id: int) -> None:
        """Read one queue. Raises: StoreIoError."""
        done = pops.revived_to(queue_id) if topic == pops.revive_topic else -1
        offset: int | None = await pops.store.offset_by_time(topic, queue_id, self.now)
        while offset is not None:
            records, offset = await some_records(pops, topic, queue_id, offset, RECORDS)
            for message, record in records:
                if isinstance(record, CheckPoint):
                    if record.pop_time > self.now:
                        revive_queue = int(message.properties.get(REAL_QUEUE_ID, queue_id))
                        self.points.setdefault(
                            record.key, (record, revive_queue, message.log_offset)
                        )
                    if message.queue_offset <= done:
                        self.decided.add(record.key)
                else:
                    self.acknowledged.setdefault(record.key, set()).update(record.offsets)


class LaterPop(NamedTuple):
    """A check point of a time that the clock has not reached. ``gone``: acknowledged messages."""

    point: CheckPoint
    revive_queue: int
    log_offset: int
    gone: set[int]


async def later_pops(pops: Pops, now: int) -> list[LaterPop]:
    """Return the open check points of the log whose pop is later than now.

    Raises: StoreIoError. Checkpoint: always.
    """
    await trio.lowlevel.checkpoint()
    records = LaterRecords(now)
    await records.read(pops, TIMER_TOPIC, 0)
    for queue_id in range(pops.settings.revive_queues):
        await records.read(pops, pops.revive_topic, queue_id)
    found = []
    for key, (point, revive_queue, log_offset) in records.points.items():
        gone = records.acknowledged.get(key, set())
        gone |= {each for place, each in enumerate(point.offsets) if point.bits >> place & 1}
        if key not in records.decided and not gone.issuperset(point.offsets):
            found.append(LaterPop(point, revive_queue, log_offset, gone))
    return found


async def restore_flights(pops: Pops, marks: ClockMarks) -> int:
    """Put these check points into flight; return how many.

    Raises: StoreIoError. Checkpoint: always.
    """
    now = pops.clock_ms()
    found = await later_pops(pops, now)
    for later in found:
        begin_again(pops, marks, later, now)
    if found:
        logger.warning(
            "the clock is behind the times of %d pops from before this start: what they took comes"
            " again when its whole invisible time has passed since the first start with this clock,"
            " unless it is acknowledged",
            len(found),
        )
    return len(found)


def begin_again(pops: Pops, marks: ClockMarks, later: LaterPop, now: int) -> None:
    """Put a check point into flight. *now*: by the wall clock. Checkpoint: never."""
    point = later.point
    waited_ms = now - marks.since(point.pop_time, later.log_offset, now)
    pops.in_flight.begin(point, pops.steady() - waited_ms / 1000, later.revive_queue)
    pops.in_flight.acknowledge(point.key, later.gone)
