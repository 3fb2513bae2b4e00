"""What can a pipeline be? Frozen classes, one for each section of the file.

A field is a key of the file. Its type says what a value may be; its validator says more; its
metadata has the sentence that the documentation shows. Nothing here imports Spark.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal

import attrs

TOPICS_MAX = 1_000
RULES_MAX = 1_000
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
DURATION = re.compile(r"[1-9][0-9]{0,8} (millisecond|second|minute|hour|day|week)s?")
ACCESS_OPTIONS = ("useTls", "tlsCaFile", "tlsConfigFile", "accessKey", "secretKey")
"""options that a topic of the same name servers needs too"""

Format = Literal["bytes", "string", "json", "avro", "protobuf"]
TableKind = Literal["parquet", "delta", "iceberg", "topic"]


def _means(meaning: str, **more: Any) -> dict[str, Any]:
    return {"meaning": meaning, **more}


def _valid(test: Callable[[Any], bool], expected: str) -> Callable[[Any, Any, Any], None]:
    """Return a validator; its error says what is expected."""

    def validate(_: object, __: object, value: Any) -> None:
        if value is not None and not test(value):
            raise ValueError(expected)

    return validate


_name = _valid(NAME.fullmatch, "letters, digits, '.', '_' and '-', at most 100")  # type: ignore[arg-type]
_filled = _valid(lambda text: bool(text.strip()), "a text that is not empty")
_duration = _valid(
    DURATION.fullmatch,  # type: ignore[arg-type]
    "a duration as '10 seconds', '5 minutes', '1 hour' or '2 days'",
)
_columns = _valid(
    lambda names: (
        all(COLUMN.fullmatch(name) for name in names) and len(set(names)) == len(tuple(names))
    ),
    "names of columns (letters, digits, '_'), each once",
)


def _pattern(_: object, __: object, value: str | None) -> None:
    try:
        re.compile(value or "")
    except re.error as error:
        raise ValueError(f"a regular expression ({error})") from None


@attrs.frozen(kw_only=True)
class SourceSpec:
    """Where messages come from: the section ``[source]``."""

    name_server: str = attrs.field(
        validator=_filled, metadata=_means("name servers, `host:port;host:port`")
    )
    topics: tuple[str, ...] = attrs.field(
        default=(),
        validator=_valid(lambda t: len(t) <= TOPICS_MAX and all(t), f"at most {TOPICS_MAX} topics"),
        metadata=_means("the topics; this or `pattern` is needed"),
    )
    pattern: str | None = attrs.field(
        default=None,
        validator=_pattern,
        metadata=_means("a regular expression that whole names of topics match, instead of topics"),
    )
    start: str | datetime | Mapping[str, Any] = attrs.field(
        default="earliest",
        metadata=_means(
            "where a pipeline without a checkpoint begins: `earliest`, `latest`, `group`, a time"
            ' with zone (`2026-01-31T00:00:00Z`), or offsets (`{orders = {broker-a = {"0" = 23}}}`)'
        ),
    )
    options: Mapping[str, str] = attrs.field(
        factory=dict,
        metadata=_means('further options of [`format("rocketmq")`](spark.md#options)'),
    )

    def reader_options(self, *, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Return the options of ``format("rocketmq")``, without the start."""
        chosen = (
            {"subscribePattern": self.pattern}
            if self.pattern is not None
            else {"subscribe": ",".join(self.topics)}
        )
        return {
            "nameServer": self.name_server,
            **chosen,
            **resolved(self.options, environment),
        }

    def start_options(self) -> dict[str, str]:
        """Return the options that say where a new query begins.

        Raises: ValueError for a start that is none.
        """
        start = self.start
        if isinstance(start, Mapping):
            return {"startingOffsets": json.dumps(start)}
        if isinstance(start, str) and start in ("earliest", "latest", "group"):
            return {"startingOffsets": start}
        return {"startingTimestamp": str(start_ms(start))}


