"""A driver with its JVM in a process of its own, which runs queries and can be killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import psutil

from tests.spark_chaos.plan import DoesNotCount
from tests.support.processes import ROOT
from tests.support.spark_peers import lake_path, wait_for

PROGRAM = Path(__file__).with_name("spark_queries.py")
WAIT_SECONDS = 600.0
STATE_SECONDS = 1.0
TOO_BUSY = "Python worker failed to connect back"
SOURCE_PROCESS = "python_streaming_source_runner"


@attrs.define(eq=False)
class SparkHost:
    """One driver at a time: ``kill`` replaces it. Its JVM starts while others work.

    ``lake``: the kind of tables, whose PySpark the driver has.
    """

    folder: Path
    lake: str = "parquet"
    drivers: int = 0
    process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start a driver; the first ``ask`` waits until it is ready."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.drivers += 1
        paths = [str(ROOT), str(ROOT / "tests" / "support")]
        if self.lake != "parquet":
            paths.insert(0, lake_path(self.lake))
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(PROGRAM), str(self.folder), self.lake],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": ":".join(paths)},
            )

    @property
    def log(self) -> Path:
        return self.folder / f"driver-{self.drivers}.log"

    def ask(self, do: str, **what: Any) -> dict[str, Any]:
        """Let the driver do something and return its answer."""
        if self.process is None:
            self.start()
        assert self.process is not None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps({"do": do, **what}) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise AssertionError(f"the driver ended:\n{self.log.read_text()[-4000:]}")
        answer: dict[str, Any] = json.loads(line)
        assert "failed" not in answer, f"the driver cannot {do}: {answer['failed']}"
        return answer

    def wait(self, queries: Sequence[str], condition: Callable[[], Any], what: str) -> None:
        """Wait until a condition is true; the queries must go on meanwhile."""
        asked = time.monotonic()

        def met() -> bool:
            nonlocal asked
            if time.monotonic() - asked > STATE_SECONDS:
                asked = time.monotonic()
                for name in queries:
                    state = self.ask("state", name=name)
                    check_not_busy(str(state["error"]))
                    assert state["active"], f"{name} ended: {state['error']}"
            return bool(condition())

        wait_for(met, f"{what}, see {self.log}", WAIT_SECONDS)

    def family(self) -> list[psutil.Process]:
        """Return the driver, its JVM and all their Python processes, children first."""
        assert self.process is not None
        driver = psutil.Process(self.process.pid)
        return [*reversed(driver.children(recursive=True)), driver]

    def workers(self) -> list[psutil.Process]:
        """Return the Python workers that run tasks."""
        return [
            worker
            for daemon in self.family()
            if "pyspark.daemon" in command_line(daemon)
            for worker in daemon.children()
        ]

    def source_processes(self) -> list[psutil.Process]:
        """Return the processes in which the sources of streams plan their batches."""
        return [each for each in self.family() if SOURCE_PROCESS in command_line(each)]

    def kill(self) -> None:
        """SIGKILL for the driver, its JVM and its Python processes, by their ids."""
        assert self.process is not None
        kill_all(self.family())
        self.process.wait(timeout=20)
        self._close_pipes()

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()

    def _close_pipes(self) -> None:
        assert self.process is not None
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self.process = None


def check_not_busy(error: str) -> None:
    """Raise DoesNotCount if Spark's processes did not start within its own ten seconds."""
    if TOO_BUSY in error:
        raise DoesNotCount(f"the machine is too busy for Spark: {TOO_BUSY}")


def command_line(process: psutil.Process) -> str:
    """Return the command of a process; nothing if it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def kill_all(processes: list[psutil.Process]) -> None:
    """SIGKILL for these processes, and wait until they have ended."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    psutil.wait_procs(processes, timeout=20)
