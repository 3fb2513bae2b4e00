"""Which rows of docs/features.md a run proves, clause by clause.

A row is one sentence, and a sentence may promise several things. ``tests/feature_clauses.toml``
splits such a row into clauses ``a``, ``b``, …; a row that it does not list has one clause, the
whole sentence. A clause is proven by a passed test that is marked for it
(``@pytest.mark.feature("16b")``, or ``feature(16)`` where the row has one clause), or, where it is
about time or memory, by a figure that a benchmark wrote into ``tests/figures.json``. A row is
*proven* when all of its clauses are, *partly* proven when some are. A figure that is old, or near
to what the clause promises, proves it only partly.
"""

from __future__ import annotations

import datetime
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "features.md"
CLAUSES = ROOT / "tests" / "feature_clauses.toml"
FIGURES = ROOT / "tests" / "figures.json"
PROVEN = ROOT / "tests" / "proven_clauses.txt"
"""The clauses that every run of CI proves by tests. One with a question mark hangs on something
that a machine may lack, such as a file system or a release of a foreign package.
"""
AGE_DAYS = 21
"""A figure that is older proves its clause only partly."""
NEAR = 0.1
"""So does one that is nearer than this part of the limit to it."""
ROW = re.compile(r"^\| (\d+) \| ((?:[^|\\]|\\.)+) \| ((?:[^|\\]|\\.)+) \|")
CLAUSE_NAME = re.compile(r"([1-9]\d*)([a-z]?)")
WHOLE = "a"
"""The clause of a row that has only one."""


class LedgerError(ValueError):
    """The clauses file or a mark does not fit the page. The message names the place and the fix."""


@attrs.frozen
class Promise:
    """What a clause promises of its figure: at most, or at least, so much."""

    unit: str
    most: float | None
    least: float | None

    def __str__(self) -> str:
        if self.most is not None:
            return f"at most {self.most:g} {self.unit}"
        return f"at least {self.least:g} {self.unit}"


@attrs.frozen
class Measured:
    """A figure that a benchmark wrote; ``value`` is what the promise is about."""

    value: float
    figure: str
    date: datetime.date
    machine: str
    command: str
    commit: str

    def doubt(self, promise: Promise, today: datetime.date) -> str:
        """Return why the figure does not prove the promise, or not for long; "" if it does."""
        broken = near = False
        if promise.most is not None:
            broken, near = self.value > promise.most, self.value > promise.most * (1 - NEAR)
        if promise.least is not None:
            broken, near = self.value < promise.least, self.value < promise.least * (1 + NEAR)
        if broken:
            return f"{self.value:g} is not {promise}"
        if near:
            return f"{self.value:g} is nearer than {NEAR:.0%} to the limit"
        age = (today - self.date).days
        return f"{age} days old: measure again" if age > AGE_DAYS else ""


@attrs.frozen
class Row:
    """``clauses``: letter -> what it promises; ``promises`` and ``measured``: its figures."""

    number: int
    name: str
    clauses: Mapping[str, str]
    promises: Mapping[str, Promise]
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

    def doubts(self, today: datetime.date) -> dict[str, str]:
        """Return the letters of the clauses whose figure proves them only partly: why."""
        found = {}
        for letter, promise in self.promises.items():
            known = self.measured.get(letter)
            doubt = known.doubt(promise, today) if known else "no benchmark has recorded a figure"
            if doubt:
                found[letter] = doubt
        return found

    def status(self, tests: Mapping[str, list[str]], today: datetime.date) -> str:
        missing = self.missing(tests)
        if not missing and not self.doubts(today):
            return "proven"
        return "-" if len(missing) == len(self.clauses) else "partly"


@attrs.frozen
class Ledger:
    rows: Mapping[int, Row]

    def promise(self, clause: str) -> Promise:
        """Return what a clause ("16b") promises of its figure.

        Raises: LedgerError if there is no such clause, or if it promises none.
        """
        name = self.clause(clause)
        found = self.rows[int(name[:-1])].promises.get(name[-1])
        if found is None:
            raise LedgerError(
                f"clause {name} promises no figure: add it to [measured] of"
                " tests/feature_clauses.toml, with unit, and most or least"
            )
        return found

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


