"""`MessageView`: the read-only side of a received message, for the façades, which add verdicts of their own colour."""

from __future__ import annotations

import datetime
from types import MappingProxyType

import trio

from triomq.client.consumer.push import PushConsumer
from triomq.client.consumer.received import ReceivedMessage
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.message import Message

BUFFERED_MAX = 32
"""messages that a façade fetches at a time, since a hop between threads costs as much as handling a small message"""


async def take(consumer: PushConsumer) -> list[ReceivedMessage]:
    """Fetch messages for a façade's buffer, where they still wait for the application: `consume_timeout` does not run yet.

    Of an ordered consumer one at a time: the next one of its queue comes after its verdict.
    """
    messages = await consumer.take(max_messages=1 if consumer.ordered else BUFFERED_MAX)
    for message in messages:
        message.handed_out = 0.0
    return messages


def stamp(message: ReceivedMessage) -> None:
    """Note that the application has the message now."""
    message.handed_out = trio.current_time()


class MessageView:
    """The fields of `ReceivedMessage`."""

    __slots__ = ("_message",)

    def __init__(self, message: ReceivedMessage) -> None:
        self._message = message

    def __repr__(self) -> str:
        return repr(self._message)

    @property
    def topic(self) -> str:
        return self._message.topic

    @property
    def body(self) -> bytes:
        return self._message.body

    @property
    def tag(self) -> str | None:
        return self._message.tag

    @property
    def keys(self) -> tuple[str, ...]:
        return self._message.keys

    @property
    def properties(self) -> MappingProxyType[str, str]:
        return self._message.properties

    @property
    def flag(self) -> int:
        return self._message.flag

    @property
    def queue(self) -> MessageQueue:
        return self._message.queue

    @property
    def queue_offset(self) -> int:
        return self._message.queue_offset

    @property
    def message_id(self) -> str:
        return self._message.message_id

    @property
    def offset_message_id(self) -> str:
        return self._message.offset_message_id

    def copy_to(self, topic: str) -> Message:
        return self._message.copy_to(topic)

    @property
    def born_at(self) -> datetime.datetime:
        return self._message.born_at

    @property
    def stored_at(self) -> datetime.datetime:
        return self._message.stored_at

    @property
    def reconsume_times(self) -> int:
        return self._message.reconsume_times

    @property
    def settled(self) -> bool:
        return self._message.settled

    @property
    def lost(self) -> bool:
        return self._message.lost
