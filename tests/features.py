"""Print which rows of docs/features.md are proven, by which tests: `python tests/features.py REPORT...`.

A REPORT is what `pytest --features=REPORT` wrote. A row counts only when a test with `@pytest.mark.feature(ROW)` passed in that run; such tests go through
real sockets, processes or files (a tidy rule keeps the marker out of the purely in-memory tests).
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROW = re.compile(r"^\| (\d+) \| ((?:[^|\\]|\\.)+) \|")


def feature_names(page: str) -> dict[int, str]:
    """Row number -> the system or feature it names."""
    return {int(match[1]): match[2].strip() for line in page.splitlines() if (match := ROW.match(line))}


def main(*reports: str) -> int:
    root = Path(__file__).resolve().parent.parent
    names = feature_names((root / "docs" / "features.md").read_text())
    proven: dict[int, list[str]] = {}
    for report in reports:
        for row, tests in json.loads(Path(report).read_text()).items():
            proven.setdefault(int(row), []).extend(tests)
    unknown = sorted(set(proven) - set(names))
    for row, name in names.items():
        tests = proven.get(row, [])
        print(f"{row:>3}  {'proven' if tests else '-':<6}  {name}")
        for test in tests:
            print(f"             {test}")
    print(f"\n{len(set(proven) & set(names))} of {len(names)} rows are proven by this run")
    if unknown:
        print(f"tests name rows that docs/features.md does not have: {unknown}", file=sys.stderr)
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
