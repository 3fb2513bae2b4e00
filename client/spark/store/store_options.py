"""The options of ``format("rocketmq-store")``. Those of ``format("rocketmq")`` mean the same."""

import re
from collections.abc import Mapping
from pathlib import Path

import attrs

from triomq.client.spark.errors import OptionError
from triomq.client.spark.offset_options import OffsetOption, parse_start
from triomq.client.spark.option_table import option, options_of, parse_table
from triomq.client.spark.option_values import (
    boolean,
    integer,
    regular_expression,
    size,
    tag_expression,
    text,
    topic_names,
)
from triomq.client.spark.options import OPTIONS, join_times

NOT_OFFERED = {
    "nameserver": "a store is read without a cluster; leave it out",
    "assign": "use `subscribe`, and `startingOffsets` with `endingOffsets`",
    "filtersql": "filter the DataFrame",
}
"""options of ``format("rocketmq")`` that users may expect → what to do instead"""


def folder(value: str) -> Path:
    return Path(text(value).removeprefix("file://"))


def folders(value: str) -> tuple[Path, ...]:
    return tuple(Path(part.strip()) for part in text(value).split(",") if part.strip())


@attrs.frozen(kw_only=True)
class StoreOptions:
    """The checked options of one query."""

    root: Path = option("path", folder)
    """the store directory (storePathRootDir), at a path that the driver and all workers see;
    required"""
    log_folders: tuple[Path, ...] = option("commitLogPath", folders, absent=())
    """folders of the log, separated by commas, if it is not `commitlog` in the store"""
    broker: str | None = option("brokerName", text)
    """the name that the broker registers with; required unless the store has it (controller
    mode)"""
    subscribe: tuple[str, ...] = option("subscribe", topic_names, absent=(), aliases=("topic",))
    """topics, separated by commas; this or `subscribePattern` is required"""
    pattern: re.Pattern[str] | None = option("subscribePattern", regular_expression)
    """a regular expression that whole names of topics match; instead of `subscribe`"""
    snapshot: bool = option("snapshot", boolean, "false")
    """the directory is a copy of a running broker's, or its broker has crashed: read up to the last
    whole message of each queue"""
    confirm_offset: int | None = option("confirmOffset", integer(0))
    """log offset where reading ends, such as the last one that a slave has confirmed"""
    starting_offsets: OffsetOption = option("startingOffsets", parse_start, "earliest")
    """where reading begins: `earliest`, or JSON `{"topicA":{"broker-a":{"0":23,"*":-2}}}` with -2
    for earliest"""
    starting_time: OffsetOption | None = OPTIONS["starting_time"].field()
    starting_times: OffsetOption | None = OPTIONS["starting_times"].field()
    timestamp_strategy: str = OPTIONS["timestamp_strategy"].field()
    ending_offsets: OffsetOption = OPTIONS["ending_offsets"].field()
    ending_time: OffsetOption | None = OPTIONS["ending_time"].field()
    ending_times: OffsetOption | None = OPTIONS["ending_times"].field()
    min_records_per_partition: int = OPTIONS["min_records_per_partition"].field()
    include_headers: bool = OPTIONS["include_headers"].field()
    fail_on_data_loss: bool = option("failOnDataLoss", boolean, "true")
    """fail when files are damaged or missing; with false, warn and skip what is damaged"""
    tags: tuple[str, ...] = option("tags", tag_expression, "*")
    """only messages with these tags, `A || B`"""
    partition_bytes: int = option("partitionBytes", size(1 << 16, 1 << 40), "64m")
    """bytes of the log per task"""
    record_batch_bytes: int = option("recordBatchBytes", size(1 << 10, 64 << 20), "1m")
    """approximate bytes of records that are decoded together"""


STORE_OPTIONS = options_of(StoreOptions)


def parse_store_options(options: Mapping[str, str]) -> StoreOptions:
    """Check the options of a query. Raises: OptionError that names option, cause and rule."""
    values, _ = parse_table(STORE_OPTIONS, options, NOT_OFFERED, streaming=False)
    if not values["root"]:
        raise OptionError("option 'path' is missing; add .load(\"/data/store\")")
    if bool(values["subscribe"]) == bool(values["pattern"]):
        raise OptionError("give exactly one of the options 'subscribe' and 'subscribePattern'")
    start: OffsetOption = values["starting_offsets"]
    if start.allows_latest or start.allows_group:
        raise OptionError(
            "a store is read from earliest or from offsets; give 'startingOffsets' so, or use"
            " 'startingTimestamp'"
        )
    values["log_folders"] = values["log_folders"] or (values["root"] / "commitlog",)
    join_times(values)
    return StoreOptions(**values)
