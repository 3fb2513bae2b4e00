"""The lanes of CI: which may start when, what is shown of them, and that each test is in one."""

from __future__ import annotations

import datetime
import fnmatch
import itertools
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import feature_ledger
import pytest
from _pytest.mark.expression import Expression

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests"))
import features  # noqa: E402
import lanes  # noqa: E402
import pythons  # noqa: E402
from lanes import Lane, next_lane, play, show  # noqa: E402

MARKS = ("compat", "slow", "spark", "hostile", "compose", "nightly")


@pytest.fixture(autouse=True)
def _logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "LOGS", tmp_path)
    monkeypatch.setattr(lanes, "BASELINE", tmp_path / "baseline.json")


def says(name: str, words: str, code: int = 0, **rules: object) -> Lane:
    program = f"print({words!r}); raise SystemExit({code})"
    return Lane(name, (sys.executable, "-c", program), **rules)  # type: ignore[arg-type]


def test_a_lane_waits_for_those_before_it_and_for_the_machine_if_it_is_apart() -> None:
    peers, apart = Lane("peers", (), after=("install",)), Lane("containers", (), apart=True)
    assert next_lane([peers, apart], {"fast"}, set()) is None
    assert next_lane([peers, apart], {"fast"}, {"install"}) is peers
    assert next_lane([peers, apart], set(), set()) is apart
    assert next_lane([], set(), {"install"}) is None


def test_what_follows_a_failed_lane_is_not_begun_and_the_others_are() -> None:
    plan = (
        says("install", "no network", 3),
        says("peers", "never", after=("install",)),
        says("fast", "1 passed in 0.1s"),
        says("containers", "alone", apart=True),
        says("features", "all", after=("fast", "containers")),
    )
    codes = {outcome.lane.name: outcome.code for outcome in play(plan)}
    assert codes == {"install": 3, "fast": 0, "containers": 0, "features": 0}


def test_a_lane_that_is_alone_need_not_wait_for_lanes_that_are_not_asked_for() -> None:
    (outcome,) = play((says("peers", "2 passed", after=("install",)),))
    assert outcome.code == 0


def test_the_output_of_a_failed_lane_comes_last_and_whole(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = (says("bad", "the reason", 1), says("good", "5 passed in 1s"), says("never", "x"))
    outcomes = play(plan[:2])
    shown = capsys.readouterr().out
    assert "good passed after" in shown
    assert "5 passed in 1s" in shown
    assert "the reason" not in shown
    show(plan, outcomes)
    shown = capsys.readouterr().out
    assert shown.index("bad failed") < shown.index("the reason")
    assert "never" in shown.split("not begun")[1]
    assert shown.endswith("failed lanes: bad\n")


def test_a_lane_that_grew_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    lanes.BASELINE.write_text('{"fast": 100, "slow": 100}')
    plan = (Lane("fast", ()), Lane("slow", ()))
    for lane in plan:
        lanes.log_of(lane).touch()
    show(plan, [lanes.Outcome(plan[0], 0, 120.4, 9), lanes.Outcome(plan[1], 0, 120.6, 9)])
    assert capsys.readouterr().out == ("slow took 121 s, 21 s longer than the committed baseline\n")


def test_a_stale_seed_is_named_although_its_test_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    note = "a_broken_rule is found by 17 now, not by 5"
    module = tmp_path / "test_broken.py"
    module.write_text(f"def test(record_property): record_property('stale seed', {note!r})\n")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "support"))
    plugins = ("-p", "ci_rules", "-p", "no:triomq", "-p", "no:cacheprovider")
    words = (sys.executable, "-m", "pytest", "-q", *plugins, f"--rootdir={tmp_path}", str(module))
    outcomes = play((Lane("slow", words),))
    assert outcomes[0].code == 0
    capsys.readouterr()
    show((), outcomes)
    assert capsys.readouterr().out == f"stale seed: {note}: note the new one\n"


HANGS = """
import signal, subprocess, sys, time
if {deaf}:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
print("server", child.pid, flush=True)
try:
    time.sleep(3600)
except KeyboardInterrupt:
    child.wait()
"""


