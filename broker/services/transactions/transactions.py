"""Prepare, commit and roll back: each step is one append of all its records.

Commits and the op record that names their halves are appended together, the op record last: a log
that a crash has torn in between has a message without its op record, so the half is asked about
again and the message may come twice, but none is lost. Source:
broker/transaction/queue/TransactionalMessageServiceImpl.java.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import attrs
import trio

from triomq.broker.services.offsets import ConsumerOffsets
from triomq.broker.services.transactions import halves
from triomq.broker.services.transactions.open_halves import OpenHalves, Progress
from triomq.broker.store.core.draft import Appended, Draft
from triomq.broker.store.core.errors import StoreIoError
from triomq.broker.store.log.durability import Durability
from triomq.broker.store.store import MessageStore
from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.protocol.message_properties import REAL_TOPIC
from triomq.remoting.protocol.names import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP
from triomq.remoting.protocol.record import StoredMessage

logger = logging.getLogger(__name__)

LOAD_MESSAGES = 1_000
LOAD_BYTES = 1024 * 1024
FINISH_EDGES_SECONDS = (5, 60, 600, 3_600, 12 * 3_600, 86_400)
RETRY_SECONDS = 5.0
"""Pause before a half that could not be read or copied is tried again."""


@attrs.define
class FinishTimes:
    """A histogram of the seconds from a half's birth to its commit, as Java measures them."""

    counts: list[int] = attrs.field(factory=lambda: [0] * (len(FINISH_EDGES_SECONDS) + 1))
    seconds: float = 0.0


@attrs.define
class TransactionCounts:
    """What has happened since the start."""

    committed: Counter[str] = attrs.field(factory=Counter)
    """By topic."""
    rolled_back: Counter[str] = attrs.field(factory=Counter)
    """By topic."""
    finishes: dict[str, FinishTimes] = attrs.field(factory=dict)
    """By topic: how long committed transactions were open."""
    checks: int = 0
    """Checks that a producer was asked for."""
    unasked: int = 0
    """Checks without any connected producer of the group."""
    abandoned: int = 0
    """Halves moved to TRANS_CHECK_MAX_TIME_TOPIC."""


@attrs.frozen
class End:
    """The end of one transaction: its half, and the message to be delivered, if it is committed."""

    queue_offset: int
    """That of the open record: the half, or its newest copy."""
    half: StoredMessage
    committed: Draft | None
    """A checked draft."""


