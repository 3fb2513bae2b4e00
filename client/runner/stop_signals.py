"""``StopSignals``: the first SIGTERM or Ctrl-C asks a program to end, a second one ends it at once.

Exit codes: 0 after SIGTERM, as supervisors expect of a service that ended in order; 130 after
Ctrl-C, as a shell reports it, so that a loop around the program ends, too.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self

from triomq.client.core.errors import NotRunning
from triomq.remoting.core.interrupt import EXIT_INTERRUPTED

logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Handles the signals for the length of a ``with`` block, in the main thread."""

    received: signal.Signals | None = None

    def __init__(self) -> None:
        self._stop: Callable[[], object] | None = None

    def on_stop(self, stop: Callable[[], object]) -> None:
        """Call ``stop`` in the signal handler; at once if a signal came before."""
        self._stop = stop
        if self.received is not None:
            stop()

    def __enter__(self) -> Self:
        """Set the handlers. Raises: ``NotRunning`` outside the main thread."""
        try:
            self._before = [(number, signal.signal(number, self._handle)) for number in SIGNALS]
        except ValueError:
            raise NotRunning(
                "triomq's run sets signal handlers, which Python allows in the main thread only:"
                " call it there, or use trio.run or asyncio.run"
            ) from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Set the handlers of before. Raises: ``SystemExit`` after an orderly end by Ctrl-C."""
        for number, handler in self._before:
            signal.signal(number, handler)
        if error is None and self.received is signal.SIGINT:
            raise SystemExit(EXIT_INTERRUPTED)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        logger.info("%s: stopping; a second signal ends the process at once", self.received.name)
        if self._stop is not None:
            self._stop()
