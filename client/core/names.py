"""Check the names of topics and groups by the brokers' rules.

Source: common/…/topic/TopicValidator.java, client/…/Validators.java.
"""

from __future__ import annotations

import re

from triomq.client.core.errors import SettingsError, TopicInvalid
from triomq.remoting.protocol.names import GROUP_LENGTH_MAX, TOPIC_LENGTH_MAX

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
_DEFAULT_GROUPS = frozenset({"DEFAULT_PRODUCER", "DEFAULT_CONSUMER"})


def check_topic(topic: str) -> str:
    """Return a topic name that brokers accept. Raises: ``TopicInvalid``."""
    if not isinstance(topic, str):
        raise TopicInvalid(f"a topic's name must be a text, not {_shown(topic)}")
    if len(topic) > TOPIC_LENGTH_MAX or _NAME.fullmatch(topic) is None:
        raise TopicInvalid(
            f"topic {topic!r} cannot be used: 1 to {TOPIC_LENGTH_MAX} characters out of letters,"
            " digits, '_', '-', '%' and '|' (no dots)"
        )
    return topic


def check_group(group: str) -> str:
    """Return a group name that brokers accept. Raises: ``SettingsError``."""
    if not isinstance(group, str):
        raise SettingsError(f"a group's name must be a text, not {_shown(group)}")
    if group in _DEFAULT_GROUPS:
        raise SettingsError(
            f"group {group!r} cannot be used: it is RocketMQ's default; choose another name"
        )
    if len(group) > GROUP_LENGTH_MAX or _NAME.fullmatch(group) is None:
        raise SettingsError(
            f"group {group!r} cannot be used: 1 to {GROUP_LENGTH_MAX} characters out of letters,"
            " digits, '_', '-', '%' and '|'"
        )
    return group


def _shown(value: object) -> str:
    decoded = (
        f": write {value!r}.decode()"
        if isinstance(value, bytes) and len(value) <= TOPIC_LENGTH_MAX
        else ""
    )
    return f"{type(value).__name__}{decoded}"
