"""PopChecks: what pops, peeks and waits have in common, in the order of a Java broker's checks."""

from __future__ import annotations

import attrs

from triomq.broker.services.live_settings import LiveSettings
from triomq.broker.services.pop.pops import NOT_ACTING, TAKING_OVER, Pops
from triomq.broker.services.subscriptions import SubscriptionGroups
from triomq.broker.services.topics import PERM_READ, Topics
from triomq.remoting.core.errors import Rejected
from triomq.remoting.protocol import names
from triomq.remoting.protocol.bodies.topics import TopicConfig
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.limits import Limits
from triomq.remoting.protocol.receipt_handle import ORDERED_QUEUE

MESSAGES_MAX = 32
INVISIBLE_MS_MAX = 1 << 40
"""About 35 years."""


@attrs.frozen
class PopChecks:
    """The checks. ``pops``: None on a slave that never acts, and with timerWheelEnable=false."""

    topics: Topics
    groups: SubscriptionGroups
    live: LiveSettings
    broker_ip: str
    pops: Pops | None
    limits: Limits

    def state(self, *, starting: bool = False) -> Pops:
        """Return the state of POP. Raises: Rejected, if this broker does not serve it now.

        ``starting``: a master that takes over from its slaves will do, as for acknowledgements.
        """
        pops = self.pops
        if pops is None:
            raise Rejected(
                ResponseCode.SYSTEM_ERROR,
                f"the broker[{self.broker_ip}] pop message is forbidden because timerWheelEnable is"
                f" false, or: {NOT_ACTING}",
            )
        if pops.closed and not (starting and pops.closed == TAKING_OVER):
            raise Rejected(
                ResponseCode.SYSTEM_BUSY,
                f"the broker[{self.broker_ip}] pop message is forbidden: {pops.closed}",
            )
        return pops

    def count(self, wanted: int) -> None:
        """Check how many messages are wanted. Raises: Rejected."""
        if not self.live.readable:
            remark = f"the broker[{self.broker_ip}] pop message is forbidden"
            raise Rejected(ResponseCode.NO_PERMISSION, remark)
        if not 0 < wanted <= MESSAGES_MAX:
            raise Rejected(
                ResponseCode.INVALID_PARAMETER,
                f"the broker[{self.broker_ip}] pop message's num is greater than {MESSAGES_MAX}"
                f" (maxMsgNums={wanted}; ask for 1 to {MESSAGES_MAX})",
            )

    def room(self, pops: Pops, group: str) -> None:
        """Check that a group may have one more message in flight. Raises: LimitReached."""
        self.limits.require(
            "pop_in_flight_max",
            pops.in_flight.of_group(group) + 1,
            f"group {group} gets no message before it acknowledges some or their invisible time is"
            " over",
        )

    def no_room(self, pops: Pops, group: str, topic: str) -> Rejected:
        """Return the refusal of a pop that finds messages of full topics only."""
        name = "popInflightMessageThreshold"
        self.limits.refused[name] += 1
        return Rejected(
            ResponseCode.SYSTEM_BUSY,
            f"group {group} has {pops.in_flight.count(group, topic)} messages of {topic} that are"
            f" not acknowledged: the broker's limit is {pops.settings.in_flight_max}; acknowledge"
            f" them, wait for the end of their invisible time, or raise {name} in its settings",
        )

    def invisible_time(self, wanted_ms: int, *, low: int = 1) -> None:
        """Check an invisible time: one of 0 ends the present one. Raises: Rejected."""
        if not low <= wanted_ms < INVISIBLE_MS_MAX:
            raise Rejected(
                ResponseCode.INVALID_PARAMETER,
                f"invisibleTime={wanted_ms} is not a time in ms from {low} to"
                f" {INVISIBLE_MS_MAX - 1}",
            )

    def handle(self, revive_queue: int, visible_at: int) -> None:
        """Check what a receipt handle says of its check point. Raises: Rejected."""
        pops = self.state(starting=True)
        queues = pops.settings.revive_queues
        if not 0 <= revive_queue < queues and revive_queue != ORDERED_QUEUE:
            raise Rejected(
                ResponseCode.MESSAGE_ILLEGAL,
                f"revive queue {revive_queue} does not exist (reviveQueueNum is {queues})",
            )
        if visible_at >= pops.clock_ms() + INVISIBLE_MS_MAX:
            raise Rejected(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the message would come again at {visible_at}, which no pop has promised",
            )

    def topic(self, topic: str, queue_id: int, group_name: str) -> TopicConfig:
        """Return the topic that a group reads. Raises: Rejected, LimitReached."""
        config = self.topics.find(topic)
        if config is None:
            remark = f"topic[{topic}] not exist, apply first please! {names.FAQ}"
            raise Rejected(ResponseCode.TOPIC_NOT_EXIST, remark)
        if not config.perm & PERM_READ:
            remark = f"the topic[{topic}] peeking message is forbidden"
            raise Rejected(ResponseCode.NO_PERMISSION, remark)
        if queue_id >= config.read_queue_count or config.read_queue_count < 1:
            raise Rejected(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{queue_id}] is illegal, topic:[{topic}]"
                f" topicConfig.readQueueNums:[{config.read_queue_count}]",
            )
        group = self.groups.find_or_create(group_name)
        if group is None:
            remark = f"subscription group [{group_name}] does not exist, {names.FAQ}"
            raise Rejected(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        if not group.consume_enable:
            remark = f"subscription group no permission, {group_name}"
            raise Rejected(ResponseCode.NO_PERMISSION, remark)
        return config
