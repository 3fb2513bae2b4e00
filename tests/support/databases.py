"""PostgreSQL and Redis for tests: real servers of Debian's packages, on sockets below a directory.

Where a package is missing the test is skipped, but not in CI, which installs both.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

START_SECONDS = 30.0


@contextmanager
def redis_server() -> Iterator[str]:
    """Run a Redis server; yield its URL."""
    program = _required(shutil.which("redis-server"), "redis-server")
    with tempfile.TemporaryDirectory(prefix="redis-", dir="/tmp") as directory:
        socket = f"{directory}/redis.sock"
        command = [program, "--port", "0", "--unixsocket", socket, "--dir", directory, "--save", ""]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            _wait(server, lambda: Path(socket).exists())
            yield f"unix://{socket}"
        finally:
            server.terminate()
            server.wait(10)


@contextmanager
def postgresql_server() -> Iterator[str]:
    """Run a PostgreSQL server; yield its connection string."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda at: at.parts[4])
    programs = Path(_required(found[-1].parent if found else None, "postgresql"))
    # It refuses to run as root: the package has made a user.
    user = "postgres" if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp", ignore_cleanup_errors=True) as place:
        if user is not None:
            shutil.chown(place, user)
        data = f"{place}/data"
        subprocess.run(
            [programs / "initdb", "-D", data, "-U", "test", "-A", "trust", "--no-sync", "-N"],
            check=True,
            stdout=subprocess.DEVNULL,
            user=user,
            cwd=place,
        )
        settings = (f"unix_socket_directories={place}", "listen_addresses=", "fsync=off")
        server = subprocess.Popen(
            [programs / "postgres", "-D", data, *(f"-c{setting}" for setting in settings)],
            stderr=subprocess.DEVNULL,
            user=user,
            cwd=place,
        )
        try:
            ready = [programs / "pg_isready", "-q", "-h", place]
            _wait(server, lambda: subprocess.run(ready, check=False).returncode == 0)
            yield f"host={place} dbname=postgres user=test"
        finally:
            server.send_signal(2)  # SIGINT: clients are disconnected
            server.wait(10)


def _required(program: str | Path | None, package: str) -> str:
    if program is None:
        reason = f"needs {package} (Debian: apt-get install {package})"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return str(program)


def _wait(server: subprocess.Popen[bytes], ready: Callable[[], bool]) -> None:
    end = time.monotonic() + START_SECONDS
    while not ready():
        assert server.poll() is None, f"{server.args} ended"
        assert time.monotonic() < end, f"{server.args} is not ready"
        time.sleep(0.02)
