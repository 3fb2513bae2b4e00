"""Every benchmark of the store runs to its end, with settings that measure nothing."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
TINY = ("--seconds", "0.2", "--rounds", "1", "--warm-up", "0.2", "--no-java")


def run(script: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(BENCH / script), *arguments],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, (
        f"{script} {arguments}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    )
    return done.stdout


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("part", "lines"),
    [
        ("sync", [r"1 x 1 +[\d,]+ /s", r"64 x 1 +[\d,]+ /s"]),
        ("pulls", [r"from the page cache", r"cold", r"8 x 4 +[\d,]+ /s"]),
        ("query", [r"warm +ours +p50", r"cold +ours +p50"]),
        (
            "recovery",
            [
                r"ours +clean stop +[\d.]+ s",
                r"ours +kill -9 +[\d.]+ s",
                r"deleted +[\d.]+ s .* MiB/s",
            ],
        ),
        (
            "cold-reader",
            [r"ours +without +[\d,]+ sends/s", r"ours +with +[\d,]+ sends/s .* reader: 2 x 1"],
        ),
    ],
)
def test_part(part: str, lines: list[str]) -> None:
    said = run("store_side_by_side.py", part, *TINY, "--mib", "4")
    assert [line for line in lines if not re.search(line, said)] == [], said


@pytest.mark.slow
def test_recovery_in_this_process() -> None:
    said = run("bench_recovery.py", "--mib", "4", "--rounds", "1")
    assert len(re.findall(r"lost: .* MiB/s", said)) == 3


@pytest.mark.nightly
def test_from_one_to_many_queues_with_plots(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    words = ("--counts", "1,80", "--plot", str(tmp_path), "--record", str(file))
    said = run("bench_queues.py", *TINY, *words)
    assert list(json.loads(file.read_text())) == ["153b"]
    assert len(re.findall(r"^\| (1|80) \| ours \|", said, re.MULTILINE)) == 2
    assert "80 queues give" in said
    for name in ("queues-rate.svg", "queues-memory.svg"):
        plot = ElementTree.fromstring((tmp_path / name).read_text())
        assert len(plot.findall("{http://www.w3.org/2000/svg}circle")) == 2


@pytest.mark.nightly
def test_how_soon_things_start_and_end(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    said = run("bench_start.py", "--starts", "1", "--record", str(file))
    rows = re.findall(
        r"^\| ([^|]+) \| (?:s|ms|MB) \| [\d.e-]+ \| [\d.e-]+ to [\d.e-]+ \|$", said, re.MULTILINE
    )
    assert len(rows) == 12, said
    figures = json.loads(file.read_text())
    assert list(figures) == ["155b", "170e", "171d", "179b", "179c", "180b"]
    command = "python tests/bench/bench_start.py --starts 1 --record "
    for figure in figures.values():
        assert figure["value"] > 0
        assert figure["command"].startswith(command)


@pytest.mark.nightly
def test_what_a_backlog_costs(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    said = run(
        "bench_backlog.py",
        "--record",
        str(file),
        "--messages",
        "1000",
        "--seconds",
        "0.1",
        "--rounds",
        "1",
        "--reads",
        "3",
    )
    assert "| nothing unread | 1,000 unread | ratio |" in said
    assert re.search(
        r"^\| sends a second, median of 1 rounds \| [\d,]+ \| [\d,]+ \| [\d.]+ \|$",
        said,
        re.MULTILINE,
    )
    assert re.search(
        r"^\| read at the tail, p50 ms \| [\d.]+ \| [\d.]+ \| [\d.]+ \|$", said, re.MULTILINE
    )
    assert list(json.loads(file.read_text())) == ["55a"]


ROWS = [
    "publish, 1 in flight",
    "publish, 64 in flight",
    "publish, 256 in flight",
    "consume, a call for each message",
    "consume, lists of 256",
]


def test_bit_maps_of_filters() -> None:
    said = run("bench_filters.py", "--messages", "200", "--rounds", "1", "--body", "10")
    assert len(re.findall(r"^ +(?:1|50)% +(?:1|4|16)(?: +[\d.]+){4}$", said, re.MULTILINE)) == 6


@pytest.mark.nightly
def test_the_sdk_beside_nothing() -> None:
    said = run("bench_nats.py", "--no-nats", "--seconds", "0.1", "--rounds", "1", "--kept", "500")
    assert [
        row for row in ROWS if not re.search(rf"\| {row} \| [1-9][\d,]* \([\d.]+\) \|", said)
    ] == [], said


@pytest.mark.nightly
@pytest.mark.skipif(
    shutil.which("nats-server") is None,
    reason="needs nats-server (Debian: apt-get install nats-server)",
)
def test_the_sdk_beside_nats_py() -> None:
    said = run("bench_nats.py", "--seconds", "0.1", "--rounds", "1", "--kept", "500")
    assert [
        row
        for row in ROWS
        if not re.search(
            rf"\| {row} \| [1-9][\d,]* \([\d.]+\) \| [1-9][\d,]* \([\d.]+\) \| [\d.]+ \|", said
        )
    ] == [], said


def test_without_nats_server_the_benchmark_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    bench = importlib.import_module("bench_nats")
    monkeypatch.delenv("NATS_SERVER", raising=False)
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(SystemExit, match="apt-get install nats-server"):
        bench.nats_server()
