"""Limits of the memory that peers can occupy in a server, each with a setting and a counter."""

from __future__ import annotations

from collections import Counter

import attrs

from triomq.remoting.core.errors import Rejected
from triomq.remoting.protocol.codes import ResponseCode


class LimitReached(Rejected):
    """A request exceeds a limit; the remark names the limit and its setting."""


SETTINGS_BYTES_MAX = 32 * 1024
"""of the body of a request that changes settings; all settings together need a fifth"""


def require_size(body: bytes, most: int) -> None:
    """Refuse a body that would take too long to read in the loop.

    Raises: LimitReached.
    Checkpoint: never.
    """
    if len(body) > most:
        raise LimitReached(
            ResponseCode.INVALID_PARAMETER,
            f"the body has {len(body)} bytes, and this request takes {most}: send less in one"
            " request",
        )


@attrs.define(eq=False)
class Limits:
    """The limits, and how often each was reached.

    ``settings``: an object of a configuration class; ``server``: the name of the server in remarks.
    """

    settings: attrs.AttrsInstance
    server: str
    refused: Counter[str] = attrs.field(factory=Counter, init=False)
    """name of the setting -> refusals since the start"""

    def most(self, limit: str) -> int:
        """Return the value of the field ``limit`` of the settings."""
        return int(getattr(self.settings, limit))

    def name(self, limit: str) -> str:
        """Return the name in files of the setting in the field ``limit``."""
        return str(attrs.fields_dict(type(self.settings))[limit].metadata["setting"].java)

    def note(self, limit: str, count: int = 1) -> None:
        """Count entries that were left out because of a limit. Checkpoint: never."""
        self.refused[self.name(limit)] += count

    def require(self, limit: str, count: int, what: str) -> None:
        """Refuse if *count* is above the limit in the field *limit* of the settings.

        *what*: a clause for the remark.

        Raises: LimitReached.
        Checkpoint: never.
        """
        most = self.most(limit)
        if count > most:
            self.note(limit)
            raise LimitReached(
                ResponseCode.INVALID_PARAMETER,
                f"{what}: the {self.server}'s limit is {most}; use fewer, or raise"
                f" {self.name(limit)} in its settings",
            )
