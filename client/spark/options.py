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
    parse_times,
)
from triomq.client.spark.offsets import Queue
from triomq.client.spark.option_table import (
    ACCESS_OPTIONS,
    NAME_SERVER,
    Option,
    access_of,
    parse_table,
)
from triomq.client.spark.option_values import (
    assignment,
    boolean,
    integer,
    milliseconds,
    one_of,
    pattern,
    size,
    tag_expression,
    text,
    topics,
)
from triomq.remoting.client.access import Access

OPTIONS: tuple[Option, ...] = (
    NAME_SERVER,
    Option(
        name="subscribe",
        parse=topics,
        default=None,
        aliases=("topic",),
        meaning="topics, separated by commas; this, `subscribePattern` or `assign` is required",
    ),
    Option(
        name="subscribePattern",
        parse=pattern,
        default=None,
        meaning=(
            "a regular expression that whole names of topics match, also of topics that are created"
            " later; instead of `subscribe`"
        ),
    ),
    Option(
        name="assign",
        parse=assignment,
        default=None,
        meaning='exactly these queues: `{"topicA":{"broker-a":[0,1]}}`',
    ),
    Option(
        name="startingOffsets",
        parse=parse_start,
        default="latest",
        batch_default="earliest",
        meaning=(
            "where a new query begins: `earliest`, `latest` (streams), `group` (the offsets that"
            " `groupId` has stored), or JSON"
            ' `{"topicA":{"broker-a":{"0":23,"*":-2}}}` with -2 for earliest and -1 for latest'
        ),
    ),
    Option(
        name="startingTimestamp",
        parse=integer(0),
        default=None,
        meaning=(
            "begin with the first message stored at this time (epoch, ms) or later; wins over"
            " startingOffsets"
        ),
    ),
    Option(
        name="startingOffsetsByTimestamp",
        parse=parse_times,
        default=None,
        meaning=(
            "times (epoch, ms) of single queues, in the shape of startingOffsets; wins over"
            " startingOffsets"
        ),
    ),
    Option(
        name="startingOffsetsByTimestampStrategy",
        parse=one_of("error", "latest"),
        default="error",
        meaning=(
            "what to do with queues without a message of that time or later: fail, or begin at"
            " their end"
        ),
    ),
    Option(
        name="endingOffsets",
        parse=parse_end,
        default="latest",
        stream=False,
        meaning=(
            "where a batch query ends (exclusive): `latest` or JSON as in startingOffsets, -1 for"
            " latest"
        ),
    ),
    Option(
        name="endingTimestamp",
        parse=integer(0),
        default=None,
        stream=False,
        meaning=(
            "end before the first message stored at this time (epoch, ms) or later; wins over"
            " endingOffsets"
        ),
    ),
    Option(
        name="endingOffsetsByTimestamp",
        parse=parse_times,
        default=None,
        stream=False,
        meaning=(
            "times (epoch, ms) of single queues, in the shape of endingOffsets; wins over"
            " endingOffsets"
        ),
    ),
    Option(
        name="groupOffsetsReset",
        parse=one_of("earliest", "latest"),
        default="earliest",
        meaning="with startingOffsets=group: where queues begin of which the group has no offset",
    ),
    Option(
        name="failOnDataLoss",
        parse=boolean,
        default="true",
        meaning=(
            "fail when messages are gone before they were read; with false, warn and skip them"
        ),
    ),
    Option(
        name="maxOffsetsPerTrigger",
        parse=integer(1),
        default=None,
        batch=False,
        meaning="approximate messages per micro-batch, shared among the queues by backlog",
    ),
    Option(
        name="maxBytesPerTrigger",
        parse=size(1 << 10, 1 << 50),
        default=None,
        batch=False,
        meaning=(
            "approximate stored bytes per micro-batch: messages × their mean size, sampled where"
            " the batch begins; with maxOffsetsPerTrigger the smaller batch wins"
        ),
    ),
    Option(
        name="minOffsetsPerTrigger",
        parse=integer(1),
        default=None,
        batch=False,
        meaning="wait until there are about so many messages, at most for `maxTriggerDelay`",
    ),
    Option(
        name="maxTriggerDelay",
        parse=milliseconds,
        default="15m",
        batch=False,
        meaning="the longest wait for `minOffsetsPerTrigger`",
    ),
    Option(
        name="minPartitions",
        parse=integer(1),
        default=None,
        meaning="approximate least number of tasks: large ranges are cut",
    ),
    Option(
        name="maxRecordsPerPartition",
        parse=integer(1),
        default=None,
        meaning="maximum messages per task",
    ),
    Option(
        name="minRecordsPerPartition",
        parse=integer(1),
        default="10000",
        meaning="ranges with fewer messages share a task",
    ),
    Option(
        name="includeHeaders",
        parse=boolean,
        default="false",
        aliases=("includeProperties",),
        meaning="adds the column `headers`: all properties",
    ),
    Option(
        name="tags",
        parse=tag_expression,
        default="*",
        meaning="only messages with these tags, `A || B`; the broker filters",
    ),
    Option(
        name="filterSql",
        parse=text,
        default=None,
        meaning=(
            "only messages for which this SQL92 expression over properties is true; the broker"
            " filters (`enablePropertyFilter=true`)"
        ),
    ),
    Option(
        name="groupId",
        parse=text,
        default=None,
        aliases=("kafka.group.id",),
        meaning="consumer group whose offsets show the query's progress, for lag displays",
    ),
    Option(
        name="groupIdPrefix",
        parse=text,
        default="spark-rocketmq-source",
        meaning="without groupId, prefix of the random group name of the pulls",
    ),
    Option(
        name="commitGroupOffsets",
        parse=boolean,
        default=None,
        batch=False,
        meaning="write the group's offsets to the brokers; by default if groupId is given",
    ),
    Option(
        name="pullBatchSize",
        parse=integer(1, 100_000),
        default="4096",
        meaning="requested messages per pull; brokers may send fewer",
    ),
    Option(
        name="pullMaxBytes",
        parse=size(1 << 10, 15 << 20),
        default="1m",
        meaning="requested bytes per pull; brokers may send fewer",
    ),
    Option(name="pullDepth", parse=integer(1, 64), default="4", meaning="pulls in flight per task"),
    Option(
        name="recordBatchBytes",
        parse=size(1 << 10, 64 << 20),
        default="1m",
        meaning="approximate bytes of answers that are decoded together",
    ),
    Option(
        name="pollTimeoutMs",
        parse=milliseconds,
        default="120000",
        aliases=("kafkaConsumer.pollTimeoutMs",),
        meaning="a task fails after this time without an expected message",
    ),
    Option(
        name="fetchOffset.numRetries",
        parse=integer(0, 1000),
        default="5",
        meaning="retries of a failed request of the driver",
    ),
    Option(
        name="fetchOffset.retryIntervalMs",
        parse=milliseconds,
        default="200",
        meaning="pause before the first retry; doubles each time",
    ),
    Option(
        name="metadataRefreshMs",
        parse=milliseconds,
        default="5000",
        batch=False,
        meaning="time between two searches for new queues and moved brokers",
    ),
    Option(
        name="pollIntervalMs",
        parse=milliseconds,
        default="100",
        batch=False,
        meaning="least time between two polls for new messages",
    ),
    Option(
        name="unavailableBrokerPolicy",
        parse=one_of("wait", "fail"),
        default="wait",
        batch=False,
        meaning="when a broker cannot be reached: pause its queues, or fail the query",
    ),
    Option(
        name="unavailableBrokerTimeout",
        parse=milliseconds,
        default="10m",
        batch=False,
        meaning="maximum time of such a pause",
    ),
    *ACCESS_OPTIONS,
)


