"""Timers: messages with a time of delivery, from the topic rmq_sys_wheel_timer into the wheel.

``delay`` turns a draft into one that waits. ``run_enqueue`` follows the topic and gives each
message a record and a slot; ``run_open`` reads the records of slots shortly before their second;
``run_save`` saves how far all this is. ``timer_delivery`` has the task that delivers. Source:
store/…/timer/TimerMessageStore.java, broker/util/HookUtils.java.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence

import attrs
import trio

from triomq.broker.services.timers.timer_counts import TimerCounts
from triomq.broker.services.timers.timer_rules import TIME_MAX, TimerRules, times_of
from triomq.broker.services.timers.timer_schedule import TimerSchedule
from triomq.broker.services.timers.timer_settings import TimerSettings
from triomq.broker.store.core.draft import Draft
from triomq.broker.store.core.errors import FlushFailed, StoreIoError, StoreUnavailable
from triomq.broker.store.store import MessageStore
from triomq.broker.store.timer.timer_check import TimerCheck
from triomq.broker.store.timer.timer_files import TimerFiles, TimerPlace
from triomq.broker.store.timer.timer_record import DELETE, TimerRecord
from triomq.broker.store.timer.wheel import SLOT_COUNT
from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.protocol.bodies.timer import TimerCheckPoint
from triomq.remoting.protocol.bodies.topics import DataVersion
from triomq.remoting.protocol.java_hash import java_hash
from triomq.remoting.protocol.message_properties import (
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TIMER_DELETE_KEY,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    TIMER_ROLL_TIMES,
    properties_text,
)
from triomq.remoting.protocol.names import TIMER_TOPIC
from triomq.remoting.protocol.record import StoredMessage

logger = logging.getLogger(__name__)

ENQUEUE_MESSAGES, ENQUEUE_BYTES = 256, 1024 * 1024
CHAIN_RECORDS = 1_000
"""Records of a slot between two checkpoints."""
READ_BYTES = 4 * 1024 * 1024
"""Messages of a slot that are read at once."""
LEAD_MS = 1_500
"""A slot is opened this long before its messages may be due."""
LOADED_MAX = 1_000_000
"""Messages in memory from which on no further slot is opened: after a long stop, what is overdue is
delivered in portions.
"""
SLOTS_A_STEP = 5_000
SLEEP_SECONDS_MAX = 0.25
"""Longest sleep of a task: a wall clock that jumps wakes nobody."""
RETRY_SECONDS = 1.0
DELETE_SECONDS = 30.0


@attrs.define(eq=False)
class Timers:
    """The state of all timed messages of this broker.

    A slave puts messages into the wheel only, and only as far as the master's progress says.
    """

    store: MessageStore
    files: TimerFiles
    settings: TimerSettings
    schedule: TimerSchedule
    counts: TimerCounts
    clock_ms: Callable[[], int]
    queue_offset: int
    """Next message of the topic to put into the wheel."""
    slave: bool = False
    """Whether the messages come from a master, which delivers them."""
    limit: LogLimit = attrs.field(factory=LogLimit, init=False)
    enqueued: int = attrs.field(default=0, init=False)
    delivered: int = attrs.field(default=0, init=False)
    dropped: int = attrs.field(default=0, init=False)
    """Messages of the topic without a time or a real topic, and those that were recalled."""
    refused: int = attrs.field(default=0, init=False)
    """Messages refused because their slot is full."""
    rates: tuple[float, float] = attrs.field(default=(0.0, 0.0), init=False)
    """Messages put into the wheel, and delivered, per second."""
    wake_delivery: trio.Event = attrs.field(factory=trio.Event, init=False)
    follow_to: int = attrs.field(default=0, init=False)
    """On a slave: the master had put messages below this one into its wheel at ``read_ms``."""
    acting: bool = attrs.field(default=False, init=False)
    """Whether this slave delivers in place of its master."""
    settled: Callable[[StoredMessage], bool] | None = attrs.field(default=None, init=False)
    """Returns whether a message that is due is not needed any more: a record of POP."""
    _stored_to_ms: int = attrs.field(default=0, init=False)
    """When the last message was stored that is in the wheel."""
    _taken_back: tuple[int, int] = attrs.field(default=(0, 0), init=False)
    """What a slave has delivered in place of this master: slots before the first number, of
    messages below the second.
    """
    _arrival: trio.Event = attrs.field(factory=trio.Event, init=False)
    caught_up: trio.Event = attrs.field(factory=trio.Event, init=False)
    """Set when the wheel has all messages from before the start: a message that is due must not
    come before a recall of it is read.
    """
    _used: trio.Event = attrs.field(factory=trio.Event, init=False)
    """Set when there is a timed message: a broker without any need not look every second."""
    _started: trio.Event = attrs.field(factory=trio.Event, init=False)
    """Set when the first slot is open: from then on no message can get a slot that is done."""
    _again: bool = attrs.field(default=False, init=False)
    """Whether to save once more when the slot of the last change is over."""
    _changed: bool = attrs.field(default=False, init=False)
    """Whether a save would write anything new."""

    @property
    def rules(self) -> TimerRules:
        return self.schedule.rules

    # Accepting

    def delay(self, draft: Draft, deliver_ms: int) -> None:
        """Turn a draft into one that waits until ``deliver_ms``."""
        separator = b"" if not draft.properties or draft.properties.endswith(b"\x02") else b"\x02"
        added = {
            TIMER_DELIVER_MS: str(deliver_ms),
            TIMER_OUT_MS: str(self.rules.slot_of(deliver_ms)),
            REAL_TOPIC: draft.topic,
            REAL_QUEUE_ID: str(draft.queue_id),
        }
        draft.properties += separator + properties_text(added).encode()
        draft.topic, draft.queue_id = TIMER_TOPIC, 0

    def slot_count(self, deliver_ms: int) -> int:
        """Return the number of messages in the slot of a time."""
        slot = self.files.wheel.find(self.rules.slot_of(deliver_ms))
        return slot.messages if slot is not None else 0

    # From the topic into the wheel

    def arrived(self, arrivals: Iterable[tuple[str, int, int, int]]) -> None:
        """Wake the enqueuing task. Checkpoint: never.

        ``arrivals``: (topic, queue id, end offset, tags code) each.
        """
        if not self._arrival.is_set() and any(arrival[0] == TIMER_TOPIC for arrival in arrivals):
            self._arrival.set()

    async def run(self) -> None:
        """Run the tasks but the one that delivers. Raises: FlushFailed, StoreIoError."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.run_open, name="timer-open")
            nursery.start_soon(self.run_enqueue, name="timer-enqueue")
            nursery.start_soon(self.run_save, name="timer-save")

    async def run_slave(self) -> None:
        """Run the tasks of a slave. Raises: FlushFailed, StoreIoError."""
        self._started.set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.run_enqueue, name="timer-enqueue")
            nursery.start_soon(self.run_save, name="timer-save")

    def follow(self, point: TimerCheckPoint) -> None:
        """Take over the master's progress, which this slave's log supports. Checkpoint: never."""
        schedule = self.schedule
        schedule.passed_ms = self.rules.floor(point.last_read_ms)
        schedule.read_ms = max(schedule.read_ms, schedule.passed_ms)
        self.follow_to = max(self.follow_to, point.master_queue_offset)
        self._changed = True
        self._used.set()
        self._arrival.set()

    def begin_acting(self) -> None:
        """Put all messages into the wheel from now on. Checkpoint: never."""
        self.acting, self.caught_up = True, trio.Event()
        self._arrival.set()

    def end_acting(self) -> None:
        """Only follow the master again. Checkpoint: never."""
        self.acting = False
        now = self.clock_ms()
        self.schedule.advance(now)
        self.schedule.note_delivered(now, self.files.log.end)
        self.schedule.close_all()

    def take_back(self, point: TimerCheckPoint) -> None:
        """Leave out what a slave has delivered in place of this master. Checkpoint: never.

        It has only the messages below its offset.
        """
        self._taken_back = max(self._taken_back, (point.last_read_ms, point.last_queue_offset))

    def taken_back(self, message: StoredMessage) -> bool:
        """Return whether a slave has delivered a message in place of this master."""
        read_ms, below = self._taken_back
        if message.queue_offset >= below:
            return False
        times = times_of(message.properties, self.rules.precision_ms)
        return times is not None and times[0] < read_ms

    async def run_enqueue(self) -> None:
        """Run the task "timer-enqueue"."""
        await self._started.wait()
        while True:
            self._arrival = trio.Event()
            try:
                pause = await self.enqueue_some()
            except (StoreUnavailable, StoreIoError) as error:
                self.limit.warning(logger, "timed messages must wait to be sorted: %s", error)
                pause = RETRY_SECONDS
            if pause is None:
                await self._arrival.wait()
            else:
                await trio.sleep(pause)

    async def enqueue_some(self) -> float | None:
        """Put the next messages of the topic into the wheel.

        Returns: seconds until the next try; None: when a message arrives.
        Raises: DiskFull, StoreIoError. Checkpoint: maybe.
        """
        schedule = self.schedule
        found = await self.store.messages(
            TIMER_TOPIC,
            0,
            self.queue_offset,
            messages_max=ENQUEUE_MESSAGES,
            bytes_max=ENQUEUE_BYTES,
        )
        messages = found.messages
        if not messages:
            if found.next_offset == self.queue_offset:
                self.caught_up.set()
                return None
            self.queue_offset = found.next_offset  # those in between are deleted or damaged
            return 0.0
        now = latest = self.clock_ms()
        if self.slave and not self.acting:
            messages = [found for found in messages if found.queue_offset < self.follow_to]
            if not messages:
                return None
            now, latest = messages[0].store_timestamp, TIME_MAX
        # Steps begin at the time of storing, which a slave knows, too. If its slot of a message
        # came before that of its master, it would leave out a message whose step is not done.
        places = [
            self._place(message, min(latest, message.store_timestamp)) for message in messages
        ]
        for index, place in enumerate(places):
            if place is not None and not schedule.fits(
                place.slot_ms, SLOT_COUNT * self.rules.precision_ms
            ):
                messages, places = messages[:index], places[:index]
                break
        if not messages:
            # The slot is still that of two weeks ago: messages wait there, or nothing was due for
            # two weeks, or the clock jumped over them, and nothing moved on since. The task that
            # opens slots may wait for the first timed message: this is it.
            self._used.set()
            schedule.advance(self.clock_ms())
            return SLEEP_SECONDS_MAX
        schedule.note_delivered(self.clock_ms(), self.files.log.end)
        self.files.add([place for place in places if place is not None], self.rules.floor(now))
        for message, place in zip(messages, places):
            if place is not None:
                self._note(message, place)
        self.queue_offset = messages[-1].queue_offset + 1
        self._stored_to_ms = messages[-1].store_timestamp
        self._changed = True
        self._used.set()
        return 0.0

    def _place(self, message: StoredMessage, now_ms: int) -> TimerPlace | None:
        properties = message.properties
        times = times_of(properties, self.rules.precision_ms)
        topic = properties.get(REAL_TOPIC)
        if times is None or not topic:
            self.dropped += 1
            self.limit.warning(
                logger,
                "message %s of %s is left out: it has no TIMER_OUT_MS or no REAL_TOPIC, which the"
                " broker gives every timed message",
                message.offset_message_id,
                TIMER_TOPIC,
            )
            return None
        followed = self.slave and message.queue_offset < self.follow_to
        if followed and times[0] < self.schedule.passed_ms:
            return None  # its master has delivered it
        placed = self.rules.place(*times, now_ms, deletes=TIMER_DELETE_KEY in properties)
        return TimerPlace(
            self.schedule.slot_for(placed.slot_ms),
            placed.magic,
            message.log_offset,
            message.size,
            java_hash(topic),
            placed.due_ms,
        )

    def _note(self, message: StoredMessage, place: TimerPlace) -> None:
        """Take a message of an open slot into memory, and count it."""
        schedule, record = self.schedule, _record(place)
        self.enqueued += 1
        properties = message.properties
        if TIMER_DELETE_KEY in properties:
            out_ms = self.rules.floor(int(properties[TIMER_OUT_MS]))
            victim = properties[TIMER_DELETE_KEY]
            if record.deletes:
                schedule.recall(out_ms, victim)
                return
            schedule.recalled[victim] = out_ms  # a clock that leaps may skip its further steps
        self.counts.add(properties[REAL_TOPIC], 1)
        if TIMER_ROLL_TIMES not in properties:
            delay_ms = max(0, record.due_ms - message.store_timestamp)
            self.counts.note_delay(properties[REAL_TOPIC], delay_ms)
        key = schedule.key(
            place.slot_ms, place.due_ms, place.log_offset, place.size, rolls=record.rolls
        )
        if schedule.add(place.slot_ms, key):
            self.wake_delivery.set()

    # Opening slots

    async def run_open(self) -> None:
        """Run the task "timer-open". Raises: StoreIoError."""
        self.schedule.start(self.clock_ms())
        if self.files.log.end:
            self._used.set()
        while True:
            if not await self.open_some():
                await self._used.wait()
                await trio.sleep(SLEEP_SECONDS_MAX)

    async def open_some(self) -> bool:
        """Open the next slot with records, if its time has come; return whether there was one.

        Raises: StoreIoError. Checkpoint: always.
        """
        schedule, wheel = self.schedule, self.files.wheel
        until = self.clock_ms() + LEAD_MS
        step = self.rules.precision_ms
        if schedule.waiting >= LOADED_MAX:
            return False
        while schedule.open_ms > schedule.read_ms:
            # Slots more than one round behind have no records. ``read_ms`` may have moved at the
            # checkpoint, and a message may be in a slot that was too far away before.
            goal = min(until, schedule.read_ms + SLOT_COUNT * step)
            if schedule.open_ms > goal or not self.files.log.end:
                if goal < until:
                    schedule.skip_to(self.rules.floor(until))
                break
            stop = min(goal, schedule.open_ms + SLOTS_A_STEP * step)
            times = range(schedule.open_ms, stop + 1, step)
            with_records = next((time for time in times if wheel.find(time) is not None), None)
            schedule.skip_to(with_records if with_records is not None else times[-1] + step)
            if with_records is not None:
                break
            await trio.lowlevel.checkpoint()
        slot_ms = schedule.next_slot(until)
        self._started.set()
        if slot_ms is None:
            await trio.lowlevel.checkpoint()
            return False
        await self._load(slot_ms)  # cancelled, the slot does not count as read when all is saved
        schedule.opened()
        self.wake_delivery.set()
        return True

    async def _load(self, slot_ms: int) -> None:
        """Read the records of a slot: first those that delete messages, then the others."""
        schedule, slot = self.schedule, self.files.wheel.find(slot_ms)
        position = slot.last if slot is not None else -1
        keys: list[int] = []
        deletes: list[TimerRecord] = []
        while position >= 0:
            records, position = await self.files.chain(position, CHAIN_RECORDS)
            for at, record in records:
                if record.magic & DELETE:
                    deletes.append(record)
                if not record.deletes and not schedule.delivered(at, record):
                    keys.append(
                        schedule.key(
                            slot_ms,
                            record.due_ms,
                            record.log_offset,
                            record.size,
                            rolls=record.rolls,
                        )
                    )
        for portion in portions(deletes):
            await self._load_recalls(portion)
        for begin in range(0, len(keys), CHAIN_RECORDS):
            schedule.load(keys[begin : begin + CHAIN_RECORDS])
            await trio.lowlevel.checkpoint()

    async def _load_recalls(self, deletes: Sequence[TimerRecord]) -> None:
        for message in await self.read([(record.log_offset, record.size) for record in deletes]):
            if message is not None and TIMER_DELETE_KEY in message.properties:
                times = times_of(message.properties, self.rules.precision_ms)
                if times is not None:
                    self.schedule.recalled[message.properties[TIMER_DELETE_KEY]] = times[0]

    async def read(self, places: Sequence[tuple[int, int]]) -> list[StoredMessage | None]:
        """Return the messages of the topic at (log offset, size); None for those that are gone.

        Raises: StoreIoError. Checkpoint: maybe, only to read the disk.
        """
        found = await self.store.messages_at(TIMER_TOPIC, sorted(set(places)))
        return [found.get(offset) for offset, _ in places]

    # Progress

    def note_delivered(self) -> None:
        self._changed = True

    def use(self) -> None:
        """Follow the clock from now on, though no timed message may have come yet.

        A check point of POP that is due at once has not come through the timers.
        """
        self._used.set()

    def complete_to_ms(self) -> int:
        """Return up to which time all messages that were stored before it are delivered.

        It is never later than now. A clock that was ahead may have delivered up to a later time,
        but a message that is stored from now on may be due before that time.
        """
        if not self.caught_up.is_set():
            return 0
        log_end, now = self.files.log.end, self.clock_ms()
        self.schedule.note_delivered(now, log_end)
        bounds = self.schedule.bounds
        if not bounds or bounds[-1].below < log_end:
            return 0
        if self.queue_offset < self.store.max_offset(TIMER_TOPIC, 0):
            now = min(now, self._stored_to_ms)
        return min(bounds[-1].due_ms, now)

    def behind(self) -> tuple[int, int, int]:
        """Return how far delivery is behind (ms), messages not in the wheel yet, and in all."""
        offsets = self.store.max_offset(TIMER_TOPIC, 0) - self.queue_offset
        waiting = sum(count.count for count in self.counts.counts.values())
        behind = self.clock_ms() - self.schedule.read_ms if self.schedule.read_ms else 0
        if not waiting and offsets <= 0:
            behind = 0  # the schedule of a broker without timed messages stands still
        return max(0, behind - self.rules.precision_ms), max(0, offsets), waiting

    def enqueue_late_ms(self) -> int:
        """Return the age of the newest message in the wheel, while others wait to be put there."""
        if self.store.max_offset(TIMER_TOPIC, 0) <= self.queue_offset or not self._stored_to_ms:
            return 0
        return max(0, self.clock_ms() - self._stored_to_ms)

    async def run_save(self) -> None:
        """Run the task "timer-save". Raises: FlushFailed, StoreIoError."""
        deleted = sampled = trio.current_time()
        before = self.enqueued, self.delivered
        while True:
            await self._used.wait()
            await trio.sleep(self.settings.save_interval_ms / 1000)
            now, after = trio.current_time(), (self.enqueued, self.delivered)
            self.rates = (
                (after[0] - before[0]) / (now - sampled),
                (after[1] - before[1]) / (now - sampled),
            )
            sampled, before = now, after
            moved = self._again and (
                self.schedule.advance(self.clock_ms()) > self.files.check.read_ms
            )
            if self._changed or moved:
                self._again = self._changed
                try:
                    await self.save()
                except StoreUnavailable as error:
                    self._changed = True
                    self.limit.warning(logger, "the progress of timers is not saved: %s", error)
            if trio.current_time() - deleted >= DELETE_SECONDS:
                deleted = trio.current_time()
                await self._delete_oldest()

    async def save(self, *, wheel: bool = False) -> None:
        """Save the present progress once the disk has all messages up to now.

        ``wheel``: write the wheel, too, so that the next start need not complete it.

        Raises: FlushFailed, StoreUnavailable, StoreIoError. Checkpoint: always.
        """
        self._changed = False
        log_end = self.store.appended.value
        snapshot = self.files.snapshot(self.progress(), wheel=wheel)
        await self.store.flushed.wait_reached(log_end)
        if self.store.flushed.value < log_end:  # the flusher has failed, which ends the store
            return
        try:
            await trio.to_thread.run_sync(self.files.write, snapshot)
        except StoreUnavailable:
            self.files.forget_save(snapshot)
            raise

    def progress(self) -> TimerCheck:
        """Return how far the timers are at this moment."""
        schedule, now = self.schedule, self.clock_ms()
        schedule.advance(now)
        schedule.note_delivered(now, self.files.log.end)
        state, _, counter = self.files.check.version
        return TimerCheck(
            read_ms=schedule.read_ms,
            queue_offset=self.queue_offset,
            master_queue_offset=self.queue_offset,
            version=(state, now, counter + 1),
            delivered=tuple(schedule.bounds),
            passed_ms=schedule.passed_ms,
        )

    def check_point(self) -> TimerCheckPoint:
        """Return the progress on the disk, which slaves ask for; a slave's is that of now."""
        check = self.progress() if self.slave else self.files.check
        return TimerCheckPoint(
            check.passed_ms,
            check.log_end,
            check.queue_offset,
            check.master_queue_offset,
            DataVersion(*check.version),
        )

    async def _delete_oldest(self) -> None:
        """Delete files of the timer log whose messages are all deleted from the log."""
        while (position := self.files.log.last_in_oldest()) is not None:
            records, _ = await self.files.chain(position, 1)
            if not records or records[0][1].log_offset >= self.store.first_offset:
                return
            self.files.delete_oldest()

    async def close(self) -> None:
        """Save everything: the tasks have ended, and the log is on the disk."""
        if self._changed or self.files.lacks_wheel:
            try:
                await self.save(wheel=True)
            except (StoreUnavailable, FlushFailed, StoreIoError) as error:
                logger.error("the progress of timers is not saved: %s", error)


def _record(place: TimerPlace) -> TimerRecord:
    return TimerRecord(
        -1,
        place.magic,
        0,
        place.slot_ms,
        place.log_offset,
        place.size,
        place.topic_hash,
        place.due_ms,
    )


def portions(records: Sequence[TimerRecord]) -> Iterator[list[TimerRecord]]:
    """Yield the records in portions whose messages can be read at once."""
    portion: list[TimerRecord] = []
    size = 0
    for record in records:
        if portion and (size + record.size > READ_BYTES or len(portion) == CHAIN_RECORDS):
            yield portion
            portion, size = [], 0
        portion.append(record)
        size += record.size
    if portion:
        yield portion
