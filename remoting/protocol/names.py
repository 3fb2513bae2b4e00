"""Names of topics and groups: legal names, the system's names, retry and dead-letter topics.

Source: common/topic/TopicValidator.java, common/MixAll.java.
"""

from __future__ import annotations

import re

RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
LMQ_PREFIX = "%LMQ%"
SYSTEM_TOPIC_PREFIX = "rmq_sys_"
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
SYNC_MEMBERS_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"
TOPIC_LENGTH_MAX = 127
RETRY_TOPIC_LENGTH_MAX = 255
GROUP_LENGTH_MAX = 120

DEFAULT_TOPIC = "TBW102"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
BENCHMARK_TOPIC = "BenchmarkTest"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
CHECKPOINT_TOPIC = "CHECKPOINT_TOPIC"
TIMER_TOPIC = "rmq_sys_wheel_timer"
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
"""whose offsets say how far the half queue and the op queue are done"""
ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
"""namespace of the name servers' key-value table: topic -> ``broker-a:8;broker-b:8``"""

TOPICS_CLOSED_TO_CLIENTS = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    }
)
WELL_KNOWN_SYSTEM_TOPICS = TOPICS_CLOSED_TO_CLIENTS | {
    DEFAULT_TOPIC,
    BENCHMARK_TOPIC,
    TRACE_TOPIC,
    CHECKPOINT_TOPIC,
}
TOOLS_GROUP = "TOOLS_CONSUMER"
"""of the tools that print stored messages"""
SYSTEM_GROUPS = (
    TOOLS_GROUP,
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    TRANSACTION_GROUP,
)

FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
LEGAL_PATTERN = "^[%|a-zA-Z0-9_-]+$"
_legal = re.compile(r"[%|a-zA-Z0-9_-]+")

REPLY_MESSAGE = "reply"
"""the type (property MSG_TYPE) of a reply"""


def reply_topic(cluster: str) -> str:
    """Return the topic of the replies of request-reply. Source: common/MixAll.java."""
    return f"{cluster}_REPLY_TOPIC"


def topic_complaint(topic: str) -> str | None:
    """Return what is wrong with a topic name, in a Java broker's words; None for a legal name."""
    if (complaint := _text_complaint("topic", topic)) is not None:
        return complaint
    if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        if len(topic) > RETRY_TOPIC_LENGTH_MAX:
            return (
                f"The specified topic is DLQ or Retry topic: {topic}, and it's longer than topic"
                f" max length: {RETRY_TOPIC_LENGTH_MAX}"
            )
    elif len(topic) > TOPIC_LENGTH_MAX:
        return f"The specified topic: {topic}, is longer than topic max length: {TOPIC_LENGTH_MAX}"
    return None


def group_complaint(group: str) -> str | None:
    """Return what is wrong with a group name, in a Java broker's words; None for a legal name."""
    if (complaint := _text_complaint("group", group)) is not None:
        return complaint
    if len(group) > GROUP_LENGTH_MAX:
        return f"The specified group: {group}, is longer than group max length: {GROUP_LENGTH_MAX}"
    return None


def _text_complaint(kind: str, name: str) -> str | None:
    if not name.strip():
        return f"The specified {kind} is blank."
    if not _legal.fullmatch(name):
        return (
            f"The specified {kind}: {name}, contains illegal characters, allowing only"
            f" {LEGAL_PATTERN}"
        )
    return None


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def pop_retry_topics(group: str, topic: str) -> tuple[str, str]:
    """Return both names of the topic in which messages of a topic that a group popped come again.

    Source: common/KeyBuilder.java.
    """
    return f"{RETRY_PREFIX}{group}_{topic}", f"{RETRY_PREFIX}{group}+{topic}"


def dead_letter_topic(group: str) -> str:
    return DLQ_PREFIX + group


def is_system_group(group: str) -> bool:
    return group.startswith(SYSTEM_GROUP_PREFIX) or group in SYSTEM_GROUPS
