"""PopSettings: consumers that take messages for a while, instead of owning queues."""

from __future__ import annotations

import attrs

from triomq.remoting.core.settings import INT_MAX, Kind, flag, number, setting


def read_mode(text: str) -> str:
    """Return PULL or POP. Raises: ValueError."""
    if text.upper() not in ("PULL", "POP"):
        raise ValueError(f"{text!r} is not PULL or POP")
    return text.upper()


@attrs.frozen(kw_only=True)
class PopSettings:
    """How messages are popped, and how they come again.

    default_mode: PULL or POP, for groups without a mode of their own (mqadmin group mode)
    default_share: with how many other members each queue of a POP group is shared; up to 0: with
        all
    revive_queues: queues of the revive topic, in which check points lie
    retry_probability: how many pops of a hundred look for messages that come again before others
    retry_topic_v2: name retry topics of POP %RETRY%<group>+<topic>; false: with _ instead of +
    reads_retry_topic_v1: with enableRetryTopicV2, take messages of the old retry topics as well
    in_flight_checked: pop nothing more of a topic while a group has popInflightMessageThreshold
        messages of it that are not acknowledged
    in_flight_max: most messages of a topic that a group may have in flight
    begins_at_young_start: a new group begins at the first message of a queue that has lost none and
        is young enough to count as in memory; false: at the newest message
    waiting_max: most requests that wait for a message
    waiting_per_queue_max: most requests of a group that wait for a topic
    """

    default_mode: str = setting(
        "defaultMessageRequestMode", Kind("PULL or POP", read_mode, str), "PULL"
    )
    default_share: int = number("defaultPopShareQueueNum", -1, low=-1, high=INT_MAX)
    revive_queues: int = number("reviveQueueNum", 8, high=128)
    retry_probability: int = number("popFromRetryProbability", 20, low=0, high=100)
    retry_topic_v2: bool = flag("enableRetryTopicV2", False)
    reads_retry_topic_v1: bool = flag("retrieveMessageFromPopRetryTopicV1", True)
    in_flight_checked: bool = flag("enablePopMessageThreshold", False)
    in_flight_max: int = number("popInflightMessageThreshold", 10_000, high=INT_MAX)
    begins_at_young_start: bool = flag("initPopOffsetByCheckMsgInMem", True)
    waiting_max: int = number("maxPopPollingSize", 100_000, high=INT_MAX)
    waiting_per_queue_max: int = number("popPollingSize", 1024, high=INT_MAX)
