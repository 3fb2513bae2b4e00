"""Which mistakes of a spec are found before Spark starts? What keys say together."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from itertools import combinations

import attrs

from triomq.client.pipeline.core.errors import SchemaError, SpecError
from triomq.client.pipeline.core.schema_file import file_bytes, schema_tree
from triomq.client.pipeline.core.spec import (
    COLUMN,
    DecodeSpec,
    JoinSpec,
    Rule,
    SourceSpec,
    Spec,
    TableSpec,
    WindowSpec,
    resolved,
)
from triomq.client.spark.errors import OptionError
from triomq.client.spark.options import parse_options
from triomq.client.spark.sink.sink_options import parse_sink_options

OWN_OPTIONS = {
    "nameserver": "source.name_server",
    "rocketmq.namesrv.addr": "source.name_server",
    "subscribe": "source.topics",
    "topic": "source.topics",
    "subscribepattern": "source.pattern",
    "assign": "source.topics",
    "startingoffsets": "source.start",
    "startingtimestamp": "source.start",
    "startingoffsetsbytimestamp": "source.start",
    "includeheaders": "nothing: mq_headers has them",
    "includeproperties": "nothing: mq_headers has them",
}
"""options of the source, in lower case → the key that says the same"""
ID_MAX = (1 << 32) - 1
"""of a schema: four bytes in the header of a body"""
ROWS_QUERY = "rows"
"""the query that is not a window's"""


@attrs.define
class Mistakes:
    """The mistakes of one spec."""

    path: str
    found: list[SpecError] = attrs.field(factory=list)

    def add(self, key: str, cause: object, fix: str) -> None:
        self.found.append(SpecError(self.path, key, str(cause), fix))


def check_spec(spec: Spec, environment: Mapping[str, str] = os.environ) -> list[SpecError]:
    """Return the mistakes of a spec that can be found without Spark."""
    mistakes = Mistakes(spec.path)
    check_source(spec.source, mistakes, environment)
    check_decode(spec.decode, mistakes)
    for number, rule in enumerate(spec.rules, 1):
        check_rule(rule, f"rules[{number}]", mistakes)
    for number, join in enumerate(spec.joins, 1):
        check_join(join, f"joins[{number}]", mistakes)
    for key, table in tables_of(spec):
        check_table(table, key, mistakes, environment)
    check_dead_letters(spec, mistakes)
    for number, window in enumerate(spec.windows, 1):
        check_window(window, f"windows[{number}]", mistakes)
    names = [window.name for window in spec.windows]
    for name in sorted({name for name in names if names.count(name) > 1}):
        mistakes.add("windows", f"two have the name {name!r}", "give each a name of its own")
    check_run(spec, mistakes, environment)
    check_places(spec, mistakes)
    return mistakes.found


def tables_of(spec: Spec) -> Iterator[tuple[str, TableSpec]]:
    """Yield the tables of a pipeline with their keys."""
    yield "sink", spec.sink
    if spec.dead_letters is not None:
        yield "dead_letters", spec.dead_letters
    for number, window in enumerate(spec.windows, 1):
        yield f"windows[{number}]", window.table


def check_source(source: SourceSpec, mistakes: Mistakes, environment: Mapping[str, str]) -> None:
    own = [name for name in source.options if name.lower() in OWN_OPTIONS]
    for name in own:
        mistakes.add(
            f"source.options.{name}",
            "the pipeline sets this option",
            f"remove it and use {OWN_OPTIONS[name.lower()]}",
        )
    if own:
        return
    try:
        options = source.reader_options(environment=environment) | source.start_options()
        parse_options(options, streaming=True)
    except OptionError as error:
        mistakes.add("source", error, "options are described in docs/spark.md")
    except ValueError as error:
        mistakes.add("source.options", error, "set it, or write the value")


