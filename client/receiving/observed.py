"""``Observers``: calls the hooks around what a consumer's application does with messages.

A consumer without hooks makes plain ``ReceivedMessage``s and pays nothing. With hooks it makes
``ObservedMessage``s, which know the call that handles them:

- a handler's call, for consumers with a handler
- the block ``async with message:``, for consumers that iterate
- the time from handing out to settling, if the application settles without either
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import attrs
import trio

from triomq.client.core.message_hooks import (
    ConsumeContext,
    ConsumeHook,
    SettleContext,
    SettleHook,
    call_hooks,
)
from triomq.client.receiving.message_view import MessageView
from triomq.client.receiving.received import DEAD_LETTER, Owner, ReceivedMessage
from triomq.remoting.protocol.record import StoredMessage

MakeMessage = Callable[[StoredMessage, Owner, bool], ReceivedMessage]


@attrs.define(eq=False)
class Observers:
    """The hooks of one consumer."""

    group: str
    consume_hooks: Sequence[ConsumeHook] = ()
    settle_hooks: Sequence[SettleHook] = ()

    @property
    def make_message(self) -> MakeMessage:
        """What makes a message from its record, its queue, and whether it is settled at once."""
        return self._observed if self.consume_hooks or self.settle_hooks else ReceivedMessage

    def _observed(self, record: StoredMessage, owner: Owner, settled: bool) -> ReceivedMessage:
        return ObservedMessage(record, owner, settled, observers=self)

    def around(self, handler: Callable[[Any], Awaitable[object]]) -> Callable[[Any], Any]:
        """Return the handler with the hooks around it; it takes a message or a list of messages."""
        if not self.consume_hooks and not self.settle_hooks:
            return handler

        async def hooked(what: Any) -> object:
            call = self.begin(what if isinstance(what, list) else [what])
            try:
                outcome = await handler(what)
            except BaseException as error:
                self.end(call, error)
                raise
            self.end(call, None)
            return outcome

        return hooked

    def polled(self, messages: Sequence[MessageView]) -> None:
        """Call the hooks for messages that a call returns, for each topic on its own."""
        if not self.consume_hooks:
            return
        by_topic: dict[str, list[MessageView]] = {}
        for message in messages:
            by_topic.setdefault(message.topic, []).append(message)
        for some in by_topic.values():
            self.end(self.begin(some, polled=True), None)

    def begin(
        self, messages: Sequence[MessageView], *, elapsed: float = 0.0, polled: bool = False
    ) -> ConsumeContext:
        """Begin a call; ``elapsed``: seconds since the application got the messages."""
        call = ConsumeContext(group=self.group, messages=messages, elapsed=elapsed, polled=polled)
        for message in messages:
            if isinstance(message, ObservedMessage):
                message.call = call
        call_hooks(self.consume_hooks, "before_consume", call)
        return call

    def end(self, call: ConsumeContext, error: BaseException | None) -> None:
        """End a call; ``error``: what the application raised."""
        call.success, call.error = error is None, error
        call_hooks(self.consume_hooks, "after_consume", call)


@attrs.define(eq=False, repr=False)
class ObservedMessage(ReceivedMessage):
    """A message whose handling and settling is reported to hooks."""

    observers: Observers = attrs.field(kw_only=True)
    call: ConsumeContext | None = attrs.field(default=None, init=False)
    """the call that handles it, even after its end; None before"""
    _block: ConsumeContext | None = attrs.field(default=None, init=False)
    """the call that its own ``async with`` block is"""

    def ack_nowait(self) -> bool:
        with self._settling("ack"):
            return super().ack_nowait()

    async def _give_back(self, delay_level: int, pause: float | None) -> bool:
        with self._settling("dead_letter" if delay_level == DEAD_LETTER else "retry"):
            return await super()._give_back(delay_level, pause)

    @contextmanager
    def _settling(self, outcome: str) -> Iterator[None]:
        observers, bare = self.observers, None
        if self.call is None and not self.settled:
            elapsed = trio.current_time() - self.handed_out if self.handed_out else 0.0
            bare = observers.begin([self], elapsed=elapsed)
        context = SettleContext(group=observers.group, message=self, outcome=outcome)
        call_hooks(observers.settle_hooks, "before_settle", context)
        try:
            yield
        except BaseException as error:
            context.error = error
            raise
        finally:
            call_hooks(observers.settle_hooks, "after_settle", context)
            if bare is not None:
                observers.end(bare, context.error)
                if not self.settled:  # cancelled
                    self.call = None

    async def __aenter__(self) -> ReceivedMessage:
        await super().__aenter__()
        if self.call is None:
            self._block = self.observers.begin([self])
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        block, self._block = self._block, None
        if block is not None:
            self.observers.end(block, error)
        try:
            await super().__aexit__(kind, error, trace)
        finally:
            if not self.settled and block is not None:  # it may be handed out again
                self.call = None

    def _again(self) -> ReceivedMessage:
        return self.observers.make_message(self._stored, self.owner, False)
