"""Run a program as on Windows, as far as Linux can imitate it.

``python without_posix.py PROGRAM ARGUMENT...``: POSIX's modules cannot be imported; signals,
functions and flags that Windows does not have are gone; directories cannot be opened, and a rename
does not replace a file. Trio keeps its poller, the only one that it has on Linux; asyncio gets
``select``.
"""

from __future__ import annotations

import os
import runpy
import select
import selectors
import signal
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path

import trio
import trio._core._io_epoll  # type: ignore[import-not-found,unused-ignore]

MODULES = {"fcntl", "grp", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"}
SIGNALS = {"SIGALRM", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGPIPE"}
CALLS = {"fork", "getpgid", "killpg", "pread", "preadv", "pwrite", "pwritev"}
CALLS |= {"sched_getaffinity", "sched_yield", "setsid", "statvfs", "posix_fadvise", "eventfd"}
FLAGS = {"O_CLOEXEC", "O_DIRECTORY", "O_DSYNC", "O_NOATIME", "O_NOFOLLOW"}


class NoPosix:
    """Refuses the modules, first of all finders."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def file_locks() -> types.ModuleType:
    """Return a ``msvcrt`` that locks the first byte of files of this process."""
    module, locked = types.ModuleType("msvcrt"), dict[tuple[int, int], int]()

    def locking(descriptor: int, mode: int, count: int) -> None:
        status = os.fstat(descriptor)
        key = (status.st_dev, status.st_ino)
        holder = locked.get(key)
        if holder is not None and holder != descriptor and Path(f"/proc/self/fd/{holder}").exists():
            raise PermissionError(13, "Permission denied")
        locked[key] = descriptor

    module.locking, module.LK_NBLCK = locking, 2  # type: ignore[attr-defined]
    return module


def take_away() -> None:
    """Remove what Windows does not have, for the modules that are imported from now on."""
    trio._core._io_epoll.select = types.SimpleNamespace(**vars(select))
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, NoPosix())  # type: ignore[arg-type]
    sys.modules["msvcrt"] = file_locks()
    for owner, names in (
        (signal, SIGNALS),
        (os, CALLS | FLAGS),
        (select, {"epoll", "poll", "EPOLLIN"}),
    ):
        for name in names:
            if hasattr(owner, name):
                delattr(owner, name)
    selectors.DefaultSelector = selectors.SelectSelector  # type: ignore[misc]
    open_file, rename = os.open, os.rename

    def open_no_directory(path: str, flags: int, mode: int = 0o777, **more: int) -> int:
        if os.path.isdir(path) and flags == os.O_RDONLY:
            raise PermissionError(13, "Permission denied", path)
        return open_file(path, flags, mode, **more)

    def rename_to_nothing(source: str, target: str, **more: int) -> None:
        if os.path.exists(target):
            raise FileExistsError(17, "File exists", target)
        rename(source, target, **more)

    os.open, os.rename = open_no_directory, rename_to_nothing  # type: ignore[assignment]


if __name__ == "__main__":
    assert trio.__version__
    take_away()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
