"""The place where pulled messages wait for the application: lists come in, single messages go out, nobody is held up.

The bound is elsewhere: each queue stops pulling when too much of it is unsettled (`process_queue.Limits`), so a slow application slows the
pulls and nothing is dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import attrs
import trio

from triomq.client.consumer.received import ReceivedMessage

MESSAGES_BETWEEN_CHECKPOINTS = 32
"""A full checkpoint costs as much as handling a small message; so one task may take this many before it lets others run.  Every `get` is a
cancel point."""


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
    """whether somebody who waited is about to run: he wakes the next one, if he leaves anything"""

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, messages: Sequence[ReceivedMessage]) -> None:
        """Take in a batch; once it is closed, leave it: nobody gets that any more, and it comes again.  Atomic: no checkpoint."""
        if self._closed:
            return
        self._messages.extend(messages)
        self._wake_one()

    def put_back(self, messages: Sequence[ReceivedMessage]) -> None:
        """Take back what was handed out and nobody works on: it comes next.  Atomic: no checkpoint."""
        if self._closed:
            return
        for message in messages:
            message.handed_out = 0.0
        self._messages.extendleft(reversed(messages))
        self._wake_one()

    def _wake_one(self) -> None:
        """Wake one who waits, for who handles messages quickly takes many of them before others could; else he wakes the next one."""
        if self._messages and self._waiting and not self._woken:
            self._woken = True
            self._waiting.unpark()

    def close(self) -> None:
        """Hand out nothing more; whoever waits is told so."""
        self._closed = True
        self._messages.clear()
        self._waiting.unpark_all()

    def pause(self) -> None:
        """Hand out nothing until `resume`."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._waiting.unpark_all()

    async def get(self) -> ReceivedMessage:
        """Wait for a message whose queue is still ours.  Errors: `InboxClosed`."""
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
        """Wait for a message and return it with what else is here, at most `count_max`.  Errors: `InboxClosed`.

        With `one_queue` only messages of one queue are returned together, as batch handlers want them.
        """
        messages = [await self.get()]
        now = messages[0].handed_out
        while len(messages) < count_max and not (
            one_queue and self._messages and self._messages[0].owner is not messages[0].owner
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
