"""Messages coming in: SEND_MESSAGE (10), SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320), many requests at a time.

A batch of requests becomes one append: check each request, append all that passed (atomic, no checkpoint), wait until the log is as durable
as configured, answer.  What a topic allows is looked up once and kept until any topic changes.
Source: broker/processor/SendMessageProcessor.java, AbstractSendMessageProcessor.java.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from functools import partial

import attrs
import trio

from triomq.broker.processors import properties as props
from triomq.broker.processors.admission import Admission, Target
from triomq.broker.processors.batches import Batches
from triomq.broker.processors.inner_batches import (
    OWN_NUMBERS,
    UNUSUAL_FLAGS,
    mark_unusual,
    own_flags,
    refuse_inner_batch,
)
from triomq.broker.processors.properties import PROPERTY_END, property_value
from triomq.broker.processors.stored_answers import Entry, StoredAnswers
from triomq.broker.services.delay import DelayedMessages
from triomq.broker.services.statistics import Statistics
from triomq.broker.services.topics import Topics
from triomq.broker.store.draft import Appended, Draft
from triomq.broker.store.durability import Durability, DurabilityResult
from triomq.broker.store.errors import DiskReserve, FlushFailed, StoreUnavailable
from triomq.broker.store.store import MessageStore
from triomq.remoting.errors import Rejected
from triomq.remoting.protocol import names
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.headers.send import SendMessageHeader
from triomq.remoting.protocol.message import (
    CLUSTER,
    DELAY,
    KEYS,
    MSG_REGION,
    POP_CK,
    TAGS,
    TRACE_ON,
    UNIQ_KEY,
    WAIT,
    UniqueIds,
    properties_text,
)
from triomq.remoting.server.handlers import Answer, Later, Request, Response

# Below these sizes a message cannot break a limit of the store, so that only larger ones are checked one by one.
EASY_PROPERTIES_CHARACTERS = 7 * 1024
EASY_REST_BYTES = 32 * 1024
TABLE_SAVE_SECONDS = 3.0
NOT_DURABLE: dict[DurabilityResult, int] = {
    DurabilityResult.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    DurabilityResult.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
    DurabilityResult.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
}

UNIQUE_KEY_NAME = f"{UNIQ_KEY}\x01"
TAGS_NAME = f"{TAGS}\x01"
KEYS_NAME = f"{KEYS}\x01"
WAIT_NAME = f"{WAIT}\x01"
NO_WAIT = f"{WAIT_NAME}false"


@attrs.frozen(kw_only=True)
class SendSettings:
    """What of the broker's configuration concerns incoming messages."""

    cluster_name: str
    region_id: str
    trace_on: bool
    message_size_bytes_max: int
    store_host: bytes


