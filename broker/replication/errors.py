"""Why a connection between master and slave ends; every message names the cause and the fix.

::

    ReplicationError
    ├── LinkSilent        nothing came for haHousekeepingInterval
    ├── HaLoginRefused    the other side does not know the secret (haAuthentication)
    ├── LinkBroken        not a replication stream, or the wrong place of the log
    └── LogsDiffer        the two logs cannot be joined: an operator must decide
        └── LogsParted    the slave has messages that its master has not
"""

from __future__ import annotations


class ReplicationError(Exception):
    """Root of the tree: the connection is closed, and the slave tries again."""


class LinkSilent(ReplicationError):
    """The other side has sent nothing, or taken nothing, for too long."""


class HaLoginRefused(ReplicationError):
    """The other side does not log in, or does not know the secret."""


class LinkBroken(ReplicationError):
    """The other side does not speak this protocol, or the network changes the bytes."""


class LogsDiffer(ReplicationError):
    """The slave has bytes that its master lacks, or needs bytes that its master has deleted."""


class LogsParted(LogsDiffer):
    """The slave has messages that its master has not: its offsets mean other messages, or will."""
