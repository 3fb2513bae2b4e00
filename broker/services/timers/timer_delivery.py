"""The task that stores timed messages in their topics when they are due.

``LocalTimerDelivery`` appends them to this broker's own log, a bounded batch at a time, so that
sends go on in between.
"""

from __future__ import annotations

import abc
import logging
from typing import ClassVar

import attrs
import trio

from triomq.broker.services.statistics import Statistics
from triomq.broker.services.timers.timer_rules import recall_key, times_of
from triomq.broker.services.timers.timers import RETRY_SECONDS, SLEEP_SECONDS_MAX, Timers
from triomq.broker.services.topics import Topics
from triomq.broker.store.core.draft import Draft, copied_draft
from triomq.broker.store.core.errors import IllegalMessage, StoreIoError, StoreUnavailable
from triomq.remoting.protocol.message_properties import (
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TIMER_DELETE_KEY,
    TIMER_DEQUEUE_MS,
    TIMER_ENQUEUE_MS,
    TIMER_ROLL_TIMES,
    UNIQ_KEY,
    joined_properties,
)
from triomq.remoting.protocol.names import HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from triomq.remoting.protocol.record import StoredMessage
from triomq.remoting.protocol.sys_flags import TRANSACTION_MASK

logger = logging.getLogger(__name__)

BATCH_MESSAGES, BATCH_BYTES = 64, 1024 * 1024
"""A batch takes about 2 ms of the loop."""
NOT_REAL = frozenset({TIMER_TOPIC, SCHEDULE_TOPIC, HALF_TOPIC, OP_HALF_TOPIC})
"""Topics that no timed message is for. A client that writes to the topic of timers may name them:
the message would go round without end, or be taken for a half of a transaction.
"""


@attrs.define(eq=False)
class TimerDelivery(abc.ABC):
    """Delivers due messages in the order of their times."""

    timers: Timers
    batch_messages: ClassVar[int] = BATCH_MESSAGES

    async def run(self) -> None:
        """Run the task "timer-deliver"."""
        await self.deliver_all()

    async def deliver_all(self) -> None:
        """Deliver what is due, without end."""
        timers = self.timers
        await timers.caught_up.wait()
        while True:
            timers.wake_delivery = trio.Event()
            pause = await self.deliver_some()
            if pause is None:
                await timers.wake_delivery.wait()
            elif pause > 0:
                with trio.move_on_after(min(pause, SLEEP_SECONDS_MAX)):
                    await timers.wake_delivery.wait()
            else:
                await trio.lowlevel.checkpoint()

    async def deliver_some(self) -> float | None:
        """Deliver a batch of due messages.

        Returns: the seconds until the next one is due; None if there is none in memory.
        Checkpoint: maybe.
        """
        timers = self.timers
        schedule, now = timers.schedule, timers.clock_ms()
        due = schedule.take(now, self.batch_messages, BATCH_BYTES)
        if not due:
            wait = schedule.wait_ms(now)
            return None if wait is None else wait / 1000
        stored = False
        try:
            messages = await timers.read([(item.log_offset, item.size) for item in due])
            plain: list[StoredMessage] = []
            rolled: list[StoredMessage] = []
            for item, message in zip(due, messages):
                if message is None:
                    self._drop(
                        f"the message at {item.log_offset} of the log was deleted, or is damaged"
                    )
                elif item.rolls:
                    rolled.append(message)
                elif timers.settled is not None and timers.settled(message):
                    timers.counts.add(message.properties[REAL_TOPIC], -1)
                elif not self._is_recalled(message) and not timers.taken_back(message):
                    plain.append(message)
            stored = await self.store(plain, rolled)
        except StoreIoError as error:
            timers.limit.warning(logger, "timed messages must wait: %s", error)
        finally:
            if not stored:
                schedule.put_back()
        if not stored:
            await trio.sleep(RETRY_SECONDS)
            return 0.0
        schedule.done()
        timers.note_delivered()
        return 0.0

    @abc.abstractmethod
    async def store(self, plain: list[StoredMessage], rolled: list[StoredMessage]) -> bool:
        """Store messages in their topics, and the rolled ones in the topic of timers again.

        Returns: whether all are stored; otherwise none is.
        """

    def _is_recalled(self, message: StoredMessage) -> bool:
        timers, properties = self.timers, message.properties
        if TIMER_DELETE_KEY in properties:  # only Java's files can bring it here
            return True
        recalled = timers.schedule.recalled
        if not recalled:
            return False
        message_id = properties.get(UNIQ_KEY, "")
        names = message_id, recall_key(properties.get(REAL_TOPIC, ""), message_id, with_topic=True)
        times = times_of(properties, timers.rules.precision_ms)
        if times is None or not timers.schedule.is_recalled(names, times[0]):
            return False
        timers.counts.add(properties[REAL_TOPIC], -1)
        timers.dropped += 1
        return True

    def _drop(self, reason: str, *arguments: object) -> None:
        self.timers.dropped += 1
        self.timers.limit.warning(logger, "a timed message is dropped: " + reason, *arguments)


