"""``BlockingLifetime``: start and stop of the loop behind a blocking object."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from triomq.client.portal import Portal

T = TypeVar("T", bound=AbstractAsyncContextManager[Any])


class BlockingLifetime(Generic[T]):
    """An object of ``triomq`` (the target) that runs in a thread of its own.

    It runs for the time of a ``with`` block, or from ``start`` to ``stop``.
    """

    def __init__(self, target: T) -> None:
        self._target = target
        self._portal = Portal(target)

    def __repr__(self) -> str:
        return repr(self._target)

    def start(self) -> Self:
        """Start without a ``with`` block, for notebooks; ``stop`` ends the object."""
        entered = self._portal.start()
        try:
            entered.result()
        except BaseException:  # interrupted: the caller has no object to stop
            self._portal.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop an object that was started by ``start``."""
        self._stop(None)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop(error)

    def _stop(self, error: BaseException | None) -> None:
        left = self._portal.stop(body_failed=error is not None)
        try:
            left.result()
        finally:
            self._portal.join()
