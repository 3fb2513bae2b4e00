"""A brake for log lines that a peer can cause: of each kind one line (or a few) in ten seconds, however many peers misbehave.

The kind of a line is its text before the arguments are put in. What was left out is counted, and told with the next line of that kind.
"""

import logging
import time
from collections.abc import Callable

import attrs

PERIOD_SECONDS = 10.0


@attrs.define(eq=False)
class LogLimit:
    """One per server or connector: two servers in one process do not silence each other."""

    period_seconds: float = PERIOD_SECONDS
    clock: Callable[[], float] = attrs.field(factory=lambda: time.monotonic)
    _periods: dict[str, tuple[float, int]] = attrs.field(factory=dict, init=False)
    """kind -> when its period began, and its lines since"""
    _left_out: dict[str, int] = attrs.field(factory=dict, init=False)

    def log(self, logger: logging.Logger, level: int, message: str, *arguments: object, error: BaseException | None = None, lines: int = 1) -> None:
        """Write the line, or count it.  `error` adds a traceback; `lines` of a kind may come in one period."""
        if not logger.isEnabledFor(level):
            return
        now = self.clock()
        begun, written = self._periods.get(message, (now, 0))
        if now - begun >= self.period_seconds:
            begun, written = now, 0
        if written >= lines:
            self._left_out[message] = self._left_out.get(message, 0) + 1
            return
        self._periods[message] = begun, written + 1
        left_out = self._left_out.pop(message, 0)
        if left_out:
            message, arguments = f"{message} (and %d more like this)", (*arguments, left_out)
        logger.log(level, message, *arguments, exc_info=error, stacklevel=2)
