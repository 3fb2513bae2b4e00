"""Why a connection between master and slave ends; every message names the cause and the fix.

::

    ReplicationError
    ├── LinkSilent        nothing came for haHousekeepingInterval
    ├── HaTlsFailed       the two sides agree on no TLS connection (haTls)
    ├── HaLoginRefused    the other side does not know the secret (haAuthentication)
    ├── LinkBroken        not a replication stream, or the wrong place of the log
    ├── TailDiffers       controller mode: the slave cuts its log, and comes again
    └── LogsDiffer        the two logs cannot be joined: an operator must decide
        └── LogsParted    the slave has messages that its master has not
"""

from __future__ import annotations


class ReplicationError(Exception):
    """Root of the tree: the connection is closed, and the slave tries again."""


class LinkSilent(ReplicationError):
    """The other side has sent nothing, or taken nothing, for too long."""


class HaTlsFailed(ReplicationError):
    """The other side speaks no TLS here, or does not accept this one, or is not accepted."""


class HaLoginRefused(ReplicationError):
    """The other side does not log in, or does not know the secret."""


class LinkBroken(ReplicationError):
    """The other side does not speak this protocol, or the network changes the bytes."""


class LogsDiffer(ReplicationError):
    """The slave has bytes that its master lacks, or needs bytes that its master has deleted."""


class LogsParted(LogsDiffer):
    """The slave has messages that its master has not: its offsets mean other messages, or will."""


class TailDiffers(ReplicationError):
    """Behind ``end`` the slave's log is not its master's, and nobody was told that it is stored."""

    def __init__(self, end: int, own_end: int, master_end: int) -> None:
        super().__init__(
            f"our log ends at {own_end}, the master's at {master_end}, and they are equal up to"
            f" {end}: what lies behind is cut off"
        )
        self.end = end
