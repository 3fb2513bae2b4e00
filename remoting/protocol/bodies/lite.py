"""Lite topics, new in 5.5: subscriptions of clients (200071), views for admins (200074 to 200078).

Source: remoting/…/protocol/body/LiteSubscriptionCtlRequestBody.java,
GetBrokerLiteInfoResponseBody.java and the classes beside it, common/…/lite/*.java of 5.5.
"""

import attrs

from triomq.remoting.protocol.bodies.offsets import ConsumeOffset, TopicOffset
from triomq.remoting.protocol.bodies.schema import JsonBody, named


@attrs.frozen(kw_only=True, eq=False, repr=False)
class LiteOffset(JsonBody):
    """The start of a new subscription: a type and a number.

    Types: ``POLICY``, ``OFFSET``, ``TAIL_N``, ``TIMESTAMP``.
    """

    type: str | None = None
    value: int = 0


@attrs.frozen(kw_only=True, eq=False, repr=False)
class LiteSubscription(JsonBody):
    """A change to the lite topics that a client subscribes below one topic.

    Actions: ``PARTIAL_ADD``, ``PARTIAL_REMOVE``, ``COMPLETE_ADD``, ``COMPLETE_REMOVE``.
    """

    action: str | None = None
    client_id: str | None = None
    group: str | None = None
    topic: str | None = None
    lite_topics: frozenset[str] | None = named("liteTopicSet", default=None)
    offset: LiteOffset | None = named("offsetOption", default=None)
    version: int = 0


@attrs.frozen(eq=False, repr=False)
class LiteSubscriptions(JsonBody):
    """Body of 200071."""

    subscriptions: list[LiteSubscription] = named("subscriptionSet", factory=list)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class BrokerLiteState(JsonBody):
    """Answer to 200074: topic -> time to live, topic -> groups, and sizes of tables."""

    store_type: str | None = None
    max_lmq_count: int = named("maxLmqNum", default=0)
    lmq_count: int = named("currentLmqNum", default=0)
    subscription_count: int = named("liteSubscriptionCount", default=0)
    order_entry_count: int = named("orderInfoCount", default=0)
    cq_table_size: int = 0
    offset_table_size: int = 0
    event_map_size: int = 0
    topics: dict[str, int] | None = named("topicMeta", default=None)
    groups: dict[str, frozenset[str]] | None = named("groupMeta", default=None)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ParentTopic(JsonBody):
    """Answer to 200075; ``ttl`` in minutes."""

    topic: str | None = None
    ttl: int = 0
    groups: frozenset[str] | None = None
    lmq_count: int = named("lmqNum", default=0)
    lite_topic_count: int = 0


@attrs.frozen(eq=False, repr=False)
class ClientAndGroup(JsonBody):
    client_id: str | None = None
    group: str | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class LiteTopic(JsonBody):
    """Answer to 200076."""

    parent_topic: str | None = None
    lite_topic: str | None = None
    subscribers: list[ClientAndGroup] | None = named("subscriber", default=None)
    offset: TopicOffset | None = named("topicOffset", default=None)
    sharding_to_broker: bool = False


@attrs.frozen(kw_only=True, eq=False, repr=False)
class LiteClient(JsonBody):
    """Answer to 200077."""

    parent_topic: str | None = None
    group: str | None = None
    client_id: str | None = None
    last_access_time: int = 0
    last_consume_time: int = 0
    lite_topic_count: int = 0
    lite_topics: frozenset[str] | None = named("liteTopicSet", default=None)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class LiteLag(JsonBody):
    lite_topic: str | None = None
    lag_count: int = 0
    earliest_unconsumed_timestamp: int = 0


@attrs.frozen(kw_only=True, eq=False, repr=False)
class LiteGroup(JsonBody):
    """Answer to 200078."""

    group: str | None = None
    parent_topic: str | None = None
    lite_topic: str | None = None
    earliest_unconsumed_timestamp: int = 0
    total_lag_count: int = 0
    offset: ConsumeOffset | None = named("liteTopicOffsetWrapper", default=None)
    by_count: list[LiteLag] | None = named("lagCountTopK", default=None)
    by_age: list[LiteLag] | None = named("lagTimestampTopK", default=None)
