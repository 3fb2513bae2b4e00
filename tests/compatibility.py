"""Write docs/compatibility.md from what a run of the tests recorded: ``python
tests/compatibility.py [--check] RECORD …``.

A RECORD is what ``pytest --compatibility=RECORD`` wrote (``make test-all`` does). With ``--check``
nothing is written, and a page that differs is an error. Either way the exit code is 1
when a test that a cell relies on did not pass; what a test did alone, after it had failed beside
others, counts.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

from compatibility_rows import COLUMNS, NOT_POSSIBLE, SECTIONS  # noqa: E402  (a module of the tests)

PAGE = ROOT / "docs" / "compatibility.md"
PASSED = "passed"
ALONE = ".alone.json"
"""The end of the name of a RECORD of tests that had failed beside others."""

HEAD = """\
# Compatibility: what was tried with programs that we did not write

Generated from a run of the tests (`make test-all`, then `make compatibility`). The peers are the
unmodified official programs: Java clients, name servers, brokers and tools of 5.5.0 and 4.9.4, the
Go client 2.1.2, and the gRPC clients of RocketMQ 5 for Java, Python, Node and Go. The columns of
clients show them on our name servers and brokers; the columns of servers show our SDK and our
`mqadmin` on theirs, or our servers beside theirs. The tables of gRPC clients name the server that
they connect to.

**green**: in the tests behind the link a program of the peer ran, and its effect was read back from
the other side, ours or theirs (numbers, bodies, order, not just an answer without error). A skipped
test, or a test that is expected to fail, makes no cell green; a test in which no program of the
peer ran fails the run. *not tested* is just that. Where a cell cannot be filled, a footnote says
why.
"""


def function_of(test: str) -> str:
    return test.partition("::")[2].partition("[")[0]


def cell(
    row: str, column: str, tests: list[str], record: dict[str, Any], notes: dict[str, int]
) -> str:
    """What one cell says: green with the files of its tests, or why not."""
    if not tests:
        reason = NOT_POSSIBLE.get((row, column))
        return (
            "*not tested*"
            if reason is None
            else f"not possible[^{notes.setdefault(reason, len(notes) + 1)}]"
        )
    bad = sorted({record[test]["outcome"] for test in tests} - {PASSED})
    files: dict[str, set[str]] = defaultdict(set)
    for test in tests:
        files[test.partition("::")[0]].add(function_of(test))
    links = ", ".join(
        f"[{Path(file).stem.removeprefix('test_').replace('_', ' ')}](../{file}"
        f' "{", ".join(sorted(functions))}")'
        for file, functions in sorted(files.items())
    )
    return f"**NOT GREEN: {', '.join(bad)}** {links}" if bad else f"**green** {links}"


def page(record: dict[str, Any]) -> str:
    """The page for a record: test -> {"outcome", "cells": [[row, column], …]}."""
    tests: dict[tuple[str, str], list[str]] = defaultdict(list)
    for test, entry in sorted(record.items()):
        for row, column in entry["cells"]:
            tests[row, column].append(test)
    notes: dict[str, int] = {}
    tables = ""
    green: dict[str, int] = defaultdict(int)
    possible: dict[str, int] = defaultdict(int)
    for section in SECTIONS:
        tables += (
            f"\n## {section.title}\n\n| |"
            f" {' | '.join(COLUMNS[column] for column in section.columns)}"
            f" |\n|---|{'---|' * len(section.columns)}\n"
        )
        for row, text in section.rows.items():
            cells = {
                column: cell(row, column, tests[row, column], record, notes)
                for column in section.columns
            }
            for column, said in cells.items():
                green[column] += said.startswith("**green**")
                possible[column] += not said.startswith("not possible")
            tables += f"| **{row}**: {text} | {' | '.join(cells.values())} |\n"
    summary = (
        "\n| | "
        + " | ".join(COLUMNS.values())
        + " |\n|---|"
        + "---|" * len(COLUMNS)
        + "\n| green, of the possible cells | "
    )
    summary += " | ".join(f"{green[column]} of {possible[column]}" for column in COLUMNS) + " |\n"
    listing: dict[str, set[str]] = defaultdict(set)
    for test in record:
        listing[test.partition("::")[0]].add(function_of(test))
    names = "\n## The tests\n\n" + "".join(
        f"- [{file}](../{file}): {', '.join(f'`{name}`' for name in sorted(functions))}\n"
        for file, functions in sorted(listing.items())
    )
    return (
        HEAD
        + summary
        + tables
        + names
        + (
            "\n" + "".join(f"[^{number}]: {reason}.\n" for reason, number in notes.items())
            if notes
            else ""
        )
    )


def main(*words: str) -> int:
    check = "--check" in words
    record: dict[str, Any] = {}
    sources = [word for word in words if word != "--check"]
    for source in sorted(sources, key=lambda source: source.endswith(ALONE)):
        record.update(json.loads(Path(source).read_text()))
    bad = {test: entry["outcome"] for test, entry in record.items() if entry["outcome"] != PASSED}
    for test, outcome in bad.items():
        print(f"{outcome}: {test}", file=sys.stderr)
    text = page(record)
    current = PAGE.read_text() if PAGE.exists() else ""
    if check and text != current:
        print(
            "docs/compatibility.md is not what this run says: `make compatibility` after `make"
            " test-all` writes it",
            file=sys.stderr,
        )
        return 1
    if not check:
        PAGE.write_text(text)
    counts = ", ".join(re.findall(r"\d+ of \d+", text.split("\n## ")[0]))
    print(f"docs/compatibility.md: {'the same' if text == current else 'written'}; green: {counts}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
