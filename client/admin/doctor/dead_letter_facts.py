"""Read what ``dead_letter_check`` judges: counts of the last hour, and the newest dead letter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from triomq.client.admin.doctor.dead_letter_check import GivenUp
from triomq.client.core.errors import RouteNotFound, TrioMQError
from triomq.remoting.protocol.bodies.offsets import ConsumeOffset
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.names import RETRY_PREFIX, dead_letter_topic
from triomq.remoting.protocol.record import StoredMessage

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin

HOUR_MS = 3_600_000
QUEUES_MAX = 2_000
"""queues of a group that are asked about, one request for each"""


async def read_dead_letters(
    admin: Admin, group: str, offsets: Mapping[MessageQueue, ConsumeOffset], now_ms: int
) -> GivenUp | None:
    """Return the dead letters of a group with these offsets; None if there are none, or unknown.

    Most groups have no such topic, so this costs them one request.
    """
    try:
        stats = await admin.topic_stats(dead_letter_topic(group))
    except RouteNotFound:
        return None
    holding = {
        queue: found
        for table in stats.values.values()
        for queue, found in table.offset_table.items()
        if found.max_offset > found.min_offset
    }
    if not holding:
        return None
    since = now_ms - HOUR_MS
    starts = await _starts(admin, holding, since)
    last_hour = sum(max(0, holding[queue].max_offset - start) for queue, start in starts.items())
    newest = None
    consumed = None
    if last_hour:
        latest = max(holding, key=lambda queue: holding[queue].last_update_timestamp)
        newest = await _last(admin, latest, holding[latest].max_offset)
        own = {queue for queue in offsets if not queue.topic.startswith(RETRY_PREFIX)}
        if len(own) <= QUEUES_MAX:
            consumed = sum(
                max(0, offsets[queue].consumer_offset - start)
                for queue, start in (await _starts(admin, own, since)).items()
            )
    return GivenUp(
        kept=sum(found.max_offset - found.min_offset for found in holding.values()),
        last_hour=last_hour,
        consumed_last_hour=consumed,
        newest=newest,
    )


async def _starts(
    admin: Admin, queues: Iterable[MessageQueue], since_ms: int
) -> dict[MessageQueue, int]:
    """Return the first offset since a time, of the queues whose brokers answer."""
    labels = {f"{one.topic} {one.broker_name} {one.queue_id}": one for one in queues}
    found = await admin.for_each(
        labels, lambda label: admin.offset_by_time(labels[label], since_ms)
    )
    return {labels[label]: offset for label, offset in found.values.items()}


async def _last(admin: Admin, queue: MessageQueue, end: int) -> StoredMessage | None:
    try:
        found = await admin.read(queue, end - 1, count=1, end_offset=end)
    except TrioMQError:
        return None  # the counts are known; a broker that is silent has its own finding
    return found[0] if found else None
