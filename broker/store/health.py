"""Why the store takes no messages, if it does not."""

from __future__ import annotations

import attrs

from triomq.broker.store.errors import DiskFull, DiskReserve, StoreUnavailable


@attrs.define(eq=False)
class Health:
    """One field per reason, each set and cleared by one part of the store only."""

    closing: bool = False
    following: bool = False
    """The log is a copy of another broker's: only that one writes messages."""
    failed: bool = False
    """A task of the store has died; the process is about to."""
    cause: str = ""
    """What it has died of."""
    index_fault: DiskFull | None = None
    """The indexer cannot go on."""
    queue_fault: DiskFull | None = None
    """Queue entries cannot leave memory."""

    disk_reserve: DiskReserve | None = None
    """The disk is fuller than the settings allow; the cleaner says so."""

    @property
    def writable(self) -> bool:
        return not (self.closing or self.following or self.failed or self.index_fault or self.queue_fault or self.disk_reserve)

    def check_writable(self) -> None:
        """Raise StoreUnavailable or one of its kin."""
        if self.closing or self.failed:
            raise StoreUnavailable(f"it is closing: {self.cause}" if self.cause else "it is closing")
        if self.following:
            raise StoreUnavailable("this broker is a slave, messages go to its master")
        fault = self.index_fault or self.queue_fault
        if fault is not None:
            raise DiskFull(fault.path)
        if self.disk_reserve is not None:
            raise DiskReserve(*self.disk_reserve.parts)
