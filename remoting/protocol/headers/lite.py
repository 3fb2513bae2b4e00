"""Headers of lite topics, many small queues below one parent topic, new in 5.5: 200070 to 200079.

Source: remoting/…/header/PopLiteMessageRequestHeader.java and the classes beside it of 5.5.
"""

from triomq.remoting.protocol.fields import header, wire


@header
class PopLiteMessageHeader:
    """Take messages of all lite topics that the client has subscribed to (200070)."""

    client_id: str = wire("clientId")
    consumer_group: str = wire("consumerGroup")
    topic: str = wire("topic")
    message_count_max: int = wire("maxMsgNum")
    invisible_ms: int = wire("invisibleTime", bits=64)
    poll_ms: int = wire("pollTime", bits=64)
    born_timestamp: int = wire("bornTime", bits=64)
    attempt_id: str | None = wire("attemptId", default=None)
    broker_name: str | None = wire("bname", default=None)


@header
class PopLiteMessageResponseHeader:
    pop_time: int = wire("popTime", bits=64)
    invisible_ms: int = wire("invisibleTime", bits=64)
    revive_queue_id: int = wire("reviveQid")
    start_offsets: str | None = wire("startOffsetInfo", default=None)
    message_offsets: str | None = wire("msgOffsetInfo", default=None)
    order_counts: str | None = wire("orderCountInfo", default=None)


@header
class NotifyUnsubscribeHeader:
    """The broker ended a client's subscription (200073, one-way to the client)."""

    lite_topic: str = wire("liteTopic")
    consumer_group: str = wire("consumerGroup")
    client_id: str = wire("clientId")


@header
class ParentTopicHeader:
    """Header of 200075."""

    topic: str = wire("topic")


@header
class LiteTopicHeader:
    """Header of 200076."""

    parent_topic: str | None = wire("parentTopic", default=None)
    lite_topic: str | None = wire("liteTopic", default=None)


@header
class LiteClientHeader:
    """Header of 200077; ``count_max`` must be at least 1."""

    count_max: int = wire("maxCount")
    parent_topic: str | None = wire("parentTopic", default=None)
    group: str | None = wire("group", default=None)
    client_id: str | None = wire("clientId", default=None)


@header
class LiteGroupHeader:
    """Header of 200078: for one lite topic, or for the ``top`` topics with the greatest lag."""

    group: str = wire("group")
    lite_topic: str | None = wire("liteTopic", default=None)
    top: int = wire("topK", default=0)


@header
class TriggerLiteDispatchHeader:
    """Wake the waiting clients of a group, or one of them (200079)."""

    group: str = wire("group")
    client_id: str | None = wire("clientId", default=None)