@attrs.frozen(kw_only=True)
class SourceOptions:
    """The checked options of one query. Durations are milliseconds; None means no limit."""

    name_server: tuple[str, ...]
    subscribe: tuple[str, ...]
    pattern: re.Pattern[str] | None
    assign: tuple[Queue, ...]
    starting_offsets: OffsetOption
    starting_times: OffsetOption | None
    """times (epoch, ms) where a new query begins; wins over ``starting_offsets``"""
    timestamp_strategy: str
    group_reset: str
    ending_offsets: OffsetOption
    ending_times: OffsetOption | None
    fail_on_data_loss: bool
    max_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    min_partitions: int | None
    max_records_per_partition: int | None
    min_records_per_partition: int
    include_headers: bool
    tags: tuple[str, ...]
    filter_sql: str | None
    group: str
    commit_group_offsets: bool
    pull_batch_size: int
    pull_max_bytes: int
    pull_depth: int
    record_batch_bytes: int
    poll_timeout_ms: int
    retries: int
    retry_interval_ms: int
    metadata_refresh_ms: int
    poll_interval_ms: int
    unavailable_broker_policy: str
    unavailable_broker_timeout_ms: int
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


def parse_options(
    options: Mapping[str, str], *, streaming: bool, query: str = "0"
) -> SourceOptions:
    """Check the options of a query.

    ``query``: part of the group's name if the user names no group.

    Raises: OptionError that names the option, the cause and the rule.
    """
    values, given = parse_table(OPTIONS, options, {}, streaming=streaming)
    check_together(values, given, streaming=streaming)
    if values["commitGroupOffsets"] is None:
        values["commitGroupOffsets"] = streaming and "groupId" in given
    return SourceOptions(
        name_server=values["nameServer"],
        subscribe=values["subscribe"] or (),
        pattern=values["subscribePattern"],
        assign=values["assign"] or (),
        starting_offsets=values["startingOffsets"],
        starting_times=times_of(values, "starting"),
        timestamp_strategy=values["startingOffsetsByTimestampStrategy"],
        ending_offsets=values["endingOffsets"],
        ending_times=times_of(values, "ending"),
        group_reset=values["groupOffsetsReset"],
        fail_on_data_loss=values["failOnDataLoss"],
        max_offsets_per_trigger=values["maxOffsetsPerTrigger"],
        max_bytes_per_trigger=values["maxBytesPerTrigger"],
        min_offsets_per_trigger=values["minOffsetsPerTrigger"],
        max_trigger_delay_ms=values["maxTriggerDelay"],
        min_partitions=values["minPartitions"],
        max_records_per_partition=values["maxRecordsPerPartition"],
        min_records_per_partition=values["minRecordsPerPartition"],
        include_headers=values["includeHeaders"],
        tags=values["tags"],
        filter_sql=values["filterSql"],
        group=values["groupId"] or f"{values['groupIdPrefix']}-{query}",
        commit_group_offsets=values["commitGroupOffsets"],
        pull_batch_size=values["pullBatchSize"],
        pull_max_bytes=values["pullMaxBytes"],
        pull_depth=values["pullDepth"],
        record_batch_bytes=values["recordBatchBytes"],
        poll_timeout_ms=values["pollTimeoutMs"],
        retries=values["fetchOffset.numRetries"],
        retry_interval_ms=values["fetchOffset.retryIntervalMs"],
        metadata_refresh_ms=values["metadataRefreshMs"],
        poll_interval_ms=values["pollIntervalMs"],
        unavailable_broker_policy=values["unavailableBrokerPolicy"],
        unavailable_broker_timeout_ms=values["unavailableBrokerTimeout"],
        access=access_of(values),
    )


