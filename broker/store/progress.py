"""Progress: what a long recovery says every few seconds, so that nobody takes it for one that hangs."""

from __future__ import annotations

import logging
from collections.abc import Callable

import attrs

logger = logging.getLogger(__name__)

EVERY_MS = 5_000
MIB = 1 << 20


@attrs.define(eq=False)
class Progress:
    """Log offsets from ``start`` to ``end``, which may lie behind what was written: a segment has its full length from the beginning."""

    start: int
    end: int
    clock: Callable[[], int]
    """ms."""
    _begun_ms: int = attrs.field(init=False)
    _told_ms: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._begun_ms = self._told_ms = self.clock()

    def note(self, position: int) -> None:
        """Tell how far it is, if it is time to."""
        now = self.clock()
        if now < self._told_ms + EVERY_MS:
            if now < self._told_ms:  # the clock was set back
                self._begun_ms = self._told_ms = now
            return
        self._told_ms = now
        logger.info("%s", self.text(position, now))

    def text(self, position: int, now_ms: int) -> str:
        done, total = position - self.start, max(1, self.end - self.start)
        seconds = (now_ms - self._begun_ms) / 1000
        rate = done / seconds if seconds > 0 else 0.0
        left = f"at most {(total - done) / rate:.0f} s to go" if rate else "no estimate yet"
        return (
            f"recovery has read {done / MIB:.0f} of at most {total / MIB:.0f} MiB of the log ({100 * done // total} %), "
            f"{rate / MIB:.0f} MiB/s, {left}"
        )
