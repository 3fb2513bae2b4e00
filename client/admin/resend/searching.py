"""Search the queues of a topic for the messages that a selection wants.

Pulls do not wait and commit no offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from triomq.client.admin.errors import NotReadable
from triomq.client.admin.missing_brokers import names_beside, with_missing
from triomq.client.admin.resend.selection import (
    EXAMINED_MAX,
    KEPT_BYTES_MAX,
    MessageSelection,
    QueueSearch,
    SelectedMessages,
    together,
)
from triomq.remoting.protocol.bodies.route import MessageQueue

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin

CHUNK_MESSAGES = 64


async def search(
    admin: Admin, topic: str, selection: MessageSelection, broker_name: str | None = None
) -> SelectedMessages:
    """Return the oldest wanted messages that lie in the queues now, of one broker or of all.

    Each queue has an equal share of the limits of one call.

    Raises: RouteNotFound, BrokerMissing, NotReadable; NoBrokerAnswered if no broker answers.
    """
    queues = {
        f"{queue.broker_name} {queue.queue_id}": queue
        for queue in await admin.queues(topic, broker_name)
    }
    if not queues:
        raise NotReadable(topic)
    share = len(queues)
    examined_max, bytes_max = max(1, EXAMINED_MAX // share), max(1, KEPT_BYTES_MAX // share)

    async def search_labelled(label: str) -> QueueSearch:
        found = QueueSearch(selection, examined_max, bytes_max)
        await search_queue(admin, queues[label], found)
        return found

    answers = await admin.for_each(queues, search_labelled)
    if broker_name is None:
        names = {queue.broker_name for queue in queues.values()}
        answers = with_missing(answers, names_beside(names, await admin.missing_brokers()))
    failures: dict[str, str] = {}
    for label, reason in answers.reasons().items():
        failures.setdefault(queues[label].broker_name if label in queues else label, reason)
    searches = {queues[label]: found for label, found in answers.some().items()}
    return together(searches, selection, failures)


async def search_queue(admin: Admin, queue: MessageQueue, found: QueueSearch) -> None:
    """Examine the messages of one queue, from the wanted time on."""
    begin, end = found.selection.begin_ms, found.selection.end_ms
    stop = await admin.max_offset(queue)
    if end is not None:
        stop = min(stop, await end_by_time(admin, queue, end))
    start = (
        await admin.min_offset(queue) if begin is None else await admin.offset_by_time(queue, begin)
    )
    while start < stop and not found.over:
        batch = await admin.read(queue, start, count=CHUNK_MESSAGES, end_offset=stop)
        found.take(batch)
        if len(batch) < CHUNK_MESSAGES:
            return
        start = batch[-1].queue_offset + 1


async def end_by_time(admin: Admin, queue: MessageQueue, end_ms: int) -> int:
    """Return where the messages of a queue end that are not later than a time, or one behind it.

    A message may be later than those behind it, so only the broker knows. Brokers of 4.x return the
    message whose time is nearest.
    """
    return await admin.offset_by_time(queue, end_ms + 1) + 1
