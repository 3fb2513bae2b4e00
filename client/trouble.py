"""One log line when something starts to fail, one when it works again, nothing in between.

A client retries for ever, every second; a line for each try would hide everything else.
"""

from __future__ import annotations

import logging

import attrs


@attrs.define(eq=False)
class TroubleLog:
    """Which things are failing at the moment."""

    logger: logging.Logger
    _failing: dict[str, str] = attrs.field(factory=dict, init=False)

    def failed(self, what: str, error: object) -> None:
        """Note a failure; logged as a warning when `what` worked before, or fails in another way now."""
        kind = type(error).__name__
        if self._failing.get(what) != kind:
            self._failing[what] = kind
            self.logger.warning("%s: %s (tried again until it works)", what, error)

    def worked(self, what: str) -> None:
        """Note a success; logged if `what` failed before."""
        if self._failing and self._failing.pop(what, None) is not None:
            self.logger.info("%s works again", what)

    def forget(self, what: str) -> None:
        """Drop what nobody asks for any more."""
        self._failing.pop(what, None)

    @property
    def failing(self) -> frozenset[str]:
        return frozenset(self._failing)
