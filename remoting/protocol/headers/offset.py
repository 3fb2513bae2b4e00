"""Headers about queue positions: 14, 15, 29, 30, 31, 32, and the admin's 222, 220, 308, 314.

Source: remoting/…/header/QueryConsumerOffsetRequestHeader.java and the classes beside it.
"""

from triomq.remoting.protocol.fields import header, wire


@header
class QueryConsumerOffsetHeader:
    consumer_group: str = wire("consumerGroup")
    topic: str = wire("topic")
    queue_id: int = wire("queueId")
    set_zero_if_not_found: bool | None = wire("setZeroIfNotFound", default=None)
    broker_name: str | None = wire("bname", default=None)


@header
class UpdateConsumerOffsetHeader:
    """Store the offset of the next message to consume."""

    consumer_group: str = wire("consumerGroup")
    topic: str = wire("topic")
    queue_id: int = wire("queueId")
    commit_offset: int = wire("commitOffset", bits=64)
    broker_name: str | None = wire("bname", default=None)


@header
class SearchOffsetHeader:
    """The offset of the first message stored at ``timestamp`` (ms) or later.

    The boundary is ``LOWER`` or ``UPPER``.
    """

    topic: str = wire("topic")
    queue_id: int = wire("queueId")
    timestamp: int = wire("timestamp", bits=64)
    boundary_type: str | None = wire("boundaryType", default=None)
    lite_topic: str | None = wire("liteTopic", default=None)
    broker_name: str | None = wire("bname", default=None)


@header
class GetMaxOffsetHeader:
    topic: str = wire("topic")
    queue_id: int = wire("queueId")
    committed: bool = wire("committed", default=True)
    broker_name: str | None = wire("bname", default=None)


@header
class GetMinOffsetHeader:
    """Header of 31 and 32."""

    topic: str = wire("topic")
    queue_id: int = wire("queueId")
    broker_name: str | None = wire("bname", default=None)


@header
class OffsetResponseHeader:
    """The answer to 14, 29, 30 and 31."""

    offset: int = wire("offset", bits=64)


@header
class StoreTimeResponseHeader:
    """Milliseconds, -1 for an empty queue."""

    timestamp: int = wire("timestamp", bits=64)


@header
class ResetOffsetHeader:
    """Reset a group (222 to the broker, 220 to a client).

    To a time in ms (-1 means the end), or to ``offset`` if it is given.
    """

    group: str = wire("group")
    topic: str = wire("topic")
    timestamp: int = wire("timestamp", bits=64)
    force: bool = wire("isForce", default=False)
    queue_id: int = wire("queueId", default=-1)
    offset: int | None = wire("offset", default=None, bits=64)
    broker_name: str | None = wire("bname", default=None)


@header
class CorrectionOffsetHeader:
    """The smallest offsets of several groups (308); ``filter_groups`` is joined by commas."""

    topic: str = wire("topic")
    compare_group: str = wire("compareGroup")
    filter_groups: str | None = wire("filterGroups", default=None)


@header
class CloneGroupOffsetHeader:
    source_group: str = wire("srcGroup")
    target_group: str = wire("destGroup")
    topic: str | None = wire("topic", default=None)
    offline: bool = wire("offline", default=False)
