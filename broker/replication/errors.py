"""Why a connection between master and slave ends; every message names the cause and what to do about it.

::

    ReplicationError
    ├── LinkSilent        nothing came for haHousekeepingInterval
    ├── LinkBroken        bytes that are no replication stream, or the wrong place of the log
    └── LogsDiffer        the two logs cannot be made one: an operator must decide
"""

from __future__ import annotations


class ReplicationError(Exception):
    """Root of the tree: the connection is closed, and the slave tries again."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class LinkSilent(ReplicationError):
    """The other side has said nothing, or taken nothing, for too long."""


class LinkBroken(ReplicationError):
    """The other side does not speak this protocol, or something in between changes the bytes."""


class LogsDiffer(ReplicationError):
    """The slave has what its master has not, or needs what its master has deleted."""
