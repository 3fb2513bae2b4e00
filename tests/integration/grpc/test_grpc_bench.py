"""The benchmark of gRPC runs to its end, with settings that measure nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench" / "bench_grpc.py"


@pytest.mark.nightly
def test_the_benchmark_runs() -> None:
    words = ("--seconds", "0.2", "--in-flight", "4", "--profile")
    done = subprocess.run(
        [sys.executable, str(BENCH), *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    figures = re.compile(r"^ +\d+ in flight: +[\d,]+ calls/s, +\d+ µs", re.MULTILINE)
    assert len(figures.findall(done.stdout)) == 2
    assert re.search(r"^ +\d+%  hpack", done.stdout, re.MULTILINE)
