"""The limit of open files: how the ports share it, and the message when none is left."""

from __future__ import annotations

import contextlib
import errno
from types import ModuleType

import attrs

resource: ModuleType | None
try:
    import resource
except ModuleNotFoundError:  # Windows, which has no such limit
    resource = None

RAISED_MAX = 1_048_576
"""More than the programs need; some systems refuse an unlimited number."""
RESERVE_MAX = 1024
"""Descriptors for the files of a store, connections to other servers, and logs."""
NONE_LEFT = frozenset({errno.EMFILE, errno.ENFILE})
"""Too many open files in the process or in the whole system, until some are closed."""


def raise_limit() -> None:
    """Raise this process's limit as far as the system allows without root (``ulimit -Hn``)."""
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = RAISED_MAX if hard == resource.RLIM_INFINITY else min(hard, RAISED_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # Some systems have a lower limit than they report.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def limit() -> int:
    """Return how many files and sockets this process may have open."""
    if resource is None:
        return RAISED_MAX
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return RAISED_MAX if soft == resource.RLIM_INFINITY else soft


def none_left(error: BaseException | None) -> bool:
    """Return whether the cause of an error is too many open files."""
    return isinstance(error, OSError) and error.errno in NONE_LEFT


def explained(error: OSError) -> str:
    """Return the system's text of an error, with the limit to raise if too many files are open."""
    reason = error.strerror or str(error)
    if error.errno == errno.EMFILE:
        return (
            f"{reason}: this process may have {limit()} (ulimit -n); raise that limit, or close"
            " connections"
        )
    if error.errno == errno.ENFILE:
        return f"{reason}: raise the system's limit (sysctl fs.file-max), or stop processes"
    return reason


@attrs.define(eq=False)
class Places:
    """The connections that all ports of one kind in this process may have together."""

    most: int
    taken: int = attrs.field(default=0, init=False)
    refused: int = attrs.field(default=0, init=False)
    """connections turned away because all places were taken"""
    failed_accepts: int = attrs.field(default=0, init=False)
    """how often the system had no descriptor for a connection"""

    def take(self) -> bool:
        """Take one place; if none is left, count that and return False. Checkpoint: never."""
        if self.taken >= self.most:
            self.refused += 1
            return False
        self.taken += 1
        return True

    def leave(self) -> None:
        """Release the place. Checkpoint: never."""
        self.taken -= 1


@attrs.frozen
class ConnectionBudget:
    """The connections that the limit of open files leaves, shared by all servers of a process.

    Slaves and probes have places of their own, which clients cannot take.
    """

    clients: Places
    slaves: Places
    probes: Places

    @classmethod
    def of_process(cls) -> ConnectionBudget:
        """Share three eighths of a low limit, or all but ``RESERVE_MAX`` of a high limit."""
        files = limit()
        total = max(3, files - min(RESERVE_MAX, files * 5 // 8))
        few = max(1, total // 16)
        return cls(Places(total - 2 * few), Places(few), Places(few))

    def by_port(self) -> dict[str, Places]:
        """Return the places by the name of their port, for metrics."""
        return {"clients": self.clients, "slaves": self.slaves, "probes": self.probes}
