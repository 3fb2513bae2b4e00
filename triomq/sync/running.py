"""``triomq.sync.run``: a blocking program that ends in order when a signal comes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, TypeVar, TypeVarTuple

from triomq.client.runner.stop_signals import StopSignals

R = TypeVar("R")
Args = TypeVarTuple("Args")


class StopRequested(BaseException):
    """Raised in the main thread by a signal; leaves every ``with`` block."""


def run(main: Callable[[*Args], R], *args: *Args) -> R | None:
    """Call ``main(*args)``; SIGTERM and Ctrl-C raise ``StopRequested`` where it is.

    See ``triomq.run``.
    """

    def stop() -> NoReturn:
        raise StopRequested

    with StopSignals() as signals:
        try:
            signals.on_stop(stop)
            return main(*args)
        except StopRequested:
            return None
