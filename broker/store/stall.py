"""Whether appends stall: the disk, or the page cache in front of it, holds up the log.

An append holds the loop, so while it hangs nobody can be refused. What it leaves behind is as bad: sockets full of requests that came
meanwhile and are late already, each of which would hang in the next append. So a stall that is over still counts for ``ECHO_SECONDS``, the
patience of a queued send: what comes in that time is refused at once, as by a Java broker while its log lock is held, and then the disk
gets its next chance.
Source of the limit: store/DefaultMessageStore.java#isOSPageCacheBusy.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import attrs

ECHO_SECONDS = 0.2


@attrs.define(eq=False)
class Stall:
    """``note`` is called for an append that took longer than ``limit_seconds``; ``on_stall`` is told how long it took, and must not wait."""

    limit_seconds: float
    clock: Callable[[], float] = attrs.field(factory=lambda: time.perf_counter)
    on_stall: Callable[[float], None] | None = None
    count: int = attrs.field(default=0, init=False)
    _seconds: float = attrs.field(default=0.0, init=False)
    _ended: float = attrs.field(default=0.0, init=False)

    def note(self, seconds: float) -> None:
        """An append has just come back after so long."""
        self.count += 1
        self._seconds = seconds
        self._ended = self.clock()
        if self.on_stall is not None:
            self.on_stall(seconds)

    def since_ms(self) -> int:
        """How long the log has been held up, 0 when it is not."""
        if not self.count or self.clock() - self._ended >= ECHO_SECONDS:
            return 0
        return round(self._seconds * 1000)
