"""Headers of pull requests, 11 and 361, and their flag bits.

Source: remoting/…/header/PullMessageRequestHeader.java, PullMessageResponseHeader.java,
common/…/PullSysFlag.java.
"""

from triomq.remoting.protocol.fields import header, wire

COMMIT_OFFSET = 1
"""The broker stores ``commit_offset``."""
SUSPEND = 2
"""The broker may hold the request until a message arrives."""
SUBSCRIPTION = 4
"""``subscription`` is the expression; otherwise the broker uses that of the heartbeat."""
CLASS_FILTER = 8
LITE_PULL = 16
RANGE_READ = 1 << 16
"""Ours, ignored by RocketMQ: the client reads a long range. The broker gives up to 1 MiB and 4,096
messages instead of what its settings allow a consumer (256 KiB and 32).
"""


@header
class PullMessageHeader:
    """Ask for messages of one queue from ``queue_offset`` on."""

    consumer_group: str = wire("consumerGroup")
    topic: str = wire("topic")
    queue_id: int = wire("queueId", varies=True)
    queue_offset: int = wire("queueOffset", bits=64, varies=True)
    message_count_max: int = wire("maxMsgNums")
    sys_flag: int = wire("sysFlag", varies=True)
    commit_offset: int = wire("commitOffset", bits=64, varies=True)
    suspend_timeout_ms: int = wire("suspendTimeoutMillis", bits=64)
    sub_version: int = wire("subVersion", bits=64, varies=True)
    subscription: str | None = wire("subscription", default=None)
    expression_type: str | None = wire("expressionType", default=None)
    message_bytes_max: int | None = wire("maxMsgBytes", default=None)
    request_source: int | None = wire("requestSource", default=None)
    proxy_forward_client_id: str | None = wire("proxyFrowardClientId", default=None)
    lite_topic: str | None = wire("liteTopic", default=None)
    broker_name: str | None = wire("bname", default=None)


@header
class PullMessageResponseHeader:
    """The next offset and the queue's bounds; with codes 0, 19, 20 and 21."""

    suggested_broker_id: int = wire("suggestWhichBrokerId", bits=64)
    next_begin_offset: int = wire("nextBeginOffset", bits=64)
    min_offset: int = wire("minOffset", bits=64)
    max_offset: int = wire("maxOffset", bits=64)
    offset_delta: int | None = wire("offsetDelta", default=None, bits=64)
    topic_sys_flag: int | None = wire("topicSysFlag", default=None)
    group_sys_flag: int | None = wire("groupSysFlag", default=None)
    forbidden_type: int | None = wire("forbiddenType", default=None)
