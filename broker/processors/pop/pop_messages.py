"""POP_MESSAGE (200050): take messages of any queue of a topic for a while.

A pop visits the queues in turn, and the retry topics of its group before or after them. One that
finds nothing waits in ``HeldPops``; when a message arrives, or its time is up, it goes through the
pool again. Source: broker/processor/PopMessageProcessor.java.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Iterator, Sequence
from functools import partial
from typing import cast

import attrs
import trio

from triomq.broker.filters.tokens import FilterInvalid
from triomq.broker.processors.pop.pop_checks import PopChecks
from triomq.broker.services.cold_pulls import ColdPulls
from triomq.broker.services.filtered_reads import filtered, get_filtered
from triomq.broker.services.filters import Wanted, compile_typed, is_filter
from triomq.broker.services.groups import GroupTable
from triomq.broker.services.pop.held_pops import HeldPop, HeldPops, Watch
from triomq.broker.services.pop.pop_log import QueueKey
from triomq.broker.services.pop.pops import Pops
from triomq.broker.services.statistics import Statistics
from triomq.broker.store.core.errors import StoreUnavailable
from triomq.broker.store.core.results import GetResult, GetStatus
from triomq.broker.store.io.reads import Buffer
from triomq.broker.store.store import MessageStore
from triomq.remoting.core.errors import LocalProtocolError, Rejected
from triomq.remoting.protocol.bodies.topics import TopicConfig
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.consuming.tag_expressions import ALL_TAGS, subscription
from triomq.remoting.protocol.headers.pop import PopMessageHeader, PopMessageResponseHeader
from triomq.remoting.protocol.message_properties import POP_CK, joined_properties
from triomq.remoting.protocol.names import pop_retry_topics
from triomq.remoting.protocol.receipt_handle import (
    NORMAL,
    ORDERED_QUEUE,
    RETRY_V1,
    RETRY_V2,
    Place,
    ReceiptHandle,
    encode_counts,
    encode_offsets,
    encode_starts,
)
from triomq.remoting.protocol.record import StoredMessage, encode_record
from triomq.remoting.protocol.record_reader import decode_records, queue_offsets, split_records
from triomq.remoting.server.connection import Connection
from triomq.remoting.server.requests import Deferred, Request, Response, Result

OVERDUE_SECONDS = 0.5
"""A request whose time is over by more is refused: its client does not wait any more."""
BYTES_MAX = 256 * 1024
MOVED = (GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_OVERFLOW_BADLY, GetStatus.OFFSET_FOUND_NULL)
"""The position is not in the queue: the pop goes on at the one that the store names."""
PASSED = (GetStatus.NO_MATCHED_MESSAGE, GetStatus.MESSAGE_WAS_REMOVING)
"""Nothing matched, or it is deleted: the pop goes on behind it."""
INIT_MIN = 0
VISITS_AT_ONCE = 512
"""Queues that a pop visits at once: a few milliseconds."""


@attrs.define(eq=False)
class Visit:
    """One queue that a pop visits."""

    topic: str
    kind: int
    """Of the topic: normal, or one of the retry topics."""
    queue_id: int


@attrs.define(eq=False)
class PopWork:
    """A pop in progress: what is wanted, and what is taken."""

    request: Request
    tag_codes: frozenset[int] | None
    wanted: Wanted | None
    pop_time: int
    begun: float
    """The steady clock at ``pop_time``, in seconds."""
    revive_queue: int
    visits: Iterator[Visit]
    left: int = VISITS_AT_ONCE
    """Visits, and messages that a filter passes over, until other tasks have their turn."""
    watch: Watch | None = None
    """Of a pop that takes several turns."""
    rest: int = 0
    """Messages that are left in the visited queues."""
    count: int = 0
    chunks: list[Buffer] = attrs.field(factory=list)
    size: int = 0
    starts: dict[Place, int] = attrs.field(factory=dict)
    offsets: dict[Place, list[int]] = attrs.field(factory=dict)
    counts: list[tuple[Place, int, int]] = attrs.field(factory=list)
    """Of an orderly group: place, offset and earlier pops of messages that were popped before."""
    full: str = ""
    """The first topic that was passed since too much of it is in flight."""
    free_ms: int = 0
    """Time from ``begun`` until the first queue that an orderly group must wait for is free; 0:
    there is none.
    """

    @property
    def header(self) -> PopMessageHeader:
        header: PopMessageHeader = self.request.header
        return header


@attrs.define(eq=False)
class PopMessages:
    """The handler."""

    store: MessageStore
    checks: PopChecks
    clients: GroupTable[Connection]
    statistics: Statistics
    broker_name: str
    cold: ColdPulls
    held: HeldPops
    _locked: set[QueueKey] = attrs.field(factory=set, init=False)
    """Queues that a pop reads from the disk: others pass them."""

    def handle(self, request: Request) -> Result | Awaitable[Result]:
        """Return messages, and hide them from the rest of the group.

        Raises: Rejected, LimitReached. Checkpoint: never; a returned awaitable has some.
        """
        header: PopMessageHeader = request.header
        pops = self.checks.state()
        now, begun = pops.clock_ms(), pops.steady()
        if request.wait_seconds(header.poll_ms / 1000) < -OVERDUE_SECONDS:
            remark = f"the broker[{self.checks.broker_ip}] pop message is timeout too much"
            raise Rejected(ResponseCode.POLLING_TIMEOUT, remark)
        topic = self._topic(header)
        tag_codes, wanted = self._filter(header)
        self.clients.note_pull(header.consumer_group, header.topic, request.arrived)
        pops.commit_covered()
        if not header.order:
            self.checks.room(pops, header.consumer_group)
        revive_queue = ORDERED_QUEUE if header.order else pops.next_revive_queue()
        visits = self._visits(header, topic)
        work = PopWork(request, tag_codes, wanted, now, begun, revive_queue, visits)
        result = self._go_on(work, pops)
        return result if result is not None else self._in_turns(work, pops)

    async def _in_turns(self, work: PopWork, pops: Pops) -> Result:
        """Visit the rest of many queues. Raises: Rejected."""
        connection, result = work.request.connection, None
        self._watch(work)
        try:
            while result is None:
                await trio.lowlevel.checkpoint()
                if connection.closed:  # the client could not receive the messages
                    raise Rejected(ResponseCode.SYSTEM_ERROR, "the connection is closed")
                self.checks.state()  # this broker may serve no pops any more
                work.left = VISITS_AT_ONCE
                result = self._go_on(work, pops)
        except BaseException:
            self._end_watch(work)
            raise
        return result

    def _watch(self, work: PopWork) -> None:
        """Note what comes until the answer is made: other tasks run."""
        if work.watch is None:
            work.watch = self.held.watch(work.header, work.request.connection)

    def _end_watch(self, work: PopWork) -> bool:
        return work.watch is not None and self.held.end_watch(work.watch)

    def _go_on(self, work: PopWork, pops: Pops) -> Result | None:
        """Visit queues until there is enough; return None if the turn ends. Checkpoint: never."""
        header = work.header
        for visit in work.visits:
            work.left -= 1
            key = header.consumer_group, visit.topic, visit.queue_id
            if key in self._locked:
                continue
            if not pops.has_room(header.consumer_group, visit.topic):
                work.full = work.full or visit.topic
                continue
            if header.order and self._is_blocked(work, key, pops):
                continue
            if not self._take(work, visit, key, pops):
                if work.count:
                    break  # the next pop reads the disk
                return self._take_cold(work, visit, key, pops)
            if work.count >= header.message_count_max:
                break
            if work.left <= 0:
                return None
        return self._answer(work)

    # One queue

    def _is_blocked(self, work: PopWork, key: QueueKey, pops: Pops) -> bool:
        """Return whether an orderly group waits for acknowledgements of a queue."""
        info = pops.orders.pops.get(key)
        if info is None:
            return False
        free_ms = info.free_at(work.header.attempt_id) - info.now_ms(work.begun)
        if free_ms <= 0:
            return False
        work.free_ms = min(work.free_ms or free_ms, free_ms)
        return True

    def _take(self, work: PopWork, visit: Visit, key: QueueKey, pops: Pops) -> bool:
        """Take messages of a queue; return False if the disk must be read."""
        for _ in range(2):
            offset = self._begin(work.header, visit, key, pops)
            if offset is None:
                return False
            if work.wanted is not None:
                found = get_filtered(
                    partial(self._get, visit, None),
                    offset,
                    work.header.message_count_max - work.count,
                    BYTES_MAX,
                    work.wanted,
                )
            else:
                count = work.header.message_count_max - work.count
                found = self._get(visit, work.tag_codes, offset, count, BYTES_MAX)
            if found is None:
                return False
            work.left -= max(0, found.next_offset - offset - found.count)
            if not self._use(work, visit, key, pops, found):
                break
        return True

    def _get(
        self, visit: Visit, tag_codes: frozenset[int] | None, offset: int, count: int, size: int
    ) -> GetResult | None:
        return self.store.get(
            visit.topic,
            visit.queue_id,
            offset,
            messages_max=count,
            bytes_max=size,
            tag_codes=tag_codes,
        )

    def _take_cold(self, work: PopWork, visit: Visit, key: QueueKey, pops: Pops) -> Deferred:
        deferred = Deferred((work.request,))
        self._locked.add(key)
        if not self.cold.add(
            work.request.connection,
            partial(self._read_cold, deferred, work, visit, key, pops),
            partial(self._unlock, work.header, key),
        ):
            self._locked.discard(key)
            raise Rejected(
                ResponseCode.SYSTEM_BUSY,
                "too many pulls wait for the disk, start flow control for a while",
            )
        self._watch(work)
        return deferred

    def _unlock(self, header: PopMessageHeader, key: QueueKey) -> None:
        """Let others read a queue: the client that was about to has left. Checkpoint: never."""
        self._locked.discard(key)
        self.held.wake(header.consumer_group, header.topic)

    async def _read_cold(
        self, deferred: Deferred, work: PopWork, visit: Visit, key: QueueKey, pops: Pops
    ) -> None:
        try:
            offset = self._begin(work.header, visit, key, pops)
            if offset is None:
                near = await self.store.begins_near_cold(visit.topic, visit.queue_id)
                offset = self._begin(work.header, visit, key, pops, near=near)
            assert offset is not None
            found = await self.store.get_cold(
                visit.topic,
                visit.queue_id,
                offset,
                messages_max=work.header.message_count_max,
                bytes_max=BYTES_MAX,
                tag_codes=work.tag_codes,
            )
            if work.wanted is not None:
                found = filtered(found, work.wanted)
            self._locked.discard(key)
            self._use(work, visit, key, pops, found)
            answer = self._answer(work)
            if isinstance(answer, Response):
                deferred.finish(lambda: answer)
        except Exception as error:
            self._end_watch(work)
            deferred.fail(error)
        finally:
            self._locked.discard(key)

    def _begin(
        self,
        header: PopMessageHeader,
        visit: Visit,
        key: QueueKey,
        pops: Pops,
        *,
        near: bool | None = None,
    ) -> int | None:
        """Return the offset at which a queue is read; a group's first one is committed.

        *near*: what ``begins_near`` answers, if it is known. None is returned if it must be known
        and the disk must be read for it.

        Source: PopMessageProcessor.java#getInitOffset.
        """
        pops.offsets.take_reset(*key)  # `Pops.moved` has set the position; a pop needs no notice
        position = pops.position(key)
        if position is None:
            pops.offsets.require_room(*key)
            position = low = self.store.min_offset(visit.topic, visit.queue_id)
            if visit.kind == NORMAL and header.init_mode != INIT_MIN:
                if low > 0 or not pops.settings.begins_at_young_start:
                    near = False
                elif near is None:
                    near = self.store.begins_near(visit.topic, visit.queue_id)
                if near is None:
                    return None
                if not near:
                    position = max(low, self.store.max_offset(visit.topic, visit.queue_id) - 1)
            pops.reset(key, position)
        return position

    def _use(
        self, work: PopWork, visit: Visit, key: QueueKey, pops: Pops, found: GetResult
    ) -> bool:
        """Take what was found; return whether the queue is to be read again from elsewhere."""
        if found.status in MOVED:
            pops.reset(key, found.next_offset)
            return True
        work.rest += max(0, found.max_offset - found.next_offset)
        if found.status in PASSED:
            pops.move(key, found.next_offset)
        if found.status is not GetStatus.FOUND:
            return False
        if work.header.order:
            return not self._use_ordered(work, visit, key, pops, found)
        offsets, header = queue_offsets(found.chunks), work.header
        try:
            pops.take(
                key,
                offsets,
                found.next_offset,
                work.pop_time,
                header.invisible_ms,
                work.revive_queue,
                work.begun,
            )
        except StoreUnavailable as error:
            raise Rejected(
                ResponseCode.SYSTEM_ERROR, f"no check point can be stored ({error})"
            ) from None
        place = visit.kind, visit.queue_id
        work.starts[place] = offsets[0]
        work.offsets[place] = offsets
        work.count += len(offsets)
        if visit.kind == NORMAL:
            work.chunks += found.chunks
            work.size += found.size_bytes
        else:
            for record in split_records(found.chunks):
                made = self._as_original(work, visit, offsets[0], record)
                work.chunks.append(made)
                work.size += len(made)
        name = f"{visit.topic}@{header.consumer_group}"
        self.statistics.add("GROUP_GET_NUMS", name, len(offsets))
        self.statistics.add("GROUP_GET_SIZE", name, found.size_bytes)
        return False

    def _use_ordered(
        self, work: PopWork, visit: Visit, key: QueueKey, pops: Pops, found: GetResult
    ) -> bool:
        """Take what was found, but for messages that are acknowledged already.

        Returns: whether there were others.
        """
        info = pops.orders.pops.get(key)
        passed = info.acknowledged if info is not None else frozenset()
        records = dict(zip(queue_offsets(found.chunks), split_records(found.chunks)))
        taken = {offset: record for offset, record in records.items() if offset not in passed}
        if not taken:
            pops.reset(key, found.next_offset)
            return False
        header, offsets = work.header, list(taken)
        counts = pops.take_ordered(
            key, list(records), work.pop_time, header.invisible_ms, header.attempt_id, work.begun
        )
        place = visit.kind, visit.queue_id
        work.starts[place] = offsets[0]
        work.offsets[place] = offsets
        work.counts += [(place, offset, count) for offset, count in counts.items()]
        work.count += len(offsets)
        work.chunks += taken.values()
        size = sum(map(len, taken.values()))
        work.size += size
        name = f"{visit.topic}@{header.consumer_group}"
        self.statistics.add("GROUP_GET_NUMS", name, len(offsets))
        self.statistics.add("GROUP_GET_SIZE", name, size)
        return True

    def _as_original(self, work: PopWork, visit: Visit, start: int, record: bytes) -> bytes:
        """Return a message of a retry topic as one of the topic that it came from."""
        (message,) = decode_records(record)
        handle = ReceiptHandle(
            start,
            work.pop_time,
            work.header.invisible_ms,
            work.revive_queue,
            visit.kind,
            self.broker_name,
            visit.queue_id,
            message.queue_offset,
        )
        properties = {**message.properties, POP_CK: handle.encode()}
        return _with(message, work.header.topic, properties)

    # The answer

    def _answer(self, work: PopWork) -> Response | Deferred:
        """Return the messages, or wait for some.

        No other task runs between the last read of the store and this call, so no message arrives
        unnoticed; one that came while the pop took several turns is looked for.
        """
        header = work.header
        woken = self._end_watch(work)
        if woken and not work.count:
            work.request.resubmit()
            return Deferred((work.request,))
        code, remark = ResponseCode.SUCCESS, "FOUND"
        if not work.count:
            if work.full:
                pops = self.checks.state()
                raise self.checks.no_room(pops, header.consumer_group, work.full)
            held = self._hold(work)
            if held:
                if work.rest:  # the filter has not seen all messages yet
                    self.held.wake(header.consumer_group, header.topic)
                return Deferred((work.request,))
            code = ResponseCode.POLLING_TIMEOUT if held is None else ResponseCode.POLLING_FULL
            remark = GetStatus.NO_MESSAGE_IN_QUEUE.name
        elif work.rest or woken:
            self.held.wake(header.consumer_group, header.topic)
        totals = self.statistics.totals
        if work.count:
            totals.gets_found += 1
            totals.gets_messages += work.count
        else:
            totals.gets_missed += 1
        made = PopMessageResponseHeader(
            work.pop_time,
            header.invisible_ms,
            work.revive_queue,
            work.rest,
            encode_starts(work.starts),
            encode_offsets(work.offsets),
            encode_counts(work.counts) if work.counts else None,
        )
        # A bytearray is sent like bytes; its content does not change any more.
        chunks = cast("Sequence[bytes | memoryview]", work.chunks)
        return Response(code, made, chunks, remark, None, work.size)

    def _hold(self, work: PopWork) -> bool | None:
        """Let a pop wait; return False if too many wait, None if its time is over."""
        header, request = work.header, work.request
        left = request.wait_seconds(header.poll_ms / 1000)
        if left <= 0:
            return None
        if work.free_ms:
            since = self.checks.state().steady() - work.begun
            left = min(left, max(0.001, work.free_ms / 1000 - since))
        old, new = pop_retry_topics(header.consumer_group, header.topic)
        return self.held.hold(
            HeldPop(
                header.consumer_group,
                (header.topic, old, new),
                header.queue_id,
                trio.current_time() + left,
                request.connection,
                request.resubmit,
            )
        )

    # The order of queues

    def _visits(self, header: PopMessageHeader, topic: TopicConfig) -> Iterator[Visit]:
        pops = self.checks.state()
        chance = random.randrange(100)
        first = chance < pops.settings.retry_probability
        if first and not header.order:
            yield from self._retries(header, chance)
        count = topic.read_queue_count
        queues = (
            [header.queue_id]
            if header.queue_id >= 0
            else [(chance + n) % count for n in range(count)]
        )
        for queue_id in queues:
            yield Visit(header.topic, NORMAL, queue_id)
        if not first and not header.order:
            yield from self._retries(header, chance)

    def _retries(self, header: PopMessageHeader, chance: int) -> Iterator[Visit]:
        """Yield the queues of the retry topics, those of both names where both are read.

        Java looks into one of them by chance; a pop that a message woke would miss it.
        """
        settings = self.checks.state().settings
        old, new = pop_retry_topics(header.consumer_group, header.topic)
        names = [(old, RETRY_V1)]
        if settings.retry_topic_v2:
            names = [(new, RETRY_V2), *(names if settings.reads_retry_topic_v1 else [])]
        for name, kind in names if chance % 2 else reversed(names):
            found = self.checks.topics.find(name)
            for queue_id in range(found.read_queue_count if found is not None else 0):
                yield Visit(name, kind, queue_id)

    def _topic(self, header: PopMessageHeader) -> TopicConfig:
        self.checks.count(header.message_count_max)
        self.checks.invisible_time(header.invisible_ms)
        return self.checks.topic(header.topic, header.queue_id, header.consumer_group)

    def _filter(self, header: PopMessageHeader) -> tuple[frozenset[int] | None, Wanted | None]:
        """Return the tags, or the filter over properties. Raises: Rejected."""
        expression = header.expression or ALL_TAGS
        try:
            if header.expression_type is not None and is_filter(header.expression_type):
                return None, compile_typed(header.expression_type, expression)
            wanted = subscription(header.topic, expression, 0)
        except (FilterInvalid, LocalProtocolError) as error:
            raise Rejected(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"parse the consumer's subscription failed: {error}",
            ) from None
        return (None if wanted.sub_string == ALL_TAGS else wanted.codes), None


def _with(message: StoredMessage, topic: str, properties: dict[str, str]) -> bytes:
    return encode_record(
        topic=topic,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        log_offset=message.log_offset,
        body=message.body,
        properties=joined_properties(properties).encode(),
        born_timestamp=message.born_timestamp,
        born_host=message.born_host_bytes,
        store_timestamp=message.store_timestamp,
        store_host=message.store_host_bytes,
        flag=message.flag,
        sys_flag=message.sys_flag,
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
    )
