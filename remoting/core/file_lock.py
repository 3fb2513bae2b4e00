"""The lock of a file that one process writes, on POSIX and on Windows.

The system takes it back when the process ends, however it ends.
"""

import importlib
import os
from types import ModuleType
from typing import Any

fcntl: ModuleType | None
try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None


def try_lock(descriptor: int) -> bool:
    """Lock an open file until it is closed; return False if another open file has the lock.

    Raises: OSError where the file system has no locks.
    """
    if fcntl is None:
        return _lock_first_byte(descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock_first_byte(descriptor: int) -> bool:
    """Lock byte 0, which need not exist, as Windows does it."""
    msvcrt: Any = importlib.import_module("msvcrt")
    os.lseek(descriptor, 0, os.SEEK_SET)
    try:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    except OSError:
        return False
    return True
