"""How many files and sockets this process may have open at once, and who may have how many of them."""

from __future__ import annotations

import contextlib
import resource

RAISED_MAX = 1_048_576
"""No program of ours needs more, and some systems refuse an endless limit."""
RESERVE_MAX = 1024
"""Kept from connections: for a store's files, connections to others, logs."""
QUEUE_FILES_MAX = 512


def raise_limit() -> None:
    """Raise this process's limit as far as the system allows without asking an administrator (``ulimit -Hn``)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = RAISED_MAX if hard == resource.RLIM_INFINITY else min(hard, RAISED_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # some systems have a lower limit than they say
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def limit() -> int:
    """Return how many files and sockets may be open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return RAISED_MAX if soft == resource.RLIM_INFINITY else soft


def connections_allowed(wanted: int) -> int:
    """Return how many of the wanted connections a server may have: a reserve of at most half of the limit stays for everything else."""
    files = limit()
    return max(1, min(wanted, files - min(RESERVE_MAX, files // 2)))


def queue_files_allowed() -> int:
    """Return how many files of consume queues a store may keep open."""
    return max(2, min(QUEUE_FILES_MAX, limit() // 4))