def check_decode(decode: DecodeSpec, mistakes: Mistakes) -> None:
    """Check the format and what it needs."""
    if decode.format in ("bytes", "string"):
        if decode.schema is not None:
            mistakes.add("decode.schema", f"{decode.format} has no schema", "remove the key")
    elif decode.schema is None:
        fix = {
            "json": 'add schema = "orders.schema.json" and let `mqpipeline infer` write it',
            "avro": 'add schema = "orders.avsc", the schema of Avro',
        }.get(decode.format, 'add schema = "shop.desc", a descriptor set of protoc')
        mistakes.add("decode.schema", f"{decode.format} needs a schema", fix)
    else:
        try:
            if decode.format == "json":
                schema_tree(decode.schema)
            else:
                file_bytes(decode.schema)
        except SchemaError as error:
            mistakes.add("decode.schema", error.cause, error.fix)
    if (decode.format == "protobuf") != (decode.message is not None):
        mistakes.add(
            "decode.message",
            "a message's name belongs to protobuf, which needs it",
            'write message = "package.Name" for protobuf only',
        )
    check_ids(decode, mistakes)


def check_ids(decode: DecodeSpec, mistakes: Mistakes) -> None:
    """Check what says with which schema a framed body was written."""
    if decode.format in ("bytes", "string") and decode.framing != "plain":
        mistakes.add("decode.framing", f"{decode.format} has no framing", "remove the key")
        return
    places = {"schemas": decode.schemas, "registry": decode.registry}
    named = [key for key, value in places.items() if value]
    if decode.framing == "plain":
        for key in named:
            cause = "only framed bodies have the id of a schema"
            mistakes.add(f"decode.{key}", cause, 'remove it, or write framing = "confluent"')
        return
    if len(named) > 1 or (not named and decode.format != "json"):
        cause = "framed bodies need the schemas of their writers, from one place"
        fix = 'write schemas = {1 = "v1.avsc"}, or registry = "http://registry:8081"'
        mistakes.add("decode.framing", cause, fix)
    if decode.registry_login is not None and decode.registry is None:
        mistakes.add("decode.registry_login", "there is no registry", "remove it")
    for number, path in decode.schemas.items():
        if not number.isascii() or not number.isdecimal() or int(number) > ID_MAX:
            fix = 'write schemas = {1 = "v1.avsc", 2 = "v2.avsc"}'
            mistakes.add("decode.schemas", f"{number!r} is not the id of a schema", fix)
            continue
        try:
            file_bytes(path)
        except SchemaError as error:
            mistakes.add(f"decode.schemas.{number}", error.cause, error.fix)


def check_rule(rule: Rule, key: str, mistakes: Mistakes) -> None:
    """Check that a rule does one thing, to columns that it may set."""
    if sum(each is not None for each in (rule.check, rule.keep, rule.set)) != 1:
        mistakes.add(key, "a rule has exactly one of check, keep and set", "make it several rules")
    if rule.set is None:
        return
    if not rule.set:
        mistakes.add(f"{key}.set", "it sets no column", 'write set = { total = "amount * count" }')
    for name, text in rule.set.items():
        check_new_column(name, f"{key}.set", mistakes)
        if not text.strip():
            mistakes.add(f"{key}.set.{name}", "the expression is empty", "write SQL")


def check_new_column(name: str, key: str, mistakes: Mistakes) -> None:
    if not COLUMN.fullmatch(name) or name.lower().startswith("mq_"):
        mistakes.add(
            f"{key}.{name}",
            "a column's name has letters, digits and '_', and does not begin with mq_",
            "choose another name",
        )


def check_join(join: JoinSpec, key: str, mistakes: Mistakes) -> None:
    if not join.on:
        mistakes.add(f"{key}.on", "it names no column", 'write on = ["customer"]')


