"""Print which rows of docs/features.md are proven, partly or not, by which tests and figures:
``python tests/features.py REPORT...``.

A REPORT is what ``pytest --features=REPORT`` wrote. Exit code 1 when fewer rows are proven than by
the last release.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "support"))

from feature_ledger import load_ledger, report


def main(*reports: str) -> int:
    ledger = load_ledger()
    tests: dict[str, list[str]] = {}
    for path in reports:
        for clause, names in json.loads(Path(path).read_text()).items():
            tests.setdefault(ledger.clause(clause), []).extend(names)
    for line in report(ledger, tests):
        print(line)
    counts = Counter(row.status(tests) for row in ledger.rows.values())
    print(
        f"\n{counts['proven']} of {len(ledger.rows)} rows are proven by this run,"
        f" {counts['partly']} partly"
    )
    if counts["proven"] < ledger.released:
        print(
            f"fewer than the {ledger.released} of release {ledger.release}: a test that proved a"
            " row failed, was skipped, needed a second try, or lost its mark",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
