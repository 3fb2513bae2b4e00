"""The options of the source: names, defaults, checks.  Everything is checked while a query is planned, never in its tasks.

Names are those of Spark's Kafka source wherever the meaning is the same, RocketMQ's otherwise.  Spark hands option names over in
lower case.  An option that nobody knows is an error with the nearest name, because a typing error must not change a query silently.
"""

import difflib
import os
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from triomq.client.spark.errors import OptionError
from triomq.client.spark.offsets import Queue
from triomq.client.spark.option_values import (
    addresses,
    assignment,
    boolean,
    integer,
    milliseconds,
    one_of,
    size,
    tag_expression,
    text,
    topics,
)
from triomq.client.spark.starting import Start, end_text, start_text
from triomq.remoting.client.access import Access
from triomq.remoting.protocol.signing import Credentials
from triomq.remoting.settings import ConfigError
from triomq.remoting.tls.client import Tls


@attrs.frozen(kw_only=True)
class Option:
    """One option: the names users write, its default as they would write it, and what it is for."""

    name: str
    parse: Callable[[str], Any]
    default: str | None
    meaning: str
    aliases: tuple[str, ...] = ()
    stream: bool = True
    batch: bool = True
    batch_default: str | None = None


OPTIONS: tuple[Option, ...] = (
    Option(
        name="nameServer",
        parse=addresses,
        default=None,
        aliases=("rocketmq.namesrv.addr",),
        meaning="name servers, `host:port;host:port`; required",
    ),
    Option(
        name="subscribe",
        parse=topics,
        default=None,
        aliases=("topic",),
        meaning="topics, separated by commas; this or `assign` is required",
    ),
    Option(
        name="assign", parse=assignment, default=None, meaning='exactly these queues: `{"topicA":{"broker-a":[0,1]}}`'
    ),
    Option(
        name="startingOffsets",
        parse=start_text,
        default="latest",
        batch_default="earliest",
        meaning='where a new query begins: `earliest`, `latest` (streams), or JSON `{"topicA":{"broker-a":{"0":23,"*":-2}}}` with -2 for earliest and -1 for latest',
    ),
    Option(
        name="startingTimestamp",
        parse=integer(0),
        default=None,
        meaning="begin with the first message stored at this time (epoch, ms) or later; wins over startingOffsets",
    ),
    Option(
        name="startingOffsetsByTimestampStrategy",
        parse=one_of("error", "latest"),
        default="error",
        meaning="what to do with queues that have no message that young: fail, or begin at their end",
    ),
    Option(
        name="endingOffsets",
        parse=end_text,
        default="latest",
        stream=False,
        meaning="where a batch query ends (exclusive): `latest` or JSON as in startingOffsets, -1 for latest",
    ),
    Option(
        name="endingTimestamp",
        parse=integer(0),
        default=None,
        stream=False,
        meaning="end before the first message stored at this time (epoch, ms) or later; wins over endingOffsets",
    ),
    Option(
        name="failOnDataLoss",
        parse=boolean,
        default="true",
        meaning="fail when messages are gone before they were read; with false, warn and go on behind them",
    ),
    Option(
        name="maxOffsetsPerTrigger",
        parse=integer(1),
        default=None,
        batch=False,
        meaning="about so many messages per micro-batch, shared among the queues by backlog",
    ),
    Option(
        name="minPartitions",
        parse=integer(1),
        default=None,
        meaning="cut big ranges until there are about so many tasks",
    ),
    Option(name="maxRecordsPerPartition", parse=integer(1), default=None, meaning="no task reads more messages"),
    Option(name="minRecordsPerPartition", parse=integer(1), default="10000", meaning="smaller ranges share a task"),
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
        name="groupId",
        parse=text,
        default=None,
        aliases=("kafka.group.id",),
        meaning="group under which the brokers keep the query's progress, for lag displays",
    ),
    Option(
        name="groupIdPrefix",
        parse=text,
        default="spark-rocketmq-source",
        meaning="without groupId the pulls go under this prefix and a random id",
    ),
    Option(
        name="commitGroupOffsets",
        parse=boolean,
        default=None,
        batch=False,
        meaning="write progress to the brokers; by default when groupId is given",
    ),
    Option(
        name="pullBatchSize",
        parse=integer(1, 100_000),
        default="1024",
        meaning="messages asked for per pull; brokers may give fewer",
    ),
    Option(
        name="pullMaxBytes",
        parse=size(1 << 10, 15 << 20),
        default="1m",
        meaning="bytes asked for per pull; brokers may give fewer",
    ),
    Option(name="pullDepth", parse=integer(1, 64), default="4", meaning="pulls in flight per task"),
    Option(
        name="recordBatchBytes",
        parse=size(1 << 10, 64 << 20),
        default="1m",
        meaning="answers are joined to about this size before they are decoded",
    ),
    Option(
        name="pollTimeoutMs",
        parse=milliseconds,
        default="120000",
        aliases=("kafkaConsumer.pollTimeoutMs",),
        meaning="a task fails after so long without any message that it was promised",
    ),
    Option(
        name="fetchOffset.numRetries",
        parse=integer(0, 1000),
        default="5",
        meaning="repetitions of a failed request of the driver",
    ),
    Option(
        name="fetchOffset.retryIntervalMs",
        parse=milliseconds,
        default="200",
        meaning="wait before the first repetition; doubles each time",
    ),
    Option(
        name="metadataRefreshMs",
        parse=milliseconds,
        default="5000",
        batch=False,
        meaning="how often to look for new queues and moved brokers",
    ),
    Option(
        name="pollIntervalMs",
        parse=milliseconds,
        default="100",
        batch=False,
        meaning="least time between two questions for new messages",
    ),
    Option(
        name="unavailableBrokerPolicy",
        parse=one_of("wait", "fail"),
        default="wait",
        batch=False,
        meaning="when a broker cannot be reached: let its queues stand still, or fail the query",
    ),
    Option(
        name="unavailableBrokerTimeout",
        parse=milliseconds,
        default="10m",
        batch=False,
        meaning="how long to wait for it",
    ),
    Option(
        name="useTls", parse=boolean, default=None, meaning="connect with TLS; by default when a file for it is named"
    ),
    Option(
        name="tlsCaFile",
        parse=text,
        default=None,
        meaning="PEM file of the certificate authorities to trust, on every node; without it the system's",
    ),
    Option(
        name="tlsConfigFile",
        parse=text,
        default=None,
        meaning="a `tls.properties` file on the driver, for more than `tlsCaFile` says: client certificates, host names. The files that it names must be on every node",
    ),
    Option(name="accessKey", parse=text, default=None, meaning="sign requests with this access key"),
    Option(
        name="secretKey",
        parse=text,
        default=None,
        meaning="the secret key; `env:NAME` takes it from an environment variable of the driver",
    ),
)