def check_table(
    table: TableSpec, key: str, mistakes: Mistakes, environment: Mapping[str, str]
) -> None:
    """Check what the keys of a table say together."""
    if (table.mode == "changes") != bool(table.key):
        mistakes.add(
            f"{key}.key",
            'mode = "changes" and key belong together',
            'write mode = "changes" and key = ["customer"], or neither of them',
        )
    if table.mode == "changes" and (key != "sink" or table.kind == "topic"):
        mistakes.add(f"{key}.mode", "only a sink with a path takes changes", "remove mode and key")
    if table.mode == "changes" and table.kind == "parquet" and table.keep_days is not None:
        mistakes.add(
            f"{key}.keep_days",
            "a table of changes in Parquet has no dates to delete",
            "remove it, or use kind delta or iceberg",
        )
    try:
        options = resolved(table.options, environment)
    except ValueError as error:
        mistakes.add(f"{key}.options", error, "set it, or write the value")
        return
    if table.kind != "topic":
        return
    if table.keep_days is not None:
        mistakes.add(
            f"{key}.keep_days",
            "brokers decide how long a topic is kept",
            "remove it; see fileReservedTime of broker.conf",
        )
    try:
        parse_sink_options(
            {"nameServer": table.name_server or "", "topic": table.topic or "", **options},
            streaming=False,
        )
    except OptionError as error:
        mistakes.add(f"{key}.options", error, "options are described in docs/spark.md")


def check_dead_letters(spec: Spec, mistakes: Mistakes) -> None:
    """Check that rows that can be bad have a place."""
    may_be_bad = spec.decode.format != "bytes" or any(rule.check for rule in spec.rules)
    if spec.dead_letters is None and may_be_bad:
        mistakes.add(
            "dead_letters",
            "the section is missing, and rows may be bad",
            'add [dead_letters] with path = "dead-letters" or topic = "orders-dead"',
        )
    mistakes.found += loops(spec)


def loops(spec: Spec) -> list[SpecError]:
    """Return the mistakes of topics that the pipeline would write to and read again for ever.

    A topic of the same name at other name servers is another topic; ``check --online`` finds out
    whether they are of one cluster.
    """
    source = spec.source
    found = []
    for key, table in tables_of(spec):
        if table.topic is None or not shares_server(table.name_server, source.name_server):
            continue
        if table.topic in source.topics:
            cause, fix = "the pipeline reads this topic", "name another topic"
        elif source.pattern is not None and re.fullmatch(source.pattern, table.topic):
            cause = f"source.pattern {source.pattern!r} matches it, so the pipeline reads it"
            other = f"(?!{re.escape(table.topic)}$)(?:{source.pattern})"
            fix = f"name another topic, or write pattern = '{other}'"
        else:
            continue
        found.append(SpecError(spec.path, f"{key}.topic", cause, fix))
    return found


def shares_server(first: str | None, second: str) -> bool:
    """Return whether two lists of name servers have one in common."""
    one, other = ({part.strip() for part in text.split(";")} for text in (first or second, second))
    return bool(one & other)


def check_window(window: WindowSpec, key: str, mistakes: Mistakes) -> None:
    """Check the names of a window's columns."""
    for name in window.totals:
        check_new_column(name, f"{key}.totals", mistakes)
    for name in set(window.totals) & {*window.group_by, "window_start", "window_end"}:
        mistakes.add(f"{key}.totals.{name}", "the name is taken", "choose another name")
    if window.name == ROWS_QUERY:
        mistakes.add(f"{key}.name", "the query of rows has this name", "choose another name")


def check_run(spec: Spec, mistakes: Mistakes, environment: Mapping[str, str]) -> None:
    for name in spec.run.options:
        if not name.startswith("spark."):
            mistakes.add(
                f"run.options.{name}",
                "settings of Spark begin with 'spark.'",
                f"did you mean 'spark.{name}'?",
            )
    try:
        resolved(spec.run.options, environment)
    except ValueError as error:
        mistakes.add("run.options", error, "set it, or write the value")


def check_places(spec: Spec, mistakes: Mistakes) -> None:
    """Check that no table is inside another one, or inside the checkpoint."""
    places = [(f"{key}.path", table.path) for key, table in tables_of(spec)]
    places += [("run.checkpoint", spec.run.checkpoint)]
    for (first, path), (second, other) in combinations(places, 2):
        if path is None or other is None:
            continue
        inside, outside = sorted((path.rstrip("/") + "/", other.rstrip("/") + "/"), key=len)[::-1]
        if inside.startswith(outside):
            mistakes.add(
                second,
                f"{other} and the folder of {first} are the same or inside one another",
                "give each a folder of its own",
            )
