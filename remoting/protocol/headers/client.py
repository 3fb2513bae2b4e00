"""Headers about clients and groups: 34, 35, 38, 40, 203, 204, 221, 223, 307, 309.

Source: remoting/…/header/UnregisterClientRequestHeader.java, HeartbeatResponseHeader (set by
ClientManageProcessor.java), GetConsumerListByGroupRequestHeader.java and the classes beside it.
"""

from triomq.remoting.protocol.fields import header, wire


@header
class HeartbeatResponseHeader:
    supports_v2: bool | None = wire("IS_SUPPORT_HEART_BEAT_V2", default=None)
    subscription_changed: bool | None = wire("IS_SUB_CHANGE", default=None)


@header
class UnregisterClientHeader:
    client_id: str = wire("clientID")
    producer_group: str | None = wire("producerGroup", default=None)
    consumer_group: str | None = wire("consumerGroup", default=None)


@header
class ConsumerGroupHeader:
    """Header of 38, 40 and 203."""

    consumer_group: str = wire("consumerGroup")


@header
class ProducerConnectionHeader:
    producer_group: str = wire("producerGroup")


@header
class ConsumerStatusHeader:
    """The local offsets of a group's clients (223 to the broker, 221 to a client).

    `client_id`: the only client to ask.
    """

    topic: str = wire("topic")
    group: str = wire("group")
    client_id: str | None = wire("clientAddr", default=None)


@header
class ConsumerRunningHeader:
    """Diagnostics of one client (307, to the broker and on to the client)."""

    consumer_group: str = wire("consumerGroup")
    client_id: str = wire("clientId")
    jstack: bool = wire("jstackEnable", default=False)


@header
class ConsumeDirectlyHeader:
    """Make one client consume one message (309, to the broker and on to the client)."""

    consumer_group: str = wire("consumerGroup")
    client_id: str | None = wire("clientId", default=None)
    message_id: str | None = wire("msgId", default=None)
    broker_name: str | None = wire("brokerName", default=None)
    topic: str | None = wire("topic", default=None)
    topic_sys_flag: int | None = wire("topicSysFlag", default=None)
    group_sys_flag: int | None = wire("groupSysFlag", default=None)
