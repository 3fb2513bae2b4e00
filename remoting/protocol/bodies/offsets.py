"""Queue offsets and lag: 43, 45, 202, 208, 220 to 223, 303, 308, 315, 317, 321.

Source: remoting/…/protocol/admin/TopicStatsTable.java, ConsumeStats.java, body/ResetOffsetBody.java
and the classes beside it.
"""

import attrs

from triomq.remoting.protocol.bodies.heartbeat import SubscriptionData
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.bodies.schema import JsonBody, json_name, named
from triomq.remoting.protocol.bodies.topics import DataVersion


@attrs.frozen(eq=False, repr=False)
class TopicOffset(JsonBody):
    """First offset, next offset, and the time of the last message (ms, 0 without messages)."""

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0


@attrs.frozen(eq=False, repr=False)
class TopicStats(JsonBody):
    """Answer to 202."""

    offset_table: dict[MessageQueue, TopicOffset] = attrs.field(factory=dict)
    topic_put_tps: float = 0.0

    @property
    def message_count(self) -> int:
        """Number of messages that lie in the queues."""
        return sum(
            max(0, offsets.max_offset - offsets.min_offset)
            for offsets in self.offset_table.values()
        )


@attrs.frozen(eq=False, repr=False)
class ConsumeOffset(JsonBody):
    """The offsets of one group in one queue; lag is ``broker_offset - consumer_offset``."""

    broker_offset: int = 0
    consumer_offset: int = 0
    last_timestamp: int = 0
    pull_offset: int = 0


@attrs.frozen(eq=False, repr=False)
class ConsumeStats(JsonBody):
    """Answer to 208."""

    offset_table: dict[MessageQueue, ConsumeOffset] = attrs.field(factory=dict)
    consume_tps: float = 0.0


@attrs.frozen(eq=False, repr=False)
class BrokerConsumeStats(JsonBody):
    """Answer to 317: a list of maps, with one group each."""

    broker_addr: str | None = None
    consume_stats_list: list[dict[str, list[ConsumeStats]]] = attrs.field(factory=list)
    total_diff: int = 0
    total_inflight_diff: int = 0


@attrs.frozen(eq=False, repr=False)
class ConsumerOffsetTable(JsonBody):
    """Answer to 43: ``topic@group`` -> queue -> next offset to consume."""

    offset_table: dict[str, dict[int, int]] = attrs.field(factory=dict)
    data_version: DataVersion | None = None


@attrs.frozen(eq=False, repr=False)
class LightOffsetTable(JsonBody):
    """An extra of lmqConsumerOffset.json: ``topic@group`` of light queues -> next offset."""

    lmq_offset_table: dict[str, int] = attrs.field(factory=dict)


@attrs.frozen(eq=False, repr=False)
class MovedOffsetTable(ConsumerOffsetTable):
    """The answer to 43, and consumerOffset.json, with extras that are ours, by ``topic@group`` and
    queue: offsets of which a group has not heard, and where the log ended when it was moved.
    """

    pending_resets: dict[str, dict[int, int]] = attrs.field(factory=dict)
    moved_at: dict[str, dict[int, int]] = attrs.field(factory=dict)


@attrs.frozen(eq=False, repr=False)
class DelayOffsetTable(JsonBody):
    """Answer to 45: delay level -> next offset."""

    offset_table: dict[int, int] = attrs.field(factory=dict)
    data_version: DataVersion | None = None


@attrs.frozen(eq=False, repr=False)
class QueueOffsets(JsonBody):
    """The body of 220 and the answer to 222."""

    offset_table: dict[MessageQueue, int] = attrs.field(factory=dict)


@attrs.frozen(eq=False, repr=False)
class ConsumerStatus(JsonBody):
    """Answers to 221 (the client's own table) and 223 (client id -> table)."""

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
class QueueTimeSpan(JsonBody):
    message_queue: MessageQueue
    min_timestamp: int = named("minTimeStamp", default=0)
    max_timestamp: int = named("maxTimeStamp", default=0)
    consume_timestamp: int = named("consumeTimeStamp", default=0)
    delay_ms: int = named("delayTime", default=0)


@attrs.frozen(eq=False, repr=False)
class ConsumeTimeSpans(JsonBody):
    """Answer to 303."""

    spans: list[QueueTimeSpan] = named("consumeTimeSpanSet", factory=list)


@attrs.frozen(eq=False, repr=False)
class CorrectionOffsets(JsonBody):
    """Answer to 308."""

    correction_offsets: dict[int, int] = attrs.field(factory=dict)


@attrs.frozen(eq=False, repr=False)
class StatsItem(JsonBody):
    """A sum over a period, its rate per second, and the mean of one call."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


@attrs.frozen(eq=False, repr=False)
class BrokerStats(JsonBody):
    """Answer to 315."""

    minute: StatsItem = named("statsMinute", factory=StatsItem)
    hour: StatsItem = named("statsHour", factory=StatsItem)
    day: StatsItem = named("statsDay", factory=StatsItem)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class LargestStats(JsonBody):
    """Answer to 315 for the key ``*``, TrioMQ's own: a counter over all its keys."""

    hour: int = 0
    day: int = 0
    count: int = 0
    """number of keys"""
    largest: dict[str, list[int]] = attrs.field(factory=dict)
    """key → sums of its last hour and day, the largest day first, ``LARGEST_MAX`` at most"""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ConsumeQueueEntry(JsonBody):
    log_offset: int = attrs.field(metadata=json_name("physicOffset"))
    size_bytes: int = attrs.field(metadata=json_name("physicSize"))
    tags_code: int
    matches: bool = named("eval", default=False)
    extension: str | None = named("extendDataJson", default=None)
    bit_map: str | None = None
    message: str | None = named("msg", default=None)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ConsumeQueueEntries(JsonBody):
    """Answer to 321."""

    entries: list[ConsumeQueueEntry] = named("queueData", factory=list)
    min_queue_index: int = 0
    max_queue_index: int = 0
    subscription: SubscriptionData | None = named("subscriptionData", default=None)
    filter_data: str | None = None
