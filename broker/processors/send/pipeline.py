"""The send path: one pipeline of four stages for every message that a request brings into the log.

    requests ──► classify ──► draft ──► append ──► answer ──► responses

``handle`` takes a batch of requests (SEND_MESSAGE 10, SEND_MESSAGE_V2 310, SEND_BATCH_MESSAGE 320)
through all stages; each stage adds its part to one ``SendBatch``. A refused request gets its
response while the others go on. Classify, draft and append have no checkpoint, so the order of the
log is the order of arrival. A plain message, which need only be stored, is classified and drafted
in one step: the fast path.

* classify (``admission.py``) adds the topic's ``Target`` and the ``RequestKind``; it may create
  topics and groups;
* draft (``drafts.py``, ``traits.py``) adds a ``Draft`` for each record and a ``PendingAnswer`` for
  each request; it changes drafts only;
* append (``_append``) adds the place of each draft in the log; it changes the store;
* answer (``stored_answers.py``) adds the responses, when the log is durable enough; it writes to
  connections and counts in the statistics.

An extension is one class: a ``Trait`` for a property or a flag (a delay, further queues; a
transaction, a timer), a ``RequestKind`` for another way from a request to drafts (a batch). A
request that makes the broker itself store a message is one handler, which makes a draft and calls
``append_copies`` (``send_back.py``; the end of a transaction, an acknowledgement of POP).

Source: broker/processor/SendMessageProcessor.java, AbstractSendMessageProcessor.java.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import attrs
import trio

from triomq.broker.config import BrokerConfig
from triomq.broker.processors.send import known_properties as props
from triomq.broker.processors.send.admission import Admission, Target
from triomq.broker.processors.send.drafts import (
    SHORT_BATCH_MAX,
    BatchKind,
    InnerBatchKind,
    LongBatch,
    RequestKind,
    SingleKind,
)
from triomq.broker.processors.send.known_properties import NO_WAIT, PROPERTY_END
from triomq.broker.processors.send.stored_answers import (
    PendingAnswer,
    SendBatch,
    StoredAnswers,
    count_stored,
)
from triomq.broker.processors.send.traits import Incoming, Traits
from triomq.broker.services.delay import DelayedMessages
from triomq.broker.services.message_types import NORMAL, type_of_message
from triomq.broker.services.queue_locks import QueueLocks
from triomq.broker.services.statistics import Statistics
from triomq.broker.services.timers.timers import Timers
from triomq.broker.services.topics import Topics
from triomq.broker.store.core.draft import KEYS_MAX, Appended, Draft
from triomq.broker.store.core.errors import DiskReserve, FlushFailed, StoreUnavailable
from triomq.broker.store.log.durability import Durability, DurabilityResult
from triomq.broker.store.store import MessageStore
from triomq.remoting.core.errors import Rejected
from triomq.remoting.protocol import refused_sends
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.send import SendMessageHeader
from triomq.remoting.protocol.ids import UniqueIds
from triomq.remoting.protocol.message_properties import (
    CLUSTER,
    MSG_REGION,
    SHARDING_KEY,
    TRACE_ON,
    WAIT,
    properties_text,
)
from triomq.remoting.protocol.sys_flags import INNER_BATCH, TRANSACTION_MASK
from triomq.remoting.server.answers import send_answers
from triomq.remoting.server.requests import BatchResult, Deferred, Request, Response

# Below these sizes a message cannot exceed a limit of the store; only larger ones are checked.
UNCHECKED_PROPERTIES_CHARACTERS = 2 * KEYS_MAX
UNCHECKED_REST_BYTES = 32 * 1024
NOT_DURABLE: dict[DurabilityResult, int] = {
    DurabilityResult.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    DurabilityResult.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
    DurabilityResult.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    DurabilityResult.NOT_CONFIRMED: ResponseCode.SYSTEM_ERROR,
}
NOT_PLAIN_FLAGS = TRANSACTION_MASK | INNER_BATCH
"""Flags of messages that need more than to be stored."""
ADMISSIONS_MAX = 3
"""How often a long batch is read again because topics have changed meanwhile."""


@attrs.define(eq=False)
class SendPipeline:
    """The batch handler of all three codes, and the append stage of all others that store."""

    store: MessageStore
    topics: Topics
    admission: Admission
    delayed: DelayedMessages
    locks: QueueLocks
    statistics: Statistics
    unique_ids: UniqueIds
    clock_ms: Callable[[], int]
    config: BrokerConfig
    durability: Durability
    """Decides when messages are safe: the store, or on a SYNC_MASTER the store and the slaves."""
    timers: Timers | None = None
    """None with timerWheelEnable=false."""
    _answers: StoredAnswers = attrs.field(init=False)
    _single: SingleKind = attrs.field(init=False)
    _batch: BatchKind = attrs.field(init=False)
    _inner_batch: InnerBatchKind = attrs.field(init=False)
    _suffix: str = attrs.field(init=False)
    """The text of the properties that every single message gets at its end."""
    _unchecked_body_bytes: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        config, store_config = self.config, self.store.config
        self._answers = StoredAnswers(
            store_config.store_host, config.region_id, config.trace_on, self.statistics.types
        )
        self._suffix = properties_text(
            {
                MSG_REGION: config.region_id,
                TRACE_ON: "true" if config.trace_on else "false",
                CLUSTER: config.cluster_name,
            }
        )
        traits = Traits(
            self.admission, self.delayed, self.locks, self.store, self.timers, config.broker_name
        )
        parts = traits, store_config, self.unique_ids, self.clock_ms
        self._single = SingleKind(*parts, self._suffix)
        self._batch = BatchKind(*parts)
        self._inner_batch = InnerBatchKind(*parts, config.cluster_name)
        self._unchecked_body_bytes = min(
            store_config.message_size_bytes_max,
            store_config.segment_size_bytes - UNCHECKED_REST_BYTES,
        )

    def handle(self, requests: list[Request]) -> BatchResult | Awaitable[BatchResult]:
        """Store the messages of a batch of requests, and answer.

        Checkpoint: never; a returned awaitable may have some.
        """
        begin = time.perf_counter()
        if self.admission.live.accept_sends_from_ms:
            closed = self.admission.closed_until(self.clock_ms())
            if closed is not None:
                return [self.refusal(ResponseCode.SYSTEM_ERROR, closed)] * len(requests)
        # A draft changes nothing outside of its batch, so the drafts of a batch that turns out too
        # long can be thrown away and made again.
        batch = SendBatch(requests, [None] * len(requests), [], [], [], {})
        try:
            self._draft_all(batch)
        except LongBatch:
            return self._one_by_one(requests)
        return self._store(batch, begin)

    async def _one_by_one(self, requests: list[Request]) -> BatchResult:
        """Store requests with many messages one after the other; other tasks run in between.

        Each is stored with one append, as ever. Checkpoint: always.
        """
        for request in requests:
            await self._store_one(request)
            await trio.lowlevel.checkpoint()
        answered = Deferred(requests)
        answered.finished = True
        return answered

    async def _store_one(self, request: Request) -> None:
        deferred = Deferred((request,))
        try:
            batch, begin = await self._draft_one(request), time.perf_counter()
            result: BatchResult | Awaitable[BatchResult] = batch.answers
            if self._is_stored(batch):
                # Entries in the queues first: other tasks run at the checkpoint, and the answer
                # comes only after it.
                self.store.indexer.index_offered()
                await trio.lowlevel.checkpoint()  # the answer names the place of each message
                result = self._answer_stored(batch, begin)
            done = await result if isinstance(result, Awaitable) else result
        except Exception as error:
            deferred.fail(error)
        else:
            deferred.finish(lambda: done)

    async def _draft_one(self, request: Request) -> SendBatch:
        """Make the drafts of a request; a thread makes those of a long batch."""
        batch = SendBatch([request], [None], [], [], [], {})
        try:
            self._draft_all(batch)
        except LongBatch:
            batch = SendBatch([request], [None], [], [], [], {})
            try:
                await self._draft_long(batch)
            except Rejected as rejected:
                batch.answers[0] = self.refusal(rejected.code, rejected.remark)
        return batch

    async def _draft_long(self, batch: SendBatch) -> None:
        """Read a long batch in a thread. Raises: Rejected."""
        (request,) = batch.requests
        admission, known = self.admission, props.known_properties(request.header.properties or "")
        for _ in range(ADMISSIONS_MAX):
            # A thread reads while topics may be deleted or changed here; without a limit, an
            # operator's script that changes topics all the time would hold the sender for ever.
            if admission.generation != self.topics.generation:
                admission.forget_targets()
            message = self._incoming(request, known)
            self._batch.check_request(message)
            drafts = await trio.to_thread.run_sync(self._batch.read, message)
            # What its topic allows may have changed meanwhile.
            if (
                admission.generation == self.topics.generation
                and admission.targets.get(request.header.topic) is message.target
            ):
                key = self._batch.unique_key(message)
                self._take(batch, 0, message, drafts, key, len(drafts))
                return
        raise Rejected(
            ResponseCode.SYSTEM_BUSY, "topics change too often to store a long batch: send it again"
        )

    def _store(self, batch: SendBatch, begin: float) -> BatchResult | Awaitable[BatchResult]:
        """Append the drafts of requests, and answer. ``begin``: when the work began."""
        return self._answer_stored(batch, begin) if self._is_stored(batch) else batch.answers

    def _is_stored(self, batch: SendBatch) -> bool:
        """Append the drafts; return whether there is something to answer yet."""
        if not batch.drafts:
            return False
        refusal = self._append(batch)
        if refusal is not None:
            self.statistics.totals.puts_failed += len(batch.drafts)
            for pending in batch.pending:
                batch.answers[pending.index] = refusal
        return refusal is None

    def _answer_stored(
        self, batch: SendBatch, begin: float
    ) -> BatchResult | Awaitable[BatchResult]:
        seconds = time.perf_counter() - begin
        places = batch.places
        # The last record ends the batch: one fsync or one report of a slave that reaches it covers
        # all.
        end = places[-1].log_offset + places[-1].size
        message_count = len(places) + batch.extra_messages
        try:
            return self._answer(batch, end)
        finally:
            # The response is written first, which costs the sender less time; no other task runs in
            # between, so no reader can miss the messages.
            self.store.indexer.index_offered()
            self.statistics.note_put(message_count, end - places[0].log_offset, seconds)

    # Classify and draft

    def _draft_all(self, batch: SendBatch) -> None:
        """Make the drafts of all requests; a refused request gets its response here."""
        admission = self.admission
        if admission.generation != self.topics.generation:
            admission.forget_targets()
        targets, suffix = admission.targets, self._suffix
        unchecked_body_bytes = self._unchecked_body_bytes
        drafts, pending = batch.drafts, batch.pending
        texts = [request.header.properties or "" for request in batch.requests]
        unusual, indexed = props.read_texts(texts)
        ordered = SHARDING_KEY in PROPERTY_END.join(texts)  # 40 ns for each
        for index, request in enumerate(batch.requests):
            header = request.header
            text = texts[index]
            tags, unique_key, keys = indexed[index]
            # The fast path has only tests of plain values: whatever is unusual in any way takes the
            # path of all rules below, which gives the same record for a plain message.
            target = targets.get(header.topic)
            queue_id = header.queue_id
            if (
                target is not None
                and target.plain
                and unique_key
                and not header.batch
                and not header.sys_flag & NOT_PLAIN_FLAGS
                and 0 <= queue_id < target.queue_limit
                and len(request.body) <= unchecked_body_bytes
                and len(text) <= UNCHECKED_PROPERTIES_CHARACTERS
                and index not in unusual
            ):
                # The broker's own properties follow at the end of the text; a sender may leave out
                # the last separator.
                if text[-1] != PROPERTY_END:
                    text += PROPERTY_END
                wait = NO_WAIT not in text or props.waits(text)
                pending.append(
                    PendingAnswer(index, len(drafts), target, queue_id, unique_key, wait)
                )
                if ordered and SHARDING_KEY in text:
                    batch.types[index] = "fifo"
                drafts.append(
                    Draft(
                        target.topic,
                        queue_id,
                        request.body,
                        (text + suffix).encode("utf-8", "replace"),
                        header.flag,
                        header.sys_flag,
                        header.born_timestamp,
                        request.connection.peer_bytes,
                        header.reconsume_times or 0,
                        0,
                        tags,
                        unique_key,
                        keys,
                    )
                )
                continue
            try:
                known = unusual.get(index) or props.known_properties(text)
                self._draft_unusual(batch, index, text, known)
            # The refused request has no draft, so it uses up no queue offset.
            except Rejected as rejected:
                batch.answers[index] = self.refusal(rejected.code, rejected.remark)

    def _draft_unusual(
        self, batch: SendBatch, index: int, text: str, known: dict[str, str]
    ) -> None:
        """Classify any request, and make its drafts. Raises: Rejected, LongBatch."""
        message = self._incoming(batch.requests[index], known)
        kind: RequestKind = self._single
        if message.request.header.batch:  # whatever the code, as in Java
            kind = self._inner_batch if message.target.batched else self._batch
        self._take(batch, index, message, *kind.drafts(message, text))
        # Together the requests of this step would hold the loop for too long: one at a time, with
        # checkpoints in between. A single request cannot be split further here.
        if len(batch.drafts) > SHORT_BATCH_MAX and len(batch.requests) > 1:
            raise LongBatch

    def _incoming(self, request: Request, known: dict[str, str]) -> Incoming:
        """Find the target of a request. Raises: Rejected."""
        header: SendMessageHeader = request.header
        target = self.admission.targets.get(header.topic)
        if target is None or header.queue_id >= target.queue_limit:
            target = self.admission.find(header, request.connection.peer_text)
        queue_id = header.queue_id
        # A sender that leaves the choice to the broker: SendMessageProcessor.java#sendMessage.
        if queue_id < 0:
            queue_id = random.randrange(max(1, target.write_queues))
        return Incoming(request, known, target, queue_id)

    def _take(
        self,
        batch: SendBatch,
        index: int,
        message: Incoming,
        drafts: list[Draft],
        unique_key: str,
        count: int,
    ) -> None:
        """Add the drafts of a request to its batch."""
        wait = message.known.get(WAIT) != "false"
        batch.pending.append(
            PendingAnswer(
                index,
                len(batch.drafts),
                message.target,
                message.queue_id,
                unique_key,
                wait,
                len(drafts),
                count,
            )
        )
        kind_of_message = type_of_message(message.known)
        if kind_of_message != NORMAL:
            batch.types[index] = kind_of_message.lower()
        # Rare things are kept in dictionaries by index, so a plain message pays nothing for them.
        if message.handle is not None:
            batch.handles[index] = message.handle
        batch.drafts += drafts
        batch.extra_messages += count - len(drafts)

    # Append

    def _append(self, batch: SendBatch) -> Response | None:
        """Store all drafts with one call; return the response to all requests if none is stored."""
        # Before the append: what too few slaves have cannot be taken back from the log.
        reason = self.durability.refusal()
        if reason:
            self.statistics.totals.puts_too_few += len(batch.drafts)
            return self.refusal(ResponseCode.SYSTEM_ERROR, f"{refused_sends.TOO_FEW} ({reason})")
        try:
            batch.places = self.store.append_unindexed(batch.drafts)
        except StoreUnavailable as error:
            return self.refusal(ResponseCode.SERVICE_NOT_AVAILABLE, unavailable_remark(error))
        return None

    def append_copies(self, drafts: Sequence[Draft], target: Target) -> list[Appended]:
        """Store messages that the broker makes itself, all or none; no wait for the disk.

        Raises: StoreUnavailable. Checkpoint: never.
        """
        try:
            places = self.store.append(drafts)
        except StoreUnavailable:
            self.statistics.totals.puts_failed += len(drafts)
            raise
        size = sum([place.size for place in places])
        self.statistics.note_put(len(places), size, 0.0)
        count_stored(target, len(places), len(places), size)
        return places

    # Answer

    def _answer(self, batch: SendBatch, end: int) -> BatchResult | Awaitable[BatchResult]:
        """Answer when the log is durable up to ``end`` and a topic that was created is saved.

        Requests whose sender does not wait are answered at once.
        """
        # A topic that this send created is lost by a crash until its table is on the disk, and with
        # it the way to the message: the answer waits for both.
        unsaved = self.topics.unsaved
        if not unsaved and self.durability.durable_now(end):
            self._answers.send(batch, batch.pending)
            return batch.answers
        immediate = [pending for pending in batch.pending if not pending.wait]
        if immediate:
            batch.pending = [pending for pending in batch.pending if pending.wait]
            self._answer_now(batch, immediate)
            if not batch.pending:
                return batch.answers
        return (
            self._answer_when_saved(batch, end)
            if unsaved
            else self._answer_when_durable(batch, end)
        )

    def _answer_now(self, batch: SendBatch, immediate: list[PendingAnswer]) -> None:
        answers = batch.answers
        self._answers.send(batch, immediate)
        for index in [pending.index for pending in immediate]:
            send_answers((batch.requests[index],), (answers[index],))
            # None tells the caller that this request has its response already.
            answers[index] = None

    def _answer_when_durable(self, batch: SendBatch, end: int) -> Deferred:
        deferred = Deferred(batch.requests)

        def on_durable(result: DurabilityResult | FlushFailed) -> None:
            deferred.finish(partial(self._responses, batch, result))

        self.durability.when_durable(end, on_durable)
        return deferred

    async def _answer_when_saved(self, batch: SendBatch, end: int) -> BatchResult:
        await self.topics.settled()
        if self.durability.durable_now(end):
            self._answers.send(batch, batch.pending)
            return batch.answers
        return self._answer_when_durable(batch, end)

    def _responses(
        self, batch: SendBatch, result: DurabilityResult | FlushFailed
    ) -> list[Response | None]:
        """Return the responses that are not written yet. Raises: FlushFailed."""
        if isinstance(result, FlushFailed):
            raise result
        if result is DurabilityResult.DURABLE:
            self._answers.send(batch, batch.pending)
        else:
            if result is DurabilityResult.NOT_CONFIRMED:
                self.statistics.totals.puts_too_few += len(batch.pending)
            for pending in batch.pending:
                answer = batch.answers[pending.index] = self._answers.response(batch, pending)
                answer.code = NOT_DURABLE[result]
                if result is DurabilityResult.NOT_CONFIRMED:  # an error, which clients try again
                    answer.remark = result.value
        return batch.answers

    def refusal(self, code: int, remark: str) -> Response:
        """Return an error response with region and trace switch, as all responses to a send."""
        trace_on = "true" if self.config.trace_on else "false"
        return Response(
            code, remark=remark, ext={MSG_REGION: self.config.region_id, TRACE_ON: trace_on}
        )


def unavailable_remark(error: StoreUnavailable) -> str:
    """Return the remark of a refusal by the store."""
    # A tool may look for the ratios where Java has them: SendMessageProcessor.java#diskUtil.
    ratios = (
        f" [CL: {error.log_ratio:5.2f} CQ: {error.queue_ratio:5.2f} INDEX:"
        f" {error.queue_ratio:5.2f}]"
        if isinstance(error, DiskReserve)
        else ""
    )
    return (
        "service not available now. It may be caused by one of the following reasons: the broker's"
        f" disk is full{ratios}, messages are put to the slave, message store has been shut down,"
        f" etc. ({error})"
    )