def read_ledger(page: str, clauses: str, figures: str = "{}") -> Ledger:
    """Join the page's rows, the clauses file and the figures.

    Raises:
        LedgerError: they do not fit each other.
    """
    table = tomllib.loads(clauses)
    split, promised, known = table.get("row", {}), table.get("measured", {}), json.loads(figures)
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
            names = {letter: f"{number}{letter}" for letter in texts}
            promises = {
                letter: read_promise(name, promised.pop(name))
                for letter, name in names.items()
                if name in promised
            }
            measured = {
                letter: read_measured(names[letter], known.pop(names[letter]))
                for letter in promises
                if names[letter] in known
            }
            rows[number] = Row(number, match[2].strip(), texts, promises, measured)
    if split or promised:
        raise LedgerError(
            "tests/feature_clauses.toml names rows or clauses that docs/features.md does not have:"
            f" {sorted(split) + sorted(promised)}"
        )
    if known:
        raise LedgerError(
            "tests/figures.json has figures of clauses that promise none in [measured] of"
            f" tests/feature_clauses.toml: {sorted(known)}"
        )
    return Ledger(rows)


def read_promise(name: str, table: object) -> Promise:
    if isinstance(table, dict):
        most, least, unit = table.get("most"), table.get("least"), table.get("unit")
        limits = [each for each in (most, least) if isinstance(each, int | float) and each > 0]
        if len(limits) == 1 and isinstance(unit, str) and len(table) == 2:
            return Promise(unit, most, least)
    raise LedgerError(
        f"tests/feature_clauses.toml: measured clause {name} needs unit, and most or least"
    )


def read_measured(name: str, table: Mapping[str, Any]) -> Measured:
    try:
        date = datetime.date.fromisoformat(table["date"])
        found = Measured(**{**table, "value": float(table["value"]), "date": date})
    except (KeyError, TypeError, ValueError) as error:
        raise LedgerError(f"tests/figures.json: the figure of {name} is damaged: {error}") from None
    if not re.search(r"\d", found.figure) or not found.machine or not found.command:
        raise LedgerError(
            f"tests/figures.json: the figure of {name} needs figure (with a number), date, machine"
            " and command"
        )
    return found


def load_ledger(figures: Path = FIGURES) -> Ledger:
    known = figures.read_text() if figures.exists() else "{}"
    return read_ledger(PAGE.read_text(), CLAUSES.read_text(), known)


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


def report(ledger: Ledger, tests: Mapping[str, list[str]], today: datetime.date) -> Iterable[str]:
    """Yield the lines that ``make features`` prints."""
    for row in ledger.rows.values():
        missing, doubts = row.missing(tests), row.doubts(today)
        yield f"{row.number:>3}  {row.status(tests, today):<6}  {row.name}"
        if len(missing) == len(row.clauses):
            continue
        for letter, text in row.clauses.items():
            if len(row.clauses) > 1:
                yield f"          {letter}  {'MISSING: ' if letter in missing else ''}{text}"
            if letter in row.promises:
                yield f"             promised: {row.promises[letter]}"
            if letter in row.measured:
                known = row.measured[letter]
                yield f"             measured {known.date}: {known.figure}"
                yield f"             ({known.command}; {known.machine}; commit {known.commit})"
            if letter in doubts:
                yield f"             PARTLY: {doubts[letter]}"
            for test in sorted(tests.get(f"{row.number}{letter}", [])):
                yield f"             {test}"


def nightly_lines(result: str, today: datetime.date) -> Iterable[str]:
    """Yield what ``make features`` prints of the lanes of ``make nightly``; ``result``: the text
    that they left, "" if there is none.
    """
    if not result:
        yield "make nightly has left no result"
        return
    yield "make nightly:"
    for name, last in json.loads(result).items():
        if last is None:
            yield f"  {name} has not run"
            continue
        age = (today - datetime.date.fromisoformat(last["date"])).days
        yield (
            f"  {name} {'passed' if last['passed'] else 'FAILED'} on {last['date']} at"
            f" {last['commit']}, {last['minutes']} minutes"
            f"{f'; {age} days old: run it again' if age > AGE_DAYS else ''}"
        )
