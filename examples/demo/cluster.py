"""The demo's processes: the cluster of ``mqlocal``, and workers that print lines of JSON."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import trio

ROOT = Path(__file__).resolve().parents[2]
STOP_SECONDS = 30.0


class DemoFailed(Exception):
    """The demo cannot go on; the message names cause and fix."""


@attrs.define(eq=False)
class Worker:
    """A process of the demo, and the facts that it has reported."""

    name: str
    log: Path
    process: trio.Process
    said: dict[str, Any] = attrs.field(factory=dict)
    changed: trio.Event = attrs.field(factory=trio.Event)
    stopped: bool = False
    """whether the demo ended it"""

    async def listen(self) -> None:
        """Read the worker's lines until it ends.

        Raises: ``DemoFailed`` if it ends with an error.
        """
        rest = b""
        assert self.process.stdout is not None
        async for piece in self.process.stdout:
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                if line.startswith(b"{"):
                    self.said = {**self.said, **json.loads(line)}
            self._wake()
        code = await self.process.wait()
        self._wake()
        if code and not self.stopped:
            raise DemoFailed(
                f"{self.name} ended with code {code}: {self.last_words()}; its log is {self.log}"
            )

    async def until(self, fact: str) -> Any:
        """Wait until the worker reports a true value of ``fact``, and return it."""
        while not self.said.get(fact):
            await self.changed.wait()
        return self.said[fact]

    async def send_line(self, text: str) -> None:
        """Send one line, then close the worker's standard input, which asks it to finish."""
        assert self.process.stdin is not None
        if text:
            await self.process.stdin.send_all(text.encode() + b"\n")
        await self.process.stdin.aclose()

    def last_words(self) -> str:
        """Return the last line of the log that is not part of a stack trace."""
        lines = [
            line for line in self.log.read_text(errors="replace").splitlines() if line[:1].strip()
        ]
        return lines[-1] if lines else "it said nothing"

    def _wake(self) -> None:
        self.changed.set()
        self.changed = trio.Event()


@asynccontextmanager
async def running(name: str, command: Sequence[str], folder: Path) -> AsyncIterator[Worker]:
    """Run a worker for the time of the block; its errors go to a log file."""
    log = folder / "logs" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as errors:
        process = await trio.lowlevel.open_process(
            list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, cwd=ROOT
        )
        worker = Worker(name, log, process)
        try:
            yield worker
        finally:
            worker.stopped = True
            with trio.CancelScope(shield=True):
                await end(process)


async def end(process: trio.Process) -> None:
    """End a process by SIGTERM, and by SIGKILL after ``STOP_SECONDS``."""
    if process.poll() is None:
        process.terminate()
        with trio.move_on_after(STOP_SECONDS):
            await process.wait()
            return
        process.kill()
        await process.wait()


def module(name: str, *arguments: str) -> list[str]:
    """Return the command that runs a module with this Python."""
    return [sys.executable, "-m", name, *arguments]


def local_cluster(folder: Path) -> list[str]:
    """Return the command for two name servers and two brokers on free ports."""
    return module(
        "triomq.local",
        "--json",
        "--port",
        "0",
        "--namesrvs",
        "2",
        "--brokers",
        "2",
        "--dir",
        str(folder / "cluster"),
    )
