"""The options of the source: names, defaults, checks. All checks happen while a query is planned.

Names are those of Spark's Kafka source if the meaning is the same, otherwise RocketMQ's.
"""

import re
import zlib
from collections.abc import Mapping
from typing import Any

import attrs

from triomq.client.spark.errors import OptionError
from triomq.client.spark.offset_options import (
    ANY,
    GROUP,
    OffsetOption,
    parse_end,
    parse_start,
    parse_time,
    parse_times,
)
from triomq.client.spark.offsets import Queue
from triomq.client.spark.option_table import (
    NAME_SERVER,
    AccessOptions,
    option,
    options_of,
    parse_table,
    take_access,
)
from triomq.client.spark.option_values import (
    assignment,
    boolean,
    integer,
    milliseconds,
    one_of,
    regular_expression,
    size,
    tag_expression,
    text,
    topic_names,
)
from triomq.remoting.client.access import Access


@attrs.frozen(kw_only=True)
class SourceOptions:
    """The checked options of one query. Durations are milliseconds; None means no limit."""

    name_server: tuple[str, ...] = NAME_SERVER.field()
    """name servers, `host:port;host:port`; required"""
    subscribe: tuple[str, ...] = option("subscribe", topic_names, absent=(), aliases=("topic",))
    """topics, separated by commas; this, `subscribePattern` or `assign` is required"""
    pattern: re.Pattern[str] | None = option("subscribePattern", regular_expression)
    """a regular expression that whole names of topics match, also of topics that are created later;
    instead of `subscribe`"""
    assign: tuple[Queue, ...] = option("assign", assignment, absent=())
    """exactly these queues: `{"topicA":{"broker-a":[0,1]}}`"""
    starting_offsets: OffsetOption = option(
        "startingOffsets", parse_start, "latest", batch_default="earliest"
    )
    """where a new query begins: `earliest`, `latest` (streams), `group` (the offsets that `groupId`
    has stored), or JSON `{"topicA":{"broker-a":{"0":23,"*":-2}}}` with -2 for earliest and -1 for
    latest"""
    starting_time: OffsetOption | None = option("startingTimestamp", parse_time)
    """begin with the first message stored at this time (epoch, ms) or later; wins over
    startingOffsets"""
    starting_times: OffsetOption | None = option("startingOffsetsByTimestamp", parse_times)
    """times (epoch, ms) of single queues, in the shape of startingOffsets; wins over
    startingOffsets"""
    timestamp_strategy: str = option(
        "startingOffsetsByTimestampStrategy", one_of("error", "latest"), "error"
    )
    """what to do with queues without a message of that time or later: fail, or begin at their
    end"""
    ending_offsets: OffsetOption = option("endingOffsets", parse_end, "latest", stream=False)
    """where a batch query ends (exclusive): `latest` or JSON as in startingOffsets, -1 for
    latest"""
    ending_time: OffsetOption | None = option("endingTimestamp", parse_time, stream=False)
    """end before the first message stored at this time (epoch, ms) or later; wins over
    endingOffsets"""
    ending_times: OffsetOption | None = option(
        "endingOffsetsByTimestamp", parse_times, stream=False
    )
    """times (epoch, ms) of single queues, in the shape of endingOffsets; wins over endingOffsets"""
    group_reset: str = option("groupOffsetsReset", one_of("earliest", "latest"), "earliest")
    """with startingOffsets=group: where queues begin of which the group has no offset"""
    fail_on_data_loss: bool = option("failOnDataLoss", boolean, "true")
    """fail when messages are gone before they were read; with false, warn and skip them"""
    max_offsets_per_trigger: int | None = option("maxOffsetsPerTrigger", integer(1), batch=False)
    """approximate messages per micro-batch, shared among the queues by backlog"""
    max_bytes_per_trigger: int | None = option(
        "maxBytesPerTrigger", size(1 << 10, 1 << 50), batch=False
    )
    """approximate stored bytes per micro-batch: messages × their mean size, sampled where the batch
    begins; with maxOffsetsPerTrigger the smaller batch wins"""
    min_offsets_per_trigger: int | None = option("minOffsetsPerTrigger", integer(1), batch=False)
    """start a batch when about this many messages wait, or after `maxTriggerDelay`"""
    max_trigger_delay_ms: int = option("maxTriggerDelay", milliseconds, "15m", batch=False)
    """the longest wait for `minOffsetsPerTrigger`"""
    min_partitions: int | None = option("minPartitions", integer(1))
    """approximate least number of tasks: large ranges are cut"""
    max_records_per_partition: int | None = option("maxRecordsPerPartition", integer(1))
    """maximum messages per task"""
    min_records_per_partition: int = option("minRecordsPerPartition", integer(1), "10000")
    """ranges with fewer messages share a task"""
    include_headers: bool = option(
        "includeHeaders", boolean, "false", aliases=("includeProperties",)
    )
    """adds the column `headers`: all properties"""
    tags: tuple[str, ...] = option("tags", tag_expression, "*")
    """only messages with these tags, `A || B`; the broker filters"""
    filter_sql: str | None = option("filterSql", text)
    """only messages for which this SQL92 expression over properties is true; the broker filters
    (`enablePropertyFilter=true`)"""
    group: str = option("groupId", text, aliases=("kafka.group.id",))
    """consumer group whose offsets show the query's progress, for lag displays"""
    group_prefix: str = option("groupIdPrefix", text, "spark-rocketmq-source")
    """without groupId, prefix of the random group name of the pulls"""
    commit_group_offsets: bool = option("commitGroupOffsets", boolean, batch=False)
    """write the group's offsets to the brokers; by default if groupId is given"""
    pull_batch_size: int = option("pullBatchSize", integer(1, 100_000), "4096")
    """requested messages per pull; brokers may send fewer"""
    pull_max_bytes: int = option("pullMaxBytes", size(1 << 10, 15 << 20), "1m")
    """requested bytes per pull; brokers may send fewer"""
    pull_depth: int = option("pullDepth", integer(1, 64), "4")
    """pulls in flight per task"""
    record_batch_bytes: int = option("recordBatchBytes", size(1 << 10, 64 << 20), "1m")
    """approximate bytes of answers that are decoded together"""
    poll_timeout_ms: int = option(
        "pollTimeoutMs", milliseconds, "120000", aliases=("kafkaConsumer.pollTimeoutMs",)
    )
    """a task fails after this time without an expected message"""
    retries: int = option("fetchOffset.numRetries", integer(0, 1000), "5")
    """retries of a failed request of the driver"""
    retry_interval_ms: int = option("fetchOffset.retryIntervalMs", milliseconds, "200")
    """pause before the first retry; doubles each time"""
    metadata_refresh_ms: int = option("metadataRefreshMs", milliseconds, "5000", batch=False)
    """time between two searches for new queues and moved brokers"""
    poll_interval_ms: int = option("pollIntervalMs", milliseconds, "100", batch=False)
    """least time between two polls for new messages"""
    unavailable_broker_policy: str = option(
        "unavailableBrokerPolicy", one_of("wait", "fail"), "wait", batch=False
    )
    """when a broker cannot be reached: pause its queues, or fail the query"""
    unavailable_broker_timeout_ms: int = option(
        "unavailableBrokerTimeout", milliseconds, "10m", batch=False
    )
    """maximum time of such a pause"""
    access: Access = attrs.field(factory=Access)
    """TLS and credentials; sent to the executors"""

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that the options name, sorted; none with a pattern."""
        return tuple(sorted(self.subscribe or {queue.topic for queue in self.assign}))

    def reads(self, queue: Queue) -> bool:
        """Return whether the query reads a queue of this name."""
        if self.pattern is not None:
            return self.pattern.fullmatch(queue.topic) is not None
        return queue in self.assign if self.assign else queue.topic in self.subscribe

    @property
    def expression(self) -> tuple[str, str]:
        """The type and the text of the subscription, as brokers read them."""
        if self.filter_sql is not None:
            return "SQL92", self.filter_sql
        return "TAG", " || ".join(self.tags) or "*"

    @property
    def filters(self) -> bool:
        """Whether the broker leaves messages out."""
        return self.filter_sql is not None or bool(self.tags)

    @property
    def filter_hash(self) -> str | None:
        """The identity of the filter in the offset log.

        A replay with another filter would yield other rows.
        """
        kind, expression = self.expression
        text = expression if kind == "TAG" else f"{kind} {expression}"
        return f"{zlib.crc32(text.encode()):08x}" if self.filters else None


OPTIONS = {**options_of(SourceOptions), **options_of(AccessOptions)}
"""field → option, in the order of the documentation"""


def parse_options(
    options: Mapping[str, str], *, streaming: bool, query: str = "0"
) -> SourceOptions:
    """Check the options of a query.

    ``query``: part of the group's name if the user names no group.

    Raises: OptionError that names the option, the cause and the rule.
    """
    values, given = parse_table(OPTIONS, options, {}, streaming=streaming)
    check_together(values, given, streaming=streaming)
    if values["commit_group_offsets"] is None:
        values["commit_group_offsets"] = streaming and "groupId" in given
    values["group"] = values["group"] or f"{values['group_prefix']}-{query}"
    join_times(values)
    access = take_access(values)
    return SourceOptions(**values, access=access)


def join_times(values: dict[str, object]) -> None:
    """Let the one time of ``startingTimestamp`` (``endingTimestamp``) win over those of queues."""
    for which in ("starting", "ending"):
        values[f"{which}_times"] = values[f"{which}_time"] or values[f"{which}_times"]


def check_together(values: Mapping[str, Any], given: Mapping[str, str], *, streaming: bool) -> None:
    """Check the rules that involve more than one option.

    Raises: OptionError.
    """
    if sum(bool(values[field]) for field in ("subscribe", "pattern", "assign")) != 1:
        raise OptionError(
            "give exactly one of the options 'subscribe', 'subscribePattern' and 'assign'"
        )
    if values["commit_group_offsets"] and "groupId" not in given:
        raise OptionError(
            "option 'commitGroupOffsets' needs 'groupId': offsets are kept under a group's name"
        )
    if values["tags"] and values["filter_sql"] is not None:
        raise OptionError("give one of the options 'tags' and 'filterSql'")
    most, least = values["max_offsets_per_trigger"], values["min_offsets_per_trigger"]
    if most is not None and least is not None and least > most:
        raise OptionError(
            f"option 'minOffsetsPerTrigger' = {least} is more than 'maxOffsetsPerTrigger' = {most}"
        )
    start: OffsetOption = values["starting_offsets"]
    if not streaming and start.allows_latest:
        raise OptionError(
            "a batch query cannot begin at latest (-1); give 'startingOffsets' as earliest or"
            " offsets"
        )
    if start.tree == {ANY: GROUP} and "groupId" not in given:
        raise OptionError("option 'startingOffsets' = 'group' needs 'groupId'")
    if values["pattern"]:
        return
    named = set(values["subscribe"] or (queue.topic for queue in values["assign"]))
    for field in ("starting_offsets", "ending_offsets", "starting_times", "ending_times"):
        positions: OffsetOption = values[field] or OffsetOption({})
        unknown = sorted(positions.topics - named)
        if unknown:
            raise OptionError(
                f"option {OPTIONS[field].name!r} names topics that the query does not read:"
                f" {', '.join(unknown)}"
            )
