"""Headers of POP consumption: 200050 to 200055. These codes need the JSON header.

Source: remoting/…/header/PopMessageRequestHeader.java, AckMessageRequestHeader.java and the
classes beside it.
"""

from triomq.remoting.protocol.fields import header, wire


@header
class PopMessageHeader:
    """Take messages for ``invisible_ms``; ``queue_id`` -1 means any queue."""

    consumer_group: str = wire("consumerGroup")
    topic: str = wire("topic")
    queue_id: int = wire("queueId")
    message_count_max: int = wire("maxMsgNums")
    invisible_ms: int = wire("invisibleTime", bits=64)
    poll_ms: int = wire("pollTime", bits=64)
    init_mode: int = wire("initMode")
    born_timestamp: int = wire("bornTime", default=0, bits=64)
    expression_type: str | None = wire("expType", default=None)
    expression: str | None = wire("exp", default=None)
    order: bool | None = wire("order", default=None)
    attempt_id: str | None = wire("attemptId", default=None)
    broker_name: str | None = wire("bname", default=None)


@header
class PopMessageResponseHeader:
    pop_time: int = wire("popTime", bits=64)
    invisible_ms: int = wire("invisibleTime", bits=64)
    revive_queue_id: int = wire("reviveQid")
    rest_count: int = wire("restNum", bits=64)
    start_offsets: str | None = wire("startOffsetInfo", default=None)
    message_offsets: str | None = wire("msgOffsetInfo", default=None)
    order_counts: str | None = wire("orderCountInfo", default=None)


@header
class AckMessageHeader:
    consumer_group: str = wire("consumerGroup")
    topic: str = wire("topic")
    queue_id: int = wire("queueId")
    receipt: str = wire("extraInfo")
    offset: int = wire("offset", bits=64)
    lite_topic: str | None = wire("liteTopic", default=None)
    broker_name: str | None = wire("bname", default=None)


@header
class ChangeInvisibleTimeHeader:
    consumer_group: str = wire("consumerGroup")
    topic: str = wire("topic")
    queue_id: int = wire("queueId")
    receipt: str = wire("extraInfo")
    offset: int = wire("offset", bits=64)
    invisible_ms: int = wire("invisibleTime", bits=64)
    suspend: bool | None = wire("suspend", default=None)
    lite_topic: str | None = wire("liteTopic", default=None)
    broker_name: str | None = wire("bname", default=None)


@header
class ChangeInvisibleTimeResponseHeader:
    pop_time: int = wire("popTime", bits=64)
    invisible_ms: int = wire("invisibleTime", bits=64)
    revive_queue_id: int = wire("reviveQid")


@header
class NotificationHeader:
    consumer_group: str = wire("consumerGroup")
    topic: str = wire("topic")
    queue_id: int = wire("queueId")
    poll_ms: int = wire("pollTime", bits=64)
    born_timestamp: int = wire("bornTime", bits=64)
    order: bool | None = wire("order", default=None)
    attempt_id: str | None = wire("attemptId", default=None)
    expression_type: str | None = wire("expType", default=None)
    expression: str | None = wire("exp", default=None)
    broker_name: str | None = wire("bname", default=None)


@header
class NotificationResponseHeader:
    has_message: bool = wire("hasMsg")
    polling_full: bool | None = wire("pollingFull", default=None)


@header
class PeekMessageHeader:
    consumer_group: str = wire("consumerGroup")
    topic: str = wire("topic")
    queue_id: int = wire("queueId")
    message_count_max: int = wire("maxMsgNums")
    broker_name: str | None = wire("bname", default=None)


@header
class PollingCountHeader:
    """Answer to 200055: the number of requests that wait."""

    consumer_group: str = wire("consumerGroup")
    topic: str = wire("topic")
    queue_id: int = wire("queueId")
    broker_name: str | None = wire("bname", default=None)


@header
class PollingCountResponseHeader:
    count: int = wire("pollingNum")
