"""The machine as the checks see it: files below a root, and the few facts that no file has.  Tests give it a root of their own."""

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
"""how proc(5) writes a blank, a tab, a line feed and a backslash; other characters stand there as they are"""


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
    """The share of a file system that is in use, as `df` counts it."""
    usage = shutil.disk_usage(_nearest_existing(path))
    return usage.used / ((usage.used + usage.free) or 1)


def _clock_state() -> int | None:
    """What adjtimex(2) returns: 5 for a clock that nothing synchronises; None where there is no such call."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        state: int = libc.adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError):
        return None
    return state if state >= 0 else None


def _fsync_seconds(folder: Path, times: int = 20) -> list[float]:
    """How long each of some writes of 4 KiB takes until it is on the disk.  Raises OSError."""
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
class Machine:
    """Where to look."""

    root: Path = Path("/")
    folder: Path
    """where the store lies or will lie"""
    pid: str = "self"
    """whose limits count"""
    python: tuple[int, int] = sys.version_info[:2]
    modules: Callable[[], Mapping[str, bool]] = _modules
    disk_share: Callable[[Path], float] = _disk_share
    clock_state: Callable[[], int | None] = _clock_state
    fsync_seconds: Callable[[Path], list[float]] = _fsync_seconds

    def text(self, path: str) -> str | None:
        """The content of a file of /proc or /sys; None if it cannot be read."""
        try:
            return (self.root / path).read_text("utf-8", "surrogateescape").strip()  # names of files may be any bytes
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        text = self.text(path)
        try:
            return int(text) if text is not None else None
        except ValueError:
            return None

    def chosen(self, path: str) -> str | None:
        """The word in brackets of a file such as ``none [mq-deadline] bfq``."""
        text = self.text(path)
        if text is None:
            return None
        return text.partition("[")[2].partition("]")[0] or text.split()[0] if text else None

    def soft_limit(self, name: str) -> int | None:
        """A limit of the process in numbers; None if it cannot be read."""
        for line in (self.text(f"proc/{self.pid}/limits") or "").splitlines():
            if line.startswith(name):
                soft = line[len(name) :].split()[0]
                return sys.maxsize if soft == "unlimited" else int(soft)
        return None

    def mount(self) -> Mount | None:
        """The mount that holds the folder: of all that fit the longest, of equals the last."""
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
                best = Mount(words[2], point, more[0], frozenset(f"{words[5]},{more[2]}".split(",")))
        return best

    def listening_ports(self) -> frozenset[int] | None:
        """TCP ports on which something listens in this network namespace."""
        tables = [text for name in ("tcp", "tcp6") if (text := self.text(f"proc/net/{name}")) is not None]
        if not tables:
            return None
        rows = [line.split() for table in tables for line in table.splitlines()[1:]]
        return frozenset(int(row[1].rpartition(":")[2], 16) for row in rows if len(row) > 3 and row[3] == "0A")