@attrs.define(eq=False)
class Transactions:
    """The open halves of a master, and the appends that end them."""

    store: MessageStore
    offsets: ConsumerOffsets
    durability: Durability
    clock_ms: Callable[[], int]
    op_body_bytes: int = halves.OP_BODY_BYTES
    counts: TransactionCounts = attrs.field(factory=TransactionCounts)
    limit: LogLimit = attrs.field(factory=LogLimit)
    loaded: trio.Event = attrs.field(factory=trio.Event, init=False)
    """Set when ``open`` is known; before that no transaction can be ended."""
    open: OpenHalves = attrs.field(factory=lambda: OpenHalves(0, 0), init=False)
    _unsaved: tuple[Progress, int] | None = attrs.field(default=None, init=False)
    """Progress to be committed when the log is durable up to this end."""
    _arrival: trio.Event = attrs.field(factory=trio.Event, init=False)

    def _start(self, topic: str) -> int:
        lowest, highest = self.store.min_offset(topic, 0), self.store.max_offset(topic, 0)
        committed = self.offsets.committed_offset(TRANSACTION_GROUP, topic, 0)
        return min(max(committed or 0, lowest), highest)

    # Arrivals

    def arrived(self, arrivals: Iterable[tuple[str, int, int, int]]) -> None:
        """Add halves that have become readable. Checkpoint: never.

        ``arrivals``: (topic, queue id, end offset, tags code) each.
        """
        for topic, _, end_offset, _ in arrivals:
            if topic == HALF_TOPIC and self.loaded.is_set():
                self.open.arrived(end_offset, trio.current_time())
                self._arrival.set()

    def next_arrival(self) -> trio.Event:
        """Return the event of the next arrival."""
        if self._arrival.is_set():
            self._arrival = trio.Event()
        return self._arrival

    async def load(self) -> None:
        """Find the open halves: those behind the group's offset that no op record names.

        Raises: StoreIoError. Checkpoint: always.
        """
        # Not earlier: a master may have taken the offsets over from a slave that acted for it.
        self.open = OpenHalves(self._start(HALF_TOPIC), self._start(OP_HALF_TOPIC))
        finished: set[int] = set()
        while True:
            found = await self.store.messages(
                OP_HALF_TOPIC, 0, self.open.op_end, messages_max=LOAD_MESSAGES, bytes_max=LOAD_BYTES
            )
            if found.next_offset <= self.open.op_end:
                break
            if found.damaged:
                logger.error(
                    "of op records %d to %d, %d cannot be read: transactions that they name are"
                    " asked about again, and their messages may come twice",
                    self.open.op_end,
                    found.next_offset - 1,
                    len(found.damaged),
                )
            for record in found.messages:
                named = halves.finished_offsets(record.body)
                finished.update(offset for offset in named if offset >= self.open.oldest)
                self.open.op_record(record.queue_offset, named)
            self.open.pass_finished(finished)
            self.open.progress()  # forgets op records that are done
            self.open.op_end = found.next_offset
            await trio.lowlevel.checkpoint()
        # From here on without a checkpoint: an arrival must not come in between.
        self.open.arrived(self.store.max_offset(HALF_TOPIC, 0), trio.current_time())
        self.open.finish(finished)
        self.loaded.set()

    async def holds(self, half: StoredMessage) -> bool:
        """Return whether a record is in the half queue: a part of a body may look like a half.

        Raises: StoreIoError. Checkpoint: maybe.
        """
        queue = self.store.queue_table.queues.get((HALF_TOPIC, 0))
        if queue is None or half.queue_offset >= queue.next_offset:
            return False
        if half.queue_offset >= queue.end_offset:  # stored, and not readable yet
            return half.log_offset >= self.store.indexed.value
        found = await self.store.messages(
            HALF_TOPIC, 0, half.queue_offset, messages_max=1, bytes_max=0
        )
        return any(message.log_offset == half.log_offset for message in found.messages)

    async def read_half(self, offset: int) -> StoredMessage | None:
        """Return an open half. One that the log has no more is finished, and None is returned.

        One that cannot be read now is postponed. Checkpoint: maybe.
        """
        try:
            found = await self.store.messages(HALF_TOPIC, 0, offset, messages_max=1, bytes_max=0)
        except StoreIoError as error:
            self.open.postpone(offset, trio.current_time() + RETRY_SECONDS)
            self.limit.log(logger, logging.ERROR, "half %d cannot be read: %s", offset, error)
            return None
        reason = "the log has its half no more"
        if found.damaged:
            reason = f"its record is damaged ({found.damaged[0].reason})"
        elif found.messages:
            if halves.is_half(found.messages[0]):
                return found.messages[0]
            reason = "its record is not a half"
        logger.warning("transaction %d is dropped: %s", offset, reason)
        self.open.finish([offset])
        return None

    # Steps

    def end(self, ends: Sequence[End]) -> int:
        """Append what ends these transactions; return the end of the log.

        Raises: StoreUnavailable; then nothing is appended. Checkpoint: never.
        """
        commits = [end.committed for end in ends if end.committed is not None]
        self.append(commits, [end.queue_offset for end in ends])
        for end in ends:
            counts = self.counts.rolled_back if end.committed is None else self.counts.committed
            topic = end.half.properties[REAL_TOPIC]
            counts[topic] += 1
            if end.committed is not None:
                seconds = max(0, self.clock_ms() - end.half.born_timestamp) // 1000
                times = self.counts.finishes.setdefault(topic, FinishTimes())
                times.counts[bisect_left(FINISH_EDGES_SECONDS, seconds)] += 1
                times.seconds += seconds
        return self.store.appended.value

    def append(self, drafts: Sequence[Draft], finished: Sequence[int]) -> list[Appended]:
        """Append records with the op records of the halves that they finish; return their places.

        The caller has checked the drafts.

        Raises: StoreUnavailable; then nothing is appended. Checkpoint: never.
        """
        op_drafts = list(
            halves.op_drafts(
                finished, self.store.config.store_host, self.clock_ms(), self.op_body_bytes
            )
        )
        places = self.store.append([*drafts, *op_drafts])
        for draft, place in zip(op_drafts, places[len(drafts) :], strict=True):
            self.open.op_record(place.queue_offset, halves.finished_offsets(draft.body))
        self.open.finish(finished)
        return places[: len(drafts)]

    # Progress

    def save_progress(self) -> bool:
        """Commit how far the queues are done, as far as disk and slaves have the records for it.

        Returns: whether something is still to be saved. Checkpoint: never.
        """
        if self._unsaved is not None:
            progress, log_end = self._unsaved
            if self.store.flushed.value < log_end or not self.durability.durable_now(log_end):
                return True
            self.offsets.commit(TRANSACTION_GROUP, HALF_TOPIC, 0, progress.half)
            self.offsets.commit(TRANSACTION_GROUP, OP_HALF_TOPIC, 0, progress.op)
            self._unsaved = None
        progress = self.open.progress()
        if progress == Progress(self._committed(HALF_TOPIC), self._committed(OP_HALF_TOPIC)):
            return False
        self._unsaved = progress, self.store.appended.value
        return True

    def _committed(self, topic: str) -> int:
        return self.offsets.committed_offset(TRANSACTION_GROUP, topic, 0) or 0
