"""``HoldLimit``: how many messages of one source a consumer may hold. Pure.

What a slow member holds, the others cannot have, and a fast one must not wait for each pop. So the
limit grows while messages are settled soon after they were popped, and falls when they wait.
"""

from __future__ import annotations

import attrs

SOON_SECONDS = 1.0
"""Time from a pop to the settlement up to which more messages may be held."""


@attrs.define(eq=False)
class HoldLimit:
    """The limit of one source; it begins at ``least``."""

    most: int
    least: int = 1
    """how many messages the handlers take at once"""
    value: int = attrs.field(default=1, init=False)

    def __attrs_post_init__(self) -> None:
        self.set_least(self.least)

    def set_least(self, count: int) -> None:
        """Note how many messages the handlers take at once."""
        self.least = min(count, self.most)
        self.value = max(self.value, self.least)

    def settled(self, seconds: float) -> None:
        """Note a settlement, ``seconds`` after the pop."""
        if seconds <= SOON_SECONDS:
            self.value = min(self.value + 1, self.most)
        else:
            self.value = max(self.value // 2, self.least)