@pytest.mark.parametrize("deaf", [False, True])
def test_a_lane_that_hangs_is_broken_off_with_what_it_started(
    deaf: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by Ctrl-C, and if that does not help it is killed; what the night did so far is known."""
    hangs = Lane("soak", (sys.executable, "-c", HANGS.format(deaf=deaf)), minutes=0.001)
    log = lanes.log_of(hangs)

    class FromTheServerOn(threading.Timer):
        def run(self) -> None:
            until(lambda: log.exists() and "server" in log.read_text())
            super().run()

    monkeypatch.setattr(lanes, "GRACE_SECONDS", 0.5 if deaf else 60.0)
    monkeypatch.setattr(lanes.threading, "Timer", FromTheServerOn)
    noted: list[set[str]] = []
    outcomes = play((hangs,), lambda some: noted.append({each.lane.name for each in some}))
    assert [(outcome.lane.name, outcome.code) for outcome in outcomes] == [("soak", 124)]
    assert noted == [{"soak"}]
    assert log.read_text().endswith("broken off after 0.001 minutes\n")
    server = int(log.read_text().split()[1])
    until(lambda: not Path(f"/proc/{server}").exists())


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def flaky(folder: Path, count: int, code: int = 1) -> Lane:
    """A lane whose first run names ``count`` failed tests, which pass alone."""
    program = (
        f"import pathlib; pathlib.Path({str(folder / 'fast.failures')!r}).write_text("
        f"'test_x.py::test\\n' * {count}); raise SystemExit({code})"
    )
    return Lane("fast", (sys.executable, "-c", program))


@pytest.mark.parametrize(
    ("count", "first", "code"), [(0, 1, 1), (1, 1, 0), (5, 1, 0), (6, 1, 1), (1, 3, 3)]
)
def test_a_few_failed_tests_run_once_more_and_are_named(
    tmp_path: Path, count: int, first: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not if pytest itself has failed: then some tests have not run at all."""
    monkeypatch.setattr(lanes, "PYTEST", (sys.executable, "-c", "print('1 passed')"))
    (outcome,) = play((flaky(tmp_path, count, first),))
    assert outcome.code == code
    assert len(outcome.again) == (count if code == 0 else 0)


def test_the_failures_of_the_run_before_are_not_those_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "PYTEST", (sys.executable, "-c", "print('1 passed')"))
    (tmp_path / "fast.failures").write_text("test_x.py::test\n")
    (outcome,) = play((says("fast", "ended in the middle", 1),))
    assert (outcome.code, outcome.again) == (1, ())


RECORDS_OF_A_RUN = """
import pathlib, sys
for word in sys.argv[1:]:
    name, _, path = word.partition("=")
    if name in ("--features", "--compatibility"):
        pathlib.Path(path).write_text(name)
"""


