"""Limits of what peers may make a server keep: each one is a setting, a refusal that names it, and a counter."""

from __future__ import annotations

from collections import Counter

import attrs

from triomq.remoting.errors import Rejected
from triomq.remoting.protocol.codes import ResponseCode


class LimitReached(Rejected):
    """A request asks for more than a limit allows; the remark names the limit and its setting."""


SETTINGS_BYTES_MAX = 64 * 1024
"""of the body of a request that changes settings: all of them have a tenth of that"""


def require_size(body: bytes, most: int) -> None:
    """Refuse a body that is longer than its reader may take in the loop.

    Raises: LimitReached.  Checkpoint: never.
    """
    if len(body) > most:
        raise LimitReached(ResponseCode.INVALID_PARAMETER, f"the body has {len(body)} bytes, and this request takes {most}: send less in one request")


@attrs.define(eq=False)
class Limits:
    """The limits, and how often each one was met.

    `settings` is a configuration class; `server` is what its remarks call its owner.
    """

    settings: attrs.AttrsInstance
    server: str
    refused: Counter[str] = attrs.field(factory=Counter, init=False)
    """name of the setting -> refusals since the start"""

    def most(self, limit: str) -> int:
        """The value of the field `limit` of the settings."""
        return int(getattr(self.settings, limit))

    def name(self, limit: str) -> str:
        """The setting that the field `limit` stands for, under its name in files."""
        return str(attrs.fields_dict(type(self.settings))[limit].metadata["setting"].java)

    def note(self, limit: str, count: int = 1) -> None:
        """Count what was left out because of a limit.  Checkpoint: never."""
        self.refused[self.name(limit)] += count

    def require(self, limit: str, count: int, what: str) -> None:
        """Refuse `what`, a clause, if it makes `count` of what the field `limit` of the settings bounds.

        Raises: LimitReached.  Checkpoint: never.
        """
        most = self.most(limit)
        if count > most:
            self.note(limit)
            raise LimitReached(ResponseCode.INVALID_PARAMETER, f"{what}: the {self.server}'s limit is {most}; use fewer, or raise {self.name(limit)} in its settings")
