"""Print a result as CSV: the rows of the document's main part, with the names of its JSON keys.

The main part is the first list or map of the document, without ``failures``. A row of a list has a
column for each key; a map has its keys in a first column. A document without lists and maps is one
row. A cell that is not a text, number or truth value is JSON. The columns come from the declared
shape, so a result without rows has its title row.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence

from triomq.client.mqadmin.core.shapes import Fields, ListOf, MapOf, Shape, fitting
from triomq.remoting.core.printable import printable

Row = Mapping[str, object]
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
VALUE = "value"
"""the column of a map's values that are not objects"""


def csv_text(notation: str, document: Mapping[str, object]) -> str:
    """Return the text of ``--csv``; ``notation`` declares the shape of the document."""
    shape = fitting(notation, document)
    main = next(
        (
            name
            for name, part in shape.shapes.items()
            if isinstance(part, ListOf | MapOf) and name != "failures"
        ),
        None,
    )
    if main is None:
        columns: Sequence[str] = [name for name in shape.shapes if name != "failures"]
        rows: Iterator[Row] = iter([document])
    else:
        columns = _columns(shape.shapes[main], main)
        rows = _rows(shape.shapes[main], document.get(main), main)
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(row.get(column)) for column in columns] for row in rows)
    return stream.getvalue()


def _columns(shape: Shape, name: str) -> list[str]:
    match shape:
        case Fields():
            return list(shape.shapes)
        case ListOf():
            return _columns(shape.item, name)
        case MapOf():
            return list(dict.fromkeys([shape.key, *_columns(shape.value, VALUE)]))
    return [name]


def _rows(shape: Shape, value: object, name: str) -> Iterator[Row]:
    match shape, value:
        case Fields(), dict():
            yield value
        case ListOf(), list():
            for item in value:
                yield from _rows(shape.item, item, name)
        case MapOf(), dict():
            for key, part in value.items():
                for row in _rows(shape.value, part, VALUE):
                    yield {**row, shape.key: key}
        case None, _:
            yield {name: value}


def _cell(value: object) -> object:
    """Return a cell: a number as it is, null as an empty cell, control characters escaped.

    A spreadsheet computes a text that begins like a formula, and clients choose keys, tags and
    names; an apostrophe before it makes it a text. Source: OWASP, "CSV Injection".
    """
    if value is None:
        return ""
    if isinstance(value, bool | dict | list):
        value = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if not isinstance(value, str):
        return value
    return f"'{printable(value)}" if value.startswith(FORMULA_STARTS) else printable(value)
