"""Restore positions after a kill: offsets are saved every few seconds, check points at once.

Without it messages that were popped, and acknowledged, since the last save would be popped again.
Check points that the table of offsets covers are not looked at, nor those from before an operator
moved the group, or of an earlier topic of the same name: the offsets may have been set back. No
clock says which these are: files are copied, and clocks are set.
"""

from __future__ import annotations

import trio

from triomq.broker.services.pop.acting_records import ActingRecords
from triomq.broker.services.pop.pop_log import PopRecord
from triomq.broker.services.pop.pops import COVERED, Pops, make_ack, position_point
from triomq.broker.services.pop.revive_records import read_revive_record
from triomq.remoting.protocol.bodies.check_point import CHECK_POINT_TAG, LEAD_MS, Ack, CheckPoint
from triomq.remoting.protocol.java_hash import java_hash
from triomq.remoting.protocol.message_properties import REAL_TOPIC
from triomq.remoting.protocol.names import TIMER_TOPIC
from triomq.remoting.protocol.record import StoredMessage

SLACK_MS = 5_000
"""A position may be committed this much later than its check point, beside the pause of flushes:
it may wait for a slave.
"""
TAKEN_AT_ONCE = 256
CHECK_POINTS = frozenset((java_hash(CHECK_POINT_TAG),))
"""Only records with this code of their tags are read: there may be millions of timed messages."""
READ_MESSAGES, READ_BYTES = 1024, 1024 * 1024


async def restore_positions(pops: Pops) -> int:
    """Move positions behind the check points that the table of offsets does not cover.

    Returns: the number of positions that were moved.
    Raises: StoreIoError, OSError. Checkpoint: always.
    """
    await trio.lowlevel.checkpoint()
    moved: set[tuple[str, str, int]] = set()
    begins: dict[tuple[str, int], int] = {}
    queues = [(TIMER_TOPIC, 0, await _first_uncovered(pops))]
    queues += [
        (pops.revive_topic, number, pops.revived_to(number) + 1)
        for number in range(pops.settings.revive_queues)
    ]
    for topic, queue_id, first in queues:
        offset: int | None = max(first, pops.store.min_offset(topic, queue_id))
        while offset is not None:
            records, offset = await some_records(pops, topic, queue_id, offset, CHECK_POINTS)
            for message, point in records:
                if isinstance(point, CheckPoint):
                    key = point.group, point.topic, point.queue_id
                    made_at = message.log_offset if point.log_end is None else point.log_end
                    if made_at < pops.offsets.moved_at(*key):
                        continue
                    following = point.offsets[-1] + 1
                    end = pops.store.max_offset(point.topic, point.queue_id)
                    if not (pops.position(key) or 0) < following <= end:
                        continue
                    queue = point.topic, point.queue_id
                    if queue not in begins:
                        begins[queue] = await _begin(pops, *queue)
                    if made_at > begins[queue]:
                        pops.move(key, following)
                        moved.add(key)
    pops.offsets.forget_moves(pops.store.first_offset)
    return len(moved)


async def some_records(
    pops: Pops, topic: str, queue_id: int, offset: int, tag_codes: frozenset[int]
) -> tuple[list[tuple[StoredMessage, CheckPoint | Ack]], int | None]:
    """Read the next records of POP in a queue of the revive topic, or in that of timers.

    Returns: messages with their records; the offset to go on at, None at the end of the queue.
    Raises: StoreIoError. Checkpoint: always.
    """
    await trio.lowlevel.checkpoint()
    if offset >= pops.store.max_offset(topic, queue_id):
        return [], None
    found = await pops.store.messages(
        topic,
        queue_id,
        offset,
        messages_max=READ_MESSAGES,
        bytes_max=READ_BYTES,
        tag_codes=tag_codes,
    )
    records = [
        (message, record)
        for message in found.messages
        if message.properties.get(REAL_TOPIC, message.topic) == pops.revive_topic
        and (record := read_revive_record(message)) is not None
    ]
    return records, found.next_offset if found.next_offset > offset else None


async def _begin(pops: Pops, topic: str, queue_id: int) -> int:
    """Return the log offset of a queue's first message: what was popped before is not in it."""
    first = pops.store.min_offset(topic, queue_id)
    entries = await pops.store.entries(topic, queue_id, first, 1)
    return entries[0][0] if entries else 0


async def _first_uncovered(pops: Pops) -> int:
    """Return the first message of the topic of timers that the table of offsets may not cover.

    A Java broker does not say it; its table is as old as the file.
    """
    covered = pops.offsets.committed_offset(*COVERED)
    if covered is not None:
        return covered
    path = pops.offsets.path
    saved_ms = path.stat().st_mtime_ns // 1_000_000 if path.exists() else 0
    since = saved_ms - SLACK_MS - 2 * pops.store.config.flush_interval_ms
    return await pops.store.offset_by_time(TIMER_TOPIC, 0, since)


async def take_over_records(pops: Pops, records: ActingRecords) -> None:
    """Go on as a master with what this broker did as a slave that acted for its master.

    After a crash in the middle all is done once more, which changes nothing: equal check points
    count once.

    Raises: StoreUnavailable, StoreIoError, OSError. Checkpoint: always.
    """
    found = [
        PopRecord(each.point, each.revive_queue, each.point.visible_at - LEAD_MS)
        for each in records.points.values()
        if not each.read
    ]
    for key, acks in records.acks.items():
        ack = make_ack(key, sorted(acks.offsets))
        found.append(PopRecord(ack, acks.revive_queue, acks.visible_at))
    for known in records.points.values():
        gone = set(known.point.offsets) - known.left
        if known.own and gone:
            ack = make_ack(known.point.key, sorted(gone))
            found.append(PopRecord(ack, known.revive_queue, known.point.visible_at))
    found += [PopRecord(position_point(*each), 0, 0) for each in records.positions.items()]
    use_positions(pops, records)
    for begin in range(0, len(found), TAKEN_AT_ONCE):
        pops.log.append(found[begin : begin + TAKEN_AT_ONCE])
        await trio.lowlevel.checkpoint()
    await pops.store.flushed.wait_reached(pops.store.appended.value)
    records.forget(list(records.points), list(records.acks))
    records.positions.clear()


def use_positions(pops: Pops, records: ActingRecords) -> None:
    """Move positions to what was popped while acting, if a kill was faster than the saver.

    On a slave they count as commits that the master does not know yet.
    """
    own = pops.offsets.own
    for key, offset in records.positions.items():
        if offset > (pops.position(key) or 0):
            pops.move(key, offset)
        if own is not None:
            own.note(*key, pops.position(key) or 0, None)