def times_of(values: Mapping[str, Any], which: str) -> OffsetOption | None:
    """Return the times of ``startingTimestamp`` or ``startingOffsetsByTimestamp`` (or ending…)."""
    if values[f"{which}Timestamp"] is not None:
        return OffsetOption({ANY: values[f"{which}Timestamp"]})
    times: OffsetOption | None = values[f"{which}OffsetsByTimestamp"]
    return times


def check_together(values: Mapping[str, Any], given: Mapping[str, str], *, streaming: bool) -> None:
    """Check the rules that involve more than one option.

    Raises: OptionError.
    """
    if sum(bool(values[name]) for name in ("subscribe", "subscribePattern", "assign")) != 1:
        raise OptionError(
            "give exactly one of the options 'subscribe', 'subscribePattern' and 'assign'"
        )
    if values["commitGroupOffsets"] and "groupId" not in given:
        raise OptionError(
            "option 'commitGroupOffsets' needs 'groupId': offsets are kept under a group's name"
        )
    if values["tags"] and values["filterSql"] is not None:
        raise OptionError("give one of the options 'tags' and 'filterSql'")
    most, least = values["maxOffsetsPerTrigger"], values["minOffsetsPerTrigger"]
    if most is not None and least is not None and least > most:
        raise OptionError(
            f"option 'minOffsetsPerTrigger' = {least} is more than 'maxOffsetsPerTrigger' = {most}"
        )
    start: OffsetOption = values["startingOffsets"]
    if not streaming and start.allows_latest:
        raise OptionError(
            "a batch query cannot begin at latest (-1); give 'startingOffsets' as earliest or"
            " offsets"
        )
    if start.tree == {ANY: GROUP} and "groupId" not in given:
        raise OptionError("option 'startingOffsets' = 'group' needs 'groupId'")
    if values["subscribePattern"]:
        return
    named = set(values["subscribe"] or (queue.topic for queue in values["assign"]))
    for option in (
        "startingOffsets",
        "endingOffsets",
        "startingOffsetsByTimestamp",
        "endingOffsetsByTimestamp",
    ):
        positions: OffsetOption = values[option] or OffsetOption({})
        unknown = sorted(positions.topics - named)
        if unknown:
            raise OptionError(
                f"option {option!r} names topics that the query does not read: {', '.join(unknown)}"
            )
