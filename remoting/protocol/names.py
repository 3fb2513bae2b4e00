"""Names that mean something to brokers and clients: which are legal, which are the system's own, what retry and dead-letter topics are called.

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

WELL_KNOWN_SYSTEM_TOPICS = frozenset(
    {
        DEFAULT_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        TRACE_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        CHECKPOINT_TOPIC,
    }
)
TOPICS_CLOSED_TO_CLIENTS = frozenset(
    {SCHEDULE_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, CHECK_MAX_TIME_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC}
)
SYSTEM_GROUPS = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)

FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
LEGAL_PATTERN = "^[%|a-zA-Z0-9_-]+$"
_legal = re.compile(r"[%|a-zA-Z0-9_-]+")


def topic_complaint(topic: str) -> str | None:
    """What is wrong with a topic name, in the words of a Java broker; None when it is legal."""
    if not topic.strip():
        return "The specified topic is blank."
    if not _legal.fullmatch(topic):
        return f"The specified topic: {topic}, contains illegal characters, allowing only {LEGAL_PATTERN}"
    if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        if len(topic) > RETRY_TOPIC_LENGTH_MAX:
            return f"The specified topic is DLQ or Retry topic: {topic}, and it's longer than topic max length: {RETRY_TOPIC_LENGTH_MAX}"
    elif len(topic) > TOPIC_LENGTH_MAX:
        return f"The specified topic: {topic}, is longer than topic max length: {TOPIC_LENGTH_MAX}"
    return None


def group_complaint(group: str) -> str | None:
    """The same for the name of a group."""
    if not group.strip():
        return "The specified group is blank."
    if not _legal.fullmatch(group):
        return f"The specified group: {group}, contains illegal characters, allowing only {LEGAL_PATTERN}"
    if len(group) > GROUP_LENGTH_MAX:
        return f"The specified group: {group}, is longer than group max length: {GROUP_LENGTH_MAX}"
    return None


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    return DLQ_PREFIX + group


def is_system_group(group: str) -> bool:
    return group.startswith(SYSTEM_GROUP_PREFIX) or group in SYSTEM_GROUPS
