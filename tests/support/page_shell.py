"""Runs lines of the documentation as a reader does who copies them into a shell."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from pages import blocks
from processes import wait_listening


class Shell:
    """Runs lines of a page in bash: a home of its own, the addresses of here in place of the
    page's.
    """

    def __init__(self, home: Path, ports: dict[str, int]) -> None:
        self.home, self.ports = home, ports
        self.environment = {
            **os.environ,
            "HOME": str(home),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        self.environment.pop("NAMESRV_ADDR", None)
        self.running: list[subprocess.Popen[bytes]] = []

    def line(self, line: str) -> str:
        for port, here in self.ports.items():
            line = re.sub(rf"\b{port}\b", str(here), line)
        return line

    def ended(self, line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", self.line(line)],
            env=self.environment,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def run(self, line: str) -> str:
        done = self.ended(line)
        assert done.returncode == 0, (line, done)
        return done.stdout

    def start(self, line: str, port: int, more: str = "") -> None:
        """Start a server and wait until it listens."""
        log = self.home / f"{len(self.running)}.log"
        with log.open("wb") as output:
            command = ["bash", "-c", f"exec {self.line(line).partition(' #')[0]} {more}"]
            process = subprocess.Popen(
                command,
                env=self.environment,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self.running.append(process)
        wait_listening(port, process, log)

    def stop(self) -> list[int]:
        for process in reversed(self.running):
            process.send_signal(signal.SIGTERM)
        return [process.wait(timeout=30) for process in self.running]


def of(page: str, *words: str) -> str:
    """Return the first line of a page's shell blocks that begins with these words."""
    found = [
        line.removeprefix("$ ")
        for block in blocks("sh", "console")
        if block.page == page
        for line in block.text.splitlines()
        if line.removeprefix("$ ").startswith(" ".join(words))
    ]
    assert found, (page, words)
    return found[0]


def until(shell: Shell, line: str, *words: str) -> str:
    """Run a line until it ends well and prints the words."""
    deadline = time.monotonic() + 60
    while True:
        done = shell.ended(line)
        if done.returncode == 0 and all(word in done.stdout for word in words):
            return done.stdout
        assert time.monotonic() < deadline, done
