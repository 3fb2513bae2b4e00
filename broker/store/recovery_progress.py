"""RecoveryProgress: what a long recovery logs every few seconds, to show that it does not hang."""

from __future__ import annotations

import logging
from collections.abc import Callable

import attrs

logger = logging.getLogger(__name__)

EVERY_MS = 5_000
MIB = 1 << 20


@attrs.define(eq=False)
class RecoveryProgress:
    """Progress from log offset ``start`` to ``end``.

    ``end`` may lie behind the last record, because a segment has its full length from its creation.
    """

    start: int
    end: int
    clock: Callable[[], int]
    """Wall time in ms."""
    _begun_ms: int = attrs.field(init=False)
    _logged_ms: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._begun_ms = self._logged_ms = self.clock()

    def note(self, position: int) -> None:
        """Log the progress if the last report is ``EVERY_MS`` old."""
        now = self.clock()
        if now < self._logged_ms + EVERY_MS:
            if now < self._logged_ms:  # the clock was set back
                self._begun_ms = self._logged_ms = now
            return
        self._logged_ms = now
        logger.info("%s", self.text(position, now))

    def text(self, position: int, now_ms: int) -> str:
        done, total = position - self.start, max(1, self.end - self.start)
        seconds = (now_ms - self._begun_ms) / 1000
        rate = done / seconds if seconds > 0 else 0.0
        left = f"at most {(total - done) / rate:.0f} s to go" if rate else "no estimate yet"
        return (
            f"recovery has read {done / MIB:.0f} of at most {total / MIB:.0f} MiB of the log"
            f" ({100 * done // total} %), {rate / MIB:.0f} MiB/s, {left}"
        )
