"""``triomq.sync.run``: a blocking program that ends in order when a signal comes; its probes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, SupportsIndex, TypeVar, TypeVarTuple

from triomq import client
from triomq.client.runner.stop_signals import StopSignals
from triomq.sync.lifetime import BlockingLifetime

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


class Probes(BlockingLifetime[client.Probes]):
    """A ``triomq.Probes`` for threads, of objects of this package; see there."""

    def __init__(
        self, *clients: BlockingLifetime[Any], port: SupportsIndex, host: str = "127.0.0.1"
    ) -> None:
        targets: list[Any] = [getattr(each, "_target", each) for each in clients]
        super().__init__(client.Probes(*targets, port=port, host=host))
