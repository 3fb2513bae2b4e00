"""docs/compatibility.md says what the marks in the tree say, and a cell without a test that passed
beside a foreign program is not green.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.compatibility import PAGE, PASSED, ROOT, main, page

MARK = '@pytest.mark.compatible("send", peer="go-client")\n'
CASES = {
    "passes": MARK + "def test_passes():\n    foreign_peers.note('go-client')\n",
    "is skipped": (
        MARK
        + "def test_is_skipped():\n    foreign_peers.note('go-client')\n    pytest.skip('no Go')\n"
    ),
    "is expected to fail": (
        MARK + "@pytest.mark.xfail\ndef test_is_expected_to_fail():\n   "
        " foreign_peers.note('go-client')\n    assert False\n"
    ),
    "passes unexpectedly": (
        MARK + "@pytest.mark.xfail\ndef test_passes_unexpectedly():\n   "
        " foreign_peers.note('go-client')\n"
    ),
    "passes at the second try": (
        MARK + "@pytest.mark.flaky(reruns=1)\ndef test_passes_at_the_second_try():\n   "
        " foreign_peers.note('go-client')\n    tries.append(1)\n    assert len(tries) == 2\n"
    ),
    "fails": MARK + "def test_fails():\n    foreign_peers.note('go-client')\n    assert False\n",
    "fails at its end": (
        MARK + "def test_fails_at_its_end(broken_end):\n    foreign_peers.note('go-client')\n"
    ),
    "runs no peer": MARK + "def test_runs_no_peer():\n    pass\n",
    "is not marked": "def test_is_not_marked():\n    foreign_peers.note('go-client')\n",
}
OUTCOMES = {
    "passes": PASSED,
    "passes at the second try": PASSED,
    "is skipped": "skipped",
    "is expected to fail": "expected to fail",
    "passes unexpectedly": "expected to fail",
}
IMPORTS = (
    "import foreign_peers\nimport pytest\n\ntries = []\n\n\n@pytest.fixture\ndef broken_end():\n   "
    " yield\n    raise OSError\n\n\n"
)


def recorded(tmp_path: Path, *arguments: object, cwd: Path) -> tuple[int, str, dict[str, Any]]:
    """Run pytest with the plugin; its exit code, what it printed, and the record."""
    record = tmp_path / "record.json"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--compatibility={record}",
        *map(str, arguments),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests" / "support")}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env=environment, check=False
    )
    return (
        done.returncode,
        done.stdout + done.stderr,
        json.loads(record.read_text()) if record.exists() else {},
    )


def given_that_they_pass(record: dict[str, Any]) -> dict[str, Any]:
    return {test: {**entry, "outcome": PASSED} for test, entry in record.items()}


def test_the_page_is_what_the_marks_in_the_tree_say(tmp_path: Path) -> None:
    code, said, record = recorded(tmp_path, "--collect-only", "tests/compat", cwd=ROOT)
    assert code == 0, said
    assert {entry["outcome"] for entry in record.values()} == {"collected"}
    assert page(given_that_they_pass(record)) == PAGE.read_text(), (
        "marks have changed: `make compatibility` after `make test-all` writes the page"
    )
    fewer = dict(list(given_that_they_pass(record).items())[1:])
    assert page(fewer) != PAGE.read_text(), "the page shows when a mark is gone"
    assert "| **green**" not in page(record)


def test_only_what_passed_beside_a_foreign_program_is_green(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_cases.py").write_text(IMPORTS + "\n\n".join(CASES.values()))
    code, said, record = recorded(
        tmp_path, "-p", "compatibility_record", "-p", "no:triomq", "test_cases.py", cwd=tmp_path
    )
    assert code == 1, said
    assert "it is marked compatible with go-client, and no such program ran" in said
    outcomes = {
        test.partition("::test_")[2].replace("_", " "): entry["outcome"]
        for test, entry in record.items()
    }
    assert outcomes == {
        name: OUTCOMES.get(name, "failed") for name in CASES if name != "is not marked"
    }
    monkeypatch.setattr("tests.compatibility.PAGE", tmp_path / "page.md")
    for test, entry in record.items():
        (tmp_path / "one.json").write_text(json.dumps({test: entry}))
        assert main(str(tmp_path / "one.json")) == (0 if entry["outcome"] == PASSED else 1)
        (row,) = [
            line for line in page({test: entry}).splitlines() if line.startswith("| **send**")
        ]
        assert ("**green**" in row, "NOT GREEN" in row) == (
            entry["outcome"] == PASSED,
            entry["outcome"] != PASSED,
        )
    assert main("--check", str(tmp_path / "one.json")) == 1, (
        "it is not the page of a run that failed"
    )


@pytest.mark.parametrize(
    "mark",
    [
        '"sent", peer="go-client"',
        '"send"',
        '"lite seek", peer="go-client"',
        '"send", peer="go-client", only={"mode": 1}',
    ],
)
def test_a_mark_for_a_cell_that_there_is_not_is_refused(tmp_path: Path, mark: str) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_case.py").write_text(
        f"import pytest\n\n\n@pytest.mark.compatible({mark})\ndef test_case():\n    pass\n"
    )
    code, said, _ = recorded(
        tmp_path, "-p", "compatibility_record", "-p", "no:triomq", "test_case.py", cwd=tmp_path
    )
    assert code == pytest.ExitCode.USAGE_ERROR, said
    assert "test_case" in said
