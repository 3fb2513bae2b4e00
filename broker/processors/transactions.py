"""END_TRANSACTION (37): commits and rollbacks; RESUME_CHECK_HALF_MESSAGE (323).

Java's clients send 37 one-way and never learn what became of it; a client that waits gets the
answer when the committed message is as durable as one that was sent. Source:
broker/processor/EndTransactionProcessor.java, AdminBrokerProcessor.java#resumeCheckHalfMessage.
"""

from __future__ import annotations

from functools import partial

import attrs
import trio

from triomq.broker.processors.send.pipeline import NOT_DURABLE, SendPipeline, unavailable_remark
from triomq.broker.processors.send.stored_answers import count_stored
from triomq.broker.services.transactions import halves
from triomq.broker.services.transactions.open_halves import OpenHalves
from triomq.broker.services.transactions.transactions import End, Transactions
from triomq.broker.store.core.errors import FlushFailed, IllegalMessage, StoreUnavailable
from triomq.broker.store.log.durability import DurabilityResult
from triomq.remoting.access.resources import Action
from triomq.remoting.core.errors import Rejected
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.transaction import (
    COMMIT,
    ROLLBACK,
    UNDECIDED,
    EndTransactionHeader,
    ResumeCheckHeader,
)
from triomq.remoting.protocol.ids import decode_offset_message_id
from triomq.remoting.protocol.message_properties import REAL_TOPIC
from triomq.remoting.protocol.names import CHECK_MAX_TIME_TOPIC
from triomq.remoting.protocol.record import StoredMessage
from triomq.remoting.protocol.record_reader import decode_records, read_record
from triomq.remoting.protocol.signing import PROXIED_USER
from triomq.remoting.server.access_check import AccessCheck
from triomq.remoting.server.requests import BatchResult, Deferred, Request, Response

APPEND_BYTES = 4 * 1024 * 1024
"""Size of the halves from which on they are ended, before further ones are read."""