def start_ms(start: str | datetime) -> int:
    """Return a time as epoch milliseconds. Raises: ValueError that says what is expected."""
    expected = (
        "earliest, latest, group, a time with zone as 2026-01-31T00:00:00Z, or a table of offsets"
    )
    try:
        time = datetime.fromisoformat(start) if isinstance(start, str) else start
    except ValueError:
        raise ValueError(expected) from None
    if time.tzinfo is None:
        raise ValueError(f"{expected} (the zone is missing: add Z for UTC)")
    return int((time.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000)


def resolved(
    options: Mapping[str, str], environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return options with the values of ``env:NAME`` in their places.

    ``secretKey`` keeps its ``env:``: the source reads it itself, so that no plan of Spark shows it.

    Raises: ValueError for a variable that is not set.
    """
    found = {}
    for name, value in options.items():
        if value.startswith("env:") and name.lower() != "secretkey":
            variable = value.removeprefix("env:")
            if variable not in environment:
                raise ValueError(f"option {name!r}: environment variable {variable} is not set")
            value = environment[variable]
        found[name] = value
    return found


@attrs.frozen(kw_only=True)
class DecodeSpec:
    """How a body becomes columns: the section ``[decode]``."""

    format: Format = attrs.field(metadata=_means("what bodies are"))
    schema: str | None = attrs.field(
        default=None,
        validator=_filled,
        metadata=_means(
            "file of the schema: JSON of `mqpipeline infer`, an Avro schema (`.avsc`), or a"
            " descriptor set of `protoc --include_imports --descriptor_set_out`",
            file=True,
        ),
    )
    message: str | None = attrs.field(
        default=None,
        validator=_filled,
        metadata=_means("Protobuf: full name of the message, `shop.Order`"),
    )
    framing: Literal["plain", "confluent"] = attrs.field(
        default="plain",
        metadata=_means(
            "Avro and Protobuf: `confluent` skips the header that schema registries put before a"
            " body"
        ),
    )


@attrs.frozen(kw_only=True)
class Rule:
    """One of ``[[rules]]``: exactly one of ``check``, ``keep`` and ``set``. Conditions are SQL."""

    name: str | None = attrs.field(
        default=None,
        validator=_filled,
        metadata=_means("what `mq_reason` says of a row that fails a check; default: its text"),
    )
    check: str | None = attrs.field(
        default=None,
        validator=_filled,
        metadata=_means("rows for which this is not true become dead letters"),
    )
    keep: str | None = attrs.field(
        default=None,
        validator=_filled,
        metadata=_means("good rows for which this is not true are dropped; `status` counts them"),
    )
    set: Mapping[str, str] | None = attrs.field(
        default=None, metadata=_means("columns to add or replace: name = SQL expression")
    )

    @property
    def reason(self) -> str:
        """The text of ``mq_reason`` for rows that fail the check."""
        return self.name or f"not true: {self.check}"


@attrs.frozen(kw_only=True)
class JoinSpec:
    """One of ``[[joins]]``: a static table, read again in each batch, whose columns are added."""

    path: str = attrs.field(
        validator=_filled, metadata=_means("folder or file of the table", file=True)
    )
    format: Literal["parquet", "delta", "csv", "json"] = attrs.field(
        default="parquet", metadata=_means("what the table is")
    )
    on: tuple[str, ...] = attrs.field(
        validator=_columns,
        metadata=_means("columns that both sides have; unique in the table"),
    )
    how: Literal["left", "inner"] = attrs.field(
        default="left",
        metadata=_means("`left` keeps rows without a partner, `inner` drops them"),
    )
    options: Mapping[str, str] = attrs.field(
        factory=dict, metadata=_means("options of Spark's reader, as `header` for CSV")
    )


@attrs.frozen(kw_only=True)
class TableSpec:
    """Where rows go: ``[sink]``, ``[dead_letters]``, and the totals of ``[[windows]]``."""

    kind: TableKind = attrs.field(
        default="parquet",
        metadata=_means("what the table is; `topic` if a topic is given"),
    )
    path: str | None = attrs.field(
        default=None,
        validator=_filled,
        metadata=_means("folder of the table, or a URI as `s3a://bucket/orders`", file=True),
    )
    topic: str | None = attrs.field(
        default=None, validator=_filled, metadata=_means("the topic, instead of a path")
    )
    name_server: str | None = attrs.field(
        default=None,
        validator=_filled,
        metadata=_means("name servers of the topic; default: those of the source"),
    )
    partition_by: tuple[str, ...] = attrs.field(
        default=("mq_topic", "mq_date"),
        validator=_columns,
        metadata=_means("columns that name the folders"),
    )
    mode: Literal["append", "changes"] = attrs.field(
        default="append",
        metadata=_means("`append` keeps all rows, `changes` the newest row of each key"),
    )
    key: tuple[str, ...] = attrs.field(
        default=(),
        validator=_columns,
        metadata=_means("with `changes`: the columns that identify a row"),
    )
    keep_days: int | None = attrs.field(
        default=None,
        validator=_valid(lambda days: 1 <= days <= 100_000, "a number of days from 1 to 100000"),
        metadata=_means("`mqpipeline compact` deletes dates that are older"),
    )
    options: Mapping[str, str] = attrs.field(
        factory=dict,
        metadata=_means("options of Spark's writer, or of the sink `rocketmq` for a topic"),
    )


@attrs.frozen(kw_only=True)
class WindowSpec:
    """One of ``[[windows]]``: totals of good rows by window of time."""

    name: str = attrs.field(validator=_name, metadata=_means("name of the totals"))
    time: Literal["store", "born"] = attrs.field(
        default="store",
        metadata=_means("the time of a row: when a broker stored it, or its producer made it"),
    )
    length: str = attrs.field(validator=_duration, metadata=_means("length of a window, `1 hour`"))
    slide: str | None = attrs.field(
        default=None,
        validator=_duration,
        metadata=_means("a new window begins this often; default: the length"),
    )
    watermark: str = attrs.field(
        validator=_duration,
        metadata=_means("how late a row may come; later ones are counted, and not in the totals"),
    )
    group_by: tuple[str, ...] = attrs.field(
        default=(), validator=_columns, metadata=_means("columns with totals of their own")
    )
    totals: Mapping[str, str] = attrs.field(
        validator=_valid(bool, "at least one column"),
        metadata=_means("columns: name = SQL aggregate, `count(*)` or `sum(amount)`"),
    )
    table: TableSpec = attrs.field(
        metadata=_means("`path` or `topic`, `kind`, `options` as in the sink", inline=True)
    )


@attrs.frozen(kw_only=True)
class RunSpec:
    """How the queries run: the section ``[run]``."""

    trigger: str = attrs.field(
        default="10 seconds",
        validator=_valid(
            lambda text: text == "available_now" or DURATION.fullmatch(text) is not None,
            "'available_now', or a duration as '10 seconds'",
        ),
        metadata=_means("time between two batches, or `available_now`: read what is there and end"),
    )
    checkpoint: str = attrs.field(
        validator=_filled,
        metadata=_means("folder of Spark's checkpoints; it is the pipeline's position", file=True),
    )
    options: Mapping[str, str] = attrs.field(
        factory=dict, metadata=_means("settings of the Spark session, as `spark.master`")
    )


@attrs.frozen(kw_only=True)
class Spec:
    """A pipeline: topics → decode → rules → tables."""

    name: str = attrs.field(validator=_name, metadata=_means("name of the pipeline"))
    source: SourceSpec
    decode: DecodeSpec
    rules: tuple[Rule, ...] = ()
    joins: tuple[JoinSpec, ...] = ()
    dead_letters: TableSpec | None = None
    """where bad rows go; None only if no row can be bad: bytes without a check"""
    sink: TableSpec
    windows: tuple[WindowSpec, ...] = ()
    run: RunSpec
    path: str = ""
    """the file, for messages; empty if a program made the spec"""
