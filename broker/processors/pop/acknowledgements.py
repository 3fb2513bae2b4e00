"""ACK_MESSAGE (200051), BATCH_ACK_MESSAGE (200151), CHANGE_MESSAGE_INVISIBLETIME (200053).

Source: broker/processor/AckMessageProcessor.java, ChangeInvisibleTimeProcessor.java.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial

import attrs
import trio

from triomq.broker.processors.pop.pop_checks import MESSAGES_MAX, PopChecks
from triomq.broker.processors.send.pipeline import NOT_DURABLE
from triomq.broker.services.pop.held_pops import HeldPops
from triomq.broker.services.pop.pop_log import QueueKey
from triomq.broker.services.pop.pops import AckPart, TimeChange
from triomq.broker.services.statistics import Statistics
from triomq.broker.store.core.errors import FlushFailed, StoreUnavailable
from triomq.broker.store.log.durability import DurabilityResult
from triomq.broker.store.store import MessageStore
from triomq.remoting.core.errors import Rejected, RemoteProtocolError
from triomq.remoting.protocol import names
from triomq.remoting.protocol.bodies.check_point import Key
from triomq.remoting.protocol.bodies.pop import BatchAck, BatchAckBody
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.pop import (
    AckMessageHeader,
    ChangeInvisibleTimeHeader,
    ChangeInvisibleTimeResponseHeader,
)
from triomq.remoting.protocol.receipt_handle import NORMAL, ORDERED_QUEUE, RETRY_V1, ReceiptHandle
from triomq.remoting.server.requests import BatchResult, Deferred, Request, Response
from triomq.remoting.server.turns import Turns, in_turns

ACKS_MAX = 4096
"""Check points that one batch names at most."""
ACKS_AT_ONCE = 64
"""Of them, before other tasks have their turn: a few milliseconds."""
BatchPart = tuple[BatchAck, list[int], str]
"""A checked part of a batch, its offsets and the broker that made the check point."""


@attrs.define(eq=False)
class Acknowledgements:
    """The handlers."""

    store: MessageStore
    checks: PopChecks
    broker_name: str
    held: HeldPops
    statistics: Statistics

    def acknowledge(self, requests: list[Request]) -> BatchResult:
        """Acknowledge the messages of a batch of requests, with one append. Checkpoint: never."""
        answers: list[Response | None] = []
        parts: list[AckPart] = []
        stored: list[int] = []
        for index, request in enumerate(requests):
            answers.append(None)
            try:
                part = self._part_of(request.header)
            except Rejected as rejected:
                answers[index] = Response(rejected.code, remark=rejected.remark)
                continue
            if part is None:
                answers[index] = Response()
            else:
                parts.append(part)
                stored.append(index)
        if not parts:
            return answers
        try:
            end = self._acknowledge(parts)
        except Rejected as rejected:
            return with_answer(answers, stored, Response(rejected.code, remark=rejected.remark))
        return self._when_durable(requests, answers, stored, end)

    def _part_of(self, header: AckMessageHeader) -> AckPart | None:
        """Return what a request acknowledges; None if nothing must be stored. Raises: Rejected."""
        handle = self._handle(header.receipt)
        self._check(header, handle, header.offset, one_past=True)
        if handle.revive_queue != ORDERED_QUEUE:
            key = self._key(header.consumer_group, header.topic, handle)
            return AckPart((header.offset,), key, handle.visible_at, handle.revive_queue)
        queue = header.consumer_group, header.topic, header.queue_id
        if not self._acknowledge_ordered(queue, header.offset, handle.pop_time):
            raise Rejected(
                ResponseCode.MESSAGE_ILLEGAL,
                f"offset is illegal, key:{header.topic}@{header.queue_id},"
                f" commit:{header.offset} is not of the last pop",
            )
        return None

    def parts_of(
        self, _: Request, body: BatchAckBody
    ) -> list[BatchPart] | Awaitable[list[BatchPart]]:
        """Return what a request acknowledges, of several check points. Raises: Rejected."""
        if not body.acks:
            raise Rejected(ResponseCode.NO_MESSAGE, "the batch names no message")
        if len(body.acks) > ACKS_MAX:
            raise Rejected(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the batch has {len(body.acks)} parts, at most {ACKS_MAX} are allowed; send"
                " several",
            )
        if len(body.acks) > ACKS_AT_ONCE:
            return self._parts_in_turns(body)
        return [self._part(ack, body) for ack in body.acks]

    async def _parts_in_turns(self, body: BatchAckBody) -> list[BatchPart]:
        turns = Turns(ACKS_AT_ONCE)
        return [self._part(ack, body) async for ack in in_turns(body.acks, turns)]

    def _part(self, ack: BatchAck, body: BatchAckBody) -> BatchPart:
        """Check a part. Raises: Rejected."""
        try:
            offsets = ack.offsets(MESSAGES_MAX)
        except RemoteProtocolError as error:
            raise Rejected(ResponseCode.MESSAGE_ILLEGAL, error.reason) from None
        self.checks.handle(ack.revive_queue_id, ack.pop_time + ack.invisible_ms)
        return ack, offsets, body.broker_name or self.broker_name

    def acknowledge_batches(
        self,
        read: Callable[[Request], list[BatchPart] | Awaitable[list[BatchPart]]],
        requests: list[Request],
    ) -> BatchResult | Awaitable[BatchResult]:
        """Acknowledge the parts of several requests, with one append. ``read``: ``parts_of``.

        Of many parts some may be stored when this broker refuses the rest: the clients send all
        again, and what is acknowledged already does not count twice.
        """
        answers: list[Response | None] = []
        parts: list[BatchPart] = []
        later: dict[int, Awaitable[list[BatchPart]]] = {}
        for index, request in enumerate(requests):
            answers.append(None)
            try:
                found = read(request)
            except Rejected as rejected:
                answers[index] = Response(rejected.code, remark=rejected.remark)
                continue
            if isinstance(found, list):
                parts += found
            else:
                later[index] = found
        if later or len(parts) > ACKS_AT_ONCE:
            return self._acknowledge_in_turns(requests, answers, parts, later)
        stored = [index for index, answer in enumerate(answers) if answer is None]
        try:
            end = self._acknowledge_parts(parts)
        except Rejected as rejected:
            return with_answer(answers, stored, Response(rejected.code, remark=rejected.remark))
        return self._when_durable(requests, answers, stored, end)

    async def _acknowledge_in_turns(
        self,
        requests: list[Request],
        answers: list[Response | None],
        parts: list[BatchPart],
        later: Mapping[int, Awaitable[list[BatchPart]]],
    ) -> BatchResult:
        for index, found in later.items():
            try:
                parts += await found
            except Rejected as rejected:
                answers[index] = Response(rejected.code, remark=rejected.remark)
        stored = [index for index, answer in enumerate(answers) if answer is None]
        end = 0
        try:
            for first in range(0, len(parts), ACKS_AT_ONCE):
                some = parts[first : first + ACKS_AT_ONCE]
                end = max(end, self._acknowledge_parts(some))
                await trio.lowlevel.checkpoint()
        except Rejected as rejected:
            return with_answer(answers, stored, Response(rejected.code, remark=rejected.remark))
        return self._when_durable(requests, answers, stored, end)

    def _acknowledge_parts(self, parts: Sequence[BatchPart]) -> int:
        """Acknowledge some parts; return the end of their records. Checkpoint: never."""
        stored: list[AckPart] = []
        for ack, offsets, broker in parts:
            if ack.revive_queue_id == ORDERED_QUEUE:
                for offset in offsets:
                    key = ack.consumer_group, ack.topic, ack.queue_id
                    self._acknowledge_ordered(key, offset, ack.pop_time)
            elif offsets:
                stored.append(_stored_part(ack, offsets, broker))
        return self._acknowledge(stored) if stored else 0

    def change(self, requests: list[Request]) -> BatchResult:
        """Give the messages of a batch of requests other invisible times, with one append.

        Checkpoint: never.
        """
        answers: list[Response | None] = []
        changes: dict[int, TimeChange] = {}
        for index, request in enumerate(requests):
            try:
                change = self._change_of(request.header)
            except Rejected as rejected:
                change = Response(rejected.code, remark=rejected.remark)
            if isinstance(change, Response):
                answers.append(change)
            else:
                answers.append(None)
                changes[index] = change
        if not changes:
            return answers
        try:
            times = self.checks.state().change(changes.values())
        except StoreUnavailable as error:
            remark = f"it cannot be stored ({error})"
            return with_answer(answers, changes, Response(ResponseCode.SYSTEM_ERROR, remark=remark))
        except Rejected as rejected:
            return with_answer(answers, changes, Response(rejected.code, remark=rejected.remark))
        for (index, change), pop_time in zip(changes.items(), times, strict=True):
            answers[index] = (
                Response(
                    ResponseCode.NO_MESSAGE,
                    remark="the invisible time is over: the message comes again, with another"
                    " handle",
                )
                if pop_time is None
                else Response(
                    header=ChangeInvisibleTimeResponseHeader(
                        pop_time, change.invisible_ms, change.revive_queue
                    )
                )
            )
        return answers

    def _change_of(self, header: ChangeInvisibleTimeHeader) -> TimeChange | Response:
        """Return what a request changes, or the response for an ordered queue. Raises: Rejected."""
        handle = self._handle(header.receipt)
        self._check(header, handle, header.offset, one_past=False)
        self.checks.invisible_time(header.invisible_ms, low=0)
        if handle.revive_queue == ORDERED_QUEUE:
            return self._change_ordered(header, handle)
        key = self._key(header.consumer_group, header.topic, handle)
        return TimeChange(
            key, header.offset, handle.visible_at, handle.revive_queue, header.invisible_ms
        )

    def _change_ordered(self, header: ChangeInvisibleTimeHeader, handle: ReceiptHandle) -> Response:
        pops = self.checks.state()
        key = header.consumer_group, header.topic, header.queue_id
        info = pops.orders.pops.get(key)
        now = pops.clock_ms() if info is None else info.now_ms(pops.steady())
        visible_at = now + header.invisible_ms
        if info is not None and info.change(header.offset, handle.pop_time, visible_at):
            pops.orders.touch()
            self.held.wake(*key[:2])  # the queue may be free sooner than a waiting pop knows
        made = ChangeInvisibleTimeResponseHeader(
            handle.pop_time, visible_at - handle.pop_time, ORDERED_QUEUE
        )
        return Response(header=made)

    def _acknowledge_ordered(self, key: QueueKey, offset: int, pop_time: int) -> bool:
        pops = self.checks.state(starting=True)
        if not pops.acknowledge_ordered(key, offset, pop_time):
            return False
        self.statistics.note_consumed(key[0], key[1], 1)
        info = pops.orders.pops.get(key)
        if info is None or not info.free_at(None):
            self.held.wake(*key[:2])  # the queue gives the next messages
        return True

    # What all of them need

    def _handle(self, text: str) -> ReceiptHandle:
        try:
            handle = ReceiptHandle.decode(text)
        except RemoteProtocolError as error:
            raise Rejected(ResponseCode.MESSAGE_ILLEGAL, f"{error.reason}; {error.fix}") from None
        self.checks.handle(handle.revive_queue, handle.visible_at)
        return handle

    def _check(
        self,
        header: AckMessageHeader | ChangeInvisibleTimeHeader,
        handle: ReceiptHandle,
        offset: int,
        *,
        one_past: bool,
    ) -> None:
        topic = self.checks.topics.find(header.topic)
        if topic is None:
            remark = f"topic[{header.topic}] not exist, apply first please! {names.FAQ}"
            raise Rejected(ResponseCode.TOPIC_NOT_EXIST, remark)
        if not 0 <= header.queue_id < topic.read_queue_count or header.queue_id != handle.queue_id:
            raise Rejected(
                ResponseCode.MESSAGE_ILLEGAL,
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}]"
                f" topicConfig.readQueueNums:[{topic.read_queue_count}]",
            )
        low = self.store.min_offset(header.topic, header.queue_id)
        high = self.store.max_offset(header.topic, header.queue_id)
        if not low <= offset < high + one_past:
            raise Rejected(
                ResponseCode.NO_MESSAGE,
                f"offset is illegal, key:{header.topic}@{header.queue_id}, commit:{offset},"
                f" store:{low}~{high}",
            )

    def _key(self, group: str, topic: str, handle: ReceiptHandle) -> Key:
        return (
            topic,
            group,
            handle.queue_id,
            handle.start_offset,
            handle.pop_time,
            handle.broker_name,
        )

    def _acknowledge(self, parts: Iterable[AckPart]) -> int:
        """Store acknowledgements, all or none; return their end. Raises: Rejected."""
        try:
            end, counts = self.checks.state(starting=True).acknowledge(parts)
        except StoreUnavailable as error:
            raise Rejected(ResponseCode.SYSTEM_ERROR, f"it cannot be stored ({error})") from None
        # Neither what was acknowledged before, nor what is too late and comes again.
        for key, count in counts:
            self.statistics.note_consumed(key[1], key[0], count)
        return end

    def _when_durable(
        self, requests: list[Request], answers: list[Response | None], stored: list[int], end: int
    ) -> BatchResult:
        """Answer when the acknowledgements are as safe as messages of a producer.

        ``stored``: the requests without an answer yet.
        """
        log = self.checks.state(starting=True).log
        if log.durable_now(end) or all(requests[index].oneway for index in stored):
            return with_answer(answers, stored, Response())
        deferred = Deferred(requests)
        log.when_durable(end, partial(_finish, deferred, answers, stored))
        return deferred


def _stored_part(ack: BatchAck, offsets: list[int], broker: str) -> AckPart:
    topic = ack.topic
    if ack.retry != str(NORMAL):
        old, new = names.pop_retry_topics(ack.consumer_group, ack.topic)
        topic = old if ack.retry == str(RETRY_V1) else new
    key = topic, ack.consumer_group, ack.queue_id, ack.start_offset, ack.pop_time, broker
    return AckPart(offsets, key, ack.pop_time + ack.invisible_ms, ack.revive_queue_id)


def with_answer(
    answers: list[Response | None], places: Iterable[int], made: Response
) -> list[Response | None]:
    """Return answers with the same one at some places."""
    for index in places:
        answers[index] = made
    return answers


def _finish(
    deferred: Deferred,
    answers: list[Response | None],
    stored: list[int],
    result: DurabilityResult | FlushFailed,
) -> None:
    if isinstance(result, FlushFailed):
        deferred.fail(result)
        return
    code = ResponseCode.SUCCESS if result is DurabilityResult.DURABLE else NOT_DURABLE[result]
    remark = result.value if result is DurabilityResult.NOT_CONFIRMED else None
    deferred.finish(lambda: with_answer(answers, stored, Response(code, remark=remark)))
