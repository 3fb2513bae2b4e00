"""Log one line when something starts to fail and one when it works again, and nothing in between.

A client retries every second without end; a line for each attempt would hide everything else.
"""

from __future__ import annotations

import logging

import attrs


@attrs.define(eq=False)
class FailureLog:
    """The operations that are failing now, by name."""

    logger: logging.Logger
    _failing: dict[str, str] = attrs.field(factory=dict, init=False)

    def failed(self, what: str, error: object) -> None:
        """Note a failure; log it if ``what`` worked before or failed with another kind of error."""
        kind = type(error).__name__
        if self._failing.get(what) != kind:
            self._failing[what] = kind
            self.logger.warning("%s: %s (tried again until it works)", what, error)

    def worked(self, what: str) -> None:
        """Note a success of ``what``; log it if the operation failed before."""
        if self._failing and self._failing.pop(what, None) is not None:
            self.logger.info("%s works again", what)

    def forget(self, what: str) -> None:
        """Remove an operation that is not retried any more."""
        self._failing.pop(what, None)
