"""Health: why the store refuses messages, if it does."""

from __future__ import annotations

import attrs

from triomq.broker.store.core.errors import DiskFull, DiskReserve, StoreUnavailable


@attrs.define(eq=False)
class Health:
    """One field per reason; one part of the store sets and clears each field."""

    closing: bool = False
    following: bool = False
    """The log is a copy of the log of a master, and only the master's messages go into it."""
    failed: bool = False
    """A task of the store has failed; the process is about to end."""
    cause: str = ""
    """The error of that task."""
    index_fault: DiskFull | None = None
    """The indexer cannot go on."""
    queue_fault: DiskFull | None = None
    """Queue entries cannot be moved from memory to their files."""

    disk_reserve: DiskReserve | None = None
    """The disk is fuller than the settings allow. Set by the cleaner."""

    @property
    def writable(self) -> bool:
        return not (
            self.closing
            or self.following
            or self.failed
            or self.index_fault
            or self.queue_fault
            or self.disk_reserve
        )

    def check_writable(self) -> None:
        """Raise the reason why messages are refused, if there is one.

        Raises: StoreUnavailable, DiskFull, DiskReserve.
        """
        if self.closing or self.failed:
            raise StoreUnavailable(
                f"it is closing: {self.cause}" if self.cause else "it is closing"
            )
        if self.following:
            raise StoreUnavailable("this broker is a slave, messages go to its master")
        fault = self.index_fault or self.queue_fault or self.disk_reserve
        if fault is not None:
            raise fault.with_traceback(None)  # that of the last caller would grow
