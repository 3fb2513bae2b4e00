"""The options of ``format("rocketmq-store")``. Those of ``format("rocketmq")`` mean the same."""

import re
from collections.abc import Mapping
from pathlib import Path

import attrs

from triomq.client.spark.errors import OptionError
from triomq.client.spark.offset_options import OffsetOption
from triomq.client.spark.option_table import Option, parse_table
from triomq.client.spark.option_values import boolean, integer, size, tag_expression, text
from triomq.client.spark.options import OPTIONS, times_of

SHARED = {
    option.name: option
    for option in OPTIONS
    if option.name
    in {
        "startingTimestamp",
        "startingOffsetsByTimestamp",
        "startingOffsetsByTimestampStrategy",
        "endingOffsets",
        "endingTimestamp",
        "endingOffsetsByTimestamp",
        "minRecordsPerPartition",
        "includeHeaders",
    }
}
SOURCE_NAMES = {option.name: option for option in OPTIONS}
STORE_OPTIONS: tuple[Option, ...] = (
    Option(
        name="path",
        parse=text,
        default=None,
        meaning=(
            "the store directory (storePathRootDir), at a path that the driver and all workers see;"
            " required"
        ),
    ),
    Option(
        name="commitLogPath",
        parse=text,
        default=None,
        meaning="folders of the log, separated by commas, if it is not `commitlog` in the store",
    ),
    Option(
        name="brokerName",
        parse=text,
        default=None,
        meaning=(
            "the name that the broker registers with; required unless the store has it (controller"
            " mode)"
        ),
    ),
    Option(
        name="subscribe",
        parse=SOURCE_NAMES["subscribe"].parse,
        default=None,
        aliases=SOURCE_NAMES["subscribe"].aliases,
        meaning="topics, separated by commas; this or `subscribePattern` is required",
    ),
    Option(
        name="subscribePattern",
        parse=SOURCE_NAMES["subscribePattern"].parse,
        default=None,
        meaning="a regular expression that whole names of topics match; instead of `subscribe`",
    ),
    Option(
        name="snapshot",
        parse=boolean,
        default="false",
        meaning=(
            "the directory is a copy of a running broker's, or its broker has crashed: read up to"
            " the last whole message of each queue"
        ),
    ),
    Option(
        name="confirmOffset",
        parse=integer(0),
        default=None,
        meaning="log offset where reading ends, such as the last one that a slave has confirmed",
    ),
    Option(
        name="startingOffsets",
        parse=SOURCE_NAMES["startingOffsets"].parse,
        default="earliest",
        meaning=(
            'where reading begins: `earliest`, or JSON `{"topicA":{"broker-a":{"0":23,"*":-2}}}`'
            " with -2 for earliest"
        ),
    ),
    *SHARED.values(),
    Option(
        name="failOnDataLoss",
        parse=boolean,
        default="true",
        meaning="fail when files are damaged or missing; with false, warn and skip what is damaged",
    ),
    Option(
        name="tags",
        parse=tag_expression,
        default="*",
        meaning="only messages with these tags, `A || B`",
    ),
    Option(
        name="partitionBytes",
        parse=size(1 << 16, 1 << 40),
        default="64m",
        meaning="bytes of the log per task",
    ),
    Option(
        name="recordBatchBytes",
        parse=size(1 << 10, 64 << 20),
        default="1m",
        meaning="approximate bytes of records that are decoded together",
    ),
)
NOT_OFFERED = {
    "nameserver": "a store is read without a cluster; leave it out",
    "assign": "use `subscribe`, and `startingOffsets` with `endingOffsets`",
    "filtersql": "filter the DataFrame",
}
"""options of ``format("rocketmq")`` that users may expect → what to do instead"""


@attrs.frozen(kw_only=True)
class StoreOptions:
    """The checked options of one query."""

    root: Path
    log_folders: tuple[Path, ...]
    broker: str | None
    subscribe: tuple[str, ...]
    pattern: re.Pattern[str] | None
    snapshot: bool
    confirm_offset: int | None
    starting_offsets: OffsetOption
    starting_times: OffsetOption | None
    timestamp_strategy: str
    ending_offsets: OffsetOption
    ending_times: OffsetOption | None
    fail_on_data_loss: bool
    tags: tuple[str, ...]
    partition_bytes: int
    min_records_per_partition: int
    record_batch_bytes: int


def parse_store_options(options: Mapping[str, str]) -> StoreOptions:
    """Check the options of a query. Raises: OptionError that names option, cause and rule."""
    values, _ = parse_table(STORE_OPTIONS, options, NOT_OFFERED, streaming=False)
    if not values["path"]:
        raise OptionError("option 'path' is missing; add .load(\"/data/store\")")
    if bool(values["subscribe"]) == bool(values["subscribePattern"]):
        raise OptionError("give exactly one of the options 'subscribe' and 'subscribePattern'")
    start: OffsetOption = values["startingOffsets"]
    if start.allows_latest or start.allows_group:
        raise OptionError(
            "a store is read from earliest or from offsets; give 'startingOffsets' so, or use"
            " 'startingTimestamp'"
        )
    root = Path(values["path"].removeprefix("file://"))
    named = [part.strip() for part in (values["commitLogPath"] or "").split(",") if part.strip()]
    return StoreOptions(
        root=root,
        log_folders=tuple(map(Path, named)) or (root / "commitlog",),
        broker=values["brokerName"],
        subscribe=values["subscribe"] or (),
        pattern=values["subscribePattern"],
        snapshot=values["snapshot"],
        confirm_offset=values["confirmOffset"],
        starting_offsets=start,
        starting_times=times_of(values, "starting"),
        timestamp_strategy=values["startingOffsetsByTimestampStrategy"],
        ending_offsets=values["endingOffsets"],
        ending_times=times_of(values, "ending"),
        fail_on_data_loss=values["failOnDataLoss"],
        tags=values["tags"],
        partition_bytes=values["partitionBytes"],
        min_records_per_partition=values["minRecordsPerPartition"],
        record_batch_bytes=values["recordBatchBytes"],
    )
