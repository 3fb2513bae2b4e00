"""``LeasedMessage``: a message that a simple consumer received, for its invisible time."""

from __future__ import annotations

import datetime
import time
import types
from collections.abc import Awaitable, Callable, Mapping

import trio

from triomq.client.core.back_off import until_reached
from triomq.client.core.errors import AlreadySettled, MessageGone, MessageRefused, ReceiptExpired
from triomq.client.receiving.message_view import MessageView
from triomq.client.receiving.pop.durations import (
    DELIVERIES_MAX,
    Duration,
    check_invisible,
    retry_seconds,
)
from triomq.client.receiving.pop.lease_times import Lease, OpenLeases
from triomq.client.receiving.pop.pop_requests import PopRequests
from triomq.client.receiving.replier import Replier
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.record import StoredMessage


class LeasedMessage(MessageView):
    """A message that ``SimpleConsumer.receive`` returned, hidden from the rest of the group.

    ``ack`` it within its invisible time, or ``change_invisible``; otherwise the group gets it
    again. ``async with message:`` acks at a normal end and retries after an exception; if cancelled
    it does neither.
    """

    __slots__ = (
        "_given_back",
        "_lease",
        "_leases",
        "_lock",
        "_lost_at",
        "_record",
        "_replier",
        "_requests",
        "_settled",
    )

    def __init__(
        self,
        record: StoredMessage,
        lease: Lease,
        requests: PopRequests,
        replier: Replier,
        leases: OpenLeases,
    ) -> None:
        self._record = record
        self._lease = lease
        self._leases = leases
        self._requests = requests
        self._replier = replier
        self._settled = self._given_back = False
        # A change gives a new handle, which a request at the same time would not have.
        self._lock = trio.Lock()
        self._note_end(lease.handle.invisible_ms / 1000)

    def _note_end(self, seconds: float) -> None:
        """Note when the invisible time ends, for other threads, which have no Trio clock."""
        self._lost_at = time.monotonic() + seconds

    @property
    def _stored(self) -> StoredMessage:
        return self._record

    @property
    def group(self) -> str:
        return self._requests.group

    @property
    def queue(self) -> MessageQueue:
        handle = self._lease.handle
        return MessageQueue(self._lease.topic, handle.broker_name, handle.queue_id)

    @property
    def settled(self) -> bool:
        return self._settled

    @property
    def given_back(self) -> bool:
        return self._given_back

    @property
    def lost(self) -> bool:
        """Whether the invisible time is over: the group gets the message again."""
        return not self._settled and time.monotonic() >= self._lost_at

    @property
    def receipt(self) -> str:
        """The receipt handle; ``change_invisible`` gives a new one."""
        return self._lease.handle.encode()

    @property
    def invisible_until(self) -> datetime.datetime:
        """When the group gets the message again, by the broker's clock; an aware datetime."""
        return datetime.datetime.fromtimestamp(self._lease.handle.visible_at / 1000, datetime.UTC)

    async def ack(self) -> None:
        """Acknowledge the message: the group never gets it again.

        While the broker cannot be reached the request is repeated for ``offset_timeout``.

        Raises: ``ReceiptExpired``, ``AlreadySettled``; ``TrioMQError`` from the broker, and then
        the message may be acked again.
        """
        async with self._lock:
            self._check_open()
            await self._ask(lambda: self._requests.acknowledge(self._lease))
            self._settled = True
            self._leases.discard(self._lease)

    async def change_invisible(self, invisible: Duration) -> None:
        """Hide the message for ``invisible`` from now on, longer or shorter than before.

        ``invisible``: seconds or a ``timedelta``; 0 gives the message back at once.

        Raises: ``ReceiptExpired``, ``AlreadySettled``, ``SettingsError``; ``TrioMQError`` from the
        broker.
        """
        seconds = check_invisible("invisible", invisible, least=0.0)
        async with self._lock:
            self._check_open()
            await self._ask(lambda: self._requests.change(self._lease, seconds))
            self._leases.discard(self._lease)  # a time that the application chose stays
            self._note_end(seconds)

    async def retry(self, delay: Duration | None = None) -> None:
        """Settle the message as failed: the group gets it again after ``delay``.

        None: after the group's delay, which grows with each delivery (10 s to 2 h). After the
        setting ``max_reconsume_times`` (None: 16) deliveries it becomes a dead letter.

        Raises: as ``change_invisible``.
        """
        times = self._record.reconsume_times
        limit = self._requests.settings.max_reconsume_times
        if times >= (DELIVERIES_MAX if limit is None else limit):
            await self.dead_letter()
            return
        seconds = (
            retry_seconds(0, times) if delay is None else check_invisible("delay", delay, least=0.0)
        )
        async with self._lock:
            self._check_open()
            await self._ask(lambda: self._requests.change(self._lease, seconds))
            self._settled = self._given_back = True
            self._leases.discard(self._lease)

    async def dead_letter(self) -> None:
        """Move the message to the group's dead letters. Raises: as ``ack``."""
        async with self._lock:
            self._check_open()
            await self._ask(lambda: self._requests.dead_letter(self._lease, self._record))
            self._settled = self._given_back = True
            self._leases.discard(self._lease)

    async def reply(
        self, body: bytes, *, properties: Mapping[str, str] | None = None, timeout: float = 3.0
    ) -> None:
        """Answer a request, and return when the requester has the reply; it settles nothing.

        Raises: as ``ReceivedMessage.reply``.
        """
        await self._replier.reply(self._record, self.queue, body, properties, timeout)

    async def __aenter__(self) -> LeasedMessage:
        await trio.lowlevel.checkpoint()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        if self._settled:
            await trio.lowlevel.checkpoint_if_cancelled()
        elif error is None:
            await self.ack()
        elif isinstance(error, Exception):
            await self.retry()

    def _check_open(self) -> None:
        if self._settled:
            raise AlreadySettled(
                f"message {self.message_id} is settled already: call ack, retry or dead_letter once"
            )
        if trio.current_time() >= self._lease.ends:
            raise self._expired()

    async def _ask(self, ask: Callable[[], Awaitable[None]]) -> None:
        """Ask the broker, and repeat that while it cannot be reached."""
        settings = self._requests.settings
        left = min(settings.offset_timeout, self._lease.ends - trio.current_time())
        try:
            await until_reached(lambda _: ask(), left)
        except MessageGone as error:
            raise self._expired() from error
        except MessageRefused as error:
            if not self._lease.ordered:
                raise
            raise self._expired() from error  # the queue was popped again since

    def _expired(self) -> ReceiptExpired:
        return ReceiptExpired(self.message_id, self.topic, self._lease.handle.invisible_ms / 1000)
