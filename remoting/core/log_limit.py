"""Limit the log entries that peers can cause: one of each kind (or a few) in ten seconds.

The kind of an entry is its text before the arguments are inserted. Suppressed entries are counted;
the next entry of that kind names the count.
"""

import logging
import time
from collections.abc import Callable, Mapping

import attrs

PERIOD_SECONDS = 10.0


@attrs.define(eq=False)
class LogLimit:
    """One for each server or connector: servers in one process do not silence each other."""

    period_seconds: float = PERIOD_SECONDS
    clock: Callable[[], float] = attrs.field(factory=lambda: time.monotonic)
    _periods: dict[str, tuple[float, int]] = attrs.field(factory=dict, init=False)
    """kind -> when its period began, and its entries since then"""
    _left_out: dict[str, int] = attrs.field(factory=dict, init=False)

    def log(
        self,
        logger: logging.Logger,
        level: int,
        message: str,
        *arguments: object,
        error: BaseException | None = None,
        lines: int = 1,
        fields: Mapping[str, object] | None = None,
        stacklevel: int = 2,
    ) -> None:
        """Write or count the entry: *lines* of a kind per period; *error* adds a traceback.

        *fields*: the same as data, for logs in JSON.
        """
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
        extra = {"fields": fields}
        logger.log(level, message, *arguments, exc_info=error, stacklevel=stacklevel, extra=extra)

    def warning(self, logger: logging.Logger, message: str, *arguments: object) -> None:
        self.log(logger, logging.WARNING, message, *arguments, stacklevel=3)

    def info(self, logger: logging.Logger, message: str, *arguments: object) -> None:
        self.log(logger, logging.INFO, message, *arguments, stacklevel=3)
