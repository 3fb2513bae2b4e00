"""Consumer and producer groups: 38, 200, 201, 203, 204, 225, 300, 328, 352, 353.

Source: common/…/SubscriptionGroupConfig.java, remoting/…/protocol/body/ConsumerConnection.java and its neighbours.
"""

import attrs

from triomq.remoting.protocol.bodies.heartbeat import SubscriptionData
from triomq.remoting.protocol.bodies.schema import JsonBody, named
from triomq.remoting.protocol.bodies.topics import DataVersion

RETRY_DELAYS_MS = (
    *(1000, 5000, 10000, 30000, 60000, 120000, 180000, 240000, 300000, 360000, 420000, 480000, 540000, 600000),
    *(1200000, 1800000, 3600000, 7200000),
)
"""What CUSTOMIZED means when it lists nothing."""


@attrs.frozen(eq=False, repr=False)
class ConsumerIds(JsonBody):
    """38."""

    consumer_ids: list[str] = attrs.field(factory=list, metadata=named("consumerIdList"))


@attrs.frozen(eq=False, repr=False)
class GroupNames(JsonBody):
    """300."""

    group_list: list[str] = attrs.field(factory=list)


@attrs.frozen(eq=False, repr=False)
class ConnectionData(JsonBody):
    """One client's connection, ``client_addr`` as ``ip:port``."""

    client_id: str
    client_addr: str
    language: str = "OTHER"
    version: int = 0


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ConsumerConnection(JsonBody):
    """203."""

    connections: list[ConnectionData] = attrs.field(factory=list, metadata=named("connectionSet"))
    subscriptions: dict[str, SubscriptionData] = attrs.field(factory=dict, metadata=named("subscriptionTable"))
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None


@attrs.frozen(eq=False, repr=False)
class ProducerConnection(JsonBody):
    """204."""

    connections: list[ConnectionData] = attrs.field(factory=list, metadata=named("connectionSet"))


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ProducerEntry(JsonBody):
    """``remote_address`` is written as Java prints it, ``/ip:port``."""

    client_id: str
    remote_address: str = attrs.field(metadata=named("remoteIP"))
    language: str = "OTHER"
    version: int = 0
    last_update_timestamp: int = 0


@attrs.frozen(eq=False, repr=False)
class ProducerTable(JsonBody):
    """328: producers of all groups."""

    data: dict[str, list[ProducerEntry]] = attrs.field(factory=dict)


@attrs.frozen(eq=False, repr=False)
class CustomizedRetryPolicy(JsonBody):
    next: list[int] = attrs.field(factory=lambda: list(RETRY_DELAYS_MS))


@attrs.frozen(eq=False, repr=False)
class ExponentialRetryPolicy(JsonBody):
    initial: int = 5000
    max: int = 7200000
    multiplier: int = 2


@attrs.frozen(eq=False, repr=False)
class GroupRetryPolicy(JsonBody):
    type: str = "CUSTOMIZED"
    customized: CustomizedRetryPolicy | None = attrs.field(default=None, metadata=named("customizedRetryPolicy"))
    exponential: ExponentialRetryPolicy | None = attrs.field(default=None, metadata=named("exponentialRetryPolicy"))


@attrs.frozen(eq=False, repr=False)
class SimpleSubscription(JsonBody):
    topic: str
    expression: str = "*"
    expression_type: str = "TAG"
    version: int = 0


@attrs.frozen(kw_only=True, eq=False, repr=False)
class SubscriptionGroupConfig(JsonBody):
    """200, 352, and the entries of 201 and 225."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_count: int = attrs.field(default=1, metadata=named("retryQueueNums"))
    retry_max_times: int = 16
    retry_policy: GroupRetryPolicy = attrs.field(factory=GroupRetryPolicy, metadata=named("groupRetryPolicy"))
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    subscription_data_set: list[SimpleSubscription] | None = None
    attributes: dict[str, str] = attrs.field(factory=dict)


@attrs.frozen(eq=False, repr=False)
class SubscriptionGroupTable(JsonBody):
    """201."""

    subscription_group_table: dict[str, SubscriptionGroupConfig] = attrs.field(factory=dict)
    data_version: DataVersion = attrs.field(factory=DataVersion)
    forbidden_table: dict[str, dict[str, int]] = attrs.field(factory=dict)


@attrs.frozen(eq=False, repr=False)
class SubscriptionGroupList(JsonBody):
    """225."""

    group_config_list: list[SubscriptionGroupConfig] = attrs.field(factory=list)


@attrs.frozen(eq=False, repr=False)
class GroupForbidden(JsonBody):
    """353."""

    group: str
    topic: str
    readable: bool | None = None


@attrs.frozen(eq=False, repr=False)
class GroupSubscription(JsonBody):
    """345."""

    group: str
    topic: str
    subscription: SubscriptionData | None = attrs.field(default=None, metadata=named("subscriptionData"))
