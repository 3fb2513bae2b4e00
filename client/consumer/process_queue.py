"""What was pulled from one queue and has no verdict yet: pure bookkeeping, no I/O, no clock.

Two numbers come out of it.  `position` is where the next pull begins.  `committed` is what may be stored for the group: the lowest
offset without a verdict, or `position` when there is none.  So everything below `committed` is done (or was filtered out), and after a
crash the messages from there on come again: at least once, never zero times.  One stuck message holds the number back, up to the span
limit.

Messages enter in ascending order of their offsets, because pulls do; a dict therefore *is* the sorted map that other clients need a
tree for, and its first key is the lowest offset.

Source for the rules: client/…/impl/consumer/ProcessQueue.java, DefaultMQPushConsumerImpl.java#pullMessage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar

import attrs


class Held(Protocol):
    """What a process queue needs to know of a message."""

    @property
    def queue_offset(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...


M = TypeVar("M", bound=Held)


@attrs.frozen
class Limits:
    """When to stop pulling; each is exceeded by at most one pulled batch, since they are compared before the pull."""

    messages_max: int
    bytes_max: int
    span_max: int


@attrs.define(eq=False)
class ProcessQueue(Generic[M]):
    """The unsettled messages of one queue."""

    position: int
    _held: dict[int, M] = attrs.field(factory=dict, init=False)
    _size_bytes: int = attrs.field(default=0, init=False)

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[M]:
        """Iterate in the order of offsets."""
        return iter(self._held.values())

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    @property
    def committed(self) -> int:
        """Return the lowest offset that is not done."""
        return next(iter(self._held), self.position)

    @property
    def span(self) -> int:
        """Return the distance from the lowest to the highest unsettled offset; 0 for none or one."""
        return next(reversed(self._held)) - next(iter(self._held)) if self._held else 0

    def put(self, messages: Iterable[M], next_position: int) -> list[M]:
        """Take in one pulled batch, ascending, and go on at `next_position`; returns those that are new.

        Offsets below `position` were seen before (a broker may repeat itself) and are left out.  A `next_position` below the end of the
        batch cannot be meant and is raised to it.
        """
        held = self._held
        position = self.position
        fresh = []
        for message in messages:
            offset = message.queue_offset
            if offset >= position:
                held[offset] = message
                position = offset + 1
                self._size_bytes += message.size_bytes
                fresh.append(message)
        self.position = max(position, next_position)
        return fresh

    def settle(self, queue_offset: int) -> bool:
        """Strike out one message; False if it is not here (settled before, or never was)."""
        message = self._held.pop(queue_offset, None)
        if message is None:
            return False
        self._size_bytes -= message.size_bytes
        return True

    def replace(self, message: M) -> bool:
        """Let another object stand for the same message; False if that one is not here."""
        if message.queue_offset not in self._held:
            return False
        self._held[message.queue_offset] = message
        return True

    def holds(self, queue_offset: int) -> bool:
        return queue_offset in self._held

    def head(self) -> M | None:
        """Return the message that holds back `committed`, if any."""
        return next(iter(self._held.values()), None)

    def above(self, limits: Limits) -> str | None:
        """Return which limit is exceeded, in words, or None if the next pull may go out."""
        if not self._held:
            return None
        if len(self._held) > limits.messages_max:
            return f"{len(self._held)} messages are waiting (limit {limits.messages_max})"
        if self._size_bytes > limits.bytes_max:
            return f"{self._size_bytes} bytes are waiting (limit {limits.bytes_max})"
        if self.span > limits.span_max:
            return (
                f"offset {self.committed} is unsettled while {self.position - 1} is here (span limit {limits.span_max})"
            )
        return None
