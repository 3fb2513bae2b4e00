"""SDK, mqadmin and the Spark source need nothing that Windows does not have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import trio

from triomq.testing import InProcessCluster

SUPPORT = Path(__file__).resolve().parents[2] / "support"


async def test_the_sdk_runs_without_posix(triomq_cluster: InProcessCluster, tmp_path: Path) -> None:
    for package in ("pyspark", "textual"):  # it imports every module of the SDK
        pytest.importorskip(package)
    await triomq_cluster.create_topic("Orders")
    done = await trio.run_process(
        [
            sys.executable,
            SUPPORT / "without_posix.py",
            SUPPORT / "windows_program.py",
            triomq_cluster.namesrv_address,
            tmp_path,
        ],
        capture_stdout=True,
        capture_stderr=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    assert done.stdout.count(b"broker-a") == 4, "mqadmin prints the queues"
