"""Positions and lag: 43, 45, 202, 208, 220 to 223, 303, 308, 315, 317, 321.

Source: remoting/…/protocol/admin/TopicStatsTable.java, ConsumeStats.java, body/ResetOffsetBody.java and their neighbours.
"""

import attrs

from triomq.remoting.protocol.bodies.heartbeat import SubscriptionData
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.bodies.schema import JsonBody, named
from triomq.remoting.protocol.bodies.topics import DataVersion


@attrs.frozen(eq=False, repr=False)
class TopicOffset(JsonBody):
    """First offset, next offset, and when the last message came (ms; 0 if none)."""

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0


@attrs.frozen(eq=False, repr=False)
class TopicStats(JsonBody):
    """202."""

    offset_table: dict[MessageQueue, TopicOffset] = attrs.field(factory=dict)
    topic_put_tps: float = 0.0


@attrs.frozen(eq=False, repr=False)
class ConsumeOffset(JsonBody):
    """One queue as one group sees it; lag is ``broker_offset - consumer_offset``."""

    broker_offset: int = 0
    consumer_offset: int = 0
    last_timestamp: int = 0
    pull_offset: int = 0


@attrs.frozen(eq=False, repr=False)
class ConsumeStats(JsonBody):
    """208."""

    offset_table: dict[MessageQueue, ConsumeOffset] = attrs.field(factory=dict)
    consume_tps: float = 0.0


@attrs.frozen(eq=False, repr=False)
class BrokerConsumeStats(JsonBody):
    """317: one map with one group each."""

    broker_addr: str | None = None
    consume_stats_list: list[dict[str, list[ConsumeStats]]] = attrs.field(factory=list)
    total_diff: int = 0
    total_inflight_diff: int = 0


@attrs.frozen(eq=False, repr=False)
class ConsumerOffsetTable(JsonBody):
    """43: ``topic@group`` -> queue -> next offset to consume."""

    offset_table: dict[str, dict[int, int]] = attrs.field(factory=dict)
    data_version: DataVersion | None = None


@attrs.frozen(eq=False, repr=False)
class LightOffsetTable(JsonBody):
    """What lmqConsumerOffset.json has beside a ConsumerOffsetTable: ``topic@group`` of light queues -> next offset."""

    lmq_offset_table: dict[str, int] = attrs.field(factory=dict)


@attrs.frozen(eq=False, repr=False)
class DelayOffsetTable(JsonBody):
    """45: delay level -> next offset."""

    offset_table: dict[int, int] = attrs.field(factory=dict)
    data_version: DataVersion | None = None


@attrs.frozen(eq=False, repr=False)
class QueueOffsets(JsonBody):
    """The body of 220 and the answer to 222."""

    offset_table: dict[MessageQueue, int] = attrs.field(factory=dict)


@attrs.frozen(eq=False, repr=False)
class ConsumerStatus(JsonBody):
    """221 (the client's own table) and 223 (client id -> table)."""

    message_queue_table: dict[MessageQueue, int] = attrs.field(factory=dict)
    consumer_table: dict[str, dict[MessageQueue, int]] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class QueueOffset(JsonBody):
    broker_name: str
    topic: str
    queue_id: int
    offset: int


@attrs.frozen(eq=False, repr=False)
class QueueOffsetList(JsonBody):
    """The body of 220 for C++ clients, which cannot read objects as keys."""

    offset_table: list[QueueOffset] = attrs.field(factory=list)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class OffsetMoved(JsonBody):
    """The body of messages of the topic OFFSET_MOVED_EVENT: a consumer asked for an offset that no longer exists."""

    consumer_group: str
    message_queue: MessageQueue
    requested_offset: int = attrs.field(metadata=named("offsetRequest"))
    new_offset: int = attrs.field(metadata=named("offsetNew"))


@attrs.frozen(kw_only=True, eq=False, repr=False)
class QueueTimeSpan(JsonBody):
    message_queue: MessageQueue
    min_timestamp: int = attrs.field(default=0, metadata=named("minTimeStamp"))
    max_timestamp: int = attrs.field(default=0, metadata=named("maxTimeStamp"))
    consume_timestamp: int = attrs.field(default=0, metadata=named("consumeTimeStamp"))
    delay_ms: int = attrs.field(default=0, metadata=named("delayTime"))


@attrs.frozen(eq=False, repr=False)
class ConsumeTimeSpans(JsonBody):
    """303."""

    spans: list[QueueTimeSpan] = attrs.field(factory=list, metadata=named("consumeTimeSpanSet"))


@attrs.frozen(eq=False, repr=False)
class CorrectionOffsets(JsonBody):
    """308."""

    correction_offsets: dict[int, int] = attrs.field(factory=dict)


@attrs.frozen(eq=False, repr=False)
class StatsItem(JsonBody):
    """A sum over some time, its rate per second, and the mean per call."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


@attrs.frozen(eq=False, repr=False)
class BrokerStats(JsonBody):
    """315."""

    minute: StatsItem = attrs.field(factory=StatsItem, metadata=named("statsMinute"))
    hour: StatsItem = attrs.field(factory=StatsItem, metadata=named("statsHour"))
    day: StatsItem = attrs.field(factory=StatsItem, metadata=named("statsDay"))


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ConsumeQueueEntry(JsonBody):
    log_offset: int = attrs.field(metadata=named("physicOffset"))
    size_bytes: int = attrs.field(metadata=named("physicSize"))
    tags_code: int
    matches: bool = attrs.field(default=False, metadata=named("eval"))
    extension: str | None = attrs.field(default=None, metadata=named("extendDataJson"))
    bit_map: str | None = None
    message: str | None = attrs.field(default=None, metadata=named("msg"))


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ConsumeQueueEntries(JsonBody):
    """321."""

    entries: list[ConsumeQueueEntry] = attrs.field(factory=list, metadata=named("queueData"))
    min_queue_index: int = 0
    max_queue_index: int = 0
    subscription: SubscriptionData | None = attrs.field(default=None, metadata=named("subscriptionData"))
    filter_data: str | None = None
