"""How is a spec written as a project for Spark Declarative Pipelines?

The project is a module that gives Spark the tables of the file: ``spark-pipelines run`` in its
folder runs it. Spark keeps the checkpoints then, and the tables are tables of its catalog.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import attrs

from triomq.client.pipeline.core.errors import SpecError
from triomq.client.pipeline.core.spec import Spec, TableSpec
from triomq.client.pipeline.spec_check import tables_of

PROJECT = "spark-pipeline.yml"
MODULE_FILE = "transformations/tables.py"
NOT_FOR_TABLES = re.compile(r"[^a-z0-9_]+")
FLOW_SETTINGS = re.compile(r"spark\.sql\.(?!warehouse\.|extensions$|catalog\.)")
"""settings that a flow may have; Spark refuses the others while it runs"""
SETTINGS = {"spark.sql.session.timeZone": "UTC", "spark.sql.ansi.enabled": "false"}
MODULE = '''\
"""The tables of the pipeline {name}, written by `mqpipeline export-sdp`; change them freely."""

from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from triomq.pipeline import (
    {imports},
)

SPEC = read_spec(Path(__file__).parent / "{file}")


def rows() -> DataFrame:
    """Return all messages with their columns and mq_reason."""
    messages = live_rows(SparkSession.active(), SPEC.source)
    return apply_rules(decode(messages, SPEC.decode), SPEC.rules)


def good_rows() -> DataFrame:
    """Return the messages that fit the schema and the rules."""
    return rows().where("mq_reason IS NULL").drop("mq_reason", "mq_value")
'''
TABLE = '''

@dp.table(name="{table}", format="{format}", partition_cols={partitions})
def {table}() -> DataFrame:
    """Return {meaning}."""
    return {query}
'''


def export_project(spec: Spec, folder: str, *, force: bool) -> list[str]:
    """Write a project; return its files. Raises: SpecError for what SDP does not have."""
    check_exportable(spec)
    project = Path(folder).resolve()
    if (project / PROJECT).exists() and not force:
        raise SpecError(folder, "", "the folder has a project", "name another one, or use --force")
    module = project / MODULE_FILE
    file = os.path.relpath(Path(spec.path).resolve(), module.parent)
    try:
        module.parent.mkdir(parents=True, exist_ok=True)
        module.write_text(module_text(spec, file), encoding="utf-8")
        (project / PROJECT).write_text(project_text(spec, project), encoding="utf-8")
    except OSError as error:
        fix = "check the folder and its rights"
        raise SpecError(folder, "", f"it cannot be written ({error.strerror})", fix) from None
    return [str(project / PROJECT), str(module)]


def check_exportable(spec: Spec) -> None:
    """Check that SDP has all that a spec needs. Raises: SpecError."""
    if spec.sink.mode == "changes":
        fix = "export a pipeline that appends, and use create_auto_cdc_flow of SDP behind it"
        raise SpecError(spec.path, "sink.mode", "tables of SDP are appended to", fix)
    for key, table in tables_of(spec):
        if table.kind == "topic":
            fix = "write path = … for the export; `mqpipeline run` has topics"
            raise SpecError(spec.path, f"{key}.topic", "the export has tables only", fix)


def project_text(spec: Spec, project: Path) -> str:
    """Return the file of the project; values are JSON, which YAML includes."""
    settings = SETTINGS | {
        name: text for name, text in spec.run.options.items() if FLOW_SETTINGS.match(name)
    }
    lines = [f"  {name}: {json.dumps(text)}" for name, text in settings.items()]
    return "\n".join(
        (
            "# Written by `mqpipeline export-sdp`. Run it in this folder: spark-pipelines run",
            f"name: {json.dumps(spec.name)}",
            f"storage: {json.dumps((project / 'storage').as_uri())}",
            "libraries:",
            "  - glob:",
            f"      include: {MODULE_FILE}",
            "configuration:",
            *lines,
            "",
        )
    )


def module_text(spec: Spec, file: str) -> str:
    """Return the module that gives Spark the tables. ``file``: seen from the module's folder."""
    name = table_name(spec.name)
    rows = "apply_joins(good_rows(), SPEC.joins)" if spec.joins else "good_rows()"
    imports = ["apply_rules", "decode", "live_rows", "read_spec"]
    imports += ["DEAD_LETTER_COLUMNS"] if spec.dead_letters is not None else []
    imports += ["apply_joins"] if spec.joins else []
    imports += ["totals_of"] if spec.windows else []
    names = ",\n    ".join(sorted(imports))
    parts = [
        MODULE.format(name=spec.name, file=file, imports=names),
        table_text(spec.sink, name, "good rows", rows),
    ]
    if spec.dead_letters is not None:
        query = 'rows().where("mq_reason IS NOT NULL").select(*DEAD_LETTER_COLUMNS)'
        parts.append(table_text(spec.dead_letters, f"{name}_dead_letters", "bad rows", query))
    for number, window in enumerate(spec.windows):
        table = attrs.evolve(window.table, partition_by=("mq_date",))
        query = f"totals_of({rows}, SPEC.windows[{number}])"
        parts.append(table_text(table, f"{name}_{table_name(window.name)}", "totals", query))
    return "".join(parts)


def table_text(table: TableSpec, name: str, meaning: str, query: str) -> str:
    """Return the function of one table."""
    partitions = json.dumps(list(table.partition_by))
    return TABLE.format(
        table=name, format=table.kind, partitions=partitions, meaning=meaning, query=query
    )


def table_name(name: str) -> str:
    """Return a name as Spark's catalog and Python take it."""
    plain = NOT_FOR_TABLES.sub("_", name.lower())
    return plain if plain[0].isalpha() else f"t_{plain}"
