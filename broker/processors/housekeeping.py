"""Clean up on an operator's request.

Codes: DELETE_EXPIRED_COMMITLOG (329), CLEAN_EXPIRED_CONSUMEQUEUE (306), CLEAN_UNUSED_TOPIC (316).
Source: broker/processor/AdminBrokerProcessor.java#deleteExpiredCommitLog,
#cleanExpiredConsumeQueue, #cleanUnusedTopic.
"""

from __future__ import annotations

import logging

import attrs
import trio

from triomq.broker.services.held_pulls import HeldPulls
from triomq.broker.services.topics import Topics
from triomq.broker.store.store import MessageStore
from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.protocol import names
from triomq.remoting.server.requests import Request, Response

logger = logging.getLogger(__name__)


@attrs.define(eq=False)
class Housekeeping:
    """The handlers. They answer success even if nothing was deleted."""

    store: MessageStore
    topics: Topics
    held: HeldPulls
    slave: bool = False
    """A slave's table of topics may be seconds behind its log and lack topics that are in use."""
    limit: LogLimit = attrs.field(factory=LogLimit, init=False)

    def delete_expired_log(self, request: Request) -> Response:
        """Let the cleaner delete expired segments at any hour; answer at once."""
        self.limit.info(
            logger,
            "%s asks for the deletion of expired commit log files",
            request.connection.peer_text,
        )
        self.store.cleaner.delete_expired_soon()
        return Response()

    async def delete_expired_queues(self, request: Request) -> Response:
        """Delete queues without messages; the next message of such a queue gets offset 0."""
        expired = await self.store.delete_expired_queues(self.topics.is_system_topic)
        self.limit.info(
            logger,
            "deleted %s consume queues without messages, as %s asked",
            len(expired),
            request.connection.peer_text,
        )
        for topic in {topic for topic, _ in expired}:
            self.held.wake_topic(topic)
        return Response()

    async def delete_unused_topics(self, request: Request) -> Response:
        """Delete the queues of topics that are no longer in the table of topics."""
        await trio.lowlevel.checkpoint()
        if self.slave:
            self.limit.info(
                logger,
                "a slave keeps the queues that its master has: %s must send cleanUnusedTopic to the"
                " master",
                request.connection.peer_text,
            )
            return Response()
        kept = self.topics.configs
        unused = [
            topic
            for topic in self.store.queues()
            if topic not in kept
            and not self.topics.is_system_topic(topic)
            and not topic.startswith(names.LMQ_PREFIX)  # light queues need no topic
        ]
        self.limit.info(
            logger,
            "deleted the consume queues of %s topics that do not exist, as %s asked",
            len(unused),
            request.connection.peer_text,
        )
        for topic in unused:
            if topic not in self.topics.configs:  # another task may have created it
                self.store.delete_topic(topic)
                self.held.wake_topic(topic)
            await trio.lowlevel.checkpoint()
        return Response()
