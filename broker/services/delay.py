"""Delayed messages by level: they lie in SCHEDULE_TOPIC_XXXX, one queue for each level, until their time has come.

A message of level n waits ``messageDelayLevel[n]`` from its store time; since that is the same for all of a queue, the queue is in the order
of delivery, and only its head must be watched.  One task serves all levels; on a slave that acts for its master each level has its own, since
a send through another broker may take long.  How far each level has come is kept in delayOffset.json, saved every 10 s: after a crash the last
of them may be delivered a second time, as with Java.
Source: broker/schedule/ScheduleMessageService.java, broker/util/HookUtils.java.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import attrs
import trio

from triomq.broker.services.escape import Escape, EscapeFailed, EscapeRefused
from triomq.broker.services.persisted import PersistedTable, encode_pretty, load_table
from triomq.broker.services.topics import Topics
from triomq.broker.services.versions import Version
from triomq.broker.store.draft import Draft
from triomq.broker.store.errors import IllegalMessage, StoreIoError, StoreUnavailable
from triomq.broker.store.results import GetResult, GetStatus
from triomq.broker.store.store import MessageStore
from triomq.remoting.log_limit import LogLimit
from triomq.remoting.protocol.bodies.offsets import DelayOffsetTable
from triomq.remoting.protocol.bodies.schema import write_plain
from triomq.remoting.protocol.message import REAL_QUEUE_ID, REAL_TOPIC, TRANSACTION_MASK, properties_text
from triomq.remoting.protocol.names import SCHEDULE_TOPIC
from triomq.remoting.protocol.record import StoredMessage, decode_records

logger = logging.getLogger(__name__)

BATCH_MESSAGES = 32
BATCH_BYTES = 1024 * 1024
SAVE_SECONDS = 10.0
RETRY_SECONDS = 1.0
REFUSED_SECONDS = 30.0
"""A message that every other broker refuses for good is offered again so often: a broker that takes it may have come."""
SEND_SECONDS = 5.0
"""An acting slave that must end waits so long for the messages that it is sending."""
CHANGES_PER_VERSION = 200
NEVER = float("inf")


@attrs.define(eq=False)
class DelayedMessages:
    """``offsets``: level -> next entry of its queue to deliver."""

    store: MessageStore
    topics: Topics
    table: PersistedTable
    version: Version
    clock_ms: Callable[[], int]
    offsets: dict[int, int] = attrs.field(factory=dict)
    delivered: int = 0
    escape: Escape | None = None
    """On a slave that acts as master: what sends the messages, since its log takes none but its master's."""
    limit: LogLimit = attrs.field(factory=LogLimit)
    _changes: int = 0
    _acted: bool = False
    """Whether something was sent in place of the master since ``run`` began."""
    _refused: dict[int, int] = attrs.field(factory=dict)
    """Level -> its message that every other broker refuses for good, once the log says so."""
    _fresh: set[int] = attrs.field(factory=set)
    _wake: trio.Event = attrs.field(factory=trio.Event)

    @property
    def levels_ms(self) -> tuple[int, ...]:
        return self.store.config.delay_levels_ms

    def schedule(self, draft: Draft, level: int) -> None:
        """Turn a draft into one that waits; append it before the next checkpoint.  A level beyond the last counts as the last."""
        level = min(level, len(self.levels_ms))
        separator = b"" if not draft.properties or draft.properties.endswith(b"\x02") else b"\x02"
        real = properties_text({REAL_TOPIC: draft.topic, REAL_QUEUE_ID: str(draft.queue_id)}).encode()
        draft.properties += separator + real
        draft.topic, draft.queue_id = SCHEDULE_TOPIC, level - 1
        self._fresh.add(level)
        self._wake.set()

    async def run(self) -> None:
        """Deliver what is due, sleep until the next is."""
        if self.escape is not None:
            await self._act()
            return
        due = dict.fromkeys(range(1, len(self.levels_ms) + 1), 0.0)
        while True:
            now = self.clock_ms()
            fresh, self._fresh = self._fresh, set()
            for level, when in due.items():
                if when <= now or (level in fresh and when == NEVER):
                    due[level] = await self._deliver(level)
            next_due = min(due.values(), default=NEVER)
            self._wake = trio.Event()
            if self._fresh:
                continue
            with trio.move_on_after(max(0.0, (next_due - self.clock_ms()) / 1000)):
                await self._wake.wait()

    async def _act(self) -> None:
        """Deliver in place of the master, the levels side by side: none waits for the broker that another one's message goes to."""
        self._acted = False
        async with trio.open_nursery() as nursery:
            for level in range(1, len(self.levels_ms) + 1):
                nursery.start_soon(self._act_on_level, level, name=f"delay-level-{level}")

    async def _act_on_level(self, level: int) -> None:
        while True:
            due = await self._deliver(level)
            await trio.sleep(max(0.0, (due - self.clock_ms()) / 1000))

    async def _deliver(self, level: int) -> float:
        """Deliver all of a level that is due; return when its next one is (wall clock, ms).  Checkpoint: between batches."""
        while True:
            offset = self.offsets.get(level, 0)
            found = await self._get(level, offset)
            if found.status is not GetStatus.FOUND:
                if found.next_offset == offset:
                    # On a slave the queue may not have all that the log has yet, and nobody calls `schedule`.
                    return NEVER if self.escape is None else self.clock_ms() + RETRY_SECONDS * 1000
                self._advance(level, found.next_offset)  # the messages in between were deleted with the log
                continue
            messages = decode_records(b"".join(found.chunks))
            now, delay = self.clock_ms(), self.levels_ms[level - 1]
            # A clock that was set back must not stretch the delay.
            waits = [min(message.store_timestamp + delay, now + delay) for message in messages]
            ready = next((index for index, when in enumerate(waits) if when > now), len(waits))
            if self.escape is not None:
                pause = await self._send(self.escape, level, messages[:ready])
                if pause:
                    return self.clock_ms() + pause * 1000
            else:
                try:
                    self._append(messages[:ready])
                except (StoreUnavailable, StoreIoError) as error:
                    logger.warning("delayed messages of level %d must wait: %s", level, error)
                    return now + RETRY_SECONDS * 1000
                if ready:
                    self._advance(level, messages[ready - 1].queue_offset + 1)
            if ready < len(messages):
                return waits[ready]
            await trio.lowlevel.checkpoint()

    async def _get(self, level: int, offset: int) -> GetResult:
        found = self.store.get(SCHEDULE_TOPIC, level - 1, offset, messages_max=BATCH_MESSAGES, bytes_max=BATCH_BYTES)
        if found is None:
            found = await self.store.get_cold(
                SCHEDULE_TOPIC, level - 1, offset, messages_max=BATCH_MESSAGES, bytes_max=BATCH_BYTES
            )
        return found

    async def _send(self, escape: Escape, level: int, messages: list[StoredMessage]) -> float:
        """Send messages through another broker, in order, one after the other; 0, or in how many seconds the first that was not taken is tried again.

        What nobody takes waits for the master, as with Java, and so do those behind it: the progress that the master takes over is one number for each level.
        """
        for message in messages:
            if message.log_offset >= self.topics.complete_to or not self._homeless(message):
                pause = await self._send_one(escape, level, message)
                if pause:
                    return pause
                self.delivered += 1
            self._advance(level, message.queue_offset + 1)
            if not self._acted:  # a Java master takes our table over only if its version is newer
                self._acted = True
                self.version.bump()
            await trio.lowlevel.checkpoint_if_cancelled()
        return 0.0

    async def _send_one(self, escape: Escape, level: int, message: StoredMessage) -> float:
        # Who ends in the middle of a send does not know whether it is stored, and it would come twice.
        with trio.move_on_after(SEND_SECONDS, shield=True):
            try:
                await escape.send(message)
                return 0.0
            except EscapeRefused as error:
                if self._refused.get(level) != message.queue_offset:
                    self._refused[level] = message.queue_offset
                    logger.error(
                        "delayed message %d of level %d (%s) is refused for good by every other master; it, and what comes behind it, must wait until this group has its master again: %s",
                        message.queue_offset,
                        level,
                        message.offset_message_id,
                        error,
                    )
                return REFUSED_SECONDS
            except EscapeFailed as error:
                self.limit.log(
                    logger,
                    logging.WARNING,
                    "delayed messages of level %d, from the one at offset %d on, must wait until this group has its master again, or another takes them: %s",
                    level,
                    message.queue_offset,
                    error,
                )
        return RETRY_SECONDS

    def _homeless(self, message: StoredMessage) -> bool:
        """Whether the topic that a message is for is gone; the log says so."""
        topic, queue_text = message.properties.get(REAL_TOPIC, ""), message.properties.get(REAL_QUEUE_ID, "")
        if self.topics.find(topic) is not None and queue_text.isascii() and queue_text.isdigit():
            return False
        logger.warning("delayed message %s is dropped: its topic %r does not exist (any more)", message.offset_message_id, topic)
        return True

    def _append(self, messages: list[StoredMessage]) -> None:
        """Store messages where they belong; those whose topic is gone are dropped.  atomic: no checkpoint."""
        drafts = []
        for message in messages:
            draft = self._real_draft(message)
            if draft is not None:
                drafts.append(draft)
        if drafts:
            self.store.append(drafts)
            self.delivered += len(drafts)

    def _real_draft(self, message: StoredMessage) -> Draft | None:
        if self._homeless(message):
            return None
        properties = message.properties
        draft = Draft(
            properties[REAL_TOPIC],
            int(properties[REAL_QUEUE_ID]),
            message.body,
            message.properties_bytes,
            message.flag,
            message.sys_flag & ~TRANSACTION_MASK,
            message.born_timestamp,
            message.born_host_bytes,
            message.reconsume_times,
            tags=properties.get("TAGS"),
            unique_key=properties.get("UNIQ_KEY"),
            keys=properties.get("KEYS"),
        )
        try:
            self.store.check_draft(draft)
        except IllegalMessage as error:
            logger.warning("delayed message %s is dropped: %s", message.offset_message_id, error)
            return None
        return draft

    def _advance(self, level: int, offset: int) -> None:
        self.offsets[level] = offset
        self._changes += 1
        if self._changes % CHANGES_PER_VERSION == 0:
            self.version.bump()
        self.table.touch()

    def replace(self, table: DelayOffsetTable) -> None:
        """Take over how far the master has come: a slave delivers nothing, but it may become the master.

        One that may act for its master goes forward only: it may have delivered what the master does not know of yet.
        """
        offsets = dict(table.offset_table)
        if self.escape is not None:
            offsets = _farther(offsets, self.offsets)
        if offsets != self.offsets:
            self.offsets = offsets
            self.version.load(table.data_version)
            self.table.touch()

    def take_back(self, table: DelayOffsetTable) -> int:
        """What a slave has delivered in place of this master; the number of levels that are farther now."""
        offsets = _farther(self.offsets, dict(table.offset_table))
        changed = sum(offsets[level] != self.offsets.get(level) for level in offsets)
        if changed:
            self.offsets = offsets
            self.version.bump()
            self.table.touch()
        return changed

    def progress(self) -> dict[int, tuple[int, int]]:
        """Level -> (delivered up to, end of its queue), for levels that were ever used."""
        found = {}
        for level in range(1, len(self.levels_ms) + 1):
            end = self.store.max_offset(SCHEDULE_TOPIC, level - 1)
            if end:
                found[level] = (self.offsets.get(level, 0), end)
        return found

    def encode(self) -> bytes:
        return encode_pretty(write_plain(DelayOffsetTable(dict(sorted(self.offsets.items())), self.version.current)))


def _farther(one: dict[int, int], other: dict[int, int]) -> dict[int, int]:
    return {level: max(one.get(level, 0), other.get(level, 0)) for level in one.keys() | other.keys()}


def open_delayed_messages(
    directory: Path, store: MessageStore, topics: Topics, version: Version, clock_ms: Callable[[], int]
) -> DelayedMessages:
    """Load delayOffset.json, or begin with the first message of each level.  Raises DamagedTable."""
    path = directory / "delayOffset.json"
    delayed = DelayedMessages(store, topics, PersistedTable(path, bytes, gather_seconds=SAVE_SECONDS), version, clock_ms)
    delayed.table.encode = delayed.encode
    loaded = load_table(path, DelayOffsetTable.decode)
    if loaded is not None:
        delayed.offsets = dict(loaded.offset_table)
        version.load(loaded.data_version)
    return delayed
