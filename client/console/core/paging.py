"""Filter and cut long tables on the server. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import attrs

ROWS_OF_A_PAGE = 25
T = TypeVar("T")


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