IGNORED = frozenset({"path", "inferschema", "mergeschema"})
"""reader options of Spark itself"""
NOT_OFFERED = {
    "subscribepattern": "name the topics in `subscribe`",
    "filtersql": "use `tags`, or filter in the query",
    "startingoffsetsbytimestamp": "use `startingTimestamp`, or offsets in `startingOffsets`",
    "endingoffsetsbytimestamp": "use `endingTimestamp`, or offsets in `endingOffsets`",
    "groupoffsetsreset": "use `startingOffsets`",
    "minoffsetspertrigger": "use a processing-time trigger",
    "maxtriggerdelay": "use a processing-time trigger",
    "maxbytespertrigger": "use `maxOffsetsPerTrigger`",
}
"""options of the same or other sources that somebody may expect here → what to do instead"""


@attrs.frozen(kw_only=True)
class SourceOptions:
    """The checked options of one query.  Durations are milliseconds; `None` means no limit."""

    name_server: tuple[str, ...]
    subscribe: tuple[str, ...]
    assign: tuple[Queue, ...]
    starting_offsets: Start
    starting_timestamp: int | None
    timestamp_strategy: str
    ending_offsets: Start
    ending_timestamp: int | None
    fail_on_data_loss: bool
    max_offsets_per_trigger: int | None
    min_partitions: int | None
    max_records_per_partition: int | None
    min_records_per_partition: int
    include_headers: bool
    tags: tuple[str, ...]
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
    """TLS and credentials; travels to the executors"""

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics of the query, sorted."""
        return tuple(sorted(self.subscribe or {queue.topic for queue in self.assign}))

    @property
    def tag_text(self) -> str:
        """The subscription as brokers read it."""
        return " || ".join(self.tags) or "*"

    @property
    def filter_hash(self) -> str | None:
        """Identifies the tag expression in the offset log; a replay with another one would yield other rows."""
        return f"{zlib.crc32(self.tag_text.encode()):08x}" if self.tags else None


def parse_options(options: Mapping[str, str], *, streaming: bool, query: str = "0") -> SourceOptions:
    """Check the options of a query; *query* tells it apart where the user names no group.

    Raises OptionError that names the option, what is wrong, and what would be right.
    """
    known = {name.lower(): option for option in OPTIONS for name in (option.name, *option.aliases)}
    values: dict[str, Any] = {option.name: default_of(option, streaming=streaming) for option in OPTIONS}
    given: dict[str, str] = {}
    for key, raw in options.items():
        option = known.get(key.lower())
        if option is None:
            if key.lower() in IGNORED:
                continue
            raise unknown_option(key, known)
        if not (option.stream if streaming else option.batch):
            raise OptionError(
                f"option {option.name!r} has no meaning for a {'stream' if streaming else 'batch query'}; leave it out"
            )
        if option.name in given:
            raise OptionError(f"options {given[option.name]!r} and {key!r} mean the same; give one of them")
        given[option.name] = key
        values[option.name] = parsed(option, raw)
    check_together(values, given, streaming=streaming)
    if values["commitGroupOffsets"] is None:
        values["commitGroupOffsets"] = streaming and "groupId" in given
    return SourceOptions(
        name_server=values["nameServer"],
        subscribe=values["subscribe"] or (),
        assign=values["assign"] or (),
        starting_offsets=values["startingOffsets"],
        starting_timestamp=values["startingTimestamp"],
        timestamp_strategy=values["startingOffsetsByTimestampStrategy"],
        ending_offsets=values["endingOffsets"],
        ending_timestamp=values["endingTimestamp"],
        fail_on_data_loss=values["failOnDataLoss"],
        max_offsets_per_trigger=values["maxOffsetsPerTrigger"],
        min_partitions=values["minPartitions"],
        max_records_per_partition=values["maxRecordsPerPartition"],
        min_records_per_partition=values["minRecordsPerPartition"],
        include_headers=values["includeHeaders"],
        tags=values["tags"],
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


def access_of(values: Mapping[str, Any]) -> Access:
    """TLS and credentials of the options; what they leave open, the driver's environment says.  Raises OptionError."""
    use_tls, ca_file, config_file = values["useTls"], values["tlsCaFile"], values["tlsConfigFile"]
    if use_tls is False and (ca_file or config_file):
        raise OptionError("option 'useTls' is false, and a file for TLS is named; leave one of them out")
    if ca_file and config_file:
        raise OptionError(
            "give one of the options 'tlsCaFile' and 'tlsConfigFile'; the file has tls.client.trustCertPath"
        )
    access_key, secret_key = values["accessKey"], values["secretKey"]
    if (access_key is None) != (secret_key is None):
        raise OptionError("options 'accessKey' and 'secretKey' belong together; give both")
    if secret_key is not None and secret_key.startswith("env:"):
        name = secret_key.removeprefix("env:")
        secret_key = os.environ.get(name, "")
        if not secret_key:
            raise OptionError(
                f"option 'secretKey' names the environment variable {name}, which is not set on the driver"
            )
    try:
        tls = None
        if config_file:
            tls = Tls.from_file(config_file)
        elif use_tls or ca_file:
            tls = Tls(ca_file=ca_file)
        credentials = Credentials(access_key=access_key, secret_key=secret_key) if access_key is not None else None
        access = Access(tls=tls, credentials=credentials)
        if use_tls is not False:
            access = access.or_environment()
        access.check()
    except ConfigError as error:
        raise OptionError(f"TLS cannot be used: {error}") from error
    return access


