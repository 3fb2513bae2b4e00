"""Stall: whether appends hang because of the disk, or because of the page cache in front of it.

An append blocks the loop, so while it hangs no request can be refused. Afterwards the sockets are
full of requests that came meanwhile and are late already, and each of them would hang in the next
append. So a stall still counts for ``ECHO_SECONDS`` after its end, as long as a send may wait in
its queue: sends in that time are refused at once, as a Java broker does while its log lock is held.
Then the disk gets its next chance. Source of the limit:
store/DefaultMessageStore.java#isOSPageCacheBusy.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import attrs

ECHO_SECONDS = 0.2


@attrs.define(eq=False)
class Stall:
    """Notes appends that took longer than ``limit_seconds``."""

    limit_seconds: float
    clock: Callable[[], float] = attrs.field(factory=lambda: time.perf_counter)
    on_stall: list[Callable[[float], None]] = attrs.field(factory=list, init=False)
    """Called with the seconds that such an append took; must not block."""
    count: int = attrs.field(default=0, init=False)
    _seconds: float = attrs.field(default=0.0, init=False)
    _ended: float = attrs.field(default=0.0, init=False)

    def note(self, seconds: float) -> None:
        """Note that an append has just returned, after ``seconds``."""
        self.count += 1
        self._seconds = seconds
        self._ended = self.clock()
        for callback in self.on_stall:
            callback(seconds)

    def since_ms(self) -> int:
        """Return the length of the stall in ms; 0 if there is none, or none any more."""
        if not self.count or self.clock() - self._ended >= ECHO_SECONDS:
            return 0
        return round(self._seconds * 1000)
