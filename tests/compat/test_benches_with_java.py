"""The benchmarks that compare with Java brokers or run RocketMQ's own programs, with settings that
measure nothing.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import processes
import pytest

BENCH = Path(__file__).resolve().parent.parent / "bench"


def run_bench(script: str, *settings: str, timeout: float = 230) -> str:
    """Run a program of ``tests/bench`` and return what it prints; fails with that if it fails."""
    if processes.java_home("5.5.0") is None:
        pytest.skip("the Java peers 5.5.0 are not installed: run `make peers`")
    done = subprocess.run(
        [sys.executable, str(BENCH / script), *settings],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done.stdout


@pytest.mark.compat
@pytest.mark.nightly
@pytest.mark.timeout(240)
def test_queues_of_both_brokers() -> None:
    printed = run_bench(
        "bench_queues.py", "--counts", "16", "--seconds", "0.2", "--rounds", "1", "--warm-up", "0.5"
    )
    assert re.findall(r"^\| 16 \| (ours|Java) \|", printed, re.MULTILINE) == ["ours", "Java"]


def found(path: Path) -> dict[str, tuple[float | None, float | None]]:
    """What was measured of (ours, Java), and that the JSON is complete."""
    return {
        row["what"]: (row["ours"], row["peer"])
        for table in json.loads(path.read_text())["tables"]
        for row in table["rows"]
    }


@pytest.mark.compat
@pytest.mark.nightly
@pytest.mark.timeout(240)
def test_rocketmq_s_own_programs_on_our_broker(tmp_path: Path) -> None:
    settings = (
        "--only",
        "producer,latency",
        "--threads",
        "2",
        "--seconds",
        "10",
        "--rounds",
        "1",
        "--warm-up",
        "0",
        "--latency-seconds",
        "1",
        "--no-java-broker",
    )
    figures_file = tmp_path / "figures.json"
    settings += ("--record", str(figures_file))
    printed = run_bench("java_programs.py", *settings, "--json", str(tmp_path / "found.json"))
    if "latency of ours: only" not in printed:  # a busy machine
        assert list(json.loads(figures_file.read_text())) == ["42a", "86b", "154b"]
    figures = found(tmp_path / "found.json")
    for what in ("Producer, 2 threads", "latency, p99", "anonymous, under load, largest"):
        assert (figures[what][0] or 0) > 0, printed


@pytest.mark.compat
@pytest.mark.nightly
@pytest.mark.timeout(240)
def test_requests_and_recalls_on_our_broker(tmp_path: Path) -> None:
    settings = (
        "--only",
        "requests,recalls",
        "--threads",
        "2",
        "--calls-seconds",
        "0.5",
        "--calls-warm-up",
        "0.2",
        "--recalls-sent",
        "1",
        "--rounds",
        "1",
        "--warm-up",
        "0",
        "--no-java-broker",
    )
    printed = run_bench("special_side_by_side.py", *settings, "--json", str(tmp_path / "f.json"))
    figures = found(tmp_path / "f.json")
    for what in ("requests, 2 threads", "recalls, 2 threads", "timed sends, 64 threads"):
        assert (figures[what][0] or 0) > 0, printed


def test_what_the_programs_print_is_understood() -> None:
    """Lines of 5.5.0, as they came."""
    code = """
import java_programs as bench
import special_side_by_side as special
print(bench.SENT.findall(
    "Current Time: 2026-11-22 10:28:57,085 | Send TPS: 17808 | Max RT(ms): 934"
    " | Average RT(ms):   3.593 | Send Failed: 0 | Response Failed: 3"
))
print(bench.BATCHES_SENT.findall(
    "Current Time: 2026-11-22 10:30:57,085 | Send TPS: 2123 | Send MPS: 33980 | Max RT(ms): 93"
    " | Average RT(ms):   3.593 | Average Message RT(ms):   0.224 | Send Failed: 0"
    " | Send Message Failed: 4"
))
print(bench.CONSUMED.findall(
    "Current Time: 2026-11-22 10:32:29,000 | Consume TPS: 59508 | AVG(B2C) RT(ms):     NaN"
    " | AVG(S2C) RT(ms):     NaN | MAX(B2C) RT(ms): 0 | MAX(S2C) RT(ms): 0 | Consume Fail: 5"
))
print(special.SENT.findall(
    "Send TPS: 12386, Max RT: 412, Average RT:   1.289, Send Failed: 0, Response Failed: 2"
))
print(special.LATE.findall(
    "Consume TPS: 110, Avg delayedDuration:  41.622, Max delayedDuration: 74, delayDuration"
    " %25: 34, %50: 41; %80: 52; %90: 60; %99: 74; %99.9: 74"
))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"PYTHONPATH": str(BENCH)},
    )
    assert done.stdout.splitlines() == [
        "[('17808', '0', '3')]",
        "[('33980', '0', '4')]",
        "[('59508', '5')]",
        "[('12386', '0', '2')]",
        "[('110', '41.622', '74', '41', '74')]",
    ]


@pytest.mark.compat
@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_java_s_master_waits_for_its_slave_as_ours_does(tmp_path: Path) -> None:
    settings = (
        "sync",
        "--seconds",
        "0.2",
        "--rounds",
        "1",
        "--warm-up",
        "0",
        "--shapes",
        "1x8",
        "--producer-seconds",
        "0",
    )
    run_bench(
        "replication_side_by_side.py",
        *settings,
        "--json",
        str(tmp_path / "found.json"),
        timeout=390,
    )
    assert all(found(tmp_path / "found.json")["raw 1 × 8"])
    notes = json.loads((tmp_path / "found.json").read_text())["notes"]
    assert [
        note.split(":")[0] for note in notes if "stopped the master did not answer SEND_OK" in note
    ] == ["ours", "Java"]


@pytest.mark.compat
@pytest.mark.nightly
@pytest.mark.timeout(240)
def test_clients_of_rocketmq_5_at_both_brokers(tmp_path: Path) -> None:
    settings = ("--seconds", "0.3", "--rounds", "1", "--warm-up", "1", "--consumers", "40")
    printed = run_bench("bench_messaging.py", *settings, "--json", str(tmp_path / "found.json"))
    figures = found(tmp_path / "found.json")
    for what in ("sends, 64 in flight", "receives of 32, an AckMessage each"):
        assert all(figures[what]), printed
    assert all(figures["a send beside them, p50"]), printed


@pytest.mark.compat
@pytest.mark.nightly
@pytest.mark.timeout(240)
def test_consumers_that_pop(tmp_path: Path) -> None:
    """Our broker alone; the run of both takes a minute."""
    settings = ("--seconds", "0.3", "--uncounted", "0.3", "--warm-up", "1", "--backlog", "10000")
    more = ("--rounds", "1", "--no-java-broker", "--json", str(tmp_path / "found.json"))
    printed = run_bench("bench_pop.py", *settings, *more)
    content = json.loads((tmp_path / "found.json").read_text())
    rows = {row["what"]: row["ours"] for row in content["tables"][0]["rows"]}
    assert len(rows) == 4, printed
    assert all(rows.values()), printed