def default_of(option: Option, *, streaming: bool) -> Any:
    default = option.batch_default if not streaming and option.batch_default else option.default
    return None if default is None else parsed(option, default)


def parsed(option: Option, raw: str) -> Any:
    """The value of one option.  Raises OptionError."""
    try:
        return option.parse(str(raw))
    except ValueError as error:
        raise OptionError(f"option {option.name!r} = {raw!r}: {error}") from error


def unknown_option(key: str, known: Mapping[str, Option]) -> OptionError:
    """The error for a name that is not in the table."""
    if key.lower() in NOT_OFFERED:
        return OptionError(f"option {key!r} is not offered by this release of the source; {NOT_OFFERED[key.lower()]}")
    if key.lower().startswith("kafka."):
        return OptionError(f"option {key!r} belongs to Spark's Kafka source and has no meaning here; remove it")
    near = difflib.get_close_matches(key.lower(), known, n=1, cutoff=0.5)
    hint = (
        f"did you mean {known[near[0]].name!r}?"
        if near
        else f"known are {', '.join(option.name for option in OPTIONS)}"
    )
    return OptionError(f"unknown option {key!r}; {hint}")


def check_together(values: Mapping[str, Any], given: Mapping[str, str], *, streaming: bool) -> None:
    """Rules that involve more than one option.  Raises OptionError."""
    if not values["nameServer"]:
        raise OptionError('option \'nameServer\' is missing; add .option("nameServer", "host:9876")')
    if bool(values["subscribe"]) == bool(values["assign"]):
        raise OptionError("give exactly one of the options 'subscribe' and 'assign'")
    if values["commitGroupOffsets"] and "groupId" not in given:
        raise OptionError("option 'commitGroupOffsets' needs 'groupId': offsets are kept under a group's name")
    start: Start = values["startingOffsets"]
    if not streaming and start.allows_latest:
        raise OptionError("a batch query cannot begin at latest (-1); give 'startingOffsets' as earliest or offsets")
    named = set(values["subscribe"] or (queue.topic for queue in values["assign"]))
    for option, positions in (("startingOffsets", start), ("endingOffsets", values["endingOffsets"])):
        strangers = sorted(positions.topics - named)
        if strangers:
            raise OptionError(f"option {option!r} names topics that the query does not read: {', '.join(strangers)}")
