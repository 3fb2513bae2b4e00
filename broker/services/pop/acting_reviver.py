"""A task of a slave that acts for its master: it serves POP, and brings messages again elsewhere.

The check points of the master are in the slave's log: those in the revive topic are read when the
task begins, the timers bring the others. What is not acknowledged in time goes to a retry topic at
another master that has the messages' topic; dead letters wait for the own master. Source:
broker/processor/PopReviveService.java, broker/failover/EscapeBridge.java.
"""

from __future__ import annotations

import logging
from functools import partial

import attrs
import msgspec
import trio

from triomq.broker.services.clock_marks import ClockMarks
from triomq.broker.services.pop.acting_records import ActingPoint, ActingRecords
from triomq.broker.services.pop.pops import NOT_ACTING, Pops, make_ack
from triomq.broker.services.pop.restored_flights import LaterPop, begin_again, later_pops
from triomq.broker.services.pop.restoring import restore_positions
from triomq.broker.services.pop.revive_records import read_revive_record
from triomq.broker.services.pop.reviver import RETRY_SECONDS, retry_topic
from triomq.broker.services.remote_sender import RemoteSender, RemoteSendFailed, to_the_end
from triomq.broker.services.subscriptions import SubscriptionGroups
from triomq.broker.services.topics import Topics
from triomq.broker.store.core.errors import StoreIoError
from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.protocol.bodies.check_point import CheckPoint
from triomq.remoting.protocol.message_properties import (
    FIRST_POP_TIME,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TIMER_DELIVER_MS,
    joined_properties,
)
from triomq.remoting.protocol.names import pop_retry_topics
from triomq.remoting.protocol.record import StoredMessage

logger = logging.getLogger(__name__)

READ_MESSAGES, READ_BYTES = 256, 1024 * 1024
POLL_SECONDS = 0.1
KNOWN_MS = 120_000
"""How far the timers of a slave may be behind those of its master."""


