"""Print which rows of docs/features.md are proven, partly or not, by which tests and figures:
``python tests/features.py [--write] REPORT…``.

A REPORT is what ``pytest --features=REPORT`` wrote. Exit code 1 when the clauses that the run
proves differ from ``tests/proven_clauses.txt``; each difference is printed by name. ``--write``
makes the file say what the run proved.
"""

from __future__ import annotations

import datetime
import json
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "support"))

from feature_ledger import PROVEN, compare, in_order, load_ledger, nightly_lines, report

NIGHTLY = Path(__file__).resolve().parent / "nightly.json"
"""What the last ``make nightly`` says of itself."""

ALONE = ".alone.json"
"""The end of the name of a REPORT about tests that had failed beside others."""


def main(*words: str) -> int:
    ledger = load_ledger()
    tests: dict[str, list[str]] = {}
    again: set[str] = set()
    for path in (word for word in words if word != "--write"):
        record = json.loads(Path(path).read_text())
        again |= record["again"].keys()
        if path.endswith(ALONE):
            again |= record["proven"].keys()
            continue
        for clause, names in record["proven"].items():
            tests.setdefault(ledger.clause(clause), []).extend(names)
    today = datetime.date.today()
    for line in report(ledger, tests, today):
        print(line)
    counts = Counter(row.status(tests, today) for row in ledger.rows.values())
    print(
        f"\n{counts['proven']} of {len(ledger.rows)} rows are proven by this run,"
        f" {counts['partly']} partly"
    )
    for line in nightly_lines(NIGHTLY.read_text() if NIGHTLY.exists() else "", today):
        print(line)
    for clause in sorted(again - tests.keys(), key=in_order):
        print(f"clause {clause} needed a second try, which proves nothing")
    if "--write" in words:
        optional = {name for name in PROVEN.read_text().split() if name.endswith("?")}
        names = {name for name in tests if f"{name}?" not in optional} | optional
        PROVEN.write_text("".join(f"{name}\n" for name in sorted(names, key=in_order)))
        return 0
    differences = list(compare(PROVEN.read_text(), tests, again))
    for line in differences:
        print(line, file=sys.stderr)
    return int(bool(differences))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
