"""Which rows of docs/features.md a run proves, clause by clause.

A row is one sentence, and a sentence may promise several things. ``tests/feature_clauses.toml``
splits such a row into clauses ``a``, ``b``, …; a row that it does not list has one clause, the
whole sentence. A clause is proven by a passed test that is marked for it
(``@pytest.mark.feature("16b")``, or ``feature(16)`` where the row has one clause), or, where it is
about time or memory, by a figure that a benchmark printed, with date and command. A row is *proven*
when all of its clauses are, *partly* proven when some are.
"""

from __future__ import annotations

import datetime
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

import attrs

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "features.md"
CLAUSES = ROOT / "tests" / "feature_clauses.toml"
PROVEN = ROOT / "tests" / "proven_clauses.txt"
"""The clauses that every run of CI proves by tests. One with a question mark hangs on something
that a machine may lack, such as a file system or a release of a foreign package.
"""
ROW = re.compile(r"^\| (\d+) \| ((?:[^|\\]|\\.)+) \| ((?:[^|\\]|\\.)+) \|")
CLAUSE_NAME = re.compile(r"([1-9]\d*)([a-z]?)")
WHOLE = "a"
"""The clause of a row that has only one."""


class LedgerError(ValueError):
    """The clauses file or a mark does not fit the page. The message names the place and the fix."""


@attrs.frozen
class Measured:
    """A figure that a benchmark printed."""

    figure: str
    date: datetime.date
    command: str


@attrs.frozen
class Row:
    """``clauses``: letter -> what it promises."""

    number: int
    name: str
    clauses: Mapping[str, str]
    measured: Mapping[str, Measured]

    def missing(self, tests: Mapping[str, list[str]]) -> list[str]:
        """Return the letters of the clauses that neither a test nor a figure proves. ``tests``:
        clause name ("16b") -> passed tests.
        """
        return [
            letter
            for letter in self.clauses
            if letter not in self.measured and not tests.get(f"{self.number}{letter}")
        ]

    def status(self, tests: Mapping[str, list[str]]) -> str:
        missing = self.missing(tests)
        if not missing:
            return "proven"
        return "-" if len(missing) == len(self.clauses) else "partly"


@attrs.frozen
class Ledger:
    rows: Mapping[int, Row]

    def clause(self, mark: int | str) -> str:
        """Return the name of the clause that a mark's argument stands for, as "16b".

        Raises: LedgerError if the page has no such row or clause, or if the mark does not say which
        of several clauses it means.
        """
        match = CLAUSE_NAME.fullmatch(str(mark))
        row = self.rows.get(int(match[1])) if match else None
        if match is None or row is None:
            raise LedgerError(
                f"feature({mark!r}): docs/features.md has no such row; name one as 16, or one of"
                " its clauses as '16b'"
            )
        letter = match[2]
        if not letter and len(row.clauses) == 1:
            letter = WHOLE
        if letter not in row.clauses:
            known = ", ".join(
                f"'{row.number}{each}' ({text})" for each, text in row.clauses.items()
            )
            raise LedgerError(
                f"feature({mark!r}): say which clause of row {row.number} the test proves: {known}"
            )
        return f"{row.number}{letter}"


def read_ledger(page: str, clauses: str) -> Ledger:
    """Join the page's rows and the clauses file.

    Raises:
        LedgerError: they do not fit each other.
    """
    table = tomllib.loads(clauses)
    split, measured = table.get("row", {}), table.get("measured", {})
    rows = {}
    for line in page.splitlines():
        if match := ROW.match(line):
            number = int(match[1])
            texts = split.pop(match[1], {WHOLE: match[3].strip()})
            expected = [chr(ord("a") + index) for index in range(len(texts))]
            if list(texts) != expected:
                raise LedgerError(
                    f"tests/feature_clauses.toml: the clauses of row {number} must be"
                    f" {', '.join(expected)}, in this order"
                )
            figures = {
                letter: read_measured(number, letter, measured.pop(f"{number}{letter}"))
                for letter in texts
                if f"{number}{letter}" in measured
            }
            rows[number] = Row(number, match[2].strip(), texts, figures)
    if split or measured:
        raise LedgerError(
            "tests/feature_clauses.toml names rows or clauses that docs/features.md does not have:"
            f" {sorted(split) + sorted(measured)}"
        )
    return Ledger(rows)


def read_measured(number: int, letter: str, table: Mapping[str, object]) -> Measured:
    figure, date, command = table.get("figure"), table.get("date"), table.get("command")
    if (
        not isinstance(figure, str)
        or not re.search(r"\d", figure)
        or not isinstance(date, datetime.date)
        or not isinstance(command, str)
        or not command
    ):
        raise LedgerError(
            f"tests/feature_clauses.toml: measured clause {number}{letter} needs figure (with a"
            " number), date and command"
        )
    return Measured(figure, date, command)


def load_ledger() -> Ledger:
    return read_ledger(PAGE.read_text(), CLAUSES.read_text())


def compare(listed: str, proven: Iterable[str], again: Iterable[str]) -> Iterable[str]:
    """Yield a line for each difference between the list of proven clauses and a run.

    ``listed``: the text of PROVEN; ``again``: clauses whose test needed a second try, which excuses
    a foreign peer and is printed with the test.
    """
    names = set(listed.split())
    always = {name for name in names if not name.endswith("?")}
    known = {name.removesuffix("?") for name in names}
    for clause in sorted(always - set(proven) - set(again), key=in_order):
        yield (
            f"clause {clause} is not proven any more: its test failed, was skipped, is gone, or"
            " lost its mark"
        )
    for clause in sorted(set(proven) - known, key=in_order):
        yield f"clause {clause} is proven and not listed: make features ARGS=--write lists it"


def in_order(clause: str) -> tuple[int, str]:
    """The key that sorts "9b" before "10a"."""
    match = CLAUSE_NAME.match(clause)
    assert match
    return int(match[1]), match[2]


def report(ledger: Ledger, tests: Mapping[str, list[str]]) -> Iterable[str]:
    """Yield the lines that ``make features`` prints."""
    for row in ledger.rows.values():
        missing = row.missing(tests)
        yield f"{row.number:>3}  {row.status(tests):<6}  {row.name}"
        if len(missing) == len(row.clauses):
            continue
        for letter, text in row.clauses.items():
            if len(row.clauses) > 1:
                yield f"          {letter}  {'MISSING: ' if letter in missing else ''}{text}"
            if letter in row.measured:
                figure = row.measured[letter]
                yield f"             measured {figure.date}: {figure.figure} ({figure.command})"
            for test in sorted(tests.get(f"{row.number}{letter}", [])):
                yield f"             {test}"
