"""A row of docs/features.md is proven clause by clause, by tests that passed at the first try, or
by dated figures; CI's rules on skips and second tries hold.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ci_rules import may_be_skipped
from feature_ledger import PROVEN, LedgerError, compare, in_order, load_ledger, read_ledger, report

ROOT = Path(__file__).resolve().parent.parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "bench"))
from figures import record  # noqa: E402

PAGE = (
    "| 1 | Frames | They parse. | |\n| 2 | Codes | 0 is success; others raise. | |\n| 3 | Start |"
    " Ready in 1 s. | |\n"
)
CLAUSES = """
[row.2]
a = "0 is success"
b = "others raise"
[measured]
3a = { most = 1, unit = "s" }
"""
TODAY = datetime.date(2026, 12, 15)


def figures(**changed: object) -> str:
    """A figures file of three weeks before TODAY."""
    known = {
        "value": 0.4,
        "figure": "ready in 0.4 s",
        "date": "2026-11-24",
        "machine": "2 cores",
        "command": "make bench",
        "commit": "abc",
    }
    return json.dumps({"3a": {**known, **changed}})


def test_a_row_is_proven_when_all_its_clauses_are() -> None:
    ledger = read_ledger(PAGE, CLAUSES, figures())

    def status(tests: dict[str, list[str]]) -> list[str]:
        return [ledger.rows[number].status(tests, TODAY) for number in (1, 2, 3)]

    assert status({}) == ["-", "-", "proven"]
    tests = {"1a": ["x"], "2b": ["y"]}
    assert status(tests) == ["proven", "partly", "proven"]
    text = "\n".join(report(ledger, tests, TODAY))
    assert "MISSING: 0 is success" in text
    assert "promised: at most 1 s" in text
    assert "measured 2026-11-24: ready in 0.4 s" in text
    assert "(make bench; 2 cores; commit abc)" in text
    assert "PARTLY" not in text
    assert status({**tests, "2a": ["z"]}) == ["proven"] * 3


@pytest.mark.parametrize(
    ("limit", "value", "date", "doubt"),
    [
        ("most = 1", 0.9, "2026-11-24", ""),
        ("most = 1", 0.91, "2026-11-24", "0.91 is nearer than 10% to the limit"),
        ("most = 1", 1.01, "2026-11-24", "1.01 is not at most 1 s"),
        ("least = 2", 2.2, "2026-11-24", ""),
        ("least = 2", 2.19, "2026-11-24", "2.19 is nearer than 10% to the limit"),
        ("least = 2", 1.99, "2026-11-24", "1.99 is not at least 2 s"),
        ("most = 1", 0.4, "2026-11-23", "22 days old: measure again"),
        ("most = 1", None, "", "no benchmark has recorded a figure"),
    ],
)
def test_a_figure_that_is_old_or_near_to_its_limit_proves_a_row_partly(
    limit: str, value: float | None, date: str, doubt: str
) -> None:
    known = "{}" if value is None else figures(value=value, date=date)
    ledger = read_ledger(PAGE, CLAUSES.replace("most = 1", limit), known)
    tests = {"3a": ["a test of what the figure is about"]}
    assert ledger.rows[3].status(tests, TODAY) == ("partly" if doubt else "proven")
    assert ("PARTLY: " + doubt in "\n".join(report(ledger, tests, TODAY))) == bool(doubt)
    assert ledger.rows[3].status({}, TODAY) == (
        "-" if value is None else "partly" if doubt else "proven"
    )


def test_a_benchmark_writes_a_figure_of_its_own_clause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [str(ROOT / "tests/bench/bench_start.py"), "--starts", "2"])
    file = tmp_path / "figures.json"
    for value in (0.25, 0.26):
        record(file, "170e", value, f"{value} s for mqadmin topic list")
    record(file, "42a", 0.5, "0.5 ms")
    record(None, "180b", 24, "24 ms")
    written = json.loads(file.read_text())
    assert list(written) == ["42a", "170e"]
    known = load_ledger(file).rows[170].measured["e"]
    assert (known.value, known.figure) == (0.26, "0.26 s for mqadmin topic list")
    assert known.command == "python tests/bench/bench_start.py --starts 2"
    assert known.date == datetime.date.today()
    assert known.commit
    assert f"Python {sys.version_info.major}.{sys.version_info.minor}" in known.machine
    with pytest.raises(LedgerError, match="clause 16b promises no figure"):
        record(file, "16b", 1, "1 s")


def test_a_mark_names_the_clause_that_it_proves() -> None:
    ledger = read_ledger(PAGE, CLAUSES)
    assert (ledger.clause(1), ledger.clause("1a"), ledger.clause("2b")) == ("1a", "1a", "2b")
    for wrong in (2, "2c", 4, "x", "b2", "1b"):
        with pytest.raises(LedgerError, match="feature"):
            ledger.clause(wrong)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[row.2]", "[row.9]"),
        ('b = "others', 'c = "others'),
        ("3a =", "3b ="),
        ("most = 1, ", ""),
        ("most = 1", "most = 1, least = 1"),
        ("most = 1", "most = 0"),
        (', unit = "s"', ""),
    ],
)
def test_clauses_that_do_not_fit_the_page_are_refused(old: str, new: str) -> None:
    assert old in CLAUSES
    with pytest.raises(LedgerError, match=r"tests/feature_clauses\.toml"):
        read_ledger(PAGE, CLAUSES.replace(old, new))


@pytest.mark.parametrize(
    "changed",
    [{"figure": "fast"}, {"date": "soon"}, {"command": ""}, {"value": "x"}, {"surplus": 1}],
)
def test_a_damaged_figure_is_refused(changed: dict[str, object]) -> None:
    with pytest.raises(LedgerError, match=r"tests/figures\.json: the figure of 3a"):
        read_ledger(PAGE, CLAUSES, figures(**changed))
    with pytest.raises(LedgerError, match=r"tests/figures\.json has figures of clauses"):
        read_ledger(PAGE, CLAUSES.partition("[measured]")[0], figures())


def test_the_clauses_of_the_tree_fit_its_page() -> None:
    assert len(load_ledger().rows) == 212


@pytest.mark.parametrize(
    ("proven", "again", "says"),
    [
        ("1a 10b", "", []),
        ("1a 10b 204b", "", []),
        ("1a", "10b", []),
        ("1a", "", ["clause 10b is not proven any more"]),
        ("1a 2a 10b", "", ["clause 2a is proven and not listed"]),
        ("", "", ["clause 1a is not", "clause 10b is not"]),
    ],
)
def test_a_clause_is_missing_or_new_by_its_name(proven: str, again: str, says: list[str]) -> None:
    lines = list(compare("1a\n10b\n204b?\n", proven.split(), again.split()))
    assert len(lines) == len(says), lines
    assert all(line.startswith(start) for line, start in zip(lines, says, strict=True))


def test_a_run_that_proves_something_else_fails(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    listed = [name for name in PROVEN.read_text().split() if not name.endswith("?")]
    for names, code in ((listed, 0), (listed[1:], 1)):
        record.write_text(json.dumps({"proven": {name: ["test"] for name in names}, "again": {}}))
        done = subprocess.run(
            [sys.executable, "tests/features.py", str(record)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
    assert f"clause {listed[0]} is not proven any more" in done.stderr


def test_the_list_names_clauses_of_the_page() -> None:
    ledger = load_ledger()
    listed = [name.removesuffix("?") for name in PROVEN.read_text().split()]
    assert [ledger.clause(name) for name in listed] == listed == sorted(listed, key=in_order)


CASES = """
import pytest
tries = []
PROVES
def test_passes(): pass
PROVES
def test_fails(): assert False
PROVES
@pytest.mark.compat
def test_foreign_second_try():
    tries.append(1)
    assert len(tries) == 2
