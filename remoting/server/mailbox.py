"""A bounded mailbox between two stages: a deque and a parking lot.

``put`` is synchronous, so a stage can hand over from anywhere; a producer asks ``full`` first and
waits for ``room``. Items are batches: a task switch costs about 8 µs, which is little for a batch.
"""

from collections import deque
from typing import Generic, TypeVar

import attrs
import trio

T = TypeVar("T")


@attrs.define(eq=False)
class Mailbox(Generic[T]):
    """Holds ``capacity`` batches for one consuming task and any number of producers."""

    capacity: int
    _items: deque[T] = attrs.field(factory=deque, init=False)
    _sleeping: bool = attrs.field(default=False, init=False)
    _consumer: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _producers: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    def __len__(self) -> int:
        return len(self._items)

    @property
    def full(self) -> bool:
        return len(self._items) >= self.capacity

    @property
    def idle(self) -> bool:
        """Whether nothing is queued and the consumer sleeps: its work may be done in place."""
        return self._sleeping and not self._items

    def put(self, item: T) -> None:
        """Queue an item and wake the consumer, even above the capacity. Checkpoint: never."""
        self._items.append(item)
        if self._sleeping:
            self._sleeping = False
            self._consumer.unpark()

    async def room(self) -> None:
        """Wait until the mailbox is no longer full. Checkpoint: maybe."""
        while self.full:
            await self._producers.park()

    async def emptied(self) -> None:
        """Wait until nothing is queued. Checkpoint: maybe."""
        while self._items:
            await self._producers.park()

    async def take(self) -> T:
        """Wait for the oldest item and remove it. Checkpoint: maybe."""
        while not self._items:
            self._sleeping = True
            await self._consumer.park()
        return self._pop()

    def take_nowait(self) -> T | None:
        """Remove the oldest item; None if there is none. Checkpoint: never."""
        return self._pop() if self._items else None

    def _pop(self) -> T:
        item = self._items.popleft()
        if self._producers:
            self._producers.unpark_all()
        return item
