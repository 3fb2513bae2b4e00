"""Schemas of writers that must not be resolved to the columns, although fastavro would do it.

Avro resolves types and leaves logical types to their users: a ``long`` and a ``timestamp-millis``
fit each other, and a number would become a wrong time without an error. And if the items of an
array have no bytes, a body of five bytes can claim billions of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

AvroSchema: TypeAlias = Any
"""A schema, or a part of one, as fastavro parses it: a name, a union's list, or a mapping.

One of its members has every kind of value, and fastavro declares none.
"""

UNITS = {
    "timestamp-millis": "time",
    "timestamp-micros": "time",
    "local-timestamp-millis": "local time",
    "local-timestamp-micros": "local time",
}
"""logical types that have one unit once they are decoded"""
NUMBERS = ("int", "long", "float", "double")
TEXTS = ("bytes", "string", "fixed")


def is_empty(avro: object, named: Mapping[str, object]) -> bool:
    """Return whether values of a type may have no bytes at all."""
    if isinstance(avro, str):
        return avro == "null" or (avro in named and is_empty(named[avro], named))
    if isinstance(avro, dict):
        return (
            avro["type"] == "null"
            or (avro["type"] == "fixed" and avro["size"] == 0)
            or (
                avro["type"] == "record"
                and all(is_empty(field["type"], named) for field in avro["fields"])
            )
        )
    return False


def has_empty_items(avro: object, named: Mapping[str, object]) -> bool:
    """Return whether a schema, with the types that it names, has an array of nothing."""
    inner = [avro, *named.values()]
    while inner:
        each = inner.pop()
        if isinstance(each, list):
            inner += each
        elif isinstance(each, dict):
            if each["type"] == "array" and is_empty(each["items"], named):
                return True
            inner += [each[key] for key in ("items", "values") if key in each]
            inner += [field["type"] for field in each.get("fields", ())]
            if isinstance(each["type"], dict | list):
                inner.append(each["type"])
    return False


def other_unit(writer: object, reader: object, named: Mapping[str, object]) -> str | None:
    """Return the first field whose values mean another unit at the writer; None if none does.

    ``named``: the types of the writer. Both schemas are parsed by fastavro.
    """
    ours: dict[str, object] = {}
    gather(reader, ours)
    pairs = [("", writer, reader)]
    seen: set[tuple[int, int]] = set()
    while pairs:
        path, first, second = pairs.pop()
        for one in branches(first, named):
            for two in branches(second, ours):
                if (id(one), id(two)) in seen or not resolvable(one, two):
                    continue
                if isinstance(one, dict) and isinstance(two, dict):
                    seen.add((id(one), id(two)))
                if unit(one) != unit(two):
                    return path
                pairs += inner_pairs(path, one, two)
    return None


def gather(avro: object, named: dict[str, object]) -> None:
    """Collect the named types of a schema."""
    for each in avro if isinstance(avro, list) else [avro]:
        if isinstance(each, dict):
            if "name" in each:
                named[each["name"]] = each
            for inner in (each[key] for key in ("items", "values") if key in each):
                gather(inner, named)
            for field in each.get("fields", ()):
                gather(field["type"], named)
            if isinstance(each["type"], dict | list):
                gather(each["type"], named)


def branches(avro: AvroSchema, named: Mapping[str, AvroSchema]) -> Iterator[AvroSchema]:
    """Yield the types of a union, or the type, with the definition in place of a name."""
    for each in avro if isinstance(avro, list) else [avro]:
        if isinstance(each, str):
            yield named.get(each, each)
        elif isinstance(each["type"], dict | list):
            yield from branches(each["type"], named)
        else:
            yield each


def kind(avro: object) -> str:
    return str(avro["type"]) if isinstance(avro, dict) else str(avro)


def resolvable(writer: object, reader: object) -> bool:
    """Return whether Avro's rules may turn one type into the other."""
    one, two = kind(writer), kind(reader)
    return one == two or any(one in each and two in each for each in (NUMBERS, TEXTS))


def unit(avro: AvroSchema) -> tuple[str, int]:
    """Return what a plain value stands for; a decimal by its scale."""
    logical = avro.get("logicalType", "") if isinstance(avro, dict) else ""
    return UNITS.get(logical, logical), avro.get("scale", 0) if logical == "decimal" else 0


def inner_pairs(
    path: str, writer: AvroSchema, reader: AvroSchema
) -> Iterator[tuple[str, AvroSchema, AvroSchema]]:
    """Yield the inner types that belong together: fields by name or alias."""
    for key, mark in (("items", "[]"), ("values", "{}")):
        if isinstance(writer, dict) and key in writer and key in reader:
            yield path + mark, writer[key], reader[key]
    if kind(writer) != "record":
        return
    written = {field["name"]: field["type"] for field in writer["fields"]}
    for field in reader["fields"]:
        for name in (field["name"], *field.get("aliases", ())):
            if name in written:
                yield f"{path}.{field['name']}".lstrip("."), written[name], field["type"]
                break
