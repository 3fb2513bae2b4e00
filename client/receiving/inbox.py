"""``Inbox``: pulled messages wait here for the application; nothing here limits their number.

Each queue stops pulling when too many of its messages are unsettled (``process_queue.PullLimits``),
so a slow application slows the pulls, and nothing is dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import attrs
import trio

from triomq.client.receiving.received import ReceivedMessage

MESSAGES_BETWEEN_CHECKPOINTS = 32
"""Messages that a task takes before it lets others run; a full checkpoint costs as much as one.

Every ``get`` can be cancelled.
"""


class InboxClosed(Exception):
    """The consumer is stopping; internal, ends workers and iterations."""


@attrs.define(eq=False)
class Inbox:
    """Messages of all queues in the order in which they were pulled."""

    _messages: deque[ReceivedMessage] = attrs.field(factory=deque, init=False)
    _waiting: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _closed: bool = attrs.field(default=False, init=False)
    _paused: bool = attrs.field(default=False, init=False)
    _taken_in_a_row: int = attrs.field(default=0, init=False)
    _woken: bool = attrs.field(default=False, init=False)
    """whether a woken task is about to run; it wakes the next one if it leaves messages"""

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, messages: Sequence[ReceivedMessage]) -> None:
        """Add a batch; a closed inbox drops it, and the messages come again elsewhere."""
        if self._closed:
            return
        self._messages.extend(messages)
        self._wake_one()

    def put_back(self, messages: Sequence[ReceivedMessage]) -> None:
        """Put back messages whose handler was cancelled; they come next."""
        if self._closed:
            return
        for message in messages:
            message.handed_out = 0.0
        self._messages.extendleft(reversed(messages))
        self._wake_one()

    def _wake_one(self) -> None:
        """Wake one waiting task, which wakes the next one if it leaves messages."""
        if self._messages and self._waiting and not self._woken:
            self._woken = True
            self._waiting.unpark()

    def close(self) -> None:
        """Hand out no more messages; wake the waiting tasks, which get ``InboxClosed``."""
        self._closed = True
        self._messages.clear()
        self._waiting.unpark_all()

    def pause(self) -> None:
        """Hand out nothing until ``resume``."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._waiting.unpark_all()

    async def get(self) -> ReceivedMessage:
        """Wait for a message whose queue is still owned, and return it.

        Raises: ``InboxClosed``.
        Checkpoint: maybe; can always be cancelled.
        """
        if self._messages and self._taken_in_a_row < MESSAGES_BETWEEN_CHECKPOINTS:
            self._taken_in_a_row += 1
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            self._taken_in_a_row = 0
            await trio.lowlevel.checkpoint()
        while True:
            if self._closed:
                raise InboxClosed
            message = self._pop()
            if message is not None:
                message.handed_out = trio.current_time()
                if self._messages:
                    self._wake_one()
                return message
            try:
                await self._waiting.park()
            finally:
                self._woken = False

    async def get_some(self, count_max: int, *, one_queue: bool = False) -> list[ReceivedMessage]:
        """Wait for a message; return it with others that are here, at most ``count_max`` in all.

        With ``one_queue`` all are of one queue, for batch handlers.

        Raises: ``InboxClosed``.
        Checkpoint: maybe; can always be cancelled.
        """
        messages = [await self.get()]
        now = messages[0].handed_out
        while len(messages) < count_max and not (
            one_queue and self._messages and self._messages[0].queue != messages[0].queue
        ):
            message = self._pop()
            if message is None:
                break
            message.handed_out = now
            messages.append(message)
        return messages

    def _pop(self) -> ReceivedMessage | None:
        messages = self._messages
        while messages and not self._paused:
            message = messages.popleft()
            if not message.owner.lost:
                return message
        return None
