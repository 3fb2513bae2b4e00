"""Run the lanes of CI three at a time: ``python tests/lanes.py [--nightly] [--only LANE …]``.

A lane is one command of the Makefile or one selection of tests. Lanes start in the order of the
table, each as soon as one of the three places is free and the lanes that it follows have passed; a
lane that is ``apart`` has the machine to itself. The output of each lane is in ``.lanes/NAME.log``;
that of a failed lane is printed whole, last. ``.lanes/seconds.json`` and ``processor.json`` have
what each lane took, ``.lanes/slowest.txt`` the 300 slowest tests. Exit code 1 if a lane failed, or
if CI has become too expensive; ``--nightly`` writes what each lane came to into
``tests/nightly.json`` when it has ended, for ``make features``. A lane that takes longer than its
limit is broken off as by Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import BinaryIO

import attrs
import pytest

ROOT = Path(__file__).resolve().parents[1]
LOGS = ROOT / ".lanes"
BASELINE = ROOT / "tests" / "lane_seconds.json"
NIGHTLY_RESULT = ROOT / "tests" / "nightly.json"
PLACES = 3
GREW = 20
"""Seconds by which a lane may grow beyond the committed baseline before it is named."""
GRACE_SECONDS = 60.0
"""What a lane that was broken off has to end its servers, before it is killed with them."""
BROKEN_OFF = 124
"""Its exit code, whatever it makes of the interruption."""
ALONE_MAX = 5
BUDGET = 40 * 60 * 2 * 1.25
"""Seconds of processor time that CI may take: 40 minutes of two cores, and a quarter more."""
STALE_SEED = "stale seed: "
"""What the plugin ``ci_rules`` says at the end of a run."""
DURATION = re.compile(r"^ *([\d.]+)s (?:call|setup|teardown) +(.+)$", re.MULTILINE)
PYTEST = (
    *(sys.executable, "-m", "pytest", "-q", "--color=no", "--durations=300"),
    *("--no-skips", "--again"),
)
SIDE_BY_SIDE = ("-n", "3", "--dist", "worksteal")
CHECKED = ("--ignore=tests/test_tidy.py", "--ignore-glob=*/test_facades_match.py")
"""the tests of the lane ``check``"""
NOT_IN_CI = "not nightly and not hostile and not compose"


@attrs.frozen
class Lane:
    """``command``: its words; ``ports``: those that its tests, and no other lane's, may take;
    ``after``: lanes that must have passed; ``apart``: no other lane runs beside it; ``minutes``:
    its limit.
    """

    name: str
    command: tuple[str, ...]
    ports: str = "15000-31999"
    after: tuple[str, ...] = ()
    apart: bool = False
    minutes: float = 60


def modules_naming(mark: str) -> tuple[str, ...]:
    """The modules of tests that have this mark, without those in ``tests/compat``. The import of
    all others takes 20 seconds of processor time, and is for the lane ``fast`` alone; the
    plugin ``ci_rules`` refuses a mark that a module does not name.
    """
    return tuple(
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if f"mark.{mark}" in path.read_text() and path.parent.name != "compat"
    )


def selection(name: str, marks: str, *options: str) -> tuple[str, ...]:
    """The command of a lane of tests, whose marks are ``marks`` without what CI leaves out."""
    records = (
        f"--features={LOGS.name}/{name}.features.json",
        f"--failures={LOGS.name}/{name}.failures",
    )
    return (*PYTEST, "-m", f"{marks} and {NOT_IN_CI}", *records, *options)


def with_peers(name: str, marks: str, *options: str) -> tuple[str, ...]:
    """The command of a lane whose tests prove a cell of docs/compatibility.md."""
    record = f"--compatibility={LOGS.name}/compatibility-{name}.json"
    return selection(name, marks, record, *options)


def peers(name: str, left_out: str, *more: str) -> tuple[str, ...]:
    """Half of the tests with peers: two lanes that wait for Java more than for a processor.

    ``left_out``: the first letters of modules of the other half; ``more``: modules elsewhere.
    """
    modules = f"--ignore-glob=*/compat/test_{left_out}*.py"
    return with_peers(name, "compat and not spark", modules, "tests/compat", *more)


CI = (
    Lane("byte-code", (sys.executable, "-m", "pytest", "--collect-only", "-qq", "tests")),
    Lane("check", ("make", "check")),
    Lane("install-peers", ("make", "peers")),
    Lane(
        "peers",
        peers("peers", "[n-z]", *modules_naming("compat")),
        ports="15010-17249",
        after=("install-peers",),
    ),
    Lane(
        "peers-more",
        peers("peers-more", "[a-m]"),
        ports="17250-19499",
        after=("install-peers",),
    ),
    Lane(
        "fast",
        selection("fast", "not compat and not slow and not spark", *SIDE_BY_SIDE, *CHECKED),
        ports="23500-27499",
        after=("byte-code",),  # else each of its workers compiles every module
    ),
    Lane(
        "spark",
        with_peers("spark", "spark", "tests/compat", *modules_naming("spark")),
        ports="29500-31999",
        after=("install-peers",),
    ),
    Lane(
        "slow",
        selection(
            "slow",
            "slow and not compat and not spark",
            *("-n", "3", "--dist", "loadfile", *modules_naming("slow")),
        ),
        ports="27500-29499",
        after=("byte-code", "install-peers"),  # else it takes the place of peers that come late
    ),
    Lane("pythons", ("make", "test-pythons")),
    Lane("fuzz", ("make", "fuzz", "SECONDS=30")),
    Lane("site", ("make", "site")),
    Lane("containers", ("make", "compose-test", "ARGS=--no-skips"), apart=True),
    Lane(
        "features",
        ("make", "features"),
        after=("fast", "peers", "peers-more", "spark", "slow", "containers"),
    ),
    Lane(
        "compatibility",
        ("make", "compatibility", "ARGS=--check"),
        after=("peers", "peers-more", "spark"),
    ),
)
NIGHTLY = (
    Lane("kubernetes", ("make", "kubernetes-test", "ARGS=--no-skips"), minutes=90),
    Lane(
        "nightly",
        (*PYTEST, "-m", "nightly and not hostile and not compose", "--timeout=1800"),
        apart=True,
        minutes=180,
    ),
    Lane(
        "properties",
        (
            *("env", "EXAMPLES=600", "RAFT_SEEDS=10000", *PYTEST, "--timeout=3600"),
            "tests/property/test_protocol_roundtrip.py",
            "tests/property/test_raft_simulation.py",
        ),
        apart=True,
        minutes=120,
    ),
    Lane("hostile", ("make", "hostile"), apart=True),
    Lane("fuzz-longer", ("make", "fuzz", "SECONDS=900"), apart=True),
    Lane("both-pythons", ("make", "test-pythons", "PYTHONS=trixie sid", "ARGS=--full"), apart=True),
    Lane("simulate", ("make", "simulate", "SEEDS=2000"), apart=True, minutes=180),
    Lane("fault-test", ("make", "fault-test", "SCHEDULES=40"), apart=True),
    Lane(
        "fault-controllers",
        ("make", "fault-test", "SCHEDULES=20", "ARGS=--controllers"),
        apart=True,
    ),
    Lane("spark-chaos", ("make", "spark-chaos"), apart=True, minutes=120),
    Lane("lakes", ("make", "lake-test"), apart=True),
    Lane("spark-chaos-delta", ("make", "spark-chaos", "RUNS=9", "ARGS=--lake delta"), apart=True),
    Lane("figures", ("make", "figures"), apart=True),
)


@attrs.frozen
class Outcome:
    """``processor``: seconds of processor time; ``again``: the tests that failed beside others."""

    lane: Lane
    code: int
    seconds: float
    processor: float
    again: tuple[str, ...] = ()


def log_of(lane: Lane) -> Path:
    return LOGS / f"{lane.name}.log"


def environment(lane: Lane) -> dict[str, str]:
    """Byte code is kept: without it each worker and each server compiles everything again. What
    ``make ci ARGS=…`` says to this program is not for the lane's own make.
    """
    dropped = {"PYTHONDONTWRITEBYTECODE", "MAKEFLAGS", "ARGS"}
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return {
        **kept,
        "PYTHONPYCACHEPREFIX": str(LOGS / "byte-code"),
        "TEST_PORTS": lane.ports,
        "PYTHONHASHSEED": "0",  # a simulated history depends on it
        "CI": "true",
    }


def run(lane: Lane) -> Outcome:
    """Run one lane to its end, its output in its file.

    Up to ALONE_MAX failed tests, none of which counts messages, run once more one after the other:
    a machine that stood still for some seconds must not hide the state of the rest. They prove
    nothing, and are named as what has to be mended.
    """
    began = time.monotonic()
    failures = LOGS / f"{lane.name}.failures"
    failures.unlink(missing_ok=True)  # that of the run before names other tests
    alone = (f"{lane.name}.features.alone.json", f"compatibility-{lane.name}.alone.json")
    for record in alone:
        (LOGS / record).unlink(missing_ok=True)
    with log_of(lane).open("wb") as log:
        code, processor = execute(lane, lane.command, log)
    some_failed = code == pytest.ExitCode.TESTS_FAILED and failures.exists()
    ids = failures.read_text().splitlines() if some_failed else []
    again: tuple[str, ...] = ()
    if 0 < len(ids) <= ALONE_MAX:
        with log_of(lane).open("ab") as log:
            log.write(b"\n===== the failed tests once more, one after the other\n")
            log.flush()
            records = (
                f"--features={LOGS.name}/{alone[0]}",
                f"--compatibility={LOGS.name}/{alone[1]}",
            )
            code, more = execute(lane, (*PYTEST, *records, f"@{failures}"), log)
        processor += more
        again = tuple(ids)
    return Outcome(lane, code, time.monotonic() - began, processor, again)


def execute(lane: Lane, command: tuple[str, ...], log: BinaryIO) -> tuple[int, float]:
    """Run a command of a lane; return its exit code and its seconds of processor time."""
    started = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment(lane),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    seconds = lane.minutes * 60
    limits = [
        threading.Timer(seconds, signal_family, (started.pid, signal.SIGINT)),
        threading.Timer(seconds + GRACE_SECONDS, signal_family, (started.pid, signal.SIGKILL)),
    ]
    for limit in limits:
        limit.daemon = True
        limit.start()
    _, status, used = os.wait4(started.pid, 0)
    started.returncode = os.waitstatus_to_exitcode(status)
    broken_off = limits[0].finished.is_set()
    for limit in limits:
        limit.cancel()
    if broken_off:
        log.write(f"\n===== broken off after {lane.minutes:g} minutes\n".encode())
        return BROKEN_OFF, used.ru_utime + used.ru_stime
    return started.returncode, used.ru_utime + used.ru_stime


def signal_family(process: int, number: signal.Signals) -> None:
    """Signal a process, those that it started, and those that they started."""
    family = [process]
    for each in family:
        with contextlib.suppress(OSError):
            for children in Path(f"/proc/{each}/task").glob("*/children"):
                family += map(int, children.read_text().split())
    for each in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, number)


def next_lane(waiting: list[Lane], running: set[str], passed: set[str]) -> Lane | None:
    """The first waiting lane that may start now. ``passed``: the lanes that it need not wait for
    any more.
    """
    for lane in waiting:
        if set(lane.after) <= passed and not (lane.apart and running):
            return lane
    return None


def play(
    lanes: tuple[Lane, ...], note: Callable[[list[Outcome]], None] | None = None
) -> list[Outcome]:
    """Run all lanes; one whose ``after`` has failed is not begun. ``note``: called with all
    outcomes so far when a lane has ended.
    """
    names = {lane.name for lane in lanes}
    waiting, outcomes = list(lanes), []
    passed = {name for lane in lanes for name in lane.after} - names
    running: dict[Future[Outcome], Lane] = {}
    with ThreadPoolExecutor(PLACES) as threads:
        while waiting or running:
            alone = any(lane.apart for lane in running.values())
            while not alone and len(running) < PLACES:
                lane = next_lane(waiting, {each.name for each in running.values()}, passed)
                if lane is None:
                    break
                waiting.remove(lane)
                print(f"{time.strftime('%H:%M:%S')} {lane.name} begins", flush=True)
                running[threads.submit(run, lane)] = lane
                alone = lane.apart
            if not running:
                break  # what is left follows a lane that failed
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                outcome = future.result()
                del running[future]
                outcomes.append(outcome)
                if note is not None:
                    note(outcomes)
                if outcome.code == 0:
                    passed.add(outcome.lane.name)
                verdict = "passed" if outcome.code == 0 else f"FAILED ({outcome.code})"
                print(
                    f"{time.strftime('%H:%M:%S')} {outcome.lane.name} {verdict}"
                    f" after {outcome.seconds:.0f} s, {outcome.processor:.0f} s of processor time"
                    f"{last_line(outcome.lane)}",
                    flush=True,
                )
    return outcomes


def last_line(lane: Lane) -> str:
    lines = log_of(lane).read_text(errors="replace").split("\n")
    summary = next((line for line in reversed(lines) if " passed" in line), "")
    return f": {summary.strip('= ')}" if summary else ""


def show(lanes: tuple[Lane, ...], outcomes: list[Outcome]) -> None:
    """Print what grew and what has to be renewed, then which lanes failed, their output last."""
    seconds = {outcome.lane.name: round(outcome.seconds) for outcome in outcomes}
    before = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    for name, now in seconds.items():
        if name in before and now > before[name] + GREW:
            print(f"{name} took {now} s, {now - before[name]} s longer than the committed baseline")
    for outcome in outcomes:
        for line in log_of(outcome.lane).read_text(errors="replace").split("\n"):
            if line.startswith(STALE_SEED):
                print(f"{line}: note the new one")
        for test in outcome.again:
            print(f"failed beside others, and has to be mended: {test}{reason(outcome.lane, test)}")
    failed = [outcome for outcome in outcomes if outcome.code != 0]
    for outcome in failed:
        print(f"\n===== {outcome.lane.name} failed; its output:", flush=True)
        print(log_of(outcome.lane).read_text(errors="replace"), flush=True)
    missing = sorted({lane.name for lane in lanes} - seconds.keys())
    if missing:
        print(f"not begun, since a lane before them failed: {', '.join(missing)}")
    if failed:
        print(f"failed lanes: {', '.join(outcome.lane.name for outcome in failed)}")


def reason(lane: Lane, test: str) -> str:
    """What the first run of a lane says of a failed test in its last lines."""
    start = f"FAILED {test}"
    for line in log_of(lane).read_text(errors="replace").split("\n"):
        if line.startswith(start):
            return line.removeprefix(start)
    return ""


def write_slowest() -> None:
    """The 300 slowest tests of all logs, into ``.lanes/slowest.txt``."""
    found = [
        (float(seconds), test)
        for log in LOGS.glob("*.log")
        for seconds, test in DURATION.findall(log.read_text(errors="replace"))
    ]
    lines = [f"{seconds:8.2f} s  {test}\n" for seconds, test in sorted(found, reverse=True)[:300]]
    (LOGS / "slowest.txt").write_text("".join(lines))


def write_nightly(outcomes: list[Outcome]) -> None:
    """What each lane that has ended came to, with date and commit (with a plus: changed files),
    into NIGHTLY_RESULT; what it says of the other lanes stays.
    """
    words = ("git", "describe", "--always", "--exclude=*", "--dirty=+")
    described = ""
    if shutil.which("git") is not None:
        run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
        described = run.stdout.strip()
    before = json.loads(NIGHTLY_RESULT.read_text()) if NIGHTLY_RESULT.exists() else {}
    ended = {
        outcome.lane.name: {
            "date": time.strftime("%Y-%m-%d"),
            "commit": described or "unknown",
            "passed": outcome.code == 0,
            "minutes": round(outcome.seconds / 60),
        }
        for outcome in outcomes
    }
    result = {lane.name: (before | ended).get(lane.name) for lane in NIGHTLY}
    NIGHTLY_RESULT.write_text(json.dumps(result, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nightly", action="store_true", help="the lanes that left CI")
    parser.add_argument("--only", nargs="+", metavar="LANE", help="these lanes, and no other")
    parser.add_argument("--list", action="store_true", help="print the lanes and their commands")
    options = parser.parse_args()
    lanes = NIGHTLY if options.nightly else CI
    if options.only:
        unknown = set(options.only) - {lane.name for lane in lanes}
        if unknown:
            parser.error(
                f"there is no lane {', '.join(sorted(unknown))}; there are"
                f" {', '.join(lane.name for lane in lanes)}"
            )
        lanes = tuple(lane for lane in lanes if lane.name in options.only)
    if options.list:
        for lane in lanes:
            print(f"{lane.name:<14} {' '.join(lane.command)}")
        return 0
    LOGS.mkdir(exist_ok=True)
    began = time.monotonic()
    outcomes = play(lanes, write_nightly if options.nightly else None)
    seconds = {outcome.lane.name: round(outcome.seconds) for outcome in outcomes}
    processor = {outcome.lane.name: round(outcome.processor) for outcome in outcomes}
    (LOGS / "seconds.json").write_text(json.dumps(seconds, indent=1) + "\n")
    (LOGS / "processor.json").write_text(json.dumps(processor, indent=1) + "\n")
    write_slowest()
    spent = sum(outcome.processor for outcome in outcomes)
    show(lanes, outcomes)
    print(
        f"{len(outcomes)} lanes took {time.monotonic() - began:.0f} s,"
        f" and {spent:.0f} s of processor time"
    )
    too_much = not options.nightly and spent > BUDGET
    if too_much:
        print(f"CI may take {BUDGET:.0f} s of processor time: make something cheaper")
    return int(too_much or len(outcomes) < len(lanes) or any(outcome.code for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
