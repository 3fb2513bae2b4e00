"""Find stored messages for pages: in a span of time, by id, at an offset."""

from __future__ import annotations

import attrs
import trio

from triomq.client.admin.admin import Admin
from triomq.client.admin.answers import problem_lines
from triomq.client.admin.messages import parse_offset_id
from triomq.client.admin.times import now_ms
from triomq.client.core.errors import TrioMQError
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.record import StoredMessage

PER_QUEUE_MAX = 64
"""messages that are read of each queue for one page"""
QUEUES_MAX = 512
READABLE_POLL_SECONDS = 0.05


@attrs.frozen(kw_only=True)
class FoundMessages:
    """What a search found."""

    messages: list[tuple[str, StoredMessage]]
    """broker name and message, newest first"""
    more: bool
    """there are more than were read"""
    problems: list[str]
    """brokers or queues that did not answer"""


async def in_time(
    admin: Admin,
    topic: str,
    begin_ms: int,
    end_ms: int,
    *,
    count: int,
    per_queue: int = PER_QUEUE_MAX,
) -> FoundMessages:
    """Return the newest messages that were stored in a span of time.

    Raises: TrioMQError.
    """
    queues = {
        f"{queue.broker_name} {queue.queue_id}": queue
        for queue in (await admin.queues(topic))[:QUEUES_MAX]
    }
    more: set[str] = set()

    async def queue_in_time(label: str) -> list[StoredMessage]:
        queue = queues[label]
        first = await admin.offset_by_time(queue, begin_ms)
        # Brokers of 4.x return the last message for a time after all messages.
        last = (
            await admin.max_offset(queue)
            if end_ms >= now_ms()
            else await admin.offset_by_time(queue, end_ms + 1)
        )
        start = max(first, last - per_queue)
        if start > first:
            more.add(label)
        found = await admin.read(queue, start, count=max(0, last - start), end_offset=last)
        return [message for message in found if begin_ms <= message.store_timestamp <= end_ms]

    answers = await admin.for_each(queues, queue_in_time)
    pairs = [
        (queues[label].broker_name, message)
        for label, messages in answers.some().items()
        for message in messages
    ]
    pairs.sort(key=lambda pair: pair[1].store_timestamp, reverse=True)
    return FoundMessages(
        messages=pairs[:count],
        more=bool(more) or len(pairs) > count,
        problems=problem_lines(answers),
    )


async def with_id(admin: Admin, topic: str, message_id: str) -> FoundMessages:
    """Return the messages with an id: that of their producer, or that of their place in the log."""
    if (place := parse_offset_id(message_id)) is not None:
        address, log_offset = place
        names = {address: name for name, address in (await admin.topic_brokers(topic)).items()}
        if address in names:  # never connect to an address that only the id names
            try:
                message = await admin.message_at(address, log_offset, topic)
            except TrioMQError:
                message = None
            if message is not None and message.topic == topic:
                return FoundMessages(messages=[(names[address], message)], more=False, problems=[])
    return await with_key(admin, topic, message_id, unique=True)


async def with_key(
    admin: Admin, topic: str, key: str, *, unique: bool = False, count: int = 64
) -> FoundMessages:
    """Return the messages with a key."""
    answers = await admin.query(topic, key, count=count, unique=unique)
    pairs = [(name, message) for name, some in answers.some().items() for message in some]
    pairs.sort(key=lambda pair: pair[1].store_timestamp, reverse=True)
    return FoundMessages(
        messages=pairs[:count], more=len(pairs) > count, problems=problem_lines(answers)
    )


async def at_offset(admin: Admin, queue: MessageQueue, offset: int) -> StoredMessage | None:
    """Return the message at an offset of a queue, None if there is none."""
    found = await admin.read(queue, offset, count=1)
    return found[0] if found and found[0].queue_offset == offset else None


async def wait_readable(admin: Admin, queue: MessageQueue, offset: int) -> None:
    """Wait until a message can be read: Java's brokers confirm it a moment earlier."""
    while True:
        if await at_offset(admin, queue, offset) is not None:
            return
        await trio.sleep(READABLE_POLL_SECONDS)
