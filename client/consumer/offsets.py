"""The group's offsets on the brokers: where to begin, and storing how far it has come.

Source for the rules: client/…/impl/consumer/RebalancePushImpl.java#computePullFromWhereWithException, store/RemoteBrokerOffsetStore.java.
"""

from __future__ import annotations

import datetime
import enum
import logging
from collections.abc import Iterable
from typing import Literal, TypeVar

import attrs
import trio

from triomq.client.arguments import shown
from triomq.client.consumer.assignment import Assignment
from triomq.client.errors import OffsetNotFound, RouteNotFound, SettingsError, TrioMQError
from triomq.client.session import Session
from triomq.client.trouble import TroubleLog
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import Command, request
from triomq.remoting.protocol.headers.offset import (
    GetMaxOffsetHeader,
    GetMinOffsetHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetHeader,
    QueryConsumerOffsetResponseHeader,
    SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from triomq.remoting.protocol.names import RETRY_PREFIX

logger = logging.getLogger(__name__)

H = TypeVar("H")



class ConsumeFrom(enum.Enum):
    """Where a group begins in a queue for which it has no offset."""

    LAST = "CONSUME_FROM_LAST_OFFSET"
    """With what is sent from now on.  A young queue (nothing deleted yet, its beginning still in memory) is read from its beginning all
    the same: brokers answer 0 there, for every client."""
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


Start = Literal["first", "earliest", "last", "latest"] | ConsumeFrom | datetime.datetime
"""Where a group begins, as users write it; `earliest` and `latest` are Kafka's words for `first` and `last`."""


def timestamp_ms(what: str, instant: datetime.datetime) -> int:
    """Return an instant as brokers count it.  Errors: `SettingsError` if it is no `datetime`, or has no time zone."""
    if not isinstance(instant, datetime.datetime):
        raise SettingsError(f"{what} must be an aware datetime, not {shown(instant)}: use datetime.now(UTC), or datetime.fromtimestamp(seconds, UTC)")
    if instant.tzinfo is None:
        raise SettingsError(f"{what} {instant!r} has no time zone: use datetime.now(UTC) or .astimezone()")
    return round(instant.timestamp() * 1000)


@attrs.frozen
class StartPoint:
    """`ConsumeFrom` with the instant that `TIMESTAMP` needs."""

    where: ConsumeFrom
    timestamp_ms: int = 0

    @classmethod
    def of(cls, value: Start) -> StartPoint:
        """Read `"first"` (or `"earliest"`), `"last"` (or `"latest"`), a `ConsumeFrom`, or an aware `datetime`."""
        if isinstance(value, datetime.datetime):
            return cls(ConsumeFrom.TIMESTAMP, timestamp_ms("consume_from", value))
        if value in ("first", "earliest", ConsumeFrom.FIRST):
            return cls(ConsumeFrom.FIRST)
        if value in ("last", "latest", ConsumeFrom.LAST):
            return cls(ConsumeFrom.LAST)
        raise SettingsError(f"consume_from must be 'first' (or 'earliest'), 'last' (or 'latest') or an aware datetime, not {shown(value)}")


@attrs.define(eq=False)
class GroupOffsets:
    """Questions and updates about the offsets of one group."""

    group: str
    session: Session
    timeout: float
    _trouble: TroubleLog = attrs.field(factory=lambda: TroubleLog(logger), init=False)

    async def start_position(self, queue: MessageQueue, start: StartPoint) -> tuple[int, int]:
        """Return (where to pull from, offset stored on the broker or -1) for a queue that was just gained.  Errors: `TrioMQError`.

        The end of the queue is asked for before the group's offset, not after it as in the official client: a message that is stored between the
        two requests then lies behind the start, and is not skipped.
        """
        retry_topic = queue.topic.startswith(RETRY_PREFIX)
        end = await self.max_offset(queue) if start.where is ConsumeFrom.LAST and not retry_topic else 0
        stored = await self.stored(queue)
        if stored >= 0:  # of a 0 nobody knows whether it is stored, or the answer for a young queue, which will not be young for ever
            return stored, stored or -1
        if start.where is ConsumeFrom.FIRST:
            return 0, -1  # if 0 is too old the broker answers the first pull with the lowest valid offset
        if start.where is ConsumeFrom.LAST:
            return end, -1
        return await (self.max_offset(queue) if retry_topic else self.offset_for_time(queue, start.timestamp_ms)), -1

    async def stored(self, queue: MessageQueue, *, exactly: bool = False) -> int:
        """Return the group's offset as the broker has it, -1 if it has none.

        Without one, brokers answer 0 for a young queue, which is where a new group begins then; with `exactly` they say that there is none
        (Java's `setZeroIfNotFound`; brokers before 5.0 do not know it).
        """
        header = QueryConsumerOffsetHeader(
            consumer_group=self.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            set_zero_if_not_found=False if exactly else None,
            broker_name=queue.broker_name,
        )
        try:
            answer = await self._ask(
                queue, request(RequestCode.QUERY_CONSUMER_OFFSET, header), QueryConsumerOffsetResponseHeader
            )
        except OffsetNotFound:
            return -1
        return answer.offset

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message of the queue will get."""
        header = GetMaxOffsetHeader(topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name)
        return (await self._ask(queue, request(RequestCode.GET_MAX_OFFSET, header), OffsetResponseHeader)).offset

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the lowest offset that can still be read."""
        header = GetMinOffsetHeader(topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name)
        return (await self._ask(queue, request(RequestCode.GET_MIN_OFFSET, header), OffsetResponseHeader)).offset

    async def offset_for_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at or after an instant."""
        header = SearchOffsetHeader(
            topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms, broker_name=queue.broker_name
        )
        return (
            await self._ask(queue, request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header), OffsetResponseHeader)
        ).offset

    async def store(self, assignments: Iterable[Assignment]) -> None:
        """Tell the brokers how far the group has come, where that is new; failures are logged and tried again next time.

        The requests are answered (the official client sends them one-way), so that an offset counts as stored only when it is.
        Errors that are no `TrioMQError` come out when all others are stored.
        """
        crashes: list[Exception] = []
        async with trio.open_nursery() as nursery:
            for assignment in assignments:
                if assignment.to_store >= 0 and assignment.to_store != assignment.stored:
                    nursery.start_soon(self._store_fenced, assignment, crashes)
        if len(crashes) == 1:
            raise crashes[0]
        if crashes:
            raise ExceptionGroup("storing offsets", crashes)

    async def _store_fenced(self, assignment: Assignment, crashes: list[Exception]) -> None:
        what = (
            f"storing the offset of {assignment.queue.topic} {assignment.queue.broker_name}:{assignment.queue.queue_id}"
        )
        try:
            await self.store_one(assignment)
        except TrioMQError as error:
            self._trouble.failed(what, error)
        except Exception as error:  # of no kind that we know: it must not take the other queues' offsets with it
            crashes.append(error)
        else:
            self._trouble.worked(what)

    async def store_one(self, assignment: Assignment) -> None:
        """Tell the broker how far the group has come in one queue.  Errors: `TrioMQError`.

        Until the answer to the last such request is there, and for good if it never comes, nobody knows what the broker has: whatever is
        to be stored next is then sent, also if it is what was stored before.
        """
        queue, offset = assignment.queue, assignment.to_store
        header = UpdateConsumerOffsetHeader(
            consumer_group=self.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=offset,
            broker_name=queue.broker_name,
        )
        command = request(RequestCode.UPDATE_CONSUMER_OFFSET, header)
        address = self._address(queue)
        assignment.stored = -1
        assignment.stores += 1
        turn = assignment.stores
        await self.session.call(address, command, self.timeout)
        if turn == assignment.stores:  # else a later one is under way, or was given up: it counts
            assignment.stored = offset

    async def _ask(self, queue: MessageQueue, command: Command, answer: type[H]) -> H:
        address = self.session.routes.any_address(queue.broker_name)
        if address is None and await self.session.refresh(queue.topic) is None:  # nobody has asked for the topic yet
            raise RouteNotFound(queue.topic)
        return await self.session.ask(address or self._address(queue), command, self.timeout, answer)

    def _address(self, queue: MessageQueue) -> str:
        """Return the queue's master, or a slave if there is none.  Errors: `RouteNotFound`."""
        address = self.session.routes.any_address(queue.broker_name)
        if address is None:
            known = self.session.routes.topic(queue.topic)
            raise RouteNotFound(
                queue.topic,
                f"broker {queue.broker_name} is in no route",
                f"the topic is on {', '.join(known.brokers) or 'no broker'} now: see `mqadmin topicRoute -t {queue.topic}`" if known is not None else "",
                offered=known is not None,
            )
        return address
