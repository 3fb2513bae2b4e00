"""Restore positions after a kill: offsets are saved every few seconds, check points at once.

Without it messages that were popped, and acknowledged, since the last save would be popped again.
Check points that the table of offsets covers are not looked at: an admin may have set the offsets
back meanwhile.
"""

from __future__ import annotations

import trio

from triomq.broker.services.pop.pops import Pops
from triomq.broker.services.pop.revive_records import read_revive_record
from triomq.broker.store.results import GetStatus
from triomq.remoting.protocol.bodies.check_point import CheckPoint
from triomq.remoting.protocol.message_properties import REAL_TOPIC
from triomq.remoting.protocol.names import TIMER_TOPIC
from triomq.remoting.protocol.record_reader import decode_records

SLACK_MS = 2_000
"""A position may be committed this much later than its check point, beside the pause of flushes."""
READ_MESSAGES, READ_BYTES = 1024, 1024 * 1024


async def restore_positions(pops: Pops) -> int:
    """Move positions behind the check points that are younger than the saved offsets.

    Returns: the number of positions that were moved.
    Raises: StoreIoError, OSError. Checkpoint: always.
    """
    await trio.lowlevel.checkpoint()
    path = pops.offsets.path
    saved_ms = path.stat().st_mtime_ns // 1_000_000 if path.exists() else 0
    since = saved_ms - SLACK_MS - 2 * pops.store.config.flush_interval_ms
    moved: set[tuple[str, str, int]] = set()
    queues = [(TIMER_TOPIC, 0)]
    queues += [(pops.revive_topic, number) for number in range(pops.settings.revive_queues)]
    for topic, queue_id in queues:
        offset = await pops.store.offset_by_time(topic, queue_id, since)
        while offset < pops.store.max_offset(topic, queue_id):
            found = await pops.store.get_cold(
                topic,
                queue_id,
                offset,
                messages_max=READ_MESSAGES,
                bytes_max=READ_BYTES,
                is_range=True,
            )
            if found.next_offset <= offset:
                break
            offset = found.next_offset
            if found.status is not GetStatus.FOUND:
                continue
            for chunk in found.chunks:
                for message in decode_records(chunk):
                    if message.properties.get(REAL_TOPIC, message.topic) != pops.revive_topic:
                        continue
                    point = read_revive_record(message)
                    if isinstance(point, CheckPoint) and point.pop_time >= since:
                        key = point.group, point.topic, point.queue_id
                        following = point.offsets[-1] + 1
                        end = pops.store.max_offset(point.topic, point.queue_id)
                        if (pops.position(key) or 0) < following <= end:
                            pops.move(key, following)
                            moved.add(key)
    return len(moved)
