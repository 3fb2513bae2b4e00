"""The unsettled messages of one queue: pure bookkeeping, no I/O, no clock.

Two numbers come out of it. ``position`` is where the next pull begins. ``committed`` is what may be
stored for the group: the lowest unsettled offset, or ``position`` if there is none. So everything
below ``committed`` is done (or was filtered out), and after a crash the messages from there on come
again: at least once, never zero times. One stuck message holds the number back, up to the span
limit.

Messages enter in ascending order of their offsets, because pulls return them so. A dict therefore
*is* the sorted map that other clients need a tree for, and its first key is the lowest offset.

Source for the rules: client/…/impl/consumer/ProcessQueue.java,
DefaultMQPushConsumerImpl.java#pullMessage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from triomq.client.receiving.received import ReceivedMessage


@attrs.frozen
class PullLimits:
    """When to stop pulling: compared before a pull, so exceeded by at most one pulled batch."""

    messages_max: int
    bytes_max: int
    span_max: int


@attrs.define(eq=False)
class ProcessQueue:
    """The unsettled messages of one queue."""

    position: int
    _held: dict[int, ReceivedMessage] = attrs.field(factory=dict, init=False)
    size_bytes: int = attrs.field(default=0, init=False)

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Iterate in the order of offsets."""
        return iter(self._held.values())

    @property
    def committed(self) -> int:
        """The lowest offset that is not done."""
        return next(iter(self._held), self.position)

    @property
    def span(self) -> int:
        """The distance from the lowest to the highest unsettled offset; 0 for fewer than two."""
        return next(reversed(self._held)) - next(iter(self._held)) if self._held else 0

    def put(self, messages: Iterable[ReceivedMessage], next_position: int) -> list[ReceivedMessage]:
        """Add a pulled batch in ascending order, continue at ``next_position``; return what is new.

        Offsets below ``position`` were seen before (a broker may repeat itself) and are left out. A
        ``next_position`` below the end of the batch is raised to it.
        """
        held = self._held
        position = self.position
        fresh = []
        for message in messages:
            offset = message.queue_offset
            if offset >= position:
                held[offset] = message
                position = offset + 1
                self.size_bytes += message.size_bytes
                fresh.append(message)
        self.position = max(position, next_position)
        return fresh

    def settle(self, queue_offset: int) -> bool:
        """Remove one message; return False if it is not here (settled before, or never added)."""
        message = self._held.pop(queue_offset, None)
        if message is None:
            return False
        self.size_bytes -= message.size_bytes
        return True

    def replace(self, message: ReceivedMessage) -> bool:
        """Replace a message by another object for it; return False if the message is not here."""
        if message.queue_offset not in self._held:
            return False
        self._held[message.queue_offset] = message
        return True

    def holds(self, queue_offset: int) -> bool:
        return queue_offset in self._held

    def head(self) -> ReceivedMessage | None:
        """Return the message that holds back ``committed``, or None."""
        return next(iter(self._held.values()), None)

    def above(self, limits: PullLimits) -> bool:
        """Return whether a limit is exceeded, so that the next pull must wait."""
        return (
            len(self._held) > limits.messages_max
            or self.size_bytes > limits.bytes_max
            or self.span > limits.span_max
        )
