"""The result that a command returns for printing.

A command never prints and never exits. It returns a ``Result``: a JSON value with stable keys
(``--json``), and the same facts as blocks of text and tables. ``execution.py`` prints one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from triomq.client.admin.answers import Answers


Document = dict[str, Any]
"""JSON with the keys of a command; its values may be of every kind"""
Row = Mapping[str, Any]
"""the same, which is only read"""
Columns = Mapping[str, str | Callable[[Row], object]]
"""title → key of a document, or a function that returns the cell of a document"""


@attrs.frozen
class Table:
    """Rows below titled columns. Cells are never cut."""

    columns: Sequence[str]
    """titles, Java's without the leading ``#``; ``>`` before a title aligns a column right"""
    rows: Sequence[Sequence[object]]
    """cells are printed as ``str`` does it, None as an empty cell"""
    spare: Sequence[str] = ()
    """titles, without ``>``, of columns that a narrow terminal goes without, the first one first"""


def table_of(
    rows: Iterable[Mapping[str, object]], columns: Columns, spare: Sequence[str] = ()
) -> Table:
    """Return a table of documents."""
    cells = [
        [row[cell] if isinstance(cell, str) else cell(row) for cell in columns.values()]
        for row in rows
    ]
    return Table(list(columns), cells, spare)


AT_LEAST = "+"
"""end of a sum that lacks the part of a server that did not answer"""


def sum_text(total: int, *, whole: bool) -> str:
    """Return a sum; ``whole``: whether all servers have answered."""
    return f"{total}{'' if whole else AT_LEAST}"


@attrs.frozen(kw_only=True)
class Result:
    """The result of a command."""

    document: Row
    """the output of ``--json``, without ``failures``"""
    blocks: Sequence[Table | str]
    """the output without ``--json``: tables, and lines of text"""
    failures: Mapping[str, str] | None = None
    """servers that did not answer → reason; None if ``--json`` has no ``failures``"""
    asked: int = 0
    """number of asked servers; only used with ``failures``"""
    notes: Sequence[str] = ()
    """warnings for stderr"""
    bad_news: bool = False
    """the command succeeded, but its finding must stop a script: exit code 1"""
    partial: bool = False
    """all servers answered, but only a part was done: exit code 3"""


@attrs.frozen(kw_only=True)
class Lines:
    """What a command that follows something found since its last lines."""

    documents: Sequence[Mapping[str, object]] = ()
    """the output of ``--json``: one line for each"""
    texts: Sequence[str] = ()
    """the output without ``--json``"""
    notes: Sequence[str] = ()
    """warnings for stderr"""


def answered(
    answers: Answers[object],
    document: Mapping[str, object],
    blocks: Sequence[Table | str],
    *,
    notes: Sequence[str] = (),
) -> Result:
    """Return the result of a command that asked several servers."""
    return Result(
        document=document,
        blocks=blocks,
        failures=answers.reasons(),
        asked=answers.asked,
        notes=notes,
    )
