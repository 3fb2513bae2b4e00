"""Lite topics, new in 5.5: subscriptions of clients (200071) and what admins see (200074 to 200078).

Source: remoting/…/protocol/body/LiteSubscriptionCtlRequestBody.java, GetBrokerLiteInfoResponseBody.java and their neighbours,
common/…/lite/*.java of 5.5.
"""

import attrs

from triomq.remoting.protocol.bodies.offsets import ConsumeOffset, TopicOffset
from triomq.remoting.protocol.bodies.schema import JsonBody, named


@attrs.frozen(kw_only=True, eq=False, repr=False)
class LiteOffset(JsonBody):
    """Where a new subscription begins: ``POLICY``, ``OFFSET``, ``TAIL_N`` or ``TIMESTAMP``, and its number."""

    type: str | None = None
    value: int = 0


@attrs.frozen(kw_only=True, eq=False, repr=False)
class LiteSubscription(JsonBody):
    """``PARTIAL_ADD``, ``PARTIAL_REMOVE``, ``COMPLETE_ADD`` or ``COMPLETE_REMOVE`` of lite topics below one topic."""

    action: str | None = None
    client_id: str | None = None
    group: str | None = None
    topic: str | None = None
    lite_topics: frozenset[str] | None = attrs.field(default=None, metadata=named("liteTopicSet"))
    offset: LiteOffset | None = attrs.field(default=None, metadata=named("offsetOption"))
    version: int = 0


@attrs.frozen(eq=False, repr=False)
class LiteSubscriptions(JsonBody):
    """200071."""

    subscriptions: list[LiteSubscription] = attrs.field(factory=list, metadata=named("subscriptionSet"))


@attrs.frozen(kw_only=True, eq=False, repr=False)
class BrokerLiteState(JsonBody):
    """200074: topic -> time to live, topic -> groups, and sizes of tables."""

    store_type: str | None = None
    max_lmq_count: int = attrs.field(default=0, metadata=named("maxLmqNum"))
    lmq_count: int = attrs.field(default=0, metadata=named("currentLmqNum"))
    subscription_count: int = attrs.field(default=0, metadata=named("liteSubscriptionCount"))
    order_entry_count: int = attrs.field(default=0, metadata=named("orderInfoCount"))
    cq_table_size: int = 0
    offset_table_size: int = 0
    event_map_size: int = 0
    topics: dict[str, int] | None = attrs.field(default=None, metadata=named("topicMeta"))
    groups: dict[str, frozenset[str]] | None = attrs.field(default=None, metadata=named("groupMeta"))


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ParentTopic(JsonBody):
    """200075; ``ttl`` in minutes."""

    topic: str | None = None
    ttl: int = 0
    groups: frozenset[str] | None = None
    lmq_count: int = attrs.field(default=0, metadata=named("lmqNum"))
    lite_topic_count: int = 0


@attrs.frozen(eq=False, repr=False)
class ClientAndGroup(JsonBody):
    client_id: str | None = None
    group: str | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class LiteTopic(JsonBody):
    """200076."""

    parent_topic: str | None = None
    lite_topic: str | None = None
    subscribers: list[ClientAndGroup] | None = attrs.field(default=None, metadata=named("subscriber"))
    offset: TopicOffset | None = attrs.field(default=None, metadata=named("topicOffset"))
    sharding_to_broker: bool = False


@attrs.frozen(kw_only=True, eq=False, repr=False)
class LiteClient(JsonBody):
    """200077."""

    parent_topic: str | None = None
    group: str | None = None
    client_id: str | None = None
    last_access_time: int = 0
    last_consume_time: int = 0
    lite_topic_count: int = 0
    lite_topics: frozenset[str] | None = attrs.field(default=None, metadata=named("liteTopicSet"))


@attrs.frozen(kw_only=True, eq=False, repr=False)
class LiteLag(JsonBody):
    lite_topic: str | None = None
    lag_count: int = 0
    earliest_unconsumed_timestamp: int = 0


@attrs.frozen(kw_only=True, eq=False, repr=False)
class LiteGroup(JsonBody):
    """200078."""

    group: str | None = None
    parent_topic: str | None = None
    lite_topic: str | None = None
    earliest_unconsumed_timestamp: int = 0
    total_lag_count: int = 0
    offset: ConsumeOffset | None = attrs.field(default=None, metadata=named("liteTopicOffsetWrapper"))
    by_count: list[LiteLag] | None = attrs.field(default=None, metadata=named("lagCountTopK"))
    by_age: list[LiteLag] | None = attrs.field(default=None, metadata=named("lagTimestampTopK"))