@attrs.define(eq=False)
class ActingReviver:
    """``sender``: None without enableRemoteEscape; then all waits for the master."""

    pops: Pops
    records: ActingRecords
    topics: Topics
    groups: SubscriptionGroups
    sender: RemoteSender | None
    marks: ClockMarks
    revived: int = attrs.field(default=0, init=False)
    _limit: LogLimit = attrs.field(factory=LogLimit, init=False)

    def __attrs_post_init__(self) -> None:
        self.pops.timers.settled = self.is_taken

    def is_taken(self, message: StoredMessage) -> bool:
        """Take a record of POP that the timers deliver; return False for any other message."""
        properties, topic = message.properties, self.pops.revive_topic
        if properties.get(REAL_TOPIC) != topic:
            return False
        record, queue = read_revive_record(message), int(properties.get(REAL_QUEUE_ID, "0"))
        if isinstance(record, CheckPoint):
            self.records.find_point(record, queue, read=False)
        elif record is not None:
            due_ms = int(properties.get(TIMER_DELIVER_MS, "0"))
            self.records.acknowledge(record.key, record.offsets, due_ms, queue)
        return True

    async def run(self) -> None:
        """Serve clients, and bring messages again, until the task ends. Raises: StoreIoError."""
        pops, records = self.pops, self.records
        await pops.store.indexed.wait_reached(pops.store.appended.value)
        await restore_positions(pops)
        records.decided.clear()
        for queue_id in range(pops.settings.revive_queues):
            await self._read(queue_id)
        await self._begin_later()
        pops.closed = ""
        logger.info("POP is served: %d check points of the master are open", len(records.points))
        try:
            while True:
                pops.commit_covered()
                await self._end_flights()
                failed = self.sender is not None and not await self._revive(self.sender)
                await trio.sleep(RETRY_SECONDS if failed else POLL_SECONDS)
        finally:
            pops.closed = NOT_ACTING

    async def _read(self, queue_id: int) -> None:
        """Read what the master had not decided."""
        pops, topic = self.pops, self.pops.revive_topic
        done = pops.revived_to(queue_id)
        since = pops.clock_ms() - KNOWN_MS
        offset = min(done + 1, await pops.store.offset_by_time(topic, queue_id, since))
        while offset < pops.store.max_offset(topic, queue_id):
            found = await pops.store.messages(
                topic, queue_id, offset, messages_max=READ_MESSAGES, bytes_max=READ_BYTES
            )
            if found.next_offset <= offset:
                return
            offset = found.next_offset
            for message in found.messages:
                record = read_revive_record(message)
                if isinstance(record, CheckPoint) and message.queue_offset <= done:
                    self.records.decided.add(record.key)
                elif isinstance(record, CheckPoint):
                    self.records.find_point(record, queue_id, read=True)
                elif record is not None:
                    self.records.find_ack(record)

    async def _begin_later(self) -> None:
        """Let what was popped at a time that the own clock has not reached come again in time: the
        timers would bring it when that clock gets there.
        """
        pops, records, marks, now = self.pops, self.records, self.marks, self.pops.clock_ms()
        newest_ms, log_end = pops.store.log.last_timestamp, pops.store.appended.value
        await trio.to_thread.run_sync(marks.note, now, newest_ms, log_end)
        places = {}
        for later in await later_pops(pops, now):
            records.find_point(later.point, later.revive_queue, read=False)
            if later.gone:
                records.find_ack(make_ack(later.point.key, sorted(later.gone)))
            places[later.point.key] = later.log_offset
        for key, known in records.points.items():
            point = known.point
            if point.pop_time > now and key not in pops.in_flight:
                log_offset = places.get(key, (point.log_end or 0) - 1)
                gone = set(point.offsets) - known.left
                later = LaterPop(point, known.revive_queue, log_offset, gone)
                begin_again(pops, marks, later, now)

    async def _end_flights(self) -> None:
        """Note what is over by the steady clock. Checkpoint: maybe."""
        in_flight, now = self.pops.in_flight, self.pops.steady()
        while (flight := in_flight.over(now)) is not None:
            if (known := self.records.points.get(flight.point.key)) is not None:
                known.over = True
            in_flight.acknowledge(flight.point.key, flight.offsets)
            await trio.lowlevel.checkpoint()

    async def _revive(self, sender: RemoteSender) -> bool:
        """Send what is due to other masters; return False if none took a message."""
        pops = self.pops
        complete_to = pops.timers.complete_to_ms()
        pops.decided_to_ms = complete_to or pops.decided_to_ms  # goes back with the clock
        for known in self.records.due_points(complete_to, pops.in_flight):
            group = self.groups.find(known.point.group)
            if group is None or self.topics.find(known.point.topic) is None:
                self._done(known, list(known.left))
                continue
            for offset in sorted(known.left):
                message = await self._message(known.point, offset)
                if message is None:
                    self._done(known, [offset])
                elif message.reconsume_times < group.retry_max_times:
                    if not await self._send(sender, known.point, message):
                        return False
                    self._done(known, [offset])
                    self.revived += 1
        return True

    def _done(self, known: ActingPoint, offsets: list[int]) -> None:
        point = known.point
        self.records.acknowledge(point.key, offsets, point.visible_at, known.revive_queue)

    async def _message(self, point: CheckPoint, offset: int) -> StoredMessage | None:
        """Return a message that comes again; None if the log has it no more."""
        message = await self.pops.store.message_at(point.topic, point.queue_id, offset)
        if message is None or message.queue_offset != offset:
            return None
        return message if point.has(offset, message.log_offset) else None

    async def _send(self, sender: RemoteSender, point: CheckPoint, message: StoredMessage) -> bool:
        topic = retry_topic(point, v2=self.pops.settings.retry_topic_v2)
        properties = dict(message.properties)
        properties.setdefault(FIRST_POP_TIME, str(point.pop_time))
        again = msgspec.structs.replace(
            message,
            reconsume_times=message.reconsume_times + 1,
            properties_bytes=joined_properties(properties).encode(),
            _properties=None,
        )
        routed_as = original_topic(point)
        try:
            await to_the_end(partial(sender.send_to, again, topic, 0, routed_as))
        except (RemoteSendFailed, StoreIoError) as error:
            self._limit.warning(
                logger,
                "messages of POP must wait until this group has its master again, or another master"
                " takes them: %s",
                error,
            )
            return False
        return True


def original_topic(point: CheckPoint) -> str:
    """Return the topic that a group reads, of which a check point's topic may be the retry topic.

    Its other masters have it; a retry topic is made where the first message goes.
    """
    for name in pop_retry_topics(point.group, ""):
        if point.topic.startswith(name):
            return point.topic.removeprefix(name)
    return point.topic
