"""The format ``json``: one JSON object a body, decoded by Spark's ``from_json``.

Spark accepts more than one JSON object: it takes the first of an array of objects, and ignores what
comes behind the object. Two cheap additions refuse both. The body is parsed inside ``{"v": …}``, so
that text behind the object must begin with a comma or a closing brace; and
``json_array_length([…])`` must be 1, which such text is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from triomq.client.pipeline.core.origin import REASON, VALUE
from triomq.client.pipeline.decoders.framing import HEADER_BYTES, NO_HEADER
from triomq.client.pipeline.decoders.text import valid_text

TEXT = "mq_text"
PARSED = "mq_parsed"
INNER = "v"
CORRUPT = "mq_corrupt"
TIME = "yyyy-MM-dd[['T'][' ']HH:mm[:ss][.SSSSSSSSS]"
ZONE = "X" * 3
"""Z or +01:00; two of them: +0100"""
OPTIONS = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": CORRUPT,
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
    # Without formats Spark takes "12:30" for that time of the day on which it decodes.
    "dateFormat": "yyyy-MM-dd",
    "timestampFormat": f"{TIME}[{ZONE}][XX]]",
    "timestampNTZFormat": f"{TIME}]",
    "timeZone": "UTC",  # of a time without zone, whatever the session has
}
FIRST_TIME, LAST_TIME = "0001-01-01 00:00:00Z", "9999-12-31 23:59:59.999999Z"
"""A number is taken as seconds: milliseconds of today are in the year 58185."""
BEYOND = "a number that is not finite, or a time outside the years 1 to 9999, in field "


@attrs.frozen
class JsonDecoder:
    """Takes bodies that are one JSON object which fits the schema. Unknown fields are ignored.

    ``framed``: the header of a schema registry stands before the object. Its id is not needed:
    JSON has the names of its fields. ``broken`` makes a column: why a body breaks the schema of its
    id, null if it does not.
    """

    schema: StructType
    framed: bool = False
    broken: Callable[[], Column] | None = None

    def decode(self, frame: DataFrame) -> DataFrame:
        """Return the frame with the fields of the objects as columns."""
        wrapper = StructType(
            [StructField(INNER, all_nullable(self.schema)), StructField(CORRUPT, StringType())]
        )
        text = sf.col(TEXT)
        whole = sf.concat(sf.lit(f'{{"{INNER}":'), text, sf.lit("}"))
        parsed = frame.withColumn(TEXT, self.text()).withColumn(
            PARSED, sf.from_json(whole, wrapper, OPTIONS)
        )
        marked = parsed.withColumn(REASON, self.reason())
        fields = {
            name: sf.when(sf.col(REASON).isNull(), self.value(name))
            for name in self.schema.fieldNames()
        }
        return marked.withColumns(fields).drop(TEXT, PARSED)

    def text(self) -> Column:
        """Return the text of the object; null if it is not UTF-8."""
        body = sf.col(VALUE)
        return valid_text(sf.substr(body, sf.lit(HEADER_BYTES + 1)) if self.framed else body)

    def reason(self) -> Column:
        """Return why a row is bad; null for a good row."""
        text, inner = sf.col(TEXT), sf.col(PARSED)[INNER]
        count = sf.json_array_length(sf.concat(sf.lit("["), text, sf.lit("]")))
        corrupt = sf.col(PARSED)[CORRUPT].isNotNull() | inner.isNull()
        begin = sf.substring(VALUE, 1, 1)
        headless = (begin != sf.unhex(sf.lit("00"))) | (sf.length(VALUE) < HEADER_BYTES)
        reason = (
            sf.when(sf.coalesce(sf.length(VALUE), sf.lit(0)) == 0, "the body is empty")
            .when(sf.lit(self.framed) & headless, NO_HEADER)
            .when(text.isNull(), "the body is not UTF-8")
            .when(~text.rlike(r"^[ \t\r\n]*\{"), "the body is not a JSON object")
            .when(sf.coalesce(count, sf.lit(0)) != 1, "the body is not one valid JSON object")
            .when(corrupt, self.wrong_fields())
        )
        for condition, path in missing(self.schema, f"{PARSED}.{INNER}"):
            reason = reason.when(sf.expr(condition), f"field {path} is missing or null")
        beyond = [
            sf.when(sf.expr(condition), sf.lit(path))
            for condition, path in out_of_range(self.schema, f"{PARSED}.{INNER}")
        ]
        if beyond:
            paths = sf.concat_ws(", ", *beyond)
            reason = reason.when(paths != "", sf.concat(sf.lit(BEYOND), paths))
        return reason if self.broken is None else reason.otherwise(self.broken())

    def wrong_fields(self) -> Column:
        """Return the reason of a row whose JSON is valid and does not fit the schema."""
        given = sf.from_json(sf.col(TEXT), MapType(StringType(), StringType()), OPTIONS)
        lost = sf.array_compact(
            sf.array(
                *(
                    sf.when(self.value(name).isNull(), sf.lit(name))
                    for name in self.schema.fieldNames()
                )
            )
        )
        wrong = sf.filter(lost, lambda name: given[name].isNotNull())
        return sf.when(
            sf.size(wrong) > 0,
            sf.concat(sf.lit("wrong type in field "), sf.array_join(wrong, ", ")),
        ).otherwise("a value does not fit the schema")

    def value(self, name: str) -> Column:
        return sf.col(PARSED)[INNER].getField(name)


def all_nullable(kind: DataType) -> DataType:
    """Return a type whose parts may all be null: what is missing is found afterwards."""
    match kind:
        case StructType():
            return StructType(
                [StructField(each.name, all_nullable(each.dataType)) for each in kind.fields]
            )
        case ArrayType():
            return ArrayType(all_nullable(kind.elementType))
        case MapType():
            return MapType(kind.keyType, all_nullable(kind.valueType))
    return kind


def missing(
    kind: DataType, value: str, path: str = "", depth: int = 0
) -> Iterator[tuple[str, str]]:
    """Yield a condition in SQL, and the path, for each part that must not be null.

    ``value``: the part of this type, in SQL.
    """
    match kind:
        case StructType():
            for field in kind.fields:
                inner = f"{value}.{quoted(field.name)}"
                name = f"{path}.{field.name}" if path else field.name
                if not field.nullable:
                    yield f"{value} IS NOT NULL AND {inner} IS NULL", name
                yield from missing(field.dataType, inner, name, depth)
        case ArrayType():
            yield from in_all(kind.elementType, kind.containsNull, value, f"{path}[]", depth)
        case MapType():
            values = f"map_values({value})"
            yield from in_all(kind.valueType, kind.valueContainsNull, values, f"{path}{{}}", depth)


def out_of_range(
    kind: DataType, value: str, path: str = "", depth: int = 0
) -> Iterator[tuple[str, str]]:
    """Yield a condition in SQL, and the path, for each part that may be no number or no time."""
    match kind:
        case StructType():
            for field in kind.fields:
                name = f"{path}.{field.name}" if path else field.name
                inner = f"{value}.{quoted(field.name)}"
                yield from out_of_range(field.dataType, inner, name, depth)
        case ArrayType() | MapType():
            is_map = isinstance(kind, MapType)
            values = f"map_values({value})" if is_map else value
            inner_kind = kind.valueType if isinstance(kind, MapType) else kind.elementType
            name = f"{path}{{}}" if is_map else f"{path}[]"
            for condition, found in out_of_range(inner_kind, f"e{depth}", name, depth + 1):
                yield f"exists({values}, e{depth} -> {condition})", found
        case DoubleType() | FloatType():
            yield f"abs({value}) = double('infinity')", path
        case TimestampType():
            first, last = f"TIMESTAMP '{FIRST_TIME}'", f"TIMESTAMP '{LAST_TIME}'"
            yield f"{value} NOT BETWEEN {first} AND {last}", path


def in_all(
    kind: DataType, may_be_null: bool, values: str, path: str, depth: int
) -> Iterator[tuple[str, str]]:
    """Yield the conditions for the elements of an array."""
    each = f"e{depth}"
    if not may_be_null:
        yield f"exists({values}, {each} -> {each} IS NULL)", path
    for condition, name in missing(kind, each, path, depth + 1):
        yield f"exists({values}, {each} -> {condition})", name


def quoted(name: str) -> str:
    """Return a name as SQL writes it."""
    return "`" + name.replace("`", "``") + "`"
