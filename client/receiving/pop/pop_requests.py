"""The requests of POP: take messages, acknowledge them, hide them for another time.

Source: client/…/impl/MQClientAPIImpl.java#popMessageAsync, ackMessageAsync,
changeInvisibleTimeAsync.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs
import trio

from triomq.client.core.calls import read_header
from triomq.client.core.config import ConsumerSettings
from triomq.client.core.errors import ProtocolBroken, RouteNotFound, broker_error, request_name
from triomq.client.core.session import Session
from triomq.client.receiving.offsets import ConsumeFrom
from triomq.client.receiving.pop.lease_times import Lease
from triomq.client.receiving.pop.source_turns import PopSource
from triomq.remoting.core.errors import ProtocolError
from triomq.remoting.protocol.bodies.heartbeat import SubscriptionData
from triomq.remoting.protocol.bodies.pop import BatchAck, BatchAckBody, offset_bits
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command, request
from triomq.remoting.protocol.consuming.popped_records import PoppedRecord, popped_records
from triomq.remoting.protocol.consuming.popped_requests import (
    ack_request,
    change_request,
    changed_handle,
    dead_letter_request,
    stored_topic,
)
from triomq.remoting.protocol.headers.pop import (
    ChangeInvisibleTimeResponseHeader,
    NotificationHeader,
    NotificationResponseHeader,
    PopMessageHeader,
    PopMessageResponseHeader,
)
from triomq.remoting.protocol.names import RETRY_PREFIX
from triomq.remoting.protocol.receipt_handle import NORMAL, ReceiptHandle
from triomq.remoting.protocol.record import StoredMessage

POP_MAX = 32
"""Messages that brokers give in one answer at most (PopMessageProcessor)."""
ANY_QUEUE = -1
_INIT_MIN, _INIT_MAX = 0, 1
_EMPTY = frozenset(
    {
        ResponseCode.POLLING_FULL,
        ResponseCode.POLLING_TIMEOUT,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
    }
)
_BORN_NOW = 0
"""The broker's clock counts, so that a client's wrong clock changes nothing."""


@attrs.frozen
class PopAnswer:
    """What one pop gave."""

    found: Sequence[PoppedRecord] = ()
    rest: int = 0
    """messages that are left in the queues"""
    full: bool = False
    """whether the broker had no place for a request that waits"""


@attrs.define(eq=False)
class PopRequests:
    """The requests of one consumer."""

    group: str
    session: Session
    settings: ConsumerSettings
    subscriptions: Mapping[str, SubscriptionData]
    where: ConsumeFrom
    ordered: bool

    async def pop(
        self,
        source: PopSource,
        count: int,
        invisible: float,
        poll: float,
        attempt_id: str | None = None,
    ) -> PopAnswer:
        """Take messages, and wait for some at the broker for up to ``poll`` seconds.

        ``attempt_id``: of an orderly group; a request that is repeated with it gets the same
        messages, because its first answer may be lost.

        Raises: ``TrioMQError``.
        """
        wanted = self.subscriptions.get(source.topic)
        if wanted is None:  # unsubscribed meanwhile
            await trio.lowlevel.checkpoint()
            return PopAnswer()
        address = self._address(source)
        await self.session.heartbeats.ensure(address)
        header = PopMessageHeader(
            consumer_group=self.group,
            topic=source.topic,
            queue_id=ANY_QUEUE,
            message_count_max=min(count, POP_MAX),
            invisible_ms=max(1, round(invisible * 1000)),
            poll_ms=round(poll * 1000),
            init_mode=_INIT_MIN if self.where is ConsumeFrom.FIRST else _INIT_MAX,
            born_timestamp=_BORN_NOW,
            expression_type=wanted.expression_type,
            expression=wanted.sub_string,
            order=self.ordered,
            attempt_id=attempt_id,
            broker_name=source.broker_name,
        )
        command = request(RequestCode.POP_MESSAGE, header)
        response = await self.session.invoke(address, command, self._seconds(poll))
        if response.code in _EMPTY:
            return PopAnswer(full=response.code == ResponseCode.POLLING_FULL)
        if response.code != ResponseCode.SUCCESS:
            raise broker_error(response.code, response.remark, address, request_name(command.code))
        answer = read_header(response, PopMessageResponseHeader, address)
        try:
            found = popped_records(answer, response.body, source.broker_name)
        except ProtocolError as error:
            raise ProtocolBroken(
                f"broker {source.broker_name} answered a pop with what cannot be read: {error}"
            ) from error
        if self.session.namespace is not None:
            for each in found:
                self.session.namespace.own_record(each.record)
        return PopAnswer(found, answer.rest_count)

    async def has_messages(self, source: PopSource, poll: float) -> bool | None:
        """Wait until a source has messages, for up to ``poll`` seconds; return whether it has.

        Messages that the filter leaves out count. None: the broker has no place for the request.

        Raises: ``TrioMQError``.
        """
        address = self._address(source)
        await self.session.heartbeats.ensure(address)
        header = NotificationHeader(
            consumer_group=self.group,
            topic=source.topic,
            queue_id=ANY_QUEUE,
            poll_ms=round(poll * 1000),
            born_timestamp=_BORN_NOW,
            order=self.ordered,
            broker_name=source.broker_name,
        )
        command = request(RequestCode.NOTIFICATION, header)
        response = await self.session.call(address, command, self._seconds(poll))
        answer = read_header(response, NotificationResponseHeader, address)
        return None if answer.polling_full else answer.has_message

    # Leases

    async def acknowledge(self, lease: Lease) -> None:
        """Acknowledge a message. Raises: ``TrioMQError``."""
        await self._call(lease, ack_request(self.group, self._stored_topic(lease), lease.handle))

    async def acknowledge_all(self, leases: Sequence[Lease]) -> None:
        """Acknowledge messages of one broker; it passes over those that come again.

        Raises: ``TrioMQError``.
        """
        if len(leases) == 1:
            await self.acknowledge(leases[0])
            return
        body = BatchAckBody(leases[0].handle.broker_name, list(self._batch(leases)))
        command = request(RequestCode.BATCH_ACK_MESSAGE, None, body.encode())
        await self._call(leases[0], command)

    async def change(self, lease: Lease, invisible: float) -> None:
        """Hide a message for another time, from now on; the lease then has the new handle.

        Raises: ``TrioMQError``; ``MessageGone`` if its time is over.
        """
        handle, invisible_ms = lease.handle, max(1, round(invisible * 1000))
        command = change_request(self.group, self._stored_topic(lease), handle, invisible_ms)
        began = trio.current_time()
        response = await self._call(lease, command)
        answer = read_header(response, ChangeInvisibleTimeResponseHeader, handle.broker_name)
        lease.handle = changed_handle(handle, answer)
        lease.ends = began + invisible

    async def dead_letter(self, lease: Lease, record: StoredMessage) -> None:
        """Move a message to the group's dead letters. Raises: ``TrioMQError``."""
        command = dead_letter_request(
            self.group, lease.topic, lease.handle.broker_name, record.log_offset, record.message_id
        )
        await self._call(lease, command)
        await self.acknowledge(lease)

    async def _call(self, lease: Lease, command: Command) -> Command:
        address = self._address(PopSource(lease.topic, lease.handle.broker_name))
        return await self.session.call(address, command, self.settings.client.request_timeout)

    def _batch(self, leases: Iterable[Lease]) -> Iterable[BatchAck]:
        together: dict[tuple[str, ReceiptHandle], list[int]] = {}
        for lease in leases:
            key = lease.topic, lease.handle._replace(offset=0)
            together.setdefault(key, []).append(lease.handle.offset)
        for (topic, handle), offsets in together.items():
            retry = NORMAL if topic.startswith(RETRY_PREFIX) else handle.retry
            yield BatchAck(
                consumer_group=self._full(self.group),
                topic=self._full(topic),
                retry=str(retry),
                start_offset=handle.start_offset,
                queue_id=handle.queue_id,
                revive_queue_id=handle.revive_queue,
                pop_time=handle.pop_time,
                invisible_ms=handle.invisible_ms,
                bits=offset_bits(handle.start_offset, offsets),
            )

    def _stored_topic(self, lease: Lease) -> str:
        """Return the topic in which a message is: the one that was asked for, or a retry topic."""
        if lease.handle.retry == NORMAL or lease.topic.startswith(RETRY_PREFIX):
            return lease.topic  # the session adds the namespace
        return stored_topic(self._full(self.group), self._full(lease.topic), lease.handle)

    def _full(self, name: str) -> str:
        space = self.session.namespace
        return name if space is None else space.full(name)

    def _address(self, source: PopSource) -> str:
        address = self.session.routes.master(source.broker_name)
        if address is None:
            self.session.finder.invalidate(source.topic)
            raise RouteNotFound(
                source.topic,
                f"broker {source.broker_name} has no master now",
                offered=self.session.routes.topic(source.topic) is not None,
            )
        return address

    def _seconds(self, poll: float) -> float:
        return poll + self.settings.client.request_timeout
