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
    """How messages are popped, and how they come again."""

    default_mode: str = setting(
        "defaultMessageRequestMode",
        Kind("PULL or POP", read_mode, str),
        "PULL",
        "PULL or POP, for groups without a mode of their own (mqadmin group mode)",
    )
    default_share: int = number(
        "defaultPopShareQueueNum",
        -1,
        "with how many other members each queue of a POP group is shared; up to 0: with all",
        low=-1,
        high=INT_MAX,
    )
    revive_queues: int = number(
        "reviveQueueNum", 8, "queues of the revive topic, in which check points lie", high=128
    )
    retry_probability: int = number(
        "popFromRetryProbability",
        20,
        "how many pops of a hundred look for messages that come again before others",
        low=0,
        high=100,
    )
    retry_topic_v2: bool = flag(
        "enableRetryTopicV2",
        False,
        "name retry topics of POP %RETRY%<group>+<topic>; false: with _ instead of +",
    )
    reads_retry_topic_v1: bool = flag(
        "retrieveMessageFromPopRetryTopicV1",
        True,
        "with enableRetryTopicV2, take messages of the old retry topics as well",
    )
    in_flight_checked: bool = flag(
        "enablePopMessageThreshold",
        False,
        "pop nothing more of a topic while a group has popInflightMessageThreshold messages of it"
        " that are not acknowledged",
    )
    in_flight_max: int = number(
        "popInflightMessageThreshold",
        10_000,
        "most messages of a topic that a group may have in flight",
        high=INT_MAX,
    )
    begins_at_young_start: bool = flag(
        "initPopOffsetByCheckMsgInMem",
        True,
        "a new group begins at the first message of a queue that has lost none and is young enough"
        " to count as in memory; false: at the newest message",
    )
    waiting_max: int = number(
        "maxPopPollingSize", 100_000, "most requests that wait for a message", high=INT_MAX
    )
    waiting_per_queue_max: int = number(
        "popPollingSize", 1024, "most requests of a group that wait for a topic", high=INT_MAX
    )
