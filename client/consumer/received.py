"""`ReceivedMessage`: what a consumer hands to the application, and the verdict that the application gives back."""

from __future__ import annotations

import datetime
import types
from typing import TYPE_CHECKING, Protocol, SupportsIndex

import attrs
import trio

from triomq.client.arguments import check_retry_level, check_seconds
from triomq.client.errors import AlreadySettled, MessageInvalid
from triomq.remoting.errors import ProtocolError
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.compression import plain_body
from triomq.remoting.protocol.message import COMPRESSED, RESERVED_PROPERTIES, RETRY_TOPIC, TRANSIENT_PREFIX, Message
from triomq.remoting.protocol.reprs import short_text

if TYPE_CHECKING:
    from triomq.remoting.protocol.record import StoredMessage

DEAD_LETTER = -1
"""delay level that sends a message straight to `%DLQ%<group>`"""


class Owner(Protocol):
    """The queue that a message came from, as the message sees it."""

    queue: MessageQueue
    lost: bool
    locked_until: float

    @property
    def ending(self) -> bool:
        """Whether nothing more of it may be handed out."""

    def settle(self, message: ReceivedMessage) -> bool:
        """Count the message as done; False if it is not ours any more."""

    async def send_back(self, message: ReceivedMessage, delay_level: int) -> bool:
        """Have the message delivered again later; False if it is not ours any more."""

    def abandon(self, message: ReceivedMessage) -> None:
        """Note that nobody works on the message any more, and it has no verdict."""


