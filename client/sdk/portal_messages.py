"""Received messages outside the Trio loop: what ``triomq.sync`` and ``triomq.aio`` share."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

import attrs
import trio

from triomq.client.core.portal import Portal
from triomq.client.receiving.message_view import MessageView
from triomq.client.receiving.pop.leased_message import LeasedMessage
from triomq.client.receiving.received import ReceivedMessage
from triomq.client.sdk.push_consumer import PushConsumer
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.record import StoredMessage

PREFETCH_MAX = 32
"""Messages fetched at a time: a hop between threads costs as much as handling a small message."""


AnyMessage = TypeVar("AnyMessage", bound=ReceivedMessage | LeasedMessage)


class PortalMessage(MessageView, Generic[AnyMessage]):
    """A message of a consumer behind a portal; subclasses settle it, waiting in their own way."""

    __slots__ = ("_portal", "_target")

    def __init__(self, message: AnyMessage, portal: Portal[object]) -> None:
        self._target = message
        self._portal = portal

    @property
    def _stored(self) -> StoredMessage:
        return self._target._stored

    @property
    def body(self) -> bytes:
        return self._target.body

    @property
    def group(self) -> str:
        return self._target.group

    @property
    def queue(self) -> MessageQueue:
        return self._target.queue

    @property
    def reconsume_times(self) -> int:
        return self._target.reconsume_times

    @property
    def settled(self) -> bool:
        return self._target.settled

    @property
    def given_back(self) -> bool:
        return self._target.given_back

    @property
    def lost(self) -> bool:
        return self._target.lost


@attrs.define(eq=False)
class Prefetch:
    """Messages of a push consumer, fetched ahead of the application, for any thread to take."""

    _consumer: PushConsumer
    _portal: Portal[PushConsumer]
    _messages: deque[ReceivedMessage] = attrs.field(factory=deque)

    async def fill(self) -> None:
        """Wait for messages; runs in the consumer's loop.

        ``consume_timeout`` begins when the application takes them. Of an ordered consumer one
        message is fetched at a time, since the next one of its queue comes only when it is settled.
        """
        messages = await self._consumer.take(
            max_messages=1 if self._consumer.ordered else PREFETCH_MAX
        )
        for message in messages:
            message.handed_out = 0.0
        self._messages.extend(messages)

    def take(self, count: int) -> list[ReceivedMessage]:
        """Return at most ``count`` fetched messages that are owned; if none, call ``fill``.

        Raises: ``NotRunning`` for a caller that the portal refuses.
        """
        self._portal.require_caller()
        taken: list[ReceivedMessage] = []
        while len(taken) < count:
            try:
                # `popleft` decides: a check of the length would race with other threads.
                message = self._messages.popleft()
            except IndexError:
                break
            if not message.lost:
                taken.append(message)
        if taken:
            self._portal.call_soon(_stamp, taken)
        return taken


def _stamp(messages: list[ReceivedMessage]) -> None:
    """Note that the application has the messages now."""
    for message in messages:
        message.handed_out = trio.current_time()
