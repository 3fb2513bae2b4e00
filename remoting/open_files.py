"""How many files and sockets this process may have open, and the share that connections leave for everything else."""

from __future__ import annotations

import contextlib
import resource

RAISED_MAX = 1_048_576
"""The programs never need more, and some systems refuse an unlimited number."""
RESERVE_MAX = 1024
"""For the files of a store, slaves, probes, connections to other servers, and logs."""


def raise_limit() -> None:
    """Raise this process's limit as far as the system allows without root (``ulimit -Hn``)."""
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
    """Return how many of the wanted connections a server may have: five eighths of a low limit stay for everything else."""
    files = limit()
    return max(1, min(wanted, files - min(RESERVE_MAX, files * 5 // 8)))
