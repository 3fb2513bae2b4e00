"""How does a store directory become the begin of a lake, and where does the live query go on?

The stores of stopped brokers are read in steps, each a part of a log and one batch of the tables.
A record in the checkpoint has the offsets of all steps before the first one is read: a backfill
that is run again takes the same steps, and a table replaces the batch that it has. The
live query begins at the offsets where the last step of each store ends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs
from pyspark.sql import DataFrame, SparkSession

from triomq.client.pipeline.batch import BatchWork
from triomq.client.pipeline.checkpoints import RUN, rows_checkpoint
from triomq.client.pipeline.core.errors import PipelineError
from triomq.client.pipeline.core.origin import SOURCE_SCHEMA, with_origin
from triomq.client.pipeline.core.spec import SourceSpec, Spec, resolved, start_ms
from triomq.client.pipeline.dead_letters import open_dead_letters
from triomq.client.pipeline.tables.files import Files
from triomq.client.pipeline.tables.hadoop_files import HadoopFiles
from triomq.client.pipeline.tables.locks import WriteLock, locked
from triomq.client.pipeline.tables.opening import open_table
from triomq.client.spark.offset_options import ANY, EARLIEST
from triomq.client.spark.offsets import Offsets, flat, nested
from triomq.client.spark.sources.store_source import RocketMQStoreDataSource
from triomq.client.spark.store.store_options import parse_store_options
from triomq.client.spark.store.store_planning import plan_steps

STEP_BYTES = 4 << 30
"""of the log in one batch, whose rows Spark keeps until all tables have them"""
VERSION = 1
FOLDER = "backfill"
"""in the checkpoint: the records, and the writer's id of the batches"""
RECORD = "steps-"
"""begin of a record's name; the number of the steps that are done follows"""
KEPT_OPTIONS = ("tags", "failondataloss")
"""options of the topics that a store has too; the others are about servers and times"""
REFUSED_OPTIONS = ("filtersql", "assign")


@attrs.frozen(kw_only=True)
class BackfillStep:
    """The messages of one batch: those of a store between two offsets of each queue."""

    broker: str
    begins: Offsets
    ends: Offsets


@attrs.frozen(kw_only=True)
class Backfill:
    """A backfill as its record has it."""

    steps: tuple[BackfillStep, ...]
    done: int = 0
    """the steps whose rows are in the tables"""
    good: int = 0
    bad: int = 0

    @property
    def brokers(self) -> set[str]:
        return {step.broker for step in self.steps}

    @property
    def is_complete(self) -> bool:
        return self.done == len(self.steps)

    def starting_offsets(self) -> str:
        """Return the option ``startingOffsets`` of the live query.

        Queues of other brokers, and queues that are made later, begin at their first message.
        """
        return json.dumps(self.start())

    def start(self) -> dict[str, object]:
        """Return ``starting_offsets`` as a table, for ``start`` of a source."""
        ends: Offsets = {}
        for step in self.steps:
            ends.update(step.ends)
        tree: dict[str, Any] = nested(ends)
        for brokers in tree.values():
            for queues in brokers.values():
                queues[ANY] = EARLIEST
            brokers[ANY] = EARLIEST
        return {**tree, ANY: EARLIEST}

    def to_json(self) -> str:
        steps = [
            {"broker": step.broker, "begins": nested(step.begins), "ends": nested(step.ends)}
            for step in self.steps
        ]
        return json.dumps(
            {"v": VERSION, "done": self.done, "good": self.good, "bad": self.bad, "steps": steps}
        )


def run_backfill(
    session: SparkSession,
    spec: Spec,
    stores: Mapping[str, str],
    *,
    options: Mapping[str, str] | None = None,
    step_bytes: int = STEP_BYTES,
) -> Backfill:
    """Bring what stopped brokers have stored into the tables of a pipeline that has not begun.

    ``stores``: name of a broker → its store directory, at a path that driver and workers see.
    ``options``: further options of ``format("rocketmq-store")``, such as ``snapshot``.
    ``step_bytes``: bytes of a log in one batch.

    Raises: PipelineError; LockHeld while another process runs the pipeline; SourceError if a store
        cannot be read.
    """
    files = HadoopFiles(session)
    with locked(files, files.absolute(spec.run.checkpoint), RUN) as lock:
        return _run_backfill(session, spec, stores, options or {}, step_bytes, files, lock)


def _run_backfill(
    session: SparkSession,
    spec: Spec,
    stores: Mapping[str, str],
    options: Mapping[str, str],
    step_bytes: int,
    files: HadoopFiles,
    lock: WriteLock,
) -> Backfill:
    checkpoint = files.absolute(spec.run.checkpoint)
    check_not_begun(files, spec)
    chosen = {**options, **store_options(spec.source)}
    known = read_backfill(files, checkpoint)
    if known is None:
        known = plan_backfill(stores, chosen, step_bytes)
        write_record(files, checkpoint, known)
    elif known.brokers != set(stores):
        raise PipelineError(
            f"the backfill of {checkpoint} was begun with the stores of"
            f" {', '.join(sorted(known.brokers))}; give the same ones, or another checkpoint"
        )
    session.dataSource.register(RocketMQStoreDataSource)
    writer = f"{checkpoint}/{FOLDER}"
    work = BatchWork(
        spec=spec,
        sink=open_table(session, spec.sink, writer, lock),
        dead_letters=open_dead_letters(session, spec, writer, lock),
    )
    for number in range(known.done, len(known.steps)):
        step = known.steps[number]
        rows = rows_of_step(session, step, {**chosen, "path": stores[step.broker]})
        counts = work.take(rows, number)
        known = attrs.evolve(
            known,
            done=number + 1,
            good=known.good + counts.good,
            bad=known.bad + sum(counts.bad.values()),
        )
        write_record(files, checkpoint, known)
    return known


