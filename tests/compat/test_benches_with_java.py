"""The pair of brokers that the benchmarks of the store compare, with settings that measure nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import processes
import pytest

BENCH = Path(__file__).resolve().parent.parent / "bench"


@pytest.mark.compat
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_queues_of_both_brokers() -> None:
    if processes.java_home("5.5.0") is None:
        pytest.skip("the Java peers 5.5.0 are not installed: run `make peers`")
    command = [sys.executable, str(BENCH / "bench_queues.py"), "--counts", "16", "--seconds", "0.2", "--rounds", "1", "--warm-up", "0.5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=230, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert re.findall(r"^\| 16 \| (ours|Java) \|", done.stdout, re.MULTILINE) == ["ours", "Java"]
