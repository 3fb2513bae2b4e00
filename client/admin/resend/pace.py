"""How many messages are sent per second. Pure: the caller has the clock, and sleeps."""

from __future__ import annotations

import attrs


@attrs.define
class SendPace:
    """An even pace: each message has a moment, and none is made up for."""

    per_second: int | None
    """None: as fast as the brokers answer"""
    _next: float | None = None

    def delay(self, now: float) -> float:
        """Return the seconds to wait before the next message is sent; ``now``: seconds."""
        if self.per_second is None:
            return 0.0
        moment = now if self._next is None else max(now, self._next)
        self._next = moment + 1 / self.per_second
        return moment - now

    def seconds(self, count: int) -> float:
        """Return the shortest time in which ``count`` messages are sent."""
        return 0.0 if self.per_second is None else max(0, count - 1) / self.per_second
