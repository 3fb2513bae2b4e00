"""Tests that pages name: each exists, where the page says so. The page of guarantees refers to its
list of tests by number, and each row of its tables says by which test it is proved.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = "docs/guarantees.md"
NAME = re.compile(r"`(test_\w+)(?:\[[^`]*)?`")
FILE = re.compile(r"\b((?:[\w-]+/)*test_\w+\.py)\b")
ITEM = re.compile(r"^(\d+)\. (.*(?:\n {3}.*)*)", re.MULTILINE)
REFERENCE = re.compile(r"\[(\d+)\]\(#tests\)")
PROVED = "Proved by"


@cache
def homes() -> dict[str, set[str]]:
    """Return test → the paths of the files that have it."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in (*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "examples").rglob("test_*.py")):
        for name in re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE):
            found[name].add(str(path.relative_to(ROOT)))
    return found


def missing_tests(text: str) -> list[str]:
    """Return the tests and the files that a page names and that do not exist."""
    paths = {path for files in homes().values() for path in files}
    ends = {path[at:] for path in paths for at in places_of_names(path)}
    names = [name for name in NAME.findall(text) if name not in homes()]
    return [*names, *(file for file in FILE.findall(text) if file not in ends)]


def places_of_names(path: str) -> Iterator[int]:
    """Yield where the names of folders, and of the file, begin in a path."""
    yield 0
    yield from (found.end() for found in re.finditer("/", path))


def misplaced_tests(text: str) -> list[str]:
    """Return the tests of a numbered list that are in none of the files that their item names.

    An item without a file means those of the item before.
    """
    wrong: list[str] = []
    files: set[str] = set()
    for number, item in ITEM.findall(text):
        files = set(FILE.findall(item)) or files
        wrong += [
            f"{number}: {name}"
            for name in NAME.findall(item)
            if not any(home.endswith(file) for home in homes().get(name, ()) for file in files)
        ]
    return wrong


def unproved_rows(text: str) -> list[str]:
    """Return the rows of tables with a column of proofs that have neither a test nor a dash."""
    return [row for row, proofs in proofs_of_rows(text) if not proofs and row[-1] != "–"]


def proofs_of_rows(text: str) -> Iterator[tuple[list[str], list[int]]]:
    heads: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            heads = []
        elif not heads:
            heads = cells
        elif heads[-1] == PROVED and not set(line) <= set("|- "):
            yield cells, [int(number) for number in REFERENCE.findall(cells[-1])]


@pytest.mark.parametrize(
    "page", sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))
)
def test_a_test_that_a_page_names_exists(page: str) -> None:
    assert missing_tests((ROOT / page).read_text()) == []


def test_the_page_of_guarantees_names_its_tests() -> None:
    text = (ROOT / PAGE).read_text()
    rows = list(proofs_of_rows(text))
    items = [int(number) for number, _ in ITEM.findall(text)]
    assert len(rows) > 20
    assert items == list(range(1, len(items) + 1))
    assert {int(number) for number in REFERENCE.findall(text)} == set(items)
    assert unproved_rows(text) == []
    assert misplaced_tests(text) == []


def test_what_a_page_says_wrongly_is_found() -> None:
    here = "test_what_a_page_says_wrongly_is_found"
    good = f"1. `{here}` in `tests/unit/support/test_tests_on_pages.py`:\n   all\n2. `{here}`\n"
    assert (missing_tests(good), misplaced_tests(good)) == ([], [])
    gone = "`test_of_yesterday` in `support/test_yesterday.py`"
    assert missing_tests(gone) == ["test_of_yesterday", "support/test_yesterday.py"]
    assert misplaced_tests(f"1. `{here}`\n   in `test_tidy.py`\n2. `{here}`\n") == [
        f"1: {here}",
        f"2: {here}",
    ]
    table = "| At once | Proved by |\n|---|---|\n| a | [1](#tests) |\n| b | – |\n| c | seen |\n"
    assert unproved_rows(table) == [["c", "seen"]]
