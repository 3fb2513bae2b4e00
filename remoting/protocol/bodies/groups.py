"""Consumer and producer groups: 38, 200, 201, 203, 204, 225, 300, 328, 352, 353.

Source: common/…/SubscriptionGroupConfig.java, remoting/…/protocol/body/ConsumerConnection.java and
the classes beside it.
"""

import attrs

from triomq.remoting.protocol.bodies.heartbeat import SubscriptionData
from triomq.remoting.protocol.bodies.schema import JsonBody, json_name, named
from triomq.remoting.protocol.bodies.topics import DataVersion

_SECONDS = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
RETRY_DELAYS_MS = tuple(1000 * seconds for seconds in _SECONDS)
"""The delays of the policy CUSTOMIZED if it lists none."""


@attrs.frozen(eq=False, repr=False)
class ConsumerIds(JsonBody):
    """Answer to 38."""

    consumer_ids: list[str] = named("consumerIdList", factory=list)


@attrs.frozen(eq=False, repr=False)
class GroupNames(JsonBody):
    """Answer to 300."""

    group_list: list[str] = attrs.field(factory=list)


@attrs.frozen(eq=False, repr=False)
class ConnectionData(JsonBody):
    """The connection of one client; ``client_addr`` is ``ip:port``."""

    client_id: str
    client_addr: str
    language: str = "OTHER"
    version: int = 0


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ConsumerConnection(JsonBody):
    """Answer to 203."""

    connections: list[ConnectionData] = named("connectionSet", factory=list)
    subscriptions: dict[str, SubscriptionData] = named("subscriptionTable", factory=dict)
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None


@attrs.frozen(eq=False, repr=False)
class ProducerConnection(JsonBody):
    """Answer to 204."""

    connections: list[ConnectionData] = named("connectionSet", factory=list)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ProducerEntry(JsonBody):
    """One producer; ``remote_address`` is ``/ip:port``, as Java prints it."""

    client_id: str
    remote_address: str = attrs.field(metadata=json_name("remoteIP"))
    language: str = "OTHER"
    version: int = 0
    last_update_timestamp: int = 0


@attrs.frozen(eq=False, repr=False)
class ProducerTable(JsonBody):
    """Answer to 328: the producers of all groups."""

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
    customized: CustomizedRetryPolicy | None = named("customizedRetryPolicy", default=None)
    exponential: ExponentialRetryPolicy | None = named("exponentialRetryPolicy", default=None)


@attrs.frozen(eq=False, repr=False)
class SimpleSubscription(JsonBody):
    topic: str
    expression: str = "*"
    expression_type: str = "TAG"
    version: int = 0


@attrs.frozen(kw_only=True, eq=False, repr=False)
class SubscriptionGroupConfig(JsonBody):
    """One consumer group: body of 200, answer to 352, entry of 201 and 225."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_count: int = named("retryQueueNums", default=1)
    retry_max_times: int = 16
    retry_policy: GroupRetryPolicy = named("groupRetryPolicy", factory=GroupRetryPolicy)
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    subscription_data_set: list[SimpleSubscription] | None = None
    attributes: dict[str, str] = attrs.field(factory=dict)


@attrs.frozen(eq=False, repr=False)
class SubscriptionGroupTable(JsonBody):
    """Answer to 201."""

    subscription_group_table: dict[str, SubscriptionGroupConfig] = attrs.field(factory=dict)
    data_version: DataVersion = attrs.field(factory=DataVersion)
    forbidden_table: dict[str, dict[str, int]] = attrs.field(factory=dict)


@attrs.frozen(eq=False, repr=False)
class SubscriptionGroupList(JsonBody):
    """Body of 225."""

    group_config_list: list[SubscriptionGroupConfig] = attrs.field(factory=list)


@attrs.frozen(eq=False, repr=False)
class GroupForbidden(JsonBody):
    """Answer to 353."""

    group: str
    topic: str
    readable: bool | None = None


@attrs.frozen(eq=False, repr=False)
class GroupSubscription(JsonBody):
    """Answer to 345."""

    group: str
    topic: str
    subscription: SubscriptionData | None = named("subscriptionData", default=None)