def test_what_a_test_did_alone_is_read_for_its_own_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two records have different shapes; the Makefile chooses them by their names."""
    monkeypatch.setattr(lanes, "PYTEST", (sys.executable, "-c", RECORDS_OF_A_RUN))
    monkeypatch.setattr(lanes, "ROOT", tmp_path.parent)
    (outcome,) = play((flaky(tmp_path, 1),))
    assert outcome.code == 0
    makefile = (ROOT / "Makefile").read_text()
    for program, option in (("features", "--features"), ("compatibility", "--compatibility")):
        chosen = re.search(rf"/{program}\.py .*\$\(wildcard (.+)\)", makefile)
        assert chosen is not None
        patterns = [pattern.removeprefix(".lanes/") for pattern in chosen[1].split()]
        read = [path.read_text() for pattern in patterns for path in tmp_path.glob(pattern)]
        assert read == [option]


LANE_OF_TWO = """
import pytest
def test_fails_beside_others(): assert False
@pytest.mark.loss
def test_loses_a_message(): assert False
"""


def test_a_lane_that_lost_a_message_runs_no_test_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = loss\n")
    (tmp_path / "test_two.py").write_text(LANE_OF_TWO)
    plugins = ("-p", "ci_rules", "-p", "no:triomq", "-p", "no:cacheprovider")
    monkeypatch.setattr(lanes, "PYTEST", (sys.executable, "-m", "pytest", "-q", *plugins))
    monkeypatch.setattr(lanes, "ROOT", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "support"))
    failures = f"--failures={tmp_path}/two.failures"
    (outcome,) = play((Lane("two", (*lanes.PYTEST, failures, "test_two.py")),))
    log = lanes.log_of(outcome.lane).read_text()
    assert (outcome.code, outcome.again) == (1, ()), log
    assert "2 failed" in log
    assert "once more" not in log


def expression_of(command: tuple[str, ...]) -> Expression | None:
    options = command[command.index("pytest") :] if "pytest" in command else ()
    return Expression.compile(options[options.index("-m") + 1]) if "-m" in options else None


def modules_of(command: tuple[str, ...]) -> set[Path]:
    """The modules that a lane of peers collects."""
    ignored = next(word for word in command if word.startswith("--ignore-glob=")).partition("=")[2]
    named = [ROOT / word for word in command[command.index("tests/compat") :]]
    found = [
        path for each in named for path in (each.rglob("test_*.py") if each.is_dir() else [each])
    ]
    return {path for path in found if not fnmatch.fnmatch(str(path), ignored)}


def test_each_test_runs_in_exactly_one_lane() -> None:
    """Those with the mark hostile may measure, and compose has a target of its own."""
    chosen = [
        (lane.name, expression)
        for lane in (*lanes.CI, *lanes.NIGHTLY)
        if (expression := expression_of(lane.command))
    ]
    assert len(chosen) == 6
    for size in range(len(MARKS)):
        for marks in itertools.combinations(MARKS, size):
            if "compose" in marks or "hostile" in marks:
                continue
            names = [name for name, each in chosen if each.evaluate(lambda mark: mark in marks)]  # noqa: B023
            assert len(names) == 1 or names == ["peers", "peers-more"], (marks, names)
    halves = [modules_of(lane.command) for lane in lanes.CI if lane.name.startswith("peers")]
    elsewhere = {ROOT / path for path in lanes.modules_naming("compat")}
    assert halves[0] | halves[1] == {*(ROOT / "tests" / "compat").rglob("test_*.py"), *elsewhere}
    assert halves[0] & elsewhere == elsewhere
    assert not halves[0] & halves[1]


@pytest.mark.parametrize(("text", "code"), [("pytest.mark.slow", 0), ("a_mark", 4)])
def test_a_mark_that_its_module_does_not_name_is_refused(
    tmp_path: Path, text: str, code: int
) -> None:
    """No lane would find it."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    test = f"import pytest\na_mark = getattr(pytest.mark, 'slow')\n@{text}\ndef test(): pass\n"
    (tmp_path / "test_one.py").write_text(test)
    words = (sys.executable, "-m", "pytest", "-q", "-p", "ci_rules", "-p", "no:triomq")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests" / "support")}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr


def test_the_outcome_of_a_night_is_a_file_that_features_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each lane has its own: one that runs alone leaves those of the others as they are."""
    plan = (says("fuzz", "10 findings", 1), says("soak", "no loss"), says("figures", "written"))
    monkeypatch.setattr(lanes, "NIGHTLY", plan)
    monkeypatch.setattr(lanes, "NIGHTLY_RESULT", tmp_path / "nightly.json")
    for words, code in ((("fuzz",), 1), (("soak",), 0)):
        monkeypatch.setattr(sys, "argv", ["lanes.py", "--nightly", "--only", *words])
        assert lanes.main() == code
    monkeypatch.setattr(features, "NIGHTLY", tmp_path / "nightly.json")
    capsys.readouterr()
    features.main()
    shown = capsys.readouterr().out
    when = rf"on {datetime.date.today()} at (?:[0-9a-f]{{7,}}\+?|unknown), 0 minutes\n"
    assert re.search(
        rf"make nightly:\n  fuzz FAILED {when}  soak passed {when}  figures has not run\n", shown
    )


def test_a_night_that_is_long_ago_is_said_to_be() -> None:
    last = {"date": "2026-11-01", "commit": "abc", "passed": True, "minutes": 9}
    lines = feature_ledger.nightly_lines(json.dumps({"soak": last}), datetime.date(2026, 11, 23))
    assert list(lines) == [
        "make nightly:",
        "  soak passed on 2026-11-01 at abc, 9 minutes; 22 days old: run it again",
    ]
    assert list(feature_ledger.nightly_lines("", datetime.date(2026, 11, 23))) == [
        "make nightly has left no result"
    ]


def test_an_unknown_lane_is_refused_with_the_known_ones(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["lanes.py", "--only", "faast"])
    with pytest.raises(SystemExit):
        lanes.main()
    assert (
        "no lane faast; there are byte-code, check, install-peers, peers" in capsys.readouterr().err
    )


def test_four_days_have_both_pythons_with_all_modules_of_the_sdk() -> None:
    turns = [pythons.turn_of(day) for day in range(20_000, 20_004)]
    for release in pythons.SUITES:
        modules = [module for each, half in turns if each == release for module in half]
        assert sorted(modules) == pythons.sdk_tests()