def rows_of_step(
    session: SparkSession, step: BackfillStep, options: Mapping[str, str]
) -> DataFrame:
    """Return the messages of a step with origin columns."""
    return with_origin(
        session.read.format(RocketMQStoreDataSource.name())
        .schema(SOURCE_SCHEMA)
        .options(
            **{
                **options,
                "brokerName": step.broker,
                "startingOffsets": json.dumps(nested(step.begins)),
                "endingOffsets": json.dumps(nested(step.ends)),
            }
        )
        .load()
    )


def plan_backfill(
    stores: Mapping[str, str], options: Mapping[str, str], step_bytes: int
) -> Backfill:
    """Cut the stores into steps. Raises: PipelineError, SourceError."""
    steps = []
    for broker, path in sorted(stores.items()):
        parsed = parse_store_options({**options, "path": path, "brokerName": broker})
        steps += [
            BackfillStep(broker=broker, begins=begins, ends=ends)
            for begins, ends in plan_steps(parsed, step_bytes)
        ]
    if not steps:
        raise PipelineError("no store is given; name the broker of each: broker-a=/data/store")
    return Backfill(steps=tuple(steps))


def store_options(source: SourceSpec) -> dict[str, str]:
    """Return the options of ``format("rocketmq-store")`` for the topics of a pipeline.

    Raises: PipelineError for a source that a store cannot stand for.
    """
    given = {name.lower(): text for name, text in resolved(source.options).items()}
    refused = [name for name in source.options if name.lower() in REFUSED_OPTIONS]
    if refused:
        raise PipelineError(
            f"option {refused[0]} of the source is not known to a store; leave it out for the"
            " backfill and the live query, and write a rule instead"
        )
    chosen = {name: text for name, text in given.items() if name in KEPT_OPTIONS}
    if source.pattern is not None:
        chosen["subscribePattern"] = source.pattern
    else:
        chosen["subscribe"] = ",".join(source.topics)
    if source.start == "earliest":
        return chosen
    if isinstance(source.start, Mapping) or source.start in ("latest", "group"):
        raise PipelineError(
            "a backfill begins at the first message or at a time; set start of the source to"
            " earliest, or to a time as 2026-01-31T00:00:00Z"
        )
    return {
        **chosen,
        "startingTimestamp": str(start_ms(source.start)),
        "startingOffsetsByTimestampStrategy": "latest",
    }


# The record


def write_record(files: Files, checkpoint: str, known: Backfill) -> None:
    """Write the record of a step. A record is never changed: the one of the last step counts."""
    path = f"{checkpoint}/{FOLDER}/{RECORD}{known.done:06}.json"
    files.create_text(path, known.to_json())
    for old in _records(files, checkpoint):
        if old < path:
            files.delete(old)


def _records(files: Files, checkpoint: str) -> list[str]:
    found = files.children(f"{checkpoint}/{FOLDER}")
    return [file.path for file in found if file.name.startswith(RECORD)]


def read_backfill(files: Files, checkpoint: str) -> Backfill | None:
    """Return the backfill of a checkpoint; None if there is none. Raises: PipelineError."""
    path = max(_records(files, checkpoint), default="")
    text = files.read_text(path) if path else None
    if text is None:
        return None
    try:
        document = json.loads(text)
        if document["v"] != VERSION:
            raise ValueError(f"version {document['v']}")
        steps = tuple(
            BackfillStep(
                broker=step["broker"],
                begins=flat(step["begins"], "begins"),
                ends=flat(step["ends"], "ends"),
            )
            for step in document["steps"]
        )
        return Backfill(
            steps=steps, done=document["done"], good=document["good"], bad=document["bad"]
        )
    except Exception as error:
        raise PipelineError(
            f"{path} is not the record of a backfill ({error}); restore it from a copy, or begin"
            " again with another checkpoint and empty tables"
        ) from error


def check_not_begun(files: HadoopFiles, spec: Spec) -> None:
    """Check that the live query has no position yet. Raises: PipelineError."""
    folder = f"{rows_checkpoint(files.absolute(spec.run.checkpoint))}/offsets"
    if files.children(folder):
        raise PipelineError(
            f"the pipeline has begun already ({folder} has offsets), so a backfill would bring"
            " messages a second time; use another checkpoint and empty tables"
        )


def after_backfill(files: HadoopFiles, spec: Spec) -> Spec:
    """Return the spec with the start where its backfill has ended; unchanged without a backfill.

    Raises: PipelineError if the backfill has not ended.
    """
    checkpoint = files.absolute(spec.run.checkpoint)
    known = read_backfill(files, checkpoint)
    if known is None:
        return spec
    if not known.is_complete:
        raise PipelineError(
            f"the backfill of {checkpoint} has ended after {known.done} of {len(known.steps)}"
            " steps; run it again, then start the pipeline"
        )
    return attrs.evolve(spec, source=attrs.evolve(spec.source, start=known.start()))
