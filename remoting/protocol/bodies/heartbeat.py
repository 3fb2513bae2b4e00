"""Heartbeats of clients, with their groups and subscriptions: 34 and 46.

Source: remoting/…/protocol/heartbeat/HeartbeatData.java, ConsumerData.java, ProducerData.java,
SubscriptionData.java.
"""

import attrs

from triomq.remoting.protocol.bodies.schema import JsonBody, json_name, named

CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
CONSUME_POP = "CONSUME_POP"
BROADCASTING = "BROADCASTING"
CLUSTERING = "CLUSTERING"
FROM_LAST = "CONSUME_FROM_LAST_OFFSET"
TAG = "TAG"
SQL92 = "SQL92"


@attrs.frozen(kw_only=True, eq=False, repr=False)
class SubscriptionData(JsonBody):
    """The messages of a topic that a group wants.

    Without tags: all messages. ``sub_version`` is the time of the subscription in ms.
    """

    topic: str
    sub_string: str = "*"
    tags: frozenset[str] = named("tagsSet", default=frozenset())
    codes: frozenset[int] = named("codeSet", default=frozenset())
    sub_version: int = 0
    expression_type: str = TAG
    class_filter_mode: bool = False


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ConsumerData(JsonBody):
    group: str = attrs.field(metadata=json_name("groupName"))
    consume_type: str = CONSUME_PASSIVELY
    message_model: str = CLUSTERING
    consume_from_where: str = FROM_LAST
    subscriptions: list[SubscriptionData] = named("subscriptionDataSet", factory=list)
    unit_mode: bool = False


@attrs.frozen(eq=False, repr=False)
class ProducerData(JsonBody):
    group: str = attrs.field(metadata=json_name("groupName"))


@attrs.frozen(kw_only=True, eq=False, repr=False)
class HeartbeatData(JsonBody):
    """Body of 34. With a fingerprint other than 0, a client may leave its subscriptions out."""

    client_id: str = attrs.field(metadata=json_name("clientID"))
    producers: list[ProducerData] = named("producerDataSet", factory=list)
    consumers: list[ConsumerData] = named("consumerDataSet", factory=list)
    fingerprint: int = named("heartbeatFingerprint", default=0)
    without_subscriptions: bool = named("withoutSub", default=False)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class CheckClientBody(JsonBody):
    """Body of 46: a subscription for the broker to check."""

    client_id: str
    group: str
    subscription: SubscriptionData = attrs.field(metadata=json_name("subscriptionData"))
    namespace: str | None = None
