"""How is a schema kept in a file? As the JSON of Spark's ``StructType``, one field a line.

The file is checked without Spark; only ``read_schema`` imports it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from triomq.client.pipeline.core.errors import SchemaError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FILE_BYTES_MAX = 16 << 20
FIELDS_MAX = 2_000
UNUSABLE = {".", "`"}
"""characters that no name of a column has here"""


def read_schema(path: str) -> StructType:
    """Return the schema of a file. Raises: SchemaError."""
    # Not for a check of the file alone: start-up time.
    from pyspark.sql.types import StructType

    tree = schema_tree(path)
    try:
        return StructType.fromJson(dict(tree))
    except Exception as error:  # Spark's parser fails with errors of many kinds
        cause = " ".join(str(error).split())[:200]
        fix = "write types as string, long, double, boolean, timestamp, date or decimal(10,2)"
        raise SchemaError(path, f"Spark cannot read a type: {cause}", fix) from None


def schema_tree(path: str) -> Mapping[str, object]:
    """Return a schema file's JSON after a check of its shape. Raises: SchemaError."""
    content = file_bytes(path)
    try:
        tree = json.loads(content)
    except (ValueError, RecursionError) as error:
        fix = "correct it, or write it again with `mqpipeline infer --force`"
        raise SchemaError(path, f"it is not JSON ({error})", fix) from None
    fields = tree.get("fields") if isinstance(tree, dict) else None
    if (
        not isinstance(fields, list)
        or tree.get("type") != "struct"
        or not all(
            isinstance(field, dict) and isinstance(field.get("name"), str) and "type" in field
            for field in fields
        )
    ):
        shape = '{"type": "struct", "fields": [{"name": …, "type": …, "nullable": true}, …]}'
        raise SchemaError(path, "it is not a schema", f"it must be {shape}")
    check_names(path, [field["name"] for field in fields])
    return {**tree, "fields": [{"nullable": True, "metadata": {}, **field} for field in fields]}


def file_bytes(path: str) -> bytes:
    """Return the content of a schema file of any format. Raises: SchemaError."""
    try:
        if Path(path).stat().st_size > FILE_BYTES_MAX:
            cause = f"it is larger than {FILE_BYTES_MAX >> 20} MiB"
            raise SchemaError(path, cause, "name the file of a schema")
        return Path(path).read_bytes()
    except OSError as error:
        cause = f"the schema file cannot be read ({error.strerror})"
        fix = "check the path; for JSON, `mqpipeline infer` writes it"
        raise SchemaError(path, cause, fix) from None


def check_names(path: str, names: Iterable[str]) -> None:
    """Check the names of top-level columns. Raises: SchemaError."""
    seen: set[str] = set()
    for name in names:
        if name.lower().startswith("mq_"):
            cause = f"field {name!r}: names that begin with mq_ belong to the pipeline"
            raise SchemaError(path, cause, "rename it in the messages, or remove it here")
        if not name or set(name) & UNUSABLE:
            cause = f"field {name!r}: Spark takes a dot for an inner field"
            raise SchemaError(path, cause, "rename it in the messages, or remove it here")
        if name.lower() in seen:
            cause = f"field {name!r} occurs twice (Spark ignores case)"
            raise SchemaError(path, cause, "remove one of them")
        seen.add(name.lower())
    if not seen or len(seen) > FIELDS_MAX:
        cause = f"it has {len(seen)} fields"
        raise SchemaError(path, cause, f"a schema has 1 to {FIELDS_MAX}")


def schema_text(schema: StructType) -> str:
    """Return the text of a schema file."""
    lines = [
        json.dumps(field.jsonValue(), ensure_ascii=False, separators=(", ", ": "))
        for field in schema.fields
    ]
    body = ",\n  ".join(lines)
    return f'{{"type": "struct", "fields": [\n  {body}\n]}}\n'


def write_schema(path: str, schema: StructType, *, force: bool) -> None:
    """Write a schema file. Without ``force``, a file that exists stays.

    Raises: SchemaError.
    """
    check_names(path, schema.fieldNames())
    target = Path(path)
    if target.exists() and not force:
        raise SchemaError(path, "the file exists", "compare it first, or replace it with --force")
    part = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(schema_text(schema), encoding="utf-8")
        part.replace(target)
    except OSError as error:
        cause = f"it cannot be written ({error.strerror})"
        raise SchemaError(path, cause, "check the folder and its rights") from None