@pytest.mark.compat
@pytest.mark.loss
def test_foreign_loss_second_try():
    tries.append(1)
    assert len(tries) > 9
@pytest.mark.spark
@pytest.mark.loss
@pytest.mark.parametrize("fault", ["failed to connect back", "'spark-submit' timed out after 9 s"])
def test_spark(fault, seen=[]):
    seen.append(fault)
    if seen.count(fault) == 1:
        raise RuntimeError(fault)
@pytest.mark.slow
def test_slow_second_try():
    tries.append(1)
    assert len(tries) > 9
PROVES
def test_skipped(): pytest.skip("this kernel has no such thing")
"""


def test_only_foreign_peers_get_a_second_try_and_it_proves_nothing(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n  feature\n  compat\n  loss\n  slow\n  spark\n"
    )
    (tmp_path / "test_cases.py").write_text(
        CASES.replace("PROVES", "@pytest.mark.feature" + "(49)")
    )
    record = tmp_path / "record.json"
    record.write_text("stale")
    plugins = [
        word
        for name in ("ci_rules", "feature_record", "no:triomq", "no:cacheprovider")
        for word in ("-p", name)
    ]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        *plugins,
        "--again",
        "--no-skips",
        f"--features={record}",
        "test_cases.py",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests" / "support")}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
    )
    assert "5 failed, 3 passed, 2 rerun" in done.stdout, done.stdout + done.stderr
    assert "second tries: 2" in done.stdout
    assert "test_skipped was skipped, and --no-skips forbids it" in done.stdout
    assert json.loads(record.read_text()) == {
        "proven": {"49a": ["test_cases.py::test_passes"]},
        "again": {"49a": ["test_cases.py::test_foreign_second_try"]},
    }


def test_only_a_named_test_may_be_skipped_and_only_for_its_reason() -> None:
    file = "tests/integration/broker/test_full_disk.py"
    test = f"{file}::test_a_disk_that_is_really_full_ends_no_process[ext4]"
    assert may_be_skipped(test, "this kernel has no ext4 on a loop device: mount failed")
    assert not may_be_skipped(test, "mount failed")
    assert not may_be_skipped(test.replace("ext4", "tmpfs"), "this kernel has no tmpfs")
    assert not may_be_skipped(
        "tests/unit/test_x.py::test_x", "this kernel has no ext4 on a loop device"
    )
