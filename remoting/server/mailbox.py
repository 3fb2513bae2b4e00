"""A bounded mailbox between two stages: a deque and a parking lot.

`put` is synchronous, so a stage can hand over from anywhere; whoever fills a mailbox asks `full` first and waits for `room`.
Items are batches: a hop between tasks costs about 8 µs, and per batch that is nothing.
"""

from collections import deque
from typing import Generic, TypeVar

import attrs
import trio

T = TypeVar("T")


@attrs.define(eq=False)
class Mailbox(Generic[T]):
    """`capacity` batches; one consuming task, any number of producers."""

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
        """Nothing is queued and the consumer is asleep: its work may be done in place."""
        return self._sleeping and not self._items

    def put(self, item: T) -> None:
        """Queue an item and wake the consumer. No checkpoint; may exceed the capacity by what producers put without asking."""
        self._items.append(item)
        if self._sleeping:
            self._sleeping = False
            self._consumer.unpark()

    async def room(self) -> None:
        """Wait until the mailbox is no longer full. Checkpoint: only if it is full."""
        while self.full:
            await self._producers.park()

    async def emptied(self) -> None:
        """Wait until nothing is queued. Checkpoint: only if something is."""
        while self._items:
            await self._producers.park()

    async def take(self) -> T:
        """The oldest item. Checkpoint: only if there is none."""
        while not self._items:
            self._sleeping = True
            await self._consumer.park()
        return self._pop()

    def take_nowait(self) -> T | None:
        """The oldest item, None if there is none. No checkpoint."""
        return self._pop() if self._items else None

    def _pop(self) -> T:
        item = self._items.popleft()
        if self._producers:
            self._producers.unpark_all()
        return item
