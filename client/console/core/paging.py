"""Filter, sort and cut long tables on the server. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

import attrs

ROWS_OF_A_PAGE = 25
T = TypeVar("T")


@attrs.frozen
class Order:
    """The column by which a table is sorted: ``lag`` in an address, or ``-lag`` for downwards."""

    column: str
    down: bool

    def sorted(
        self, rows: Sequence[T], columns: Mapping[str, Callable[[T], str | float | None]]
    ) -> Sequence[T]:
        """Return the rows in this order; what is unknown comes last."""
        value_of = columns[self.column]

        def key(row: T) -> tuple[float, str]:
            value = value_of(row)
            return (0.0, value) if isinstance(value, str) else (value or 0.0, "")

        known = [row for row in rows if value_of(row) is not None]
        unknown = [row for row in rows if value_of(row) is None]
        return [*sorted(known, key=key, reverse=self.down), *unknown]

    def following(self, column: str, *, down_first: bool) -> str:
        """Return what a click on the head of a column asks for: the other way the second time."""
        down = not self.down if column == self.column else down_first
        return f"-{column}" if down else column


def order_of(text: str, columns: Mapping[str, object]) -> Order:
    """Return the order that an address asks for; the first column for one that there is not."""
    column = text.removeprefix("-")
    if column not in columns:
        return Order(next(iter(columns)), down=False)
    return Order(column, text.startswith("-"))


@attrs.frozen
class TablePage(Generic[T]):
    """One page of a table."""

    rows: Sequence[T]
    number: int
    """from 1"""
    pages: int
    found: int
    """rows of all pages"""


def page_of(
    rows: Sequence[T], number: str, *, search: str = "", text: Callable[[T], str] | None = None
) -> TablePage[T]:
    """Return one page of the rows whose text contains ``search``, in any case of letters.

    ``number``: as it stands in an address; what is no number or out of range is the nearest page.
    """
    wanted = search.strip().casefold()
    if wanted and text is not None:
        rows = [row for row in rows if wanted in text(row).casefold()]
    pages = max(1, -(-len(rows) // ROWS_OF_A_PAGE))
    at = min(max(1, int(number) if number.isascii() and number.isdigit() else 1), pages)
    first = (at - 1) * ROWS_OF_A_PAGE
    return TablePage(rows[first : first + ROWS_OF_A_PAGE], at, pages, len(rows))
