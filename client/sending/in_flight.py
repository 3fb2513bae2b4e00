"""Back-pressure: limits for the messages, and their bytes, that are in flight.

A send over a limit waits, which counts towards its ``send_timeout``. Off by default, as in Java
(``enableBackpressureForAsyncMode``).
"""

from __future__ import annotations

from collections import deque

import attrs
import trio


@attrs.define(eq=False)
class Claim:
    """A send that waits for room."""

    size: int
    granted: trio.Event = attrs.field(factory=trio.Event)


@attrs.define(eq=False)
class InFlight:
    """The two budgets of one producer, messages and bytes: first come, first served."""

    messages_max: int
    bytes_max: int
    messages: int = attrs.field(default=0, init=False)
    size_bytes: int = attrs.field(default=0, init=False)
    _claims: deque[Claim] = attrs.field(factory=deque, init=False)

    def _has_room(self, size: int) -> bool:
        """Return whether a message fits; one above the byte budget fits when none is in flight."""
        return self.messages < self.messages_max and (
            self.size_bytes + size <= self.bytes_max or not self.messages
        )

    async def acquire(self, size: int, deadline: float) -> bool:
        """Wait for room for one message; return False if there was none before the deadline.

        Checkpoint: maybe, only when it waits.
        """
        if not self._claims and self._has_room(size):
            self._take(size)
            return True
        claim = Claim(size)
        self._claims.append(claim)
        try:
            with trio.move_on_at(deadline):
                await claim.granted.wait()
                return True
        except BaseException:  # cancelled
            self._withdraw(claim)
            raise
        self._withdraw(claim)
        return False

    def release(self, size: int) -> None:
        """Free the room for the sends that wait."""
        self.messages -= 1
        self.size_bytes -= size
        self._grant()

    def _withdraw(self, claim: Claim) -> None:
        if claim.granted.is_set():
            self.release(claim.size)
        else:
            self._claims.remove(claim)
            self._grant()

    def _grant(self) -> None:
        while self._claims and self._has_room(self._claims[0].size):
            claim = self._claims.popleft()
            self._take(claim.size)
            claim.granted.set()

    def _take(self, size: int) -> None:
        self.messages += 1
        self.size_bytes += size
