"""Bodies of JSON against the JSON Schema that they were written with, by the library jsonschema.

The columns come from the schema file as always; a body that breaks its writer's schema is a bad
row. The reason names the place in the schema, since one in the body could show parts of it.
"""

from __future__ import annotations

import json
from typing import Any

import attrs
import pyarrow as pa
from jsonschema import Draft7Validator, SchemaError
from jsonschema.validators import validator_for
from pyspark.sql import Column
from pyspark.sql import functions as sf
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import StringType
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT7

from triomq.client.pipeline.core.origin import VALUE
from triomq.client.pipeline.decoders.arrow_bodies import BadBody
from triomq.client.pipeline.decoders.framing import unframe
from triomq.client.pipeline.decoders.writer_schemas import WriterSchemas


def broken_schema(writers: WriterSchemas) -> Column:
    """Return why bodies break the schemas of their writers; null for those that do not."""
    checker = SchemaChecker(writers)

    def reasons(bodies: pa.Array) -> pa.Array:
        return pa.array([checker.reason(body) for body in bodies.to_pylist()], pa.string())

    return arrow_udf(reasons, StringType())(sf.col(VALUE))  # type: ignore[call-overload,no-any-return]


@attrs.define
class SchemaChecker:
    """Checks bodies with a header; it is pickled before its first one."""

    writers: WriterSchemas
    _known: dict[int, Any] = attrs.field(factory=dict, init=False)
    """validators of schemas, or the reason (a text) why one cannot be used"""

    def reason(self, body: bytes | None) -> str | None:
        """Return why a body breaks its writer's schema, or None. Raises: RegistryError."""
        try:
            framed = unframe(body or b"", indexes=False)
            if framed.schema_id not in self._known:
                self._known[framed.schema_id] = validator(self.writers.schemas(framed.schema_id))
        except BadBody as bad:
            return str(bad)
        known = self._known[framed.schema_id]
        if isinstance(known, str):
            return f"schema {framed.schema_id} {known}"
        try:
            broken = next(known.iter_errors(json.loads(framed.content)), None)
        except Exception as error:  # of the parser, of patterns, of references without an end
            return f"the body cannot be checked with its schema ({type(error).__name__})"
        if broken is None:
            return None
        place = "#" + "".join(f"/{part}" for part in broken.absolute_schema_path)
        return f"the body breaks schema {framed.schema_id} at {place}"


def validator(texts: dict[str, bytes]) -> Any:
    """Return the validator of a schema, or why it cannot be used.

    ``texts``: those that it refers to by their addresses, and its own as ``""``. No other address
    is ever opened. Without ``$schema`` a schema is of draft 7, as registries take it.
    """
    try:
        trees = {name: json.loads(text) for name, text in texts.items()}
        kind = validator_for(trees[""], default=Draft7Validator)
        kind.check_schema(trees[""])
        others = [
            (name, Resource.from_contents(tree, default_specification=DRAFT7))
            for name, tree in trees.items()
        ]
    except (ValueError, TypeError, SchemaError, RecursionError) as error:
        return f"is not a JSON Schema ({type(error).__name__})"
    return kind(trees[""], registry=Registry().with_resources(others))
