"""Reviver: the task that brings unacknowledged messages again.

What was popped since the start comes from memory, when its time is over by the steady clock. The
rest comes from the revive topic, where the timers put check points by the wall clock.

Source: broker/processor/PopReviveService.java.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import attrs
import trio

from triomq.broker.services.pop.pop_log import PopRecord, RevivePopLog, kind_of
from triomq.broker.services.pop.pops import Pops, make_ack
from triomq.broker.services.pop.revive_queue import KEEP_MS, ReviveQueue
from triomq.broker.services.pop.revive_records import REVIVE_GROUP, read_revive_record
from triomq.broker.services.subscriptions import SubscriptionGroups
from triomq.broker.services.topics import Topics
from triomq.broker.store.core.draft import Draft, copied_draft
from triomq.broker.store.core.errors import IllegalMessage, StoreIoError, StoreUnavailable
from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.protocol.bodies.check_point import CheckPoint
from triomq.remoting.protocol.message_properties import FIRST_POP_TIME, joined_properties
from triomq.remoting.protocol.names import RETRY_PREFIX, dead_letter_topic, pop_retry_topics
from triomq.remoting.protocol.record import StoredMessage

logger = logging.getLogger(__name__)

READ_MESSAGES, READ_BYTES = 64, 1024 * 1024
POLL_SECONDS = 0.1
"""Interval of the reads of check points while there are any."""
RETRY_SECONDS = 1.0
FLIGHT_SECONDS = 1.0
"""Longest sleep while anything is in flight: the timers wake the task in time, unless the wall
clock was set back.
"""


@attrs.define(eq=False)
class Reviver:
    """Reads all revive queues, and stores what comes again."""

    pops: Pops
    log: RevivePopLog
    topics: Topics
    groups: SubscriptionGroups
    revived: int = attrs.field(default=0, init=False)
    """Messages that were stored in a retry topic."""
    dead: int = attrs.field(default=0, init=False)
    """Messages that became dead letters."""
    read: Counter[str] = attrs.field(factory=Counter, init=False)
    """Records of the revive topic by their kind."""
    _queues: dict[int, ReviveQueue] = attrs.field(factory=dict, init=False)
    _arrival: trio.Event = attrs.field(factory=trio.Event, init=False)
    _limit: LogLimit = attrs.field(factory=LogLimit, init=False)

    def __attrs_post_init__(self) -> None:
        self.pops.on_uncovered = self.wake
        self.pops.timers.settled = self.pops.is_settled

    def arrived(self, arrivals: Iterable[tuple[str, int, int, int]]) -> None:
        """Wake the task for a record of the revive topic. Checkpoint: never."""
        topic = self.pops.revive_topic
        if not self._arrival.is_set() and any(arrival[0] == topic for arrival in arrivals):
            self._arrival.set()

    def wake(self) -> None:
        """Wake the task for a position that waits for the disk. Checkpoint: never."""
        self._arrival.set()

    def behind(self) -> Iterator[tuple[int, int, int]]:
        """Yield (queue id, records that are not done, ms since the oldest was due)."""
        now = self.pops.clock_ms()
        for queue_id, queue in self._queues.items():
            end = self.pops.store.max_offset(self.pops.revive_topic, queue_id)
            oldest = queue.oldest_ms
            yield queue_id, max(0, end - 1 - queue.done), max(0, now - oldest) if oldest else 0

    async def run(self) -> None:
        """Run the task "pop-revive"."""
        while True:
            self._arrival = trio.Event()
            try:
                waiting = await self.store_due()
            except (StoreUnavailable, StoreIoError) as error:
                self._limit.warning(logger, "messages of POP cannot come again yet: %s", error)
                await trio.sleep(RETRY_SECONDS)
                continue
            if waiting or self.pops.has_uncovered:
                await trio.sleep(POLL_SECONDS)
            else:
                seconds = FLIGHT_SECONDS if len(self.pops.in_flight) else math.inf
                with trio.move_on_after(seconds):
                    await self._arrival.wait()

    async def store_due(self) -> bool:
        """Read what is new, and store what is due; return whether any check point is open.

        Raises: StoreUnavailable, StoreIoError. Checkpoint: always.
        """
        await trio.lowlevel.checkpoint()
        pops = self.pops
        complete_to = pops.timers.complete_to_ms()
        pops.decided_to_ms = complete_to or pops.decided_to_ms  # goes back with the clock
        await pops.store.indexed.wait_reached(pops.store.appended.value)
        waiting = False
        for queue_id in range(pops.settings.revive_queues):
            queue = self._queues.get(queue_id)
            if queue is None:
                first = await pops.store.offset_by_time(
                    pops.revive_topic, queue_id, pops.clock_ms() - KEEP_MS
                )
                queue = ReviveQueue(pops.revived_to(queue_id), first)
                self._queues[queue_id] = queue
            await self._read(queue_id, queue)
            for decided in queue.due(complete_to, pops.in_flight):
                await self._store(queue_id, decided.point, decided.again)
                queue.finish(decided.point)
                await trio.lowlevel.checkpoint()  # thousands may be due at once
            key = REVIVE_GROUP, pops.revive_topic, queue_id
            if queue.done >= 0 and pops.position(key) != queue.done:
                pops.move(key, queue.done, pops.store.appended.value)
            waiting = waiting or queue.is_open
        if waiting:
            pops.timers.use()
        pops.commit_covered()
        while (flight := pops.in_flight.over(pops.steady())) is not None:
            left = pops.in_flight.unacknowledged(flight.point.key, flight.offsets)
            await self._store(flight.revive_queue, flight.point, left)
            pops.in_flight.acknowledge(flight.point.key, left)
            await trio.lowlevel.checkpoint()
        return waiting

    async def _read(self, queue_id: int, queue: ReviveQueue) -> None:
        topic = self.pops.revive_topic
        while queue.next_offset < self.pops.store.max_offset(topic, queue_id):
            found = await self.pops.store.messages(
                topic, queue_id, queue.next_offset, messages_max=READ_MESSAGES, bytes_max=READ_BYTES
            )
            for message in found.messages:
                record = read_revive_record(message)
                if record is not None:
                    self.read[kind_of(record)] += 1
                if record is None:
                    queue.skip(message.queue_offset)
                elif isinstance(record, CheckPoint):
                    queue.check_point(message.queue_offset, record)
                else:
                    # A time of the future, from a clock that was ahead, would never be reached.
                    stored_ms = min(message.store_timestamp, self.pops.clock_ms())
                    queue.acknowledged(message.queue_offset, record, stored_ms)
            if queue.next_offset < found.next_offset:
                queue.skip(found.next_offset - 1)
            elif not found.messages:
                return
            await trio.lowlevel.checkpoint()

    # Storing

    async def _store(self, queue_id: int, point: CheckPoint, again: Sequence[int]) -> None:
        """Store messages of a check point in their retry topic, unless they are acknowledged.

        An acknowledgement of them follows in the same append, due when those of clients are: the
        check point may be read later, or again after a crash, and then nothing of it is left.
        """
        group, topic = self.groups.find(point.group), self.topics.find(point.topic)
        if not again or group is None or topic is None:
            return
        if point.broker_name not in ("", self.pops.broker_name):
            self._limit.log(
                logger,
                logging.ERROR,
                "a slave of broker %s has stored a check point here, as Java's do while they act"
                " for a master: %d messages of %s do not come again from here; set"
                " enableRemoteEscape=false on that slave",
                point.broker_name,
                len(again),
                point.topic,
            )
            return
        found = {}
        for offset in again:
            message = await self.pops.store.message_at(point.topic, point.queue_id, offset)
            if (
                message is not None
                and message.queue_offset == offset
                and point.has(offset, message.log_offset)
            ):
                found[offset] = message
        # While the messages were read, some may have been acknowledged.
        again = self.pops.in_flight.unacknowledged(point.key, again)
        stored = []
        for message in [found[offset] for offset in again if offset in found]:
            draft = self._draft(message, point, group.retry_max_times)
            try:
                self.pops.store.check_draft(draft)
            except IllegalMessage as error:
                self._limit.warning(logger, "a message of POP cannot come again: %s", error)
                continue
            stored.append(draft)
        if stored:
            end = PopRecord(make_ack(point.key, again), queue_id, point.visible_at)
            self.pops.store.append([*stored, self.log.draft(end)])

    def _draft(self, message: StoredMessage, point: CheckPoint, tries_max: int) -> Draft:
        again = message.reconsume_times + 1
        if again > tries_max:
            topic = dead_letter_topic(point.group)
            self.dead += 1
        else:
            topic = retry_topic(point, v2=self.pops.settings.retry_topic_v2)
            self.revived += 1
        if self.topics.find(topic) is None:
            self.topics.ensure(topic, 1)
            if again <= tries_max:
                self.pops.reset((point.group, topic, 0), 0)
        properties = dict(message.properties)
        properties.setdefault(FIRST_POP_TIME, str(point.pop_time))
        draft = copied_draft(message, topic, 0, joined_properties(properties).encode())
        draft.born_host, draft.reconsume_times = self.pops.store.config.store_host, again
        return draft


def retry_topic(point: CheckPoint, *, v2: bool) -> str:
    """Return where a message comes again: one that came again goes there once more."""
    if point.topic.startswith(RETRY_PREFIX):
        return point.topic
    old, new = pop_retry_topics(point.group, point.topic)
    return new if v2 else old
