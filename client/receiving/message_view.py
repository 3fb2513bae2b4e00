"""``MessageView``: the read-only side of a received message, the same in all interfaces."""

from __future__ import annotations

import datetime
import types
from abc import ABC, abstractmethod

from triomq.client.core.errors import MessageInvalid
from triomq.remoting.core.errors import ProtocolError
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.compression import plain_body
from triomq.remoting.protocol.message import Message
from triomq.remoting.protocol.message_properties import (
    RESERVED_PROPERTIES,
    RETRY_TOPIC,
    TRANSIENT_PREFIX,
)
from triomq.remoting.protocol.record import StoredMessage
from triomq.remoting.protocol.short_repr import short_text


class MessageView(ABC):
    """The fields of a received message, read-only.

    ``triomq.ReceivedMessage``, ``triomq.sync.ReceivedMessage`` and ``triomq.aio.ReceivedMessage``
    are views that add ``ack``, ``retry`` and ``dead_letter``. Code that only reads takes a
    ``MessageView`` and works with all three.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def _stored(self) -> StoredMessage:
        """The record that the broker delivered."""

    def __repr__(self) -> str:
        """Identify the message without showing its body or properties."""
        stored = self._stored
        tag = f", tag {short_text(stored.tag)}" if stored.tag else ""
        return (
            f"<{type(self).__name__} {short_text(stored.message_id)} of {short_text(self.topic)},"
            f" queue {stored.queue_id} offset {stored.queue_offset}, {len(stored.body):,}"
            f" bytes{tag}, {'settled' if self.settled else 'not settled'}>"
        )

    @property
    def topic(self) -> str:
        """The topic that the message was sent to, even if it came from the retry topic."""
        return self._stored.properties.get(RETRY_TOPIC) or self._stored.topic

    @property
    def body(self) -> bytes:
        """The body as it was sent, decompressed if it travelled compressed.

        Raises: ``MessageInvalid`` if it is broken, or needs an extra (``lz4``, ``zstd``) that is
        not installed.
        """
        return plain_message_body(self._stored)

    @property
    def tag(self) -> str | None:
        """The tag, or None."""
        return self._stored.tag

    @property
    def keys(self) -> tuple[str, ...]:
        """The business keys."""
        return self._stored.keys

    @property
    def properties(self) -> types.MappingProxyType[str, str]:
        """All properties, the system's included; read-only."""
        return types.MappingProxyType(self._stored.properties)

    @property
    def flag(self) -> int:
        """The number that the producer set."""
        return self._stored.flag

    @property
    @abstractmethod
    def group(self) -> str:
        """The consumer group that got the message."""

    @property
    @abstractmethod
    def queue(self) -> MessageQueue:
        """The queue that the message was pulled from."""

    @property
    def queue_offset(self) -> int:
        """The number of the message in its queue."""
        return self._stored.queue_offset

    @property
    def size_bytes(self) -> int:
        """The size of its record in the broker's log."""
        return self._stored.size

    def copy_to(self, topic: str) -> Message:
        """Return a new message to send on, with the same body, tag, keys, flag and own properties.

        The system's properties (ids, retries, …) are left out.
        """
        own = {
            name: value
            for name, value in self._stored.properties.items()
            if name not in RESERVED_PROPERTIES and not name.startswith(TRANSIENT_PREFIX)
        }
        return Message(
            topic=topic,
            body=self.body,
            tag=self.tag,
            keys=self.keys,
            properties=own,
            flag=self.flag,
        )

    @property
    def message_id(self) -> str:
        """The producer's id (``SendReceipt.message_id``), equal in all deliveries.

        It identifies duplicates.
        """
        return self._stored.message_id

    @property
    def offset_message_id(self) -> str:
        """The id made of its broker's address and its log offset."""
        return self._stored.offset_message_id

    @property
    def log_offset(self) -> int:
        """The position of its record in the broker's log, in bytes."""
        return self._stored.log_offset

    @property
    def born_timestamp(self) -> int:
        """Milliseconds since 1970 by the producer's clock."""
        return self._stored.born_timestamp

    @property
    def store_timestamp(self) -> int:
        """Milliseconds since 1970 by the broker's clock."""
        return self._stored.store_timestamp

    @property
    def born_at(self) -> datetime.datetime:
        """When it was sent, by the producer's clock; an aware datetime."""
        return datetime.datetime.fromtimestamp(self._stored.born_timestamp / 1000, datetime.UTC)

    @property
    def stored_at(self) -> datetime.datetime:
        """When it was stored, by the broker's clock; an aware datetime."""
        return datetime.datetime.fromtimestamp(self._stored.store_timestamp / 1000, datetime.UTC)

    @property
    def born_host(self) -> tuple[str, int]:
        """The producer's address as the broker saw it."""
        return self._stored.born_host

    @property
    def reconsume_times(self) -> int:
        """The number of earlier deliveries: 0 for the first time."""
        return self._stored.reconsume_times

    @property
    @abstractmethod
    def settled(self) -> bool:
        """Whether the message is settled: acked, or given back for a retry or as a dead letter."""

    @property
    @abstractmethod
    def given_back(self) -> bool:
        """Whether the message was given back, for a retry or as a dead letter."""

    @property
    @abstractmethod
    def lost(self) -> bool:
        """Whether another consumer owns its queue and gets the message: settling has no effect."""


def plain_message_body(stored: StoredMessage) -> bytes:
    """Return a body as it was sent. Raises: ``MessageInvalid``."""
    try:
        return plain_body(stored.body, stored.sys_flag)
    except ProtocolError as error:
        raise MessageInvalid(f"message {stored.message_id} of {stored.topic}: {error}") from error
