"""``ReceivedMessage``: a message that a consumer hands to the application, which settles it."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Protocol, SupportsIndex

import attrs
import trio

from triomq.client.core.arguments import check_retry_level, check_seconds
from triomq.client.core.errors import AlreadySettled, NotRunning
from triomq.client.receiving.message_view import MessageView, plain_message_body
from triomq.client.receiving.replier import Replier
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.record import StoredMessage
from triomq.remoting.protocol.sys_flags import COMPRESSED

DEAD_LETTER = -1
"""The delay level that moves a message straight to ``%DLQ%<group>``."""


class Owner(Protocol):
    """The queue that a message came from, as the message sees it."""

    group: str
    queue: MessageQueue
    replier: Replier | None
    lost: bool

    @property
    def locked_until(self) -> float:
        """The trio time until which an ordered consumer may hand out its messages."""

    @property
    def ending(self) -> bool:
        """Whether no more of its messages may be handed out."""

    def settle(self, message: ReceivedMessage) -> bool:
        """Count the message as done; return False if it is not owned any more."""

    async def send_back(self, message: ReceivedMessage, delay_level: int) -> bool:
        """Have the message delivered again later; return False if it is not owned any more."""

    def abandon(self, message: ReceivedMessage) -> None:
        """Note that no handler works on the message any more, although it is not settled."""


@attrs.define(eq=False, repr=False)
class ReceivedMessage(MessageView):
    """One received message, to be settled exactly once.

    Settle it by ``ack``, ``retry`` or ``dead_letter``, or by ``async with message:``, which acks at
    a normal end and retries after an exception. (If cancelled it does neither, and an ordered
    consumer hands the message out again.) Until then the message holds back the group's committed
    offset. Its fields never change.
    """

    _stored: StoredMessage
    owner: Owner
    """the consumer's side of the queue; internal"""
    _settled: bool = False
    extra_reconsume_times: int = attrs.field(default=0, repr=False)
    """local deliveries, which the broker does not count: it did not take the message back"""
    handed_out: float = attrs.field(default=0.0, repr=False)
    """trio time at which the application got the message; 0.0 while it waits"""
    _body: bytes | None = attrs.field(default=None, repr=False)
    pause: float | None = attrs.field(default=None, repr=False)
    """ordered consumers: the ``pause`` of ``retry``, in seconds"""
    _given_back: bool = attrs.field(default=False, repr=False)

    @property
    def body(self) -> bytes:
        if not self._stored.sys_flag & COMPRESSED:
            return self._stored.body
        if self._body is None:
            self._body = plain_message_body(self._stored)
        return self._body

    @property
    def group(self) -> str:
        return self.owner.group

    @property
    def queue(self) -> MessageQueue:
        return self.owner.queue

    @property
    def reconsume_times(self) -> int:
        return self._stored.reconsume_times + self.extra_reconsume_times

    @property
    def settled(self) -> bool:
        return self._settled

    @property
    def given_back(self) -> bool:
        return self._given_back

    @property
    def lost(self) -> bool:
        return self.owner.lost

    async def ack(self) -> bool:
        """Count the message as done; return False if the consumer does not own it any more.

        Its queue moved, the consumer stopped, or ``consume_timeout`` is over.

        Raises: ``AlreadySettled``.
        """
        await trio.lowlevel.checkpoint()
        return self.ack_nowait()

    def ack_nowait(self) -> bool:
        """Count the message as done, as ``ack`` does, for loops over many messages.

        Raises: ``AlreadySettled``.
        Checkpoint: never.
        """
        if self._settled:
            raise AlreadySettled(_settled_before(self))
        self._settled = True
        return self.owner.settle(self)

    async def retry(self, delay_level: SupportsIndex = 0, *, pause: float | None = None) -> bool:
        """Have the message delivered again later; return False if it is not owned any more.

        The broker stores it for the group's retry topic. ``delay_level``: 0 for a delay that grows
        with each delivery, 1 to 18 for a level (1 s to 2 h; brokers may have more), -1 for
        ``dead_letter``. If the broker does not take the message, it stays here and is handed out
        again after ``retry_delay``.

        An ordered consumer keeps the message instead: its queue rests for ``pause`` seconds (None:
        the setting ``suspend_queue``), then the message comes again, before all others of the
        queue. A broadcasting consumer has no second delivery: the message is logged and counts as
        done.

        Raises: ``AlreadySettled``; ``MessageInvalid`` or ``SettingsError`` for a wrong level or
        pause.
        """
        return await self._give_back(check_retry_level(delay_level), check_seconds("pause", pause))

    async def _give_back(self, delay_level: int, pause: float | None) -> bool:
        if self._settled:
            raise AlreadySettled(_settled_before(self))
        self._settled = self._given_back = True
        self.pause = pause
        try:
            return await self.owner.send_back(self, delay_level)
        except BaseException:  # cancelled: the message is not settled after all
            self._settled = self._given_back = False
            raise

    async def dead_letter(self) -> bool:
        """Move the message to the group's dead letters; return False if it is not owned any more.

        Raises: ``AlreadySettled``.
        """
        return await self._give_back(DEAD_LETTER, None)

    def _again(self) -> ReceivedMessage:
        """Return a message of the same kind for another delivery of the record."""
        return ReceivedMessage(self._stored, self.owner)

    async def reply(
        self, body: bytes, *, properties: Mapping[str, str] | None = None, timeout: float = 3.0
    ) -> None:
        """Answer a request, and return when the requester has the reply.

        A reply settles nothing: ack the message as any other. ``timeout``: seconds for everything.

        Raises: ``NotARequest``; ``ReplyNotDelivered`` if the requester is gone;
        ``RequestTimeout``; ``MessageInvalid``, ``SettingsError``.
        """
        replier = self.owner.replier
        if replier is None:
            raise NotRunning("this message belongs to no running consumer, which could reply")
        await replier.reply(self._stored, self.queue, body, properties, timeout)

    async def __aenter__(self) -> ReceivedMessage:
        await trio.lowlevel.checkpoint()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
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


def next_delivery(message: ReceivedMessage) -> ReceivedMessage:
    """Return a new message object for another local delivery of the same record."""
    following = message._again()
    following.extra_reconsume_times = message.extra_reconsume_times + 1
    following._body = message._body
    return following


def _settled_before(message: ReceivedMessage) -> str:
    return (
        f"message {message.message_id} is settled already: call ack, retry or dead_letter once "
        "(messages of a PullConsumer are settled by commit)"
    )
