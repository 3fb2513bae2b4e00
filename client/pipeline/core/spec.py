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
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
DURATION = re.compile(r"[1-9][0-9]{0,8} (millisecond|second|minute|hour|day|week)s?")
URL = re.compile(r"https?://[^\s/?#@]+(/[^\s?#]*)?")
LIMITS = ("maxoffsetspertrigger", "maxbytespertrigger")
BATCH_BYTES = "256m"
"""stored bytes of a micro-batch: seconds of work, and its decoded rows fit a small driver"""
ACCESS_OPTIONS = ("useTls", "tlsCaFile", "tlsConfigFile", "accessKey", "secretKey")
"""options that a topic of the same name servers needs too"""

Format = Literal["bytes", "string", "json", "avro", "protobuf"]
TableKind = Literal["parquet", "delta", "iceberg", "topic"]

Validator = Callable[[object, object, Any], None]
"""a validator of attrs; the type of its value is that of its field"""


def spec_key(
    meaning: str, default: object = attrs.NOTHING, *, valid: Validator | None = None, **more: bool
) -> Any:
    """Return the field of a key. ``meaning``: as the documentation shows it. ``more``: marks.

    ``file``: the value is a path, relative to the file. ``inline``: keys of another class.
    """
    return attrs.field(default=default, validator=valid, metadata={"meaning": meaning, **more})


