"""The facts about the machine that the checks read: files below a root, and other sources.

Tests use a root of their own.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

import attrs

CLOCK_UNSYNCHRONISED = 5
"""TIME_ERROR of adjtimex(2)"""
_TIMEX_BYTES = 512
_ESCAPE = re.compile(r"\\([0-7]{3})")
"""the escapes of proc(5) for a blank, a tab, a line feed and a backslash"""


@attrs.frozen
class Mount:
    """The file system that holds a path."""

    device: str
    """major:minor"""
    point: str
    kind: str
    options: frozenset[str]


def _nearest_existing(path: Path) -> Path:
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _disk_share(path: Path) -> float:
    """Return the used share of a file system, as ``df`` counts it."""
    usage = shutil.disk_usage(_nearest_existing(path))
    return usage.used / ((usage.used + usage.free) or 1)


def _clock_state() -> int | None:
    """Return the result of adjtimex(2), None without it; see ``CLOCK_UNSYNCHRONISED``."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        state: int = libc.adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError):
        return None
    return state if state >= 0 else None


def _fsync_seconds(folder: Path, times: int = 20) -> list[float]:
    """Return the sorted durations of writes of 4 KiB with fsync.

    Raises: OSError.
    """
    path = folder / f".triomq-doctor-{os.getpid()}"
    block, taken = b"\1" * 4096, []
    handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        for _ in range(times):
            begin = time.perf_counter()
            os.write(handle, block)
            os.fsync(handle)
            taken.append(time.perf_counter() - begin)
    finally:
        os.close(handle)
        path.unlink()
    return sorted(taken)


def _modules() -> Mapping[str, bool]:
    return {name: find_spec(name) is not None for name in ("zlib_ng", "lz4", "zstandard")}


@attrs.frozen(kw_only=True)
class MachineFacts:
    """The sources of the facts."""

    root: Path = Path("/")
    folder: Path
    """folder of the store"""
    pid: str = "self"
    """the process whose limits are checked"""
    modules: Callable[[], Mapping[str, bool]] = _modules
    disk_share: Callable[[Path], float] = _disk_share
    clock_state: Callable[[], int | None] = _clock_state
    fsync_seconds: Callable[[Path], list[float]] = _fsync_seconds

    def text(self, path: str) -> str | None:
        """Return the content of a file of /proc or /sys; None if it cannot be read."""
        try:  # file names may be any bytes
            return (self.root / path).read_text("utf-8", "surrogateescape").strip()
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        text = self.text(path)
        try:
            return int(text) if text is not None else None
        except ValueError:
            return None

    def chosen(self, path: str) -> str | None:
        """Return the word in brackets of a file such as ``none [mq-deadline] bfq``."""
        text = self.text(path)
        if text is None:
            return None
        return text.partition("[")[2].partition("]")[0] or text.split()[0] if text else None

    def soft_limit(self, name: str) -> int | None:
        """Return a soft limit of the process; None if it cannot be read."""
        for line in (self.text(f"proc/{self.pid}/limits") or "").splitlines():
            if line.startswith(name):
                soft = line[len(name) :].split()[0]
                return sys.maxsize if soft == "unlimited" else int(soft)
        return None

    def mount(self) -> Mount | None:
        """Return the mount of the folder: of all that match the longest, of equal ones the last."""
        best: Mount | None = None
        target = str(_nearest_existing(self.folder.absolute()).resolve())
        for line in (self.text("proc/self/mountinfo") or "").splitlines():
            left, _, right = line.partition(" - ")
            words, more = left.split(), right.split()
            if len(words) < 6 or len(more) < 3:
                continue
            point = _ESCAPE.sub(lambda match: chr(int(match[1], 8)), words[4])
            inside = target == point or target.startswith(point.rstrip("/") + "/")
            if inside and (best is None or len(point) >= len(best.point)):
                best = Mount(
                    words[2], point, more[0], frozenset(f"{words[5]},{more[2]}".split(","))
                )
        return best

    def listening_ports(self) -> frozenset[int] | None:
        """Return the TCP ports in use by servers of this network namespace."""
        tables = [
            text for name in ("tcp", "tcp6") if (text := self.text(f"proc/net/{name}")) is not None
        ]
        if not tables:
            return None
        rows = [line.split() for table in tables for line in table.splitlines()[1:]]
        return frozenset(
            int(row[1].rpartition(":")[2], 16) for row in rows if len(row) > 3 and row[3] == "0A"
        )
