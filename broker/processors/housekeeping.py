"""An operator's clean-up: DELETE_EXPIRED_COMMITLOG (329), CLEAN_EXPIRED_CONSUMEQUEUE (306) and CLEAN_UNUSED_TOPIC (316).

Source: broker/processor/AdminBrokerProcessor.java#deleteExpiredCommitLog, #cleanExpiredConsumeQueue, #cleanUnusedTopic.
"""

from __future__ import annotations

import logging

import attrs
import trio

from triomq.broker.services.held_pulls import HeldPulls
from triomq.broker.services.topics import Topics
from triomq.broker.store.store import MessageStore
from triomq.remoting.log_limit import LogLimit
from triomq.remoting.protocol import names
from triomq.remoting.server.handlers import Request, Response

logger = logging.getLogger(__name__)


@attrs.define(eq=False)
class Housekeeping:
    """The handlers; all of them answer success, whatever there was to clean."""

    store: MessageStore
    topics: Topics
    held: HeldPulls
    slave: bool = False
    """A slave's table of topics may be seconds behind its log: what is not in it yet is not unused."""
    limit: LogLimit = attrs.field(factory=LogLimit, init=False)

    def delete_expired_log(self, request: Request) -> Response:
        """Answered at once; the cleaner deletes segments that are old enough, whatever the hour."""
        self.limit.log(logger, logging.INFO, "expired commit log files are to be deleted, says %s", request.connection.peer_text)
        self.store.cleaner.delete_expired_soon()
        return Response()

    async def delete_expired_queues(self, request: Request) -> Response:
        """Queues all of whose messages are gone are forgotten, with their numbers: their next message is number 0 again."""
        expired = await self.store.delete_expired_queues(self.topics.is_system_topic)
        self.limit.log(logger, logging.INFO, "deleted %s consume queues without messages, says %s", len(expired), request.connection.peer_text)
        for topic in {topic for topic, _ in expired}:
            self.held.wake_topic(topic)
        return Response()

    async def delete_unused_topics(self, request: Request) -> Response:
        """Queues of topics that are not in the table of topics any more."""
        await trio.lowlevel.checkpoint()
        if self.slave:
            self.limit.log(logger, logging.INFO, "a slave keeps the queues that its master has: cleanUnusedTopic of %s is for the master", request.connection.peer_text)
            return Response()
        kept = self.topics.configs
        unused = [
            topic
            for topic in self.store.queues()
            if topic not in kept and not self.topics.is_system_topic(topic) and not topic.startswith(names.LMQ_PREFIX)  # light queues need no topic
        ]
        self.limit.log(logger, logging.INFO, "deleted the consume queues of %s topics that do not exist, says %s", len(unused), request.connection.peer_text)
        for topic in unused:
            if topic not in self.topics.configs:  # it may have been made again while others ran
                self.store.delete_topic(topic)
                self.held.wake_topic(topic)
            await trio.lowlevel.checkpoint()
        return Response()