def _valid(test: Callable[[Any], bool], expected: str) -> Validator:
    """Return a validator; its error says what is expected."""

    def validate(_: object, __: object, value: object) -> None:
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

    name_server: str = spec_key("name servers, `host:port;host:port`", valid=_filled)
    topics: tuple[str, ...] = spec_key(
        "the topics; this or `pattern` is needed",
        (),
        valid=_valid(lambda t: len(t) <= TOPICS_MAX and all(t), f"at most {TOPICS_MAX} topics"),
    )
    pattern: str | None = spec_key(
        "a regular expression that whole names of topics match, instead of topics",
        None,
        valid=_pattern,
    )
    start: str | datetime | Mapping[str, Any] = spec_key(
        "where a pipeline without a checkpoint begins: `earliest`, `latest`, `group`, a time"
        ' with zone (`2026-01-31T00:00:00Z`), or offsets (`{orders = {broker-a = {"0" = 23}}}`)',
        "earliest",
    )
    options: Mapping[str, str] = spec_key(
        'further options of [`format("rocketmq")`](spark.md#options)', attrs.Factory(dict)
    )

    def reader_options(self, *, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Return the options of ``format("rocketmq")``, without the start."""
        chosen = (
            {"subscribePattern": self.pattern}
            if self.pattern is not None
            else {"subscribe": ",".join(self.topics)}
        )
        return {"nameServer": self.name_server, **chosen, **resolved(self.options, environment)}

    def limit_options(self) -> dict[str, str]:
        """Return the option that limits a batch, unless the file limits it itself."""
        limited = any(name.lower() in LIMITS for name in self.options)
        return {} if limited else {"maxBytesPerTrigger": BATCH_BYTES}

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


def access_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options that reading and sending have in common: TLS and credentials."""
    known = {name.lower() for name in ACCESS_OPTIONS}
    return {name: text for name, text in options.items() if name.lower() in known}


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

    format: Format = spec_key("what bodies are")
    schema: str | None = spec_key(
        "file of the schema: JSON of `mqpipeline infer`, an Avro schema (`.avsc`), or a"
        " descriptor set of `protoc --include_imports --descriptor_set_out`",
        None,
        valid=_filled,
        file=True,
    )
    message: str | None = spec_key(
        "Protobuf: full name of the message, `shop.Order`", None, valid=_filled
    )
    framing: Literal["plain", "confluent"] = spec_key(
        "`confluent`: bodies begin with the header of a schema registry, which has the id of the"
        " schema that they were written with; Avro and Protobuf need `schemas` or `registry`"
        " for it",
        "plain",
    )
    schemas: Mapping[str, str] = spec_key(
        'files of the writers\' schemas by id, `{1 = "v1.avsc", 2 = "v2.avsc"}`',
        attrs.Factory(dict),
        file=True,
    )
    registry: str | None = spec_key(
        "URL of a schema registry (Confluent's protocol), instead of `schemas`",
        None,
        valid=_valid(URL.fullmatch, "a URL as http://registry:8081"),  # type: ignore[arg-type]
    )
    registry_login: str | None = spec_key(
        "`user:password` for the registry; `env:NAME` takes it from the environment", None
    )


@attrs.frozen(kw_only=True)
class Rule:
    """One of ``[[rules]]``: exactly one of ``check``, ``keep`` and ``set``. Conditions are SQL."""

    name: str | None = spec_key(
        "what `mq_reason` says of a row that fails a check; default: its text", None, valid=_filled
    )
    check: str | None = spec_key(
        "rows for which this is not true become dead letters", None, valid=_filled
    )
    keep: str | None = spec_key(
        "good rows for which this is not true are dropped; `status` counts them",
        None,
        valid=_filled,
    )
    set: Mapping[str, str] | None = spec_key(
        "columns to add or replace: name = SQL expression", None
    )

    @property
    def reason(self) -> str:
        """The text of ``mq_reason`` for rows that fail the check."""
        return self.name or f"not true: {self.check}"


@attrs.frozen(kw_only=True)
class JoinSpec:
    """One of ``[[joins]]``: a static table, read again in each batch, whose columns are added."""

    path: str = spec_key("folder or file of the table", valid=_filled, file=True)
    format: Literal["parquet", "delta", "csv", "json"] = spec_key("what the table is", "parquet")
    on: tuple[str, ...] = spec_key(
        "columns that both sides have; unique in the table", valid=_columns
    )
    how: Literal["left", "inner"] = spec_key(
        "`left` keeps rows without a partner, `inner` drops them", "left"
    )
    options: Mapping[str, str] = spec_key(
        "options of Spark's reader, as `header` for CSV", attrs.Factory(dict)
    )


@attrs.frozen(kw_only=True)
class TableSpec:
    """Where rows go: ``[sink]``, ``[dead_letters]``, and the totals of ``[[windows]]``."""

    kind: TableKind = spec_key(
        "what the table is; `topic` if a topic is given. `delta` needs Spark 4.2 (`pip install"
        " 'triomq[delta]'`), `iceberg` has no package yet for a Spark that reads topics",
        "parquet",
    )
    path: str | None = spec_key(
        "folder of the table, or a URI as `s3a://bucket/orders`", None, valid=_filled, file=True
    )
    topic: str | None = spec_key("the topic, instead of a path", None, valid=_filled)
    name_server: str | None = spec_key(
        "name servers of the topic; default: those of the source", None, valid=_filled
    )
    partition_by: tuple[str, ...] = spec_key(
        "columns that name the folders", ("mq_topic", "mq_date"), valid=_columns
    )
    mode: Literal["append", "changes"] = spec_key(
        "`append` keeps all rows, `changes` the newest row of each key", "append"
    )
    key: tuple[str, ...] = spec_key(
        "with `changes`: the columns that identify a row", (), valid=_columns
    )
    keep_days: int | None = spec_key(
        "`mqpipeline compact` deletes dates that are older",
        None,
        valid=_valid(lambda days: 1 <= days <= 100_000, "a number of days from 1 to 100000"),
    )
    options: Mapping[str, str] = spec_key(
        "options of Spark's writer, or of the sink `rocketmq` for a topic", attrs.Factory(dict)
    )


@attrs.frozen(kw_only=True)
class WindowSpec:
    """One of ``[[windows]]``: totals of good rows by window of time."""

    name: str = spec_key("name of the totals", valid=_name)
    time: Literal["store", "born"] = spec_key(
        "the time of a row: when a broker stored it, or its producer made it", "store"
    )
    length: str = spec_key("length of a window, `1 hour`", valid=_duration)
    slide: str | None = spec_key(
        "a new window begins this often; default: the length", None, valid=_duration
    )
    watermark: str = spec_key(
        "how late a row may come; later ones are counted, and not in the totals", valid=_duration
    )
    group_by: tuple[str, ...] = spec_key("columns with totals of their own", (), valid=_columns)
    totals: Mapping[str, str] = spec_key(
        "columns: name = SQL aggregate, `count(*)` or `sum(amount)`",
        valid=_valid(bool, "at least one column"),
    )
    table: TableSpec = spec_key("`path` or `topic`, `kind`, `options` as in the sink", inline=True)


@attrs.frozen(kw_only=True)
class RunSpec:
    """How the queries run: the section ``[run]``."""

    trigger: str = spec_key(
        "time between two batches, or `available_now`: read what is there and end",
        "10 seconds",
        valid=_valid(
            lambda text: text == "available_now" or DURATION.fullmatch(text) is not None,
            "'available_now', or a duration as '10 seconds'",
        ),
    )
    checkpoint: str = spec_key(
        "folder of Spark's checkpoints; it is the pipeline's position", valid=_filled, file=True
    )
    options: Mapping[str, str] = spec_key(
        "settings of the Spark session, as `spark.master`", attrs.Factory(dict)
    )


@attrs.frozen(kw_only=True)
class Spec:
    """A pipeline: topics → decode → rules → tables."""

    name: str = spec_key("name of the pipeline", valid=_name)
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
