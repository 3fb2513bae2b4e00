"""The group's offsets on the brokers: where to begin, and storing how far the group has come.

Source for the rules:
client/…/impl/consumer/RebalancePushImpl.java#computePullFromWhereWithException,
store/RemoteBrokerOffsetStore.java.
"""

from __future__ import annotations

import datetime
import enum
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Literal, TypeVar

import attrs
import trio

from triomq.client.core.arguments import shown
from triomq.client.core.back_off import until_reached
from triomq.client.core.calls import read_header
from triomq.client.core.errors import OffsetNotFound, RouteNotFound, SettingsError, TrioMQError
from triomq.client.core.failure_log import FailureLog
from triomq.client.core.retry import concerns_route, may_ask_again
from triomq.client.core.session import Session
from triomq.client.receiving.assignment import Assignment
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import Command, request
from triomq.remoting.protocol.headers.offset import (
    GetMaxOffsetHeader,
    GetMinOffsetHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetHeader,
    SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from triomq.remoting.protocol.names import RETRY_PREFIX

logger = logging.getLogger(__name__)

T = TypeVar("T")


class ConsumeFrom(enum.Enum):
    """Where a group begins in a queue for which it has no offset."""

    LAST = "CONSUME_FROM_LAST_OFFSET"
    """With messages that are sent after the group's first start; see ``OffsetStore.begin``."""
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


Start = Literal["first", "earliest", "last", "latest"] | ConsumeFrom | datetime.datetime
"""Where a group begins, as users write it; ``earliest`` and ``latest`` are Kafka's words."""


def timestamp_ms(what: str, instant: datetime.datetime) -> int:
    """Return an instant in milliseconds since 1970.

    Raises: ``SettingsError`` for a value that is not a ``datetime``, or has no time zone.
    """
    if not isinstance(instant, datetime.datetime):
        raise SettingsError(
            f"{what} must be an aware datetime, not {shown(instant)}: use datetime.now(UTC), or"
            " datetime.fromtimestamp(seconds, UTC)"
        )
    if instant.tzinfo is None:
        raise SettingsError(
            f"{what} {instant!r} has no time zone: use datetime.now(UTC) or .astimezone()"
        )
    return round(instant.timestamp() * 1000)


@attrs.frozen
class StartPoint:
    """A ``ConsumeFrom``, with the instant that ``TIMESTAMP`` needs."""

    where: ConsumeFrom
    timestamp_ms: int = 0

    @classmethod
    def of(cls, value: Start) -> StartPoint:
        """Return the start point of ``consume_from=``. Raises: ``SettingsError``."""
        if isinstance(value, datetime.datetime):
            return cls(ConsumeFrom.TIMESTAMP, timestamp_ms("consume_from", value))
        if value in ("first", "earliest", ConsumeFrom.FIRST):
            return cls(ConsumeFrom.FIRST)
        if value in ("last", "latest", ConsumeFrom.LAST):
            return cls(ConsumeFrom.LAST)
        raise SettingsError(
            "consume_from must be 'first' (or 'earliest'), 'last' (or 'latest') or an aware"
            f" datetime, not {shown(value)}"
        )


async def ask_each(
    ask: Callable[[MessageQueue], Awaitable[T]], queues: Iterable[MessageQueue]
) -> tuple[dict[MessageQueue, T], list[TrioMQError]]:
    """Ask about all queues at the same time; return the answers, and the errors of the others."""
    answers: dict[MessageQueue, T] = {}
    errors: list[TrioMQError] = []

    async def one(queue: MessageQueue) -> None:
        try:
            answers[queue] = await ask(queue)
        except TrioMQError as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        for queue in queues:
            nursery.start_soon(one, queue)
    return answers, errors


async def ask_all(
    ask: Callable[[MessageQueue], Awaitable[T]], queues: Iterable[MessageQueue]
) -> dict[MessageQueue, T]:
    """Ask about all queues at the same time; return the answers.

    Raises: one of the errors, when all requests have ended.
    """
    answers, errors = await ask_each(ask, queues)
    if errors:
        raise errors[0]
    return answers


@attrs.define(eq=False)
class OffsetStore:
    """Reads and stores the offsets of one group."""

    group: str
    session: Session
    timeout: float
    """seconds for each request"""
    waits: bool = False
    """whether a request to an unreachable broker is repeated, with growing waits, until ``timeout``
    is over: for calls of the application. Background tasks repeat theirs anyway, and must not hold
    up the queues of other brokers.
    """
    begins: dict[MessageQueue, int] = attrs.field(factory=dict)
    """offsets at which ``begin`` lets the group begin"""
    _failures: FailureLog = attrs.field(factory=lambda: FailureLog(logger), init=False)

    async def begin(self, queues: Sequence[MessageQueue], *, keep: bool) -> None:
        """Let a group that is new to a topic begin at the current end of all its queues.

        ``keep``: whether these offsets are stored on the brokers.

        RocketMQ has no such step. There each member asks for its queues' offsets, and a broker
        answers 0 while the queue is young (nothing deleted yet, its beginning in memory), so that
        queues added after the group lose nothing; but a new group then reads young queues from
        their beginning, whatever its setting. Here a group is new if it has no offset in any queue
        of the topic, and only then the current ends count. Other queues follow the broker's rule:
        those of a grown topic or a new broker, of brokers before 5.0 (which cannot answer "no
        offset"), and all queues if a broker does not answer: in doubt messages are delivered.
        """
        try:
            # The usual case: the group is known, and no other question is needed.
            heard = (queue for queue in queues if self.session.hears(queue.broker_name))
            if not queues or await self.stored(next(heard, queues[0]), exactly=True) >= 0:
                return
            # The ends first: if another member begins now, its ends are not before these.
            ends = await ask_all(self.max_offset, queues)
            found = await ask_all(lambda queue: self.stored(queue, exactly=True), queues)
        except TrioMQError as error:
            logger.debug(
                "group %s: where it begins in %s is left to the brokers: %s",
                self.group,
                queues[0].topic,
                error,
            )
            return
        if any(offset >= 0 for offset in found.values()):
            return
        self.begins.update(ends)
        if keep:
            await self._keep_begins(ends)

    async def _keep_begins(self, ends: Mapping[MessageQueue, int]) -> None:
        """Store where the group begins; log failures, as gaining a queue stores it again."""
        _, errors = await ask_each(lambda queue: self._update(queue, ends[queue]), ends)
        for error in errors:
            logger.debug("group %s: a first offset is not stored: %s", self.group, error)

    async def start_position(
        self, queue: MessageQueue, start: StartPoint, *, exactly: bool = False
    ) -> tuple[int, int]:
        """Return where to pull a queue that was just gained, and its offset on the broker or -1.

        The end of the queue is requested before the group's offset (the official client: after it):
        a message stored between the two requests is then behind the start, and is not skipped.
        ``exactly``: as in ``stored``; a ``begin`` and an instant imply it.

        Raises: ``TrioMQError``.
        """
        where = start.where
        if queue.topic.startswith(RETRY_PREFIX):  # its messages are newer than the group
            where = ConsumeFrom.FIRST
        begin = self.begins.get(queue)
        end = begin
        if where is ConsumeFrom.LAST and end is None:
            end = await self.max_offset(queue)
        stored = await self.stored(
            queue, exactly=exactly or begin is not None or where is ConsumeFrom.TIMESTAMP
        )
        if stored >= 0:
            # A 0 may be stored, or be the broker's answer for a young queue, which does not last.
            return stored, stored or -1
        if where is ConsumeFrom.TIMESTAMP:
            return await self.offset_for_time(queue, start.timestamp_ms), -1
        # If 0 is too old, the broker answers the first pull with the lowest valid offset.
        return end or 0, -1

    async def stored(self, queue: MessageQueue, *, exactly: bool = False) -> int:
        """Return the group's offset on the broker, or -1 if it has none.

        For a young queue without an offset brokers answer 0, which is where a new group begins
        then; with ``exactly`` they answer that there is none (Java's ``setZeroIfNotFound``, unknown
        to brokers before 5.0).

        Raises: ``TrioMQError``.
        """
        try:
            return await self._offset(
                queue,
                RequestCode.QUERY_CONSUMER_OFFSET,
                QueryConsumerOffsetHeader,
                consumer_group=self.group,
                set_zero_if_not_found=False if exactly else None,
            )
        except OffsetNotFound:
            return -1

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the queue's next message will get. Raises: ``TrioMQError``."""
        return await self._offset(queue, RequestCode.GET_MAX_OFFSET, GetMaxOffsetHeader)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the lowest offset that can still be read. Raises: ``TrioMQError``."""
        return await self._offset(queue, RequestCode.GET_MIN_OFFSET, GetMinOffsetHeader)

    async def offset_for_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at or after an instant.

        Raises: ``TrioMQError``.
        """
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        return await self._offset(queue, code, SearchOffsetHeader, timestamp=timestamp_ms)

    async def store(self, assignments: Iterable[Assignment]) -> None:
        """Store the offsets that are new on the brokers.

        Failures are logged, and the offsets stored the next time. The requests are answered (the
        official client sends them one-way), so an offset counts as stored only when it is.

        Raises: errors other than ``TrioMQError``, when all other offsets are stored.
        """
        crashes: list[Exception] = []
        async with trio.open_nursery() as nursery:
            for assignment in assignments:
                if self._may_be_old(assignment):
                    continue
                if assignment.to_store >= 0 and assignment.to_store != assignment.stored:
                    nursery.start_soon(self._store_logged, assignment, crashes)
        if len(crashes) == 1:
            raise crashes[0]
        if crashes:
            raise ExceptionGroup("storing offsets", crashes)

    def _may_be_old(self, assignment: Assignment) -> bool:
        """Return whether others may have handled more of a queue than this member."""
        address = self.session.routes.master(assignment.queue.broker_name)
        return address is not None and self.session.heartbeats.may_have_forgotten(address)

    async def _store_logged(self, assignment: Assignment, crashes: list[Exception]) -> None:
        what = (
            f"storing the offset of {assignment.queue.topic}"
            f" {assignment.queue.broker_name}:{assignment.queue.queue_id}"
        )
        try:
            await self.store_one(assignment)
        except TrioMQError as error:
            self._failures.failed(what, error)
        except Exception as error:  # unexpected; the other queues' offsets are stored all the same
            crashes.append(error)
        else:
            self._failures.worked(what)

    async def store_one(self, assignment: Assignment) -> None:
        """Store the offset of one queue on its broker.

        Until the request is answered, and for good if it never is, the broker's offset is unknown;
        the next offset is then sent even if it is the same.

        Raises: ``TrioMQError``.
        """
        offset = assignment.to_store
        assignment.stored = -1
        assignment.stores += 1
        turn = assignment.stores
        await self._update(assignment.queue, offset)
        if turn == assignment.stores:  # otherwise a later request decides
            assignment.stored = offset

    async def _update(self, queue: MessageQueue, offset: int) -> None:
        await self._call(
            queue,
            RequestCode.UPDATE_CONSUMER_OFFSET,
            UpdateConsumerOffsetHeader,
            consumer_group=self.group,
            commit_offset=offset,
        )

    async def _offset(
        self, queue: MessageQueue, code: RequestCode, kind: Callable[..., object], **fields: object
    ) -> int:
        response, address = await self._call(queue, code, kind, **fields)
        return read_header(response, OffsetResponseHeader, address).offset

    async def _call(
        self, queue: MessageQueue, code: RequestCode, kind: Callable[..., object], **fields: object
    ) -> tuple[Command, str]:
        """Ask about a queue; return the answer, and the broker's address.

        ``kind``: the class of the header, whose further ``fields`` are given.

        Raises: ``TrioMQError``.
        """
        header = kind(
            topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name, **fields
        )

        async def call(seconds: float) -> tuple[Command, str]:
            address = await self._find_address(queue)
            try:
                return await self.session.call(address, request(code, header), seconds), address
            except TrioMQError as error:
                if concerns_route(error):
                    self.session.finder.invalidate(queue.topic)
                raise

        def again(error: TrioMQError) -> bool:
            away = (
                isinstance(error, RouteNotFound) and queue.broker_name in self.session.routes.seen
            )
            return away or may_ask_again(error)

        return (
            await until_reached(call, self.timeout, again=again)
            if self.waits
            else await call(self.timeout)
        )

    async def _find_address(self, queue: MessageQueue) -> str:
        """Return the address of the queue's master or a slave; look up the route if needed.

        Raises: ``RouteNotFound``, ``NoNameServer``.
        """
        routes = self.session.routes
        address = routes.any_address(queue.broker_name)
        # The route of the topic may not have been looked up yet.
        unknown = address is None and (self.waits or routes.topic(queue.topic) is None)
        if unknown and await self.session.finder.refresh(queue.topic) is None:
            raise RouteNotFound(queue.topic)
        address = routes.any_address(queue.broker_name)
        if address is None:
            known = routes.topic(queue.topic)
            raise RouteNotFound(
                queue.topic,
                f"broker {queue.broker_name} is in no route",
                (
                    f"the topic is on {', '.join(known.brokers) or 'no broker'} now: see `mqadmin"
                    f" topicRoute -t {queue.topic}`"
                    if known is not None
                    else ""
                ),
                offered=known is not None,
            )
        return address
