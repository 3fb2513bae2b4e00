"""Groups that are far behind: every three minutes a warning names them.

With disableConsumeIfConsumerReadSlowly they may not consume any more. A consumer that reads
messages that left the page cache long ago makes the disk seek for all clients. The distance of a
group is counted in bytes of the log, from the message that it pulls next to the end of the log.
Source: broker/BrokerController.java#protectBroker,
common/BrokerConfig.java#consumerFallbehindThreshold.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import attrs
import trio

from triomq.broker.services.live_settings import LiveSettings
from triomq.broker.services.offsets import ConsumerOffsets
from triomq.broker.services.subscriptions import SubscriptionGroups
from triomq.broker.store.core.errors import StoreIoError
from triomq.broker.store.store import MessageStore
from triomq.remoting.core.periodic import every

logger = logging.getLogger(__name__)

CHECK_SECONDS = 180.0


@attrs.frozen(order=True)
class Behind:
    """The queue in which a group is farthest behind."""

    bytes_behind: int
    group: str
    topic: str
    queue_id: int


@attrs.define(eq=False)
class SlowConsumers:
    """The check and the task that repeats it.

    ``pulls_now(group, topic)`` returns whether a group consumes at present.
    """

    store: MessageStore
    groups: SubscriptionGroups
    offsets: ConsumerOffsets
    live: LiveSettings
    pulls_now: Callable[[str, str], bool]

    async def find(self) -> list[Behind]:
        """Return the groups beyond the threshold, the slowest first.

        It reads index entries, also from the disk.
        """
        found: list[Behind] = []
        positions = [
            (group, topic, dict(queues))
            for group, topics in self.offsets.pulled.items()
            for topic, queues in topics.items()
        ]
        for group, topic, queues in positions:
            await trio.lowlevel.checkpoint()
            if not queues or not self.pulls_now(group, topic):
                continue
            try:
                worst = max(
                    [
                        await self._behind(group, topic, queue_id, offset)
                        for queue_id, offset in queues.items()
                    ]
                )
            except StoreIoError as error:
                # Pulls from that place fail as well and report it; the broker goes on.
                logger.warning(
                    "the distance of consumer group %s in topic %s is not known: %s",
                    group,
                    topic,
                    error,
                )
                continue
            if worst.bytes_behind > self.live.slow_consumer_bytes:
                found.append(worst)
        return sorted(found, reverse=True)

    async def _behind(self, group: str, topic: str, queue_id: int, offset: int) -> Behind:
        entries = await self.store.entries(
            topic, queue_id, max(offset, self.store.min_offset(topic, queue_id)), 1
        )
        bytes_behind = self.store.appended.value - entries[0][0] if entries else 0
        return Behind(bytes_behind, group, topic, queue_id)

    async def check(self) -> None:
        """Warn of slow groups; disable them if the setting says so."""
        for slow in await self.find():
            where = (
                slow.group,
                slow.topic,
                slow.queue_id,
                slow.bytes_behind,
                self.live.slow_consumer_bytes,
            )
            if self.live.disable_slow_consumers:
                self.groups.disable(slow.group)
                logger.error(
                    "consumer group %s may not consume any more: in topic %s, queue %d, it is %d"
                    " bytes behind, the limit is %d; allow it again with mqadmin group update -s"
                    " true",
                    *where,
                )
            else:
                logger.warning(
                    "consumer group %s is slow: in topic %s, queue %d, it is %d bytes behind"
                    " (consumerFallbehindThreshold is %d)",
                    *where,
                )

    async def run(self) -> None:
        """Run the task "slow-consumers"."""
        await every(CHECK_SECONDS, self.check)
