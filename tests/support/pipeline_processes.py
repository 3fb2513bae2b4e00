"""Pipelines as processes of their own, to be killed and stopped: tests/support/pipeline_job.py."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import psutil

from tests.support.processes import ROOT


@attrs.define(eq=False)
class PipelineProcess:
    """A process that runs a pipeline."""

    process: subprocess.Popen[str]
    log: Path

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def kill(self) -> None:
        """SIGKILL for the driver, its JVM and its Python workers, by their ids."""
        driver = psutil.Process(self.process.pid)
        family = [*driver.children(recursive=True), driver]
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.send_signal(signal.SIGKILL)
        psutil.wait_procs(family, timeout=20)
        self.process.wait(timeout=20)


@contextlib.contextmanager
def pipeline_process(folder: Path, file: Path, **options: Any) -> Iterator[PipelineProcess]:
    """Run a pipeline as a process; it is killed at the end if it still runs."""
    log = folder / f"job-{len(list(folder.glob('job-*.log')))}.log"
    given = json.dumps({"file": str(file), "local": str(folder / "local"), **options})
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "support" / "pipeline_job.py"), given],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    started = PipelineProcess(process, log)
    try:
        yield started
    finally:
        if not started.has_ended:
            started.kill()
