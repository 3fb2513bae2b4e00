"""The tasks that deliver delayed messages, one for each level, so that no level delays another.

``LocalDelivery`` appends the messages to this broker's own log. ``RemoteDelivery`` is for a slave
that acts for its master: its log takes nothing but its master's, so it sends them to other masters.
"""

from __future__ import annotations

import abc
import logging

import attrs
import trio

from triomq.broker.services.delay import DelayedMessages
from triomq.broker.services.remote_sender import (
    RemoteSender,
    RemoteSendFailed,
    RemoteSendRefused,
    send_to_the_end,
)
from triomq.broker.services.statistics import Statistics
from triomq.broker.store.core.draft import Draft, copied_draft
from triomq.broker.store.core.errors import IllegalMessage, StoreIoError, StoreUnavailable
from triomq.broker.store.reading.queue_messages import QueueMessages
from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.protocol.message_properties import REAL_QUEUE_ID, REAL_TOPIC
from triomq.remoting.protocol.names import SCHEDULE_TOPIC
from triomq.remoting.protocol.record import StoredMessage
from triomq.remoting.protocol.sys_flags import TRANSACTION_MASK

logger = logging.getLogger(__name__)

BATCH_MESSAGES = 32
BATCH_BYTES = 1024 * 1024
RETRY_SECONDS = 1.0
QUEUE_ID_DIGITS_MAX = 10
REFUSED_SECONDS = 30.0
"""Pause before a message that every other broker has refused permanently is sent again: a new
broker may accept it.
"""


@attrs.define(eq=False)
class Delivery(abc.ABC):
    """Delivers the due messages of every level."""

    delayed: DelayedMessages
    limit: LogLimit = attrs.field(factory=LogLimit, kw_only=True)

    @abc.abstractmethod
    async def deliver(self, level: int, messages: list[StoredMessage]) -> float:
        """Deliver due messages in order and advance the level's progress.

        Returns: 0, or the seconds until the next try of the rest.
        """

    async def run(self) -> None:
        """Run one task for each level."""
        async with trio.open_nursery() as nursery:
            for level in range(1, len(self.delayed.levels_ms) + 1):
                nursery.start_soon(self._run_level, level, name=f"delay-level-{level}")

    async def _run_level(self, level: int) -> None:
        while True:
            arrival = self.delayed.next_arrival(level)
            pause = await self._deliver_due(level)
            if pause is None:
                await arrival.wait()
            else:
                await trio.sleep(pause)

    async def _deliver_due(self, level: int) -> float | None:
        """Deliver all messages of a level that are due.

        Returns: the seconds until the next message is due; None if there is none.
        Checkpoint: maybe, between batches.
        """
        while True:
            offset = self.delayed.offsets.get(level, 0)
            try:
                found = await self._messages(level, offset)
            except StoreIoError as error:
                self._must_wait(level, error)
                return RETRY_SECONDS
            messages = found.messages
            if not messages:
                if found.next_offset == offset:
                    return None
                # The messages in between were deleted with the log, or are damaged.
                self.delayed.advance(level, found.next_offset)
                continue
            waits = [self.delayed.wait_of(level, message) for message in messages]
            ready = next((index for index, wait in enumerate(waits) if wait > 0), len(waits))
            if ready:
                pause = await self.deliver(level, messages[:ready])
                if pause:
                    return pause
            if ready < len(messages):
                return waits[ready]
            await trio.lowlevel.checkpoint()

    async def _messages(self, level: int, offset: int) -> QueueMessages:
        return await self.delayed.store.messages(
            SCHEDULE_TOPIC, level - 1, offset, messages_max=BATCH_MESSAGES, bytes_max=BATCH_BYTES
        )

    def _must_wait(self, level: int, error: Exception) -> None:
        self.limit.warning(logger, "delayed messages of level %d must wait: %s", level, error)

    def topic_is_gone(self, message: StoredMessage) -> bool:
        """Return whether the topic of a message is gone, and log it if so."""
        topic, queue_text = (
            message.properties.get(REAL_TOPIC, ""),
            message.properties.get(REAL_QUEUE_ID, ""),
        )
        if (
            self.delayed.topics.find(topic) is not None
            and queue_text.isascii()
            and queue_text.isdigit()
            and len(queue_text) <= QUEUE_ID_DIGITS_MAX
        ):
            return False
        logger.warning(
            "delayed message %s is dropped: its topic %r does not exist (any more)",
            message.offset_message_id,
            topic,
        )
        return True


@attrs.define(eq=False)
class LocalDelivery(Delivery):
    """Stores messages in their topics in this broker's log; drops those whose topic is gone."""

    statistics: Statistics

    async def deliver(self, level: int, messages: list[StoredMessage]) -> float:
        store = self.delayed.store
        drafts = [draft for message in messages if (draft := self._real_draft(message)) is not None]
        try:
            places = store.append(drafts)
        except (StoreUnavailable, StoreIoError) as error:
            self._must_wait(level, error)
            return RETRY_SECONDS
        self.statistics.note_delivered(drafts, places)
        self.delayed.advance(level, messages[-1].queue_offset + 1, store.appended.value)
        return 0.0

    def _real_draft(self, message: StoredMessage) -> Draft | None:
        if self.topic_is_gone(message):
            return None
        properties = message.properties
        topic, queue_id = properties[REAL_TOPIC], int(properties[REAL_QUEUE_ID])
        draft = copied_draft(message, topic, queue_id, message.properties_bytes)
        draft.sys_flag &= ~TRANSACTION_MASK
        try:
            self.delayed.store.check_draft(draft)
        except IllegalMessage as error:
            logger.warning("delayed message %s is dropped: %s", message.offset_message_id, error)
            return None
        return draft


@attrs.define(eq=False)
class RemoteDelivery(Delivery):
    """Sends messages to other masters, in order, one after the other.

    A message that no master accepts waits for the master of this broker group, as in Java, and so
    do the messages behind it: the master takes over one number for each level.
    """

    sender: RemoteSender
    _acted: bool = attrs.field(default=False, init=False)
    """Whether something was sent in place of the master since ``run`` began."""
    _refused: dict[int, int] = attrs.field(factory=dict, init=False)
    """Level -> queue offset of the last message logged as refused permanently."""

    async def run(self) -> None:
        self._acted = False
        await super().run()

    async def deliver(self, level: int, messages: list[StoredMessage]) -> float:
        for message in messages:
            if message.log_offset >= self.delayed.topics.complete_to or not self.topic_is_gone(
                message
            ):
                pause = await self._send(level, message)
                if pause:
                    return pause
            self.delayed.advance(level, message.queue_offset + 1)
            if not self._acted:  # a Java master takes over a table only if its version is newer
                self._acted = True
                self.delayed.version.bump()
            await trio.lowlevel.checkpoint_if_cancelled()
        return 0.0

    async def _send(self, level: int, message: StoredMessage) -> float:
        try:
            await send_to_the_end(self.sender, message)
            return 0.0
        except RemoteSendRefused as error:
            if self._refused.get(level) != message.queue_offset:
                self._refused[level] = message.queue_offset
                logger.error(
                    "delayed message %d of level %d (%s) is refused permanently by every other"
                    " master; it and the messages behind it must wait until this group has its"
                    " master again: %s",
                    message.queue_offset,
                    level,
                    message.offset_message_id,
                    error,
                )
            return REFUSED_SECONDS
        except RemoteSendFailed as error:
            self.limit.warning(
                logger,
                "delayed messages of level %d, from offset %d on, must wait until this group"
                " has its master again, or another master takes them: %s",
                level,
                message.queue_offset,
                error,
            )
        return RETRY_SECONDS
