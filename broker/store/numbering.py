"""Numbers of unusual messages: those of topics with batch consume queues, and those that lie in several queues (light message queues, LMQ).

An ordinary message takes the next number of its queue, which is a field of the record. These take more, which are properties of the record, so they are known
only while it is appended, and its indexes read them from there again:

* a message of a topic with batch consume queues: ``INNER_NUM`` (how many numbers) and ``INNER_BASE`` (the first of them);
* one with ``INNER_MULTI_DISPATCH=%LMQ%a,%LMQ%b``: ``INNER_MULTI_QUEUE_OFFSET=7,3``, its number in each of these queues (queue id 0).

Drafts of such messages bear the mark SPECIAL, so that no other message pays for them: whoever makes one sees what it is anyway.

Java gives no number to a single message of a topic with batch consume queues, and its consumers never see it. Here it gets ``INNER_NUM=1``, which Java's own
dispatch reads. Source: store/…/LmqDispatch.java, store/…/queue/BatchConsumeQueue.java#assignQueueOffset, store/…/CommitLog.java#setBatchSizeIfNeeded.
"""

from __future__ import annotations

from triomq.remoting.protocol.message import (
    INNER_BASE,
    INNER_NUM,
    MULTI_DISPATCH,
    MULTI_QUEUE_OFFSET,
    TRANSACTION_MASK,
    property_value,
)
from triomq.remoting.protocol.names import LMQ_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC, SYSTEM_TOPIC_PREFIX

DISPATCH = MULTI_DISPATCH.encode()
DISPATCH_OFFSETS = MULTI_QUEUE_OFFSET.encode()
BATCH_COUNT, BATCH_BASE = INNER_NUM.encode(), INNER_BASE.encode()
NO_DISPATCH_PREFIXES = (RETRY_PREFIX, SYSTEM_TOPIC_PREFIX)
NAME_BYTES_MAX = 255
SPECIAL = 1 << 30
"""Mark of such a message in ``Draft.sys_flag``; it never gets into a record."""
UNUSUAL = TRANSACTION_MASK | SPECIAL
"""Flags of drafts that do not just take the next number of their queue."""


def may_dispatch(topic: str) -> bool:
    """Whether messages of a topic may lie in further queues. Source: store/…/MultiDispatchUtils.java#isNeedHandleMultiDispatch."""
    return not topic.startswith(NO_DISPATCH_PREFIXES) and topic != SCHEDULE_TOPIC


def dispatch_names(properties: bytes) -> list[str]:
    """The further queues of a message, as its property lists them."""
    value = property_value(properties, DISPATCH)
    return value.decode("utf-8", "replace").split(",") if value is not None and value.strip() else []


def _is_light_queue(name: str) -> bool:
    return name.startswith(LMQ_PREFIX) and "/" not in name and "\0" not in name and len(name.encode()) <= NAME_BYTES_MAX


def dispatch_fault(names: list[str]) -> str | None:
    """Why these cannot be queues of a message, None if they can."""
    for name in names:
        if not _is_light_queue(name):
            return f"{MULTI_DISPATCH} names {name!r}: further queues of a message are names that begin with {LMQ_PREFIX}, separated by commas, without / in them"
    return None


def dispatch_places(properties: bytes) -> list[tuple[str, int]]:
    """(queue, number) of a stored record; nothing if the two lists do not fit each other."""
    offsets = property_value(properties, DISPATCH_OFFSETS)
    names = dispatch_names(properties)
    numbers = offsets.decode("ascii", "replace").split(",") if offsets is not None else []
    if len(names) != len(numbers):
        return []
    return [
        (name, int(number)) for name, number in zip(names, numbers) if number.isascii() and number.isdigit() and _is_light_queue(name)
    ]


def batch_place(properties: bytes, queue_offset: int) -> tuple[int, int]:
    """(first number, how many) of a stored record of a batch queue."""
    base, count = property_value(properties, BATCH_BASE), property_value(properties, BATCH_COUNT)
    if base is None or count is None or not base.isdigit() or not count.isdigit():
        return queue_offset, 1
    return int(base), int(count)


def batch_count(properties: bytes) -> int:
    """How many numbers a draft wants."""
    count = property_value(properties, BATCH_COUNT)
    return int(count) if count is not None and count.isdigit() else 1


def with_properties(properties: bytes, values: dict[bytes, bytes]) -> bytes:
    """The text with these properties at its end, whatever it said of them before."""
    kept = [part for part in properties.split(b"\2") if part and part.partition(b"\1")[0] not in values]
    return b"".join([part + b"\2" for part in kept] + [name + b"\1" + value + b"\2" for name, value in values.items()])


def reserve_bytes(properties: bytes) -> int:
    """At most so many bytes are added to the properties of a SPECIAL draft when it is appended."""
    names = dispatch_names(properties)
    return (len(names) and len(DISPATCH_OFFSETS) + 3 + 20 * len(names)) + len(BATCH_COUNT) + len(BATCH_BASE) + 6 + 25