@attrs.define(eq=False)
class TransactionRequests:
    """The handlers; ``transactions``: None on a slave."""

    pipeline: SendPipeline
    transactions: Transactions | None
    access: AccessCheck | None = None
    """Set where requests are authorized."""

    async def end(self, requests: list[Request]) -> BatchResult:
        """End the transactions of a batch of requests with one append, or few for large halves."""
        transactions = self.transactions
        if transactions is None:
            refusal = Response(
                ResponseCode.SLAVE_NOT_AVAILABLE,
                remark="a slave ends no transactions; send END_TRANSACTION to the master",
            )
            return [refusal] * len(requests)
        answers: list[Response | None] = [Response() for _ in requests]
        await transactions.loaded.wait()
        found: dict[int, StoredMessage] = {}
        ended: list[int] = []
        size = 0
        for index, request in enumerate(requests):
            try:
                half = await self._half(request, transactions)
            except Rejected as rejected:
                answers[index] = Response(rejected.code, remark=rejected.remark)
                continue
            if half is not None:
                found[index] = half
                size += half.size
            if size >= APPEND_BYTES:
                ended += self._end_found(requests, found, transactions, answers)
                found, size = {}, 0
                await trio.lowlevel.checkpoint()
        ended += self._end_found(requests, found, transactions, answers)
        waiting = [index for index in ended if not requests[index].oneway]
        log_end = self.pipeline.store.appended.value
        if not waiting or self.pipeline.durability.durable_now(log_end):
            return answers
        deferred = Deferred(requests)

        def on_durable(result: DurabilityResult | FlushFailed) -> None:
            deferred.finish(partial(_when_durable, answers, waiting, result))

        self.pipeline.durability.when_durable(log_end, on_durable)
        return deferred

    def _end_found(
        self,
        requests: list[Request],
        found: dict[int, StoredMessage],
        transactions: Transactions,
        answers: list[Response | None],
    ) -> list[int]:
        """End transactions with one append; return the numbers of the requests that did.

        The others get their answers here. Checkpoint: never, what is open must not change.
        """
        ends: dict[int, End] = {}
        ending: set[int] = set()
        for index, half in found.items():
            try:
                end = self._decide(requests[index].header, half, transactions.open, ending)
                ends[index] = end
                ending.add(end.queue_offset)
            except Rejected as rejected:
                answers[index] = Response(rejected.code, remark=rejected.remark)
        if not ends:
            return []
        try:
            transactions.end(list(ends.values()))
        except StoreUnavailable as error:
            remark = unavailable_remark(error)
            for index in ends:
                answers[index] = Response(ResponseCode.SERVICE_NOT_AVAILABLE, remark=remark)
            return []
        self._count(list(ends.values()))
        return list(ends)

    async def _half(self, request: Request, transactions: Transactions) -> StoredMessage | None:
        """Return the half that a request names; None if nothing is to be done. Raises: Rejected."""
        header: EndTransactionHeader = request.header
        if header.verdict == UNDECIDED:
            return None
        if header.verdict not in (COMMIT, ROLLBACK):
            raise Rejected(
                ResponseCode.MESSAGE_ILLEGAL,
                f"commitOrRollback={header.verdict} is none of {COMMIT} (commit), {ROLLBACK}"
                f" (rollback) and {UNDECIDED} (not decided yet)",
            )
        record = await self.pipeline.store.read_record(header.log_offset)
        half = read_record(record, 0, len(record)) if record is not None else ""
        if isinstance(half, str) or not halves.is_half(half):
            raise not_found(header)
        self._may_end(request, half)
        group = halves.producer_group(half)
        if group != header.producer_group:
            raise Rejected(
                ResponseCode.SYSTEM_ERROR,
                f"The producer group wrong (the message was sent by group {group!r}, this request"
                f" says {header.producer_group!r})",
            )
        if half.queue_offset != header.half_queue_offset:
            raise Rejected(
                ResponseCode.SYSTEM_ERROR,
                f"The transaction state table offset wrong (it is {half.queue_offset}, the request"
                f" says {header.half_queue_offset})",
            )
        if not await transactions.holds(half):
            raise not_found(header)
        return half

    def _may_end(self, request: Request, half: StoredMessage) -> None:
        """Refuse a request of a user who may not send to the topic of a half. Raises: Rejected.

        The gRPC service of this broker, or of a proxy, has checked the topic that the header names.
        """
        if self.access is None:
            return
        self.access.require_message(request, half, Action.PUB)
        named, topic = request.header.topic, half.properties[REAL_TOPIC]
        if named not in (None, topic) and (
            request.connection.local or PROXIED_USER in request.ext()
        ):
            raise Rejected(
                ResponseCode.NO_PERMISSION,
                f"the message of the transaction is none of topic {named!r}",
            )

    def _decide(
        self,
        header: EndTransactionHeader,
        half: StoredMessage,
        opened: OpenHalves,
        ending: set[int],
    ) -> End:
        """Return the end of an open transaction. Raises: Rejected."""
        # With SYNC_FLUSH the producer may be faster than the arrival of its half.
        opened.arrived(half.queue_offset + 1, trio.current_time())
        current = opened.current(half.queue_offset)
        if current is None or current in ending:
            raise Rejected(
                ResponseCode.ILLEGAL_OPERATION,
                f"the transaction of message {header.message_id} has ended already",
            )
        if header.verdict == ROLLBACK:
            return End(current, half, None)
        topic = half.properties[REAL_TOPIC]
        if self.pipeline.topics.find(topic) is None:
            raise Rejected(
                ResponseCode.TOPIC_NOT_EXIST,
                f"the message cannot be committed: its topic {topic!r} does not exist any more;"
                " create it again before the broker gives the transaction up",
            )
        draft = halves.committed(half)
        try:
            self.pipeline.store.check_draft(draft)
        except IllegalMessage as error:
            raise Rejected(ResponseCode.SYSTEM_ERROR, f"MESSAGE_ILLEGAL ({error})") from None
        return End(current, half, draft)

    def _count(self, ends: list[End]) -> None:
        for end in ends:
            if end.committed is None:
                continue
            target = self.pipeline.admission.target_of(end.committed.topic)
            if target is not None:
                count_stored(target, 1, 1, end.half.size)
                self.pipeline.statistics.types.note(target.topic, "transaction", 1, end.half.size)

    async def resume(self, request: Request) -> Response:
        """Put a half that was given up back among the open ones. Raises: Rejected."""
        header: ResumeCheckHeader = request.header
        transactions = self.transactions
        if transactions is None:
            raise Rejected(
                ResponseCode.SLAVE_NOT_AVAILABLE,
                "a slave has no transactions of its own; ask the master",
            )
        try:
            _, _, log_offset = decode_offset_message_id(header.message_id or "")
        except ValueError as error:
            raise Rejected(ResponseCode.SYSTEM_ERROR, f"msgId: {error}") from None
        record = await self.pipeline.store.read_record(log_offset)
        messages = decode_records(record) if record is not None else []
        if not messages or messages[0].topic != CHECK_MAX_TIME_TOPIC:
            raise Rejected(
                ResponseCode.SYSTEM_ERROR,
                f"{CHECK_MAX_TIME_TOPIC} holds no message with the offset id {header.message_id}",
            )
        if self.access is not None:
            self.access.require_message(request, messages[0], Action.UPDATE)
        draft = halves.resumed(messages[0])
        try:
            self.pipeline.store.check_draft(draft)
            transactions.append([draft], [])
        except (StoreUnavailable, IllegalMessage) as error:
            raise Rejected(
                ResponseCode.SYSTEM_ERROR, f"Put message back to RMQ_SYS_TRANS_HALF_TOPIC: {error}"
            ) from None
        return Response()


def not_found(header: EndTransactionHeader) -> Rejected:
    """Return the refusal of an END_TRANSACTION whose half was not found."""
    return Rejected(
        ResponseCode.SYSTEM_ERROR,
        "Find prepared transaction message failed (there is none at log offset"
        f" {header.log_offset}; it may have been deleted with its file)",
    )


def _when_durable(
    answers: list[Response | None], waiting: list[int], result: DurabilityResult | FlushFailed
) -> list[Response | None]:
    """Return the answers of a batch whose messages are stored. Raises: FlushFailed."""
    if isinstance(result, FlushFailed):
        raise result
    if result is not DurabilityResult.DURABLE:
        for index in waiting:
            answer = answers[index]
            assert answer is not None
            answer.code = NOT_DURABLE[result]
            if result is DurabilityResult.NOT_CONFIRMED:  # an error: another broker may be master
                answer.remark = result.value
    return answers
