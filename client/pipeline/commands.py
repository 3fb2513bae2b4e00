"""The commands of ``mqpipeline``: do what the options say, print the result.

A command returns what it prints: a document for ``--json``, and lines for a person.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from triomq.client.pipeline.command_line import EXIT_FAILED, EXIT_OK, EXIT_USAGE, PROGRAM
from triomq.client.pipeline.core.errors import PipelineError, SpecError
from triomq.client.pipeline.core.spec import Spec
from triomq.client.pipeline.export_sdp import export_project
from triomq.client.pipeline.init_file import write_file
from triomq.client.pipeline.spec_check import check_spec
from triomq.client.pipeline.spec_file import read_spec
from triomq.client.spark.errors import SourceError
from triomq.remoting.core.printable import printable, printable_json, printable_lines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@attrs.frozen
class Answer:
    """What a command prints, and its exit code."""

    document: Mapping[str, object]
    lines: Sequence[str]
    code: int = EXIT_OK


def perform(options: argparse.Namespace) -> int:
    """Run a command and print its answer; return the exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    try:
        answer = ACTIONS[options.command](options)
    except Exception as error:  # the outermost frame of a program: every failure becomes one line
        return complain(error, verbose=options.verbose)
    if options.json:
        text = json.dumps(answer.document, ensure_ascii=False, separators=(",", ":"), default=str)
        print(printable_json(text))
    else:
        for line in answer.lines:
            print(printable_lines(line))
    sys.stdout.flush()
    return answer.code


def complain(error: Exception, *, verbose: bool) -> int:
    """Write a failure as one line, with ``verbose`` after its traceback; return the exit code."""
    if isinstance(error, BrokenPipeError):
        raise error
    if verbose:
        sys.stderr.write(printable_lines("".join(traceback.format_exception(error))))
    text = str(error)
    if not isinstance(error, PipelineError | SourceError):
        first = text.strip().partition("\n")[0]
        text = f"unexpected {type(error).__name__}: {first}; --verbose shows where"
    print(f"{PROGRAM}: {printable(' '.join(text.split()))}", file=sys.stderr)
    return EXIT_USAGE if isinstance(error, SpecError) else EXIT_FAILED


def checked_spec(path: str) -> Spec:
    """Return the pipeline of a file. Raises: SpecError with the first mistake."""
    spec = read_spec(path)
    for mistake in check_spec(spec):
        raise mistake
    return spec


def session_of(spec: Spec) -> SparkSession:
    """Return a session that fits a pipeline. Raises: SessionError."""
    # Not for commands without Spark: start-up time.
    from triomq.client.pipeline.session import open_session

    return open_session(spec)


# --- commands without Spark


def init(options: argparse.Namespace) -> Answer:
    write_file(options.file, options.topic, options.name_server, force=options.force)
    return Answer(
        {"file": options.file},
        [
            f"wrote {options.file}; next: read it, then",
            f"  {PROGRAM} infer {options.file}    # the schema, from a sample",
            f"  {PROGRAM} check {options.file}",
            f"  {PROGRAM} run {options.file}",
        ],
    )


def infer(options: argparse.Namespace) -> Answer:
    """Write a schema file and say what the sample had."""
    # Not for other commands: start-up time.
    from triomq.client.pipeline.core.schema_file import write_schema  # likewise
    from triomq.client.pipeline.infer import infer as infer_schema

    spec = read_spec(options.file)
    path = spec.decode.schema
    if spec.decode.format != "json" or path is None:
        raise SpecError(
            options.file,
            "decode",
            "infer makes schemas of JSON, and the key schema must name the file",
            'write format = "json" and schema = "orders.schema.json"; Avro and Protobuf have'
            " schemas of their own",
        )
    if Path(path).exists() and not options.force:
        raise SpecError(path, "", "the file exists", "compare it first, or replace it with --force")
    for mistake in check_spec(spec):
        if mistake.key.startswith("source"):
            raise mistake
    found = infer_schema(spec.source, options.messages)
    write_schema(path, found.schema, force=options.force)
    width = max(len(field.name) for field in found.fields)
    lines = [f"{found.messages} messages, {found.bad} of them not one JSON object"]
    for field in found.fields:
        notes = [f"null or absent in {field.null_share:.1%}"] if field.null_share else []
        notes += [f"mixed: {', '.join(field.kinds)}"] if len(field.kinds) > 1 else []
        notes += ["never seen with a value"] if not field.kinds else []
        lines.append(f"  {field.name:{width}}  {field.type}  {'; '.join(notes)}".rstrip())
    lines.append(
        f'wrote {path}; read it: what every message must have, change to "nullable": false'
    )
    return Answer(
        {
            "schema": path,
            "messages": found.messages,
            "bad": found.bad,
            "fields": [attrs.asdict(field) for field in found.fields],
        },
        lines,
    )


