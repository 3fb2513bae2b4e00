"""Numbers of unusual messages: of topics with batch consume queues, and of light message queues.

A message of a light message queue (LMQ) lies in several queues.

An ordinary message takes the next number of its queue, which is a field of the record. An unusual
message takes further numbers, which are properties of the record. So the properties are complete
only when the message is appended, and the indexes read the numbers from them again:

* a message of a topic with batch consume queues: ``INNER_NUM`` (how many numbers) and
  ``INNER_BASE`` (the first of them);
* a message with ``INNER_MULTI_DISPATCH=%LMQ%a,%LMQ%b``: ``INNER_MULTI_QUEUE_OFFSET=7,3``, its
  number in each of these queues (queue id 0).

The drafts of such messages are marked ``special``, so that no other message pays for them: the code
that makes a draft knows what the message is.

Java gives no number to a single message of a topic with batch consume queues, and its consumers
never see it. Here it gets ``INNER_NUM=1``, which Java's own dispatch reads. Source:
store/…/LmqDispatch.java, store/…/queue/BatchConsumeQueue.java#assignQueueOffset,
store/…/CommitLog.java#setBatchSizeIfNeeded.
"""

from __future__ import annotations

from triomq.remoting.protocol.message_properties import (
    INNER_BASE,
    INNER_NUM,
    MULTI_DISPATCH,
    MULTI_QUEUE_OFFSET,
    property_value,
)
from triomq.remoting.protocol.names import (
    CHECK_MAX_TIME_TOPIC,
    HALF_TOPIC,
    LMQ_PREFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SYSTEM_TOPIC_PREFIX,
)

DISPATCH = MULTI_DISPATCH.encode()
DISPATCH_OFFSETS = MULTI_QUEUE_OFFSET.encode()
BATCH_COUNT, BATCH_BASE = INNER_NUM.encode(), INNER_BASE.encode()
NO_DISPATCH_PREFIXES = (RETRY_PREFIX, SYSTEM_TOPIC_PREFIX)
NO_DISPATCH_TOPICS = (SCHEDULE_TOPIC, HALF_TOPIC, CHECK_MAX_TIME_TOPIC)
NAME_BYTES_MAX = 255


def may_dispatch(topic: str) -> bool:
    """Return whether messages of a topic may lie in further queues.

    Those of halves may not: consumers would get a message that is not committed yet, as those of a
    Java broker do. Source: store/…/MultiDispatchUtils.java#isNeedHandleMultiDispatch.
    """
    return not topic.startswith(NO_DISPATCH_PREFIXES) and topic not in NO_DISPATCH_TOPICS


def dispatch_names(properties: bytes) -> list[str]:
    """Return the further queues of a message, as its property lists them."""
    value = property_value(properties, DISPATCH)
    return (
        value.decode("utf-8", "replace").split(",") if value is not None and value.strip() else []
    )


def _is_light_queue(name: str) -> bool:
    return (
        name.startswith(LMQ_PREFIX)
        and "/" not in name
        and "\0" not in name
        and len(name.encode()) <= NAME_BYTES_MAX
    )


def dispatch_fault(names: list[str]) -> str | None:
    """Return why these cannot be further queues of a message; None if they can."""
    for name in names:
        if not _is_light_queue(name):
            return (
                f"{MULTI_DISPATCH} names {name!r}: further queues of a message are names that begin"
                f" with {LMQ_PREFIX}, separated by commas, without / in them"
            )
    return None


def dispatch_places(properties: bytes) -> list[tuple[str, int]]:
    """Return (queue, number) for each further queue of a stored record.

    Nothing if the two lists differ in length.
    """
    offsets = property_value(properties, DISPATCH_OFFSETS)
    names = dispatch_names(properties)
    numbers = offsets.decode("ascii", "replace").split(",") if offsets is not None else []
    if len(names) != len(numbers):
        return []
    return [
        (name, int(number))
        for name, number in zip(names, numbers)
        if number.isascii() and number.isdigit() and _is_light_queue(name)
    ]


def batch_place(properties: bytes, queue_offset: int) -> tuple[int, int]:
    """Return (first number, count) of a stored record of a batch queue."""
    base, count = property_value(properties, BATCH_BASE), property_value(properties, BATCH_COUNT)
    if base is None or count is None or not base.isdigit() or not count.isdigit():
        return queue_offset, 1
    return int(base), int(count)


def batch_count(properties: bytes) -> int:
    """Return the count of numbers that a draft asks for."""
    count = property_value(properties, BATCH_COUNT)
    return int(count) if count is not None and count.isdigit() else 1


def with_properties(properties: bytes, values: dict[bytes, bytes]) -> bytes:
    """Return the text with these properties at its end, and without its earlier values of them."""
    kept = [
        part for part in properties.split(b"\2") if part and part.partition(b"\1")[0] not in values
    ]
    return b"".join(
        [part + b"\2" for part in kept]
        + [name + b"\1" + value + b"\2" for name, value in values.items()]
    )


def reserve_bytes(properties: bytes) -> int:
    """Return how many bytes an append adds to the properties of a special draft, at most."""
    names = dispatch_names(properties)
    return (
        (len(names) and len(DISPATCH_OFFSETS) + 3 + 20 * len(names))
        + len(BATCH_COUNT)
        + len(BATCH_BASE)
        + 6
        + 25
    )