@attrs.define(eq=False, repr=False)
class ReceivedMessage:
    """One received message.  Its fields never change; what changes is whether it has a verdict.

    A message gets exactly one verdict: `ack`, `retry` or `dead_letter`, or by `async with message:` (acknowledged at a normal end, retried
    after an exception, neither when cancelled: then an ordered consumer hands it out again).  Until then it holds back the group's committed offset.
    """

    _stored: StoredMessage
    owner: Owner
    """the consumer's side of the queue; for the consumer itself"""
    _settled: bool = False
    extra_reconsume_times: int = attrs.field(default=0, repr=False)
    """deliveries that the broker does not know of: it refused to take the message back, so it was kept and handed out again here"""
    handed_out: float = attrs.field(default=0.0, repr=False)
    """trio time when the application got it; 0.0 while it waits"""
    _body: bytes | None = attrs.field(default=None, repr=False)
    pause: float | None = attrs.field(default=None, repr=False)
    """ordered consumers: seconds for which the queue rests before this message comes again, as `retry` was told"""

    def __repr__(self) -> str:
        """Identify the message without showing its body or properties."""
        stored = self._stored
        tag = f", tag {short_text(stored.tag)}" if stored.tag else ""
        return (
            f"<{type(self).__name__} {short_text(stored.message_id)} of {short_text(self.topic)}, queue {stored.queue_id} offset {stored.queue_offset}, "
            f"{len(stored.body):,} bytes{tag}, {'settled' if self._settled else 'not settled'}>"
        )

    @property
    def topic(self) -> str:
        """The topic it was sent to (for a retried message not the retry topic that it travelled through)."""
        return self._stored.properties.get(RETRY_TOPIC) or self._stored.topic

    @property
    def body(self) -> bytes:
        """The body as it was sent, decompressed if it travelled compressed.

        Errors: `MessageInvalid` if it is broken, or needs an extra (`lz4`, `zstd`) that is not installed.
        """
        if not self._stored.sys_flag & COMPRESSED:
            return self._stored.body
        if self._body is None:
            self._body = _plain(self._stored)
        return self._body

    @property
    def tag(self) -> str | None:
        return self._stored.tag

    @property
    def keys(self) -> tuple[str, ...]:
        """The business keys."""
        return self._stored.keys

    @property
    def properties(self) -> types.MappingProxyType[str, str]:
        """All properties, the system's own included; read-only."""
        return types.MappingProxyType(self._stored.properties)

    @property
    def flag(self) -> int:
        return self._stored.flag

    @property
    def queue(self) -> MessageQueue:
        """The queue it was pulled from."""
        return self.owner.queue

    @property
    def queue_offset(self) -> int:
        return self._stored.queue_offset

    @property
    def size_bytes(self) -> int:
        """The size of its record in the broker's log."""
        return self._stored.size

    def copy_to(self, topic: str) -> Message:
        """Return a new message to send on: the same body, tag, keys, flag and own properties, but not the system's (ids, retries, …)."""
        own = {
            name: value
            for name, value in self._stored.properties.items()
            if name not in RESERVED_PROPERTIES and not name.startswith(TRANSIENT_PREFIX)
        }
        return Message(topic=topic, body=self.body, tag=self.tag, keys=self.keys, properties=own, flag=self.flag)

    @property
    def message_id(self) -> str:
        """The id that the producer gave it (`SendReceipt.message_id`); equal for all deliveries."""
        return self._stored.message_id

    @property
    def offset_message_id(self) -> str:
        """The id that says where it lies: broker address and log offset."""
        return self._stored.offset_message_id

    @property
    def log_offset(self) -> int:
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
        return datetime.datetime.fromtimestamp(self._stored.born_timestamp / 1000, datetime.UTC)

    @property
    def stored_at(self) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self._stored.store_timestamp / 1000, datetime.UTC)

    @property
    def born_host(self) -> tuple[str, int]:
        """The producer's address as the broker saw it."""
        return self._stored.born_host

    @property
    def reconsume_times(self) -> int:
        """How often it was delivered before: 0 for the first time."""
        return self._stored.reconsume_times + self.extra_reconsume_times

    @property
    def settled(self) -> bool:
        """Whether it has its verdict."""
        return self._settled

    @property
    def lost(self) -> bool:
        """Whether its queue belongs to another consumer by now: a verdict has no effect any more, somebody else gets the message."""
        return self.owner.lost

    async def ack(self) -> bool:
        """Count the message as done.  False if the consumer does not own it any more (rebalanced, stopped, timed out).

        Errors: `AlreadySettled` for a second verdict.
        """
        await trio.lowlevel.checkpoint()
        return self.ack_nowait()

    def ack_nowait(self) -> bool:
        """As `ack`, without a checkpoint: for loops over many messages."""
        if self._settled:
            raise AlreadySettled(_second_verdict(self))
        self._settled = True
        return self.owner.settle(self)

    async def retry(self, delay_level: SupportsIndex = 0, *, pause: float | None = None) -> bool:
        """Ask for the message again, later.  False if the consumer does not own it any more.

        The broker stores it for the group's retry topic; `delay_level` 0 lets it choose a delay that grows with each time, 1–18 names a
        level (1 s … 2 h; brokers may be set to have more), -1 is `dead_letter`.  If the broker does not take it, the message stays here and is handed out again after `retry_delay`.

        An ordered consumer keeps it instead: its queue rests for `pause` seconds (None: the setting `suspend_queue`), then the same
        message comes again, before all others of the queue.  A broadcasting consumer has no second deliveries: the message is logged
        and counts as done.

        Errors: `AlreadySettled` for a second verdict; `MessageInvalid`, `SettingsError` for a level or pause that cannot be.
        """
        return await self._give_back(check_retry_level(delay_level), check_seconds("pause", pause))

    async def _give_back(self, delay_level: int, pause: float | None) -> bool:
        if self._settled:
            raise AlreadySettled(_second_verdict(self))
        self._settled = True
        self.pause = pause
        try:
            return await self.owner.send_back(self, delay_level)
        except BaseException:  # cancelled: no verdict was given after all
            self._settled = False
            raise

    async def dead_letter(self) -> bool:
        """Move the message to the group's dead letters.  False if the consumer does not own it any more.

        Errors: `AlreadySettled` for a second verdict.
        """
        return await self._give_back(DEAD_LETTER, None)

    async def __aenter__(self) -> ReceivedMessage:
        await trio.lowlevel.checkpoint()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        try:
            if self._settled:
                await trio.lowlevel.checkpoint_if_cancelled()
            elif error is None:
                await self.ack()
            elif isinstance(error, Exception):
                await self.retry()
        finally:
            if not self._settled:
                self.owner.abandon(self)


def again(message: ReceivedMessage) -> ReceivedMessage:
    """Return a new message object for another local delivery of the same record."""
    return ReceivedMessage(
        stored=message._stored,
        owner=message.owner,
        extra_reconsume_times=message.extra_reconsume_times + 1,
        body=message._body,
    )


def _second_verdict(message: ReceivedMessage) -> str:
    return (
        f"message {message.message_id} already has its verdict: ack, retry or dead_letter once "
        "(messages of a PullConsumer have none, they are settled by commit)"
    )


def _plain(stored: StoredMessage) -> bytes:
    try:
        return plain_body(stored.body, stored.sys_flag)
    except ProtocolError as error:
        raise MessageInvalid(f"message {stored.message_id} of {stored.topic}: {error}") from error