def status(options: argparse.Namespace) -> Answer:
    # Not for other commands: start-up time.
    from triomq.client.pipeline.status import read_status

    found = read_status(read_spec(options.file).run.checkpoint)
    lines = [f"{found.name}: {found.state} since {found.started}, as of {found.time}"]
    if found.cause:
        lines.append(f"  {found.cause}")
    for name, query in found.queries.items():
        bad = sum(query.bad.values())
        lines.append(
            f"  {name}: batch {query.batch}, {query.rows} rows ({query.good} good, {bad} bad,"
            f" {query.kept_out} dropped by rules), {query.late} late,"
            f" {'?' if query.lag is None else query.lag} behind"
        )
        lines += [f"    {count} × {reason}" for reason, count in query.bad.items()]
    good = found.state in ("running", "stopped")
    return Answer(attrs.asdict(found), lines, EXIT_OK if good else EXIT_FAILED)


# --- commands with Spark


def check(options: argparse.Namespace) -> Answer:
    """Print all mistakes; those that need Spark only if there are no others."""
    spec = read_spec(options.file)
    mistakes = check_spec(spec)
    if not mistakes and options.online:
        # Not for the file alone: start-up time.
        from triomq.client.pipeline.online_check import check_online

        mistakes = check_online(spec)
    if not mistakes and not options.file_only:
        # Not for the file alone: start-up time.
        from triomq.client.pipeline.session_check import check_in_session

        mistakes = check_in_session(session_of(spec), spec)
    found = [{"key": each.key, "cause": each.cause, "fix": each.fix} for each in mistakes]
    lines = [str(each) for each in mistakes]
    if not mistakes:
        lines.append(f"{options.file} is good")
    return Answer({"mistakes": found}, lines, EXIT_FAILED if mistakes else EXIT_OK)


def run(options: argparse.Namespace) -> Answer:
    """Run the pipeline, after a check with the session."""
    spec = checked_spec(options.file)
    if options.trigger is not None:
        try:
            spec = attrs.evolve(spec, run=attrs.evolve(spec.run, trigger=options.trigger))
        except ValueError as error:
            raise SpecError(
                "", "--trigger", f"{options.trigger!r} is none", f"use {error}"
            ) from None
    # Not for other commands: start-up time.
    from triomq.client.pipeline.run import run_until_stopped
    from triomq.client.pipeline.session_check import check_in_session  # likewise

    session = session_of(spec)
    for mistake in check_in_session(session, spec):
        raise mistake
    code = run_until_stopped(session, spec)
    ended = "has failed" if code else "has stopped"
    return Answer(
        {"name": spec.name, "failed": bool(code)},
        [f"{spec.name} {ended}; `{PROGRAM} status {options.file}` says how far it came"],
        code,
    )


def replay(options: argparse.Namespace) -> Answer:
    spec = checked_spec(options.file)
    # Not for other commands: start-up time.
    from triomq.client.pipeline.replay import replay as send_again

    done = send_again(
        session_of(spec), spec, where=options.where, limit=options.limit, again=options.again
    )
    lines = [f"{done.sent} dead letters were sent again"]
    if done.left_out:
        lines.append(f"{done.left_out} were left out, since they were sent before (--again)")
    lines += [f"{count} stay dead letters: {reason}" for reason, count in done.refused.items()]
    return Answer(attrs.asdict(done), lines)


def backfill(options: argparse.Namespace) -> Answer:
    spec = checked_spec(options.file)
    # Not for other commands: start-up time.
    from triomq.client.pipeline.backfill import run_backfill

    stores = dict(options.stores)
    done = run_backfill(session_of(spec), spec, stores, options=dict(options.option))
    return Answer(
        {"steps": done.done, "good": done.good, "bad": done.bad},
        [
            f"{done.good} good rows and {done.bad} bad rows of {', '.join(sorted(stores))}",
            f"`{PROGRAM} run {options.file}` goes on behind them",
        ],
    )


def compact(options: argparse.Namespace) -> Answer:
    spec = checked_spec(options.file)
    # Not for other commands: start-up time.
    from triomq.client.pipeline.upkeep import keep_up

    done = keep_up(session_of(spec), spec, before=options.before)
    return Answer(
        {"tables": [attrs.asdict(each) for each in done]},
        [
            f"{each.place}: {each.files_merged} files merged, {each.dates_deleted} days deleted"
            for each in done
        ],
    )


def export_sdp(options: argparse.Namespace) -> Answer:
    files = export_project(checked_spec(options.file), options.folder, force=options.force)
    lines = [
        *(f"wrote {path}" for path in files),
        f"run it: cd {options.folder}; spark-pipelines run",
    ]
    return Answer({"files": files}, lines)


ACTIONS: dict[str, Callable[[argparse.Namespace], Answer]] = {
    "init": init,
    "infer": infer,
    "check": check,
    "run": run,
    "status": status,
    "replay": replay,
    "backfill": backfill,
    "compact": compact,
    "export-sdp": export_sdp,
}
