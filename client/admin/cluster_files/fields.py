"""The fields of each kind of items, and which values they may have. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from triomq.client.admin.cluster_files.items import ItemKind
from triomq.client.admin.documents import GROUP_FIELDS
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.protocol.bodies.groups import GroupRetryPolicy
from triomq.remoting.protocol.names import (
    DLQ_PREFIX,
    LMQ_PREFIX,
    RETRY_PREFIX,
    SYSTEM_TOPIC_PREFIX,
    WELL_KNOWN_SYSTEM_TOPICS,
    group_complaint,
    is_system_group,
    topic_complaint,
)

Check = Callable[[object], object]
"""returns the value in the form in which it is compared; raises ValueError with what it must be"""
QUEUES_MAX = 65_535
INT_MAX = (1 << 31) - 1
OFFSET_MAX = (1 << 63) - 1
ACTIONS = ("Pub", "Sub", "Create", "Update", "Delete", "Get", "List", "All", "Any")
RESOURCES = ("Any", "Cluster", "Namespace", "Topic", "Group")
DEFAULT_POLICY = "Default "
"""before the resource of a rule that counts only where no other rule does"""


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def whole_number(low: int, high: int) -> Check:
    """Return a check for whole numbers within a range."""

    def check(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError(f"must be a whole number from {low} to {high}")
        return value

    return check


def _one_of(*words: str) -> Check:
    def check(value: object) -> str:
        for word in words:
            if isinstance(value, str) and value.lower() == word.lower():
                return word
        raise ValueError(f"must be {' or '.join(words)}")

    return check


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("must be a text; put it into quotes")
    return value


def _texts_by_key(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(isinstance(one, str) for one in value.values()):
        raise ValueError("must be a map of texts, key: 'value'; put numbers and true into quotes")
    if bad := [key for key, one in value.items() if not key or set(key + one) & set(",=")]:
        raise ValueError(f"has the attribute {bad[0]!r}, which is empty or has a comma or =")
    return dict(sorted(value.items()))


def retry_policy(value: object) -> dict[str, object]:
    """Return RocketMQ's JSON of a retry policy without members that are null."""
    known = ("type", "customizedRetryPolicy", "exponentialRetryPolicy")
    if not isinstance(value, Mapping) or not set(value) <= set(known):
        raise ValueError(f"must be a map of {', '.join(known)}")
    _one_of("CUSTOMIZED", "EXPONENTIAL")(value.get("type"))
    try:
        plain = json.loads(GroupRetryPolicy.decode(json.dumps(value).encode()).encode())
    except (RemotingError, TypeError) as error:
        raise ValueError(f"is not RocketMQ's JSON of a retry policy ({error})") from None
    return {key: part for key, part in plain.items() if part is not None}


def _texts(words: tuple[str, ...] | None) -> Check:
    def check(value: object) -> list[str]:
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise ValueError("must be a list of texts")
        return sorted(value if words is None else [_one_of(*words)(one) for one in value])

    return check


FIELDS: Mapping[ItemKind, Mapping[str, Check]] = {
    ItemKind.TOPICS: {
        "readQueueNums": whole_number(0, QUEUES_MAX),
        "writeQueueNums": whole_number(0, QUEUES_MAX),
        "perm": whole_number(0, 7),
        "order": _truth,
        "topicSysFlag": whole_number(0, INT_MAX),
        "attributes": _texts_by_key,
    },
    ItemKind.GROUPS: {
        **dict.fromkeys((name for name in GROUP_FIELDS if name.endswith("able")), _truth),
        "consumeMessageOrderly": _truth,
        "retryQueueNums": whole_number(0, QUEUES_MAX),
        "retryMaxTimes": whole_number(-1, INT_MAX),
        "groupRetryPolicy": retry_policy,
        "brokerId": whole_number(0, INT_MAX),
        "whichBrokerWhenConsumeSlowly": whole_number(0, INT_MAX),
        "notifyConsumerIdsChanged": _truth,
        "attributes": _texts_by_key,
    },
    ItemKind.USERS: {
        "userType": _one_of("Super", "Normal"),
        "userStatus": _one_of("enable", "disable"),
        "passwordEnv": _text,
    },
}
"""kind → field → check of its value; the fields of rules are resources, those of offsets queues"""
RULE_FIELDS: Mapping[str, Check] = {
    "actions": _texts(ACTIONS),
    "sourceIps": _texts(None),
    "decision": _one_of("Allow", "Deny"),
}
RULE_DEFAULTS: Mapping[str, object] = {"sourceIps": []}


def name_complaint(kind: ItemKind, name: str) -> str | None:
    """Return what is wrong with the name of an item, None if nothing is."""
    if kind is ItemKind.TOPICS:
        if is_own_topic(name):
            return "belongs to the system or to a group, and no cluster file has it; remove it"
        return topic_complaint(name)
    if kind is ItemKind.GROUPS:
        if is_system_group(name):
            return "belongs to the system, and no cluster file has it; remove it"
        return group_complaint(name)
    if kind is ItemKind.RULES and not (name.startswith("User:") and name[5:]):
        return "must be User:NAME"
    return "must not be empty" if not name else None


def is_own_topic(name: str) -> bool:
    """Return whether a topic belongs to the system or to a group: no file has it."""
    return name in WELL_KNOWN_SYSTEM_TOPICS or name.startswith(
        (RETRY_PREFIX, DLQ_PREFIX, LMQ_PREFIX, SYSTEM_TOPIC_PREFIX)
    )


def resource_complaint(resource: str) -> str | None:
    """Return what is wrong with the resource of a rule, None if nothing is."""
    kind, _, name = resource.removeprefix(DEFAULT_POLICY).partition(":")
    if resource.removeprefix(DEFAULT_POLICY) != "*" and (kind not in RESOURCES or not name):
        return f"must be * or one of {', '.join(RESOURCES)} with :NAME"
    return None