@attrs.define(eq=False)
class LocalTimerDelivery(TimerDelivery):
    """Stores messages in this broker's log; drops those whose topic is gone."""

    topics: Topics
    statistics: Statistics

    async def store(self, plain: list[StoredMessage], rolled: list[StoredMessage]) -> bool:
        timers = self.timers
        now = timers.clock_ms()
        again = [self._again(message, now) for message in rolled]
        real = [draft for message in plain if (draft := self._real(message, now)) is not None]
        try:
            places = timers.store.append([*again, *real])
        except (StoreUnavailable, StoreIoError) as error:
            timers.limit.warning(logger, "timed messages must wait: %s", error)
            return False
        self.statistics.note_delivered(real, places[len(again) :])
        timers.delivered += len(real)
        for message in (*plain, *rolled):
            timers.counts.add(message.properties.get(REAL_TOPIC, ""), -1)
        return True

    def _real(self, message: StoredMessage, now_ms: int) -> Draft | None:
        """Return the draft for a message's real topic; None if it cannot be stored there."""
        properties = message.properties
        topic, queue_text = properties.get(REAL_TOPIC, ""), properties.get(REAL_QUEUE_ID, "")
        queue_id = small_number(queue_text)
        if self.topics.find(topic) is None or queue_id is None or topic in NOT_REAL:
            self._drop("no message may go to topic %r, queue %s", topic, queue_text[:20])
            return None
        added = {
            TIMER_ENQUEUE_MS: str(self.timers.rules.floor(message.store_timestamp)),
            TIMER_DEQUEUE_MS: str(now_ms),
        }
        text = message.properties_bytes.removesuffix(b"\x02") + b"\x02"
        draft = _draft(message, topic, queue_id, text + joined_properties(added).encode())
        try:
            self.timers.store.check_draft(draft)
        except IllegalMessage:
            draft.properties = message.properties_bytes  # too long with the added properties
            try:
                self.timers.store.check_draft(draft)
            except IllegalMessage as error:
                self._drop("%s: %s", message.offset_message_id, error)
                return None
        return draft

    def _again(self, message: StoredMessage, now_ms: int) -> Draft:
        """Return the draft with which a message waits for its next step."""
        properties = dict(message.properties)
        times = small_number(properties.get(TIMER_ROLL_TIMES, ""))
        properties[TIMER_ROLL_TIMES] = str((times or 0) + 1)
        properties[TIMER_ENQUEUE_MS] = str(self.timers.rules.floor(message.store_timestamp))
        properties[TIMER_DEQUEUE_MS] = str(now_ms)
        draft = _draft(message, TIMER_TOPIC, 0, joined_properties(properties).encode())
        try:
            self.timers.store.check_draft(draft)
        except IllegalMessage:
            draft.properties = message.properties_bytes
        return draft


def small_number(text: str) -> int | None:
    """Return the value of a text of up to nine digits; None for any other."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else None


def _draft(message: StoredMessage, topic: str, queue_id: int, properties: bytes) -> Draft:
    draft = copied_draft(message, topic, queue_id, properties)
    draft.sys_flag &= ~TRANSACTION_MASK
    return draft