@attrs.define(eq=False)
class SendMessages:
    """The batch handler of all three codes."""

    store: MessageStore
    topics: Topics
    admission: Admission
    delayed: DelayedMessages
    statistics: Statistics
    unique_ids: UniqueIds
    clock_ms: Callable[[], int]
    settings: SendSettings
    durability: Durability = attrs.field()
    """Says when messages are safe: the store itself, or on a SYNC_MASTER the store and the slaves."""
    _suffix: str = attrs.field(init=False)
    _answers: StoredAnswers = attrs.field(init=False)
    _batches: Batches = attrs.field(init=False)
    _easy_body_bytes: int = attrs.field(init=False)
    _targets: dict[str, Target] = attrs.field(factory=dict, init=False)
    _generation: int = attrs.field(default=-1, init=False)
    _inner_batches: list[tuple[Target, int]] = attrs.field(factory=list, init=False)
    """Topic and number of messages of each inner batch of the requests at hand; their answers have a field more than others."""

    @durability.default
    def _only_the_store(self) -> Durability:
        return self.store

    def __attrs_post_init__(self) -> None:
        self._answers = StoredAnswers(self.settings.store_host, self.settings.region_id, self.settings.trace_on)
        self._batches = Batches(self.admission, self.store.config, self.settings.cluster_name, self.settings.message_size_bytes_max)
        self._easy_body_bytes = min(self.settings.message_size_bytes_max, self.store.config.segment_size_bytes - EASY_REST_BYTES)
        self._suffix = properties_text(
            {
                MSG_REGION: self.settings.region_id,
                TRACE_ON: "true" if self.settings.trace_on else "false",
                CLUSTER: self.settings.cluster_name,
            }
        )

    def handle(self, requests: list[Request]) -> list[Answer] | Awaitable[list[Answer]] | Later | None:
        """Store a batch of messages.  Everything up to the append happens before the first checkpoint."""
        begin = time.perf_counter()
        if self.admission.live.accept_sends_from_ms and (closed := self.admission.closed_until(self.clock_ms())) is not None:
            return [self._refusal(ResponseCode.SYSTEM_ERROR, closed)] * len(requests)
        answers: list[Answer] = [None] * len(requests)
        self._inner_batches.clear()
        drafts, entries = self._prepare(requests, answers)
        if not drafts:
            return answers
        reason = self.durability.refusal()
        if reason:
            self.statistics.totals.puts_failed += len(drafts)
            refusal = self._refusal(ResponseCode.SYSTEM_ERROR, f"in-sync replicas not enough ({reason})")
            for entry in entries:
                answers[entry[0]] = refusal
            return answers
        try:
            places = self.store.append_unindexed(drafts)
        except StoreUnavailable as error:
            self.statistics.totals.puts_failed += len(drafts)
            refusal = self._refusal(ResponseCode.SERVICE_NOT_AVAILABLE, unavailable_remark(error))
            for entry in entries:
                answers[entry[0]] = refusal
            return answers
        seconds = time.perf_counter() - begin
        end = places[-1].log_offset + places[-1].size
        at_once = not self.topics.table.unsaved and self.durability.durable_now(end)
        sent = 0
        try:
            if at_once and not self._inner_batches:
                sent = self._answers.send(requests, answers, entries, places)
        finally:
            # After the answer has gone out, and still before anybody else runs: nobody can ask before it is done.
            self.store.index_appended()
        message_count = len(drafts)
        for target, count in self._inner_batches:
            target.puts.value += count - 1
            message_count += count - 1
        self.statistics.note_put(message_count, end - places[0].log_offset, seconds)
        if sent == len(requests):
            return None
        if at_once and self._inner_batches:
            self._answers.fill(answers, entries, places)
        if at_once:
            return answers
        if not self.topics.table.unsaved and all([entry[5] for entry in entries]):  # noqa: C419 - half the time of a generator
            later = Later()
            if self.durability.when_durable(end, partial(self._told, later, requests, answers, entries, places)):
                return later
        return self._fill_when_durable(requests, answers, entries, places, end)

    def _prepare(self, requests: list[Request], answers: list[Answer]) -> tuple[list[Draft], list[Entry]]:
        """Check every request; what must be refused gets its answer here."""
        if self._generation != self.topics.generation:
            self._targets.clear()
            self._generation = self.topics.generation
        drafts: list[Draft] = []
        entries: list[Entry] = []
        targets, suffix, easy_body_bytes = self._targets, self._suffix, self._easy_body_bytes
        texts = [request.header.properties or "" for request in requests]
        unusual = props.unusual_texts(texts)
        for index, request in enumerate(requests):
            header = request.header
            text = texts[index]
            target = targets.get(header.topic)
            queue_id = header.queue_id
            before, found, rest = text.partition(UNIQUE_KEY_NAME)
            if (
                target is not None
                and found
                and (not before or before[-1] == PROPERTY_END)
                and not header.batch
                and not header.sys_flag & UNUSUAL_FLAGS
                and 0 <= queue_id < target.queue_limit
                and len(request.body) <= easy_body_bytes
                and len(text) <= EASY_PROPERTIES_CHARACTERS
                and index not in unusual
            ):
                if text[-1] != PROPERTY_END:
                    text += PROPERTY_END
                unique_key = rest.partition(PROPERTY_END)[0]
                if unique_key:
                    draft = Draft(
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
                        property_value(text, TAGS_NAME) if TAGS_NAME in text else None,
                        unique_key,
                        property_value(text, KEYS_NAME) if KEYS_NAME in text else None,
                    )
                    drafts.append(draft)
                    wait = NO_WAIT not in text or property_value(text, WAIT_NAME) != "false"
                    entries.append((index, 1, target, queue_id, unique_key, wait))
                    continue
            try:
                self._take_unusual(index, request, text, drafts, entries)
            except Rejected as rejected:
                answers[index] = self._refusal(rejected.code, rejected.remark)
        return drafts, entries

    # What is not an ordinary message

    def _take_unusual(
        self, index: int, request: Request, text: str, drafts: list[Draft], entries: list[Entry]
    ) -> None:
        """Check and prepare any request; raises Rejected."""
        header: SendMessageHeader = request.header
        known = props.known_properties(text)
        target = self.admission.target(header, request.connection.peer_text)
        if not header.topic.startswith(names.RETRY_PREFIX) and target.message_type is None and not target.batched:
            self._targets[header.topic] = target
        queue_id = header.queue_id if header.queue_id >= 0 else random.randrange(max(1, target.write_queues))
        wait = known.get(WAIT) != "false"
        if header.batch or request.code == RequestCode.SEND_BATCH_MESSAGE:
            unique_key = known.get(UNIQ_KEY) or self.unique_ids.next(self.clock_ms())
            if target.batched:
                draft, count = self._batches.inner(request, target, queue_id, text, known, unique_key)
                self._inner_batches.append((target, count))
                drafts.append(draft)
                entries.append((index, 1, target, queue_id, unique_key, wait))
            else:
                made = self._batches.ordinary(request, target, queue_id, known)
                drafts += made
                entries.append((index, len(made), target, queue_id, unique_key, wait))
            return
        self.admission.refuse_unsupported(header, known)
        self.admission.refuse_other_type(target, known)
        reconsume_times = header.reconsume_times or 0
        delay_level = self.admission.delay_level(known)
        refuse_inner_batch(header, known)
        dropped = [name for name in (POP_CK, *props.OWN, *OWN_NUMBERS) if name in known]
        if self.admission.is_dead(header, request.version):
            target, queue_id = self.admission.dead_letter_target(header.topic), 0
            delay_level = 0
            dropped.append(DELAY)
        unique_key = known.get(UNIQ_KEY, "")
        added = self._suffix
        if not unique_key:
            unique_key = self.unique_ids.next(self.clock_ms())
            dropped.append(UNIQ_KEY)
            added = properties_text({UNIQ_KEY: unique_key}) + added
        if dropped:
            text = props.without_properties(text, dropped)
        elif text and text[-1] != PROPERTY_END:
            text += PROPERTY_END
        draft = Draft(
            target.topic,
            queue_id,
            request.body,
            (text + added).encode("utf-8", "replace"),
            header.flag,
            own_flags(header),
            header.born_timestamp,
            request.connection.peer_bytes,
            reconsume_times,
            tags=known.get(TAGS),
            unique_key=unique_key,
            keys=known.get(KEYS),
        )
        mark_unusual(draft, known, target, self.store)  # also what is for later: when it is due nobody is there to be told
        if delay_level:
            self.delayed.schedule(draft, delay_level)
        self._batches.check(draft)
        drafts.append(draft)
        entries.append((index, 1, target, queue_id, unique_key, wait))

    # Answers

    def _refusal(self, code: int, remark: str) -> Response:
        """An error answer; every answer to a send names region and trace switch."""
        trace_on = "true" if self.settings.trace_on else "false"
        return Response(code, remark=remark, ext={MSG_REGION: self.settings.region_id, TRACE_ON: trace_on})

    def _told(
        self, later: Later, requests: list[Request], answers: list[Answer], entries: list[Entry], places: list[Appended], result: DurabilityResult | FlushFailed
    ) -> None:
        later.finish(partial(self._make_answers, requests, answers, entries, places, result))

    def _make_answers(
        self, requests: list[Request], answers: list[Answer], entries: list[Entry], places: list[Appended], result: DurabilityResult | FlushFailed
    ) -> list[Answer] | None:
        """Answer a batch of which all wait for the disk, when it is known what the disk has done."""
        if isinstance(result, FlushFailed):
            raise result
        if result is DurabilityResult.DURABLE:
            return None if self._answers.send(requests, answers, entries, places) == len(requests) else answers
        self._answers.fill(answers, entries, places)
        _mark_not_durable(answers, entries, result)
        return answers

    async def _fill_when_durable(
        self, requests: list[Request], answers: list[Answer], entries: list[Entry], places: list[Appended], end: int
    ) -> list[Answer]:
        """Wait for the disk, and for the table of topics if one was created; answer at once whoever does not want to wait."""
        hasty = [entry[0] for entry in entries if not entry[5]]
        if hasty:
            self._answers.fill(answers, entries, places)
            for index in hasty:
                answer = answers[index]
                if answer is not None:
                    requests[index].reply(answer)
                    answers[index] = None
        if self.topics.table.unsaved:
            with trio.move_on_after(TABLE_SAVE_SECONDS):
                await self.topics.table.wait_saved()
        result = DurabilityResult.DURABLE
        if len(hasty) < len(entries) and not self.durability.durable_now(end):
            result = await self.durability.wait_durable(end)
        if result is DurabilityResult.DURABLE and not hasty:
            self._answers.send(requests, answers, entries, places)
            return answers
        if not hasty:
            self._answers.fill(answers, entries, places)
        if result is not DurabilityResult.DURABLE:
            _mark_not_durable(answers, entries, result)
        return answers


def _mark_not_durable(answers: list[Answer], entries: list[Entry], result: DurabilityResult) -> None:
    for entry in entries:
        answer = answers[entry[0]]
        if answer is not None:
            answer.code, answer.remark = NOT_DURABLE[result], None


def unavailable_remark(error: StoreUnavailable) -> str:
    # A tool may look for the ratios where Java has them: SendMessageProcessor.java#diskUtil.
    ratios = f" [CL: {error.log_ratio:5.2f} CQ: {error.queue_ratio:5.2f} INDEX: {error.queue_ratio:5.2f}]" if isinstance(error, DiskReserve) else ""
    return (
        f"service not available now. It may be caused by one of the following reasons: the broker's disk is full{ratios}, "
        f"messages are put to the slave, message store has been shut down, etc. ({error})"
    )
