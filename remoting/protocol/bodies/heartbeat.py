"""What clients tell brokers about themselves: 34 and 46.

Source: remoting/…/protocol/heartbeat/HeartbeatData.java, ConsumerData.java, ProducerData.java, SubscriptionData.java.
"""

import attrs

from triomq.remoting.protocol.bodies.schema import JsonBody, named

CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
CONSUME_POP = "CONSUME_POP"
BROADCASTING = "BROADCASTING"
CLUSTERING = "CLUSTERING"
FROM_LAST = "CONSUME_FROM_LAST_OFFSET"
FROM_FIRST = "CONSUME_FROM_FIRST_OFFSET"
FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"
TAG = "TAG"
SQL92 = "SQL92"


@attrs.frozen(kw_only=True, eq=False, repr=False)
class SubscriptionData(JsonBody):
    """What a group wants of a topic. Empty tags mean everything; ``sub_version`` is the time (ms) it was made."""

    topic: str
    sub_string: str = "*"
    tags: frozenset[str] = attrs.field(default=frozenset(), metadata=named("tagsSet"))
    codes: frozenset[int] = attrs.field(default=frozenset(), metadata=named("codeSet"))
    sub_version: int = 0
    expression_type: str = TAG
    class_filter_mode: bool = False


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ConsumerData(JsonBody):
    group: str = attrs.field(metadata=named("groupName"))
    consume_type: str = CONSUME_PASSIVELY
    message_model: str = CLUSTERING
    consume_from_where: str = FROM_LAST
    subscriptions: list[SubscriptionData] = attrs.field(factory=list, metadata=named("subscriptionDataSet"))
    unit_mode: bool = False


@attrs.frozen(eq=False, repr=False)
class ProducerData(JsonBody):
    group: str = attrs.field(metadata=named("groupName"))


@attrs.frozen(kw_only=True, eq=False, repr=False)
class HeartbeatData(JsonBody):
    """Fingerprint 0 is the first form of heartbeats; otherwise a client may leave its subscriptions out."""

    client_id: str = attrs.field(metadata=named("clientID"))
    producers: list[ProducerData] = attrs.field(factory=list, metadata=named("producerDataSet"))
    consumers: list[ConsumerData] = attrs.field(factory=list, metadata=named("consumerDataSet"))
    fingerprint: int = attrs.field(default=0, metadata=named("heartbeatFingerprint"))
    without_subscriptions: bool = attrs.field(default=False, metadata=named("withoutSub"))


@attrs.frozen(kw_only=True, eq=False, repr=False)
class CheckClientBody(JsonBody):
    """Ask the broker whether an expression is legal (46)."""

    client_id: str
    group: str
    subscription: SubscriptionData = attrs.field(metadata=named("subscriptionData"))
    namespace: str | None = None
