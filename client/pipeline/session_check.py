"""Which mistakes of a spec are found with a session? Those of SQL, columns, joins and packages.

The steps of the pipeline are planned on an empty frame; only joins read data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import attrs
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from triomq.client.pipeline.core.errors import SchemaError, SessionError, SpecError
from triomq.client.pipeline.core.origin import REASON, SOURCE_SCHEMA, VALUE, with_origin
from triomq.client.pipeline.core.spec import JoinSpec, Rule, Spec, TableSpec
from triomq.client.pipeline.decoders import open_decoder
from triomq.client.pipeline.joins import joined_table
from triomq.client.pipeline.rules import apply_rule
from triomq.client.pipeline.session import check_session
from triomq.client.pipeline.windows import totals_of

COLUMNS_SHOWN_MAX = 40


def check_in_session(session: SparkSession, spec: Spec) -> list[SpecError]:
    """Return the mistakes of a spec that a session finds; ``check_spec`` has found none."""
    return SessionCheck(session, spec).all()


def first_sentence(error: Exception) -> str:
    """Return what Spark says, in one line, without its error class and its plans."""
    text = str(error).strip().partition(" SQLSTATE:")[0].partition("\n")[0]
    return text.partition("] ")[2] if text.startswith("[") else text


@attrs.define
class SessionCheck:
    """The check of one spec; ``frame`` has the columns so far."""

    session: SparkSession
    spec: Spec
    mistakes: list[SpecError] = attrs.field(factory=list)

    def all(self) -> list[SpecError]:
        """Return all mistakes; after a schema that cannot be used, nothing else is looked at."""
        try:
            check_session(self.session, self.spec)
        except SessionError as error:
            self.add("sink", str(error), "nothing else is wrong so far")
            return self.mistakes
        empty = with_origin(self.session.createDataFrame([], SOURCE_SCHEMA))
        try:
            frame = open_decoder(self.spec.decode).decode(empty)
        except SchemaError as error:
            self.add("decode.schema", f"{error.path}: {error.cause}", error.fix)
            return self.mistakes
        for number, rule in enumerate(self.spec.rules, 1):
            frame = self.after_rule(frame, rule, f"rules[{number}]")
        good = frame.where(sf.col(REASON).isNull()).drop(REASON, VALUE)
        joined = good
        for number, join in enumerate(self.spec.joins, 1):
            joined = self.after_join(joined, join, f"joins[{number}]")
        self.check_table(self.spec.sink, "sink", joined.columns)
        for number, window in enumerate(self.spec.windows, 1):
            key = f"windows[{number}]"
            self.tried(f"{key}.totals", joined, partial(totals_of, joined, window))
        return self.mistakes

    def add(self, key: str, cause: str, fix: str) -> None:
        self.mistakes.append(SpecError(self.spec.path, key, cause, fix))

    def tried(self, key: str, before: DataFrame, step: Callable[[], DataFrame]) -> DataFrame | None:
        """Return the frame of a step; None and a mistake if Spark cannot plan it."""
        try:
            frame = step()
            frame.schema  # noqa: B018 - plans it
        except PySparkException as error:
            self.add(key, first_sentence(error), f"columns are {listed(before.columns)}")
            return None
        return frame

    def after_rule(self, frame: DataFrame, rule: Rule, key: str) -> DataFrame:
        """Return the frame behind a rule; without the rule if it has a mistake."""
        condition = rule.check or rule.keep
        if condition is not None:
            key = f"{key}.{'check' if rule.check else 'keep'}"
            tested = self.tried(key, frame, lambda: frame.select(sf.expr(condition)))
            if tested is None:
                return frame
            kind = tested.schema.fields[0].dataType.simpleString()
            if kind != "boolean":
                self.add(key, f"the condition is a {kind}", "write one that is true or false")
                return frame
        else:
            key = f"{key}.set"
        after = self.tried(key, frame, lambda: apply_rule(frame, rule))
        if after is None:
            return frame
        if not after._jdf.queryExecution().analyzed().deterministic():
            self.add(
                key,
                "the rule gives another result each time it is computed",
                "leave out rand(), uuid() and the like: a batch that is run again must be equal",
            )
        return after

    def after_join(self, frame: DataFrame, join: JoinSpec, key: str) -> DataFrame:
        """Return the frame behind a join; without the join if it has a mistake."""
        try:
            table = joined_table(self.session, join)
            columns = table.columns
        except PySparkException as error:
            self.add(f"{key}.path", first_sentence(error), "check path, format and options")
            return frame
        for side, names in (("the messages", frame.columns), (join.path, columns)):
            absent = [name for name in join.on if name not in names]
            if absent:
                self.add(f"{key}.on", f"{side}: no column {absent[0]!r}", f"has {listed(names)}")
                return frame
        known = {name.lower() for name in frame.columns}
        twice = [name for name in columns if name.lower() in known and name not in join.on]
        if twice:
            self.add(
                key,
                f"both sides have the column {twice[0]!r}",
                "rename it on one side, or add it to on",
            )
            return frame
        repeated = table.groupBy(*join.on).count().where("count > 1").limit(1).count()
        if repeated:
            self.add(
                f"{key}.on",
                f"{join.path} has more than one row of a key, so that rows would be doubled",
                "choose columns that are unique, or remove the repeated rows",
            )
        return frame.join(table, on=list(join.on), how=join.how)

    def check_table(self, table: TableSpec, key: str, columns: Sequence[str]) -> None:
        """Check that a table's columns exist."""
        if table.kind == "topic":
            return
        for name, wanted in (("partition_by", table.partition_by), ("key", table.key)):
            absent = [column for column in wanted if column not in columns]
            if absent:
                self.add(f"{key}.{name}", f"no column {absent[0]!r}", f"has {listed(columns)}")


def listed(columns: Sequence[str]) -> str:
    """Return names for a message."""
    shown = ", ".join(columns[:COLUMNS_SHOWN_MAX])
    return shown if len(columns) <= COLUMNS_SHOWN_MAX else f"{shown} and more"
