"""What a client may not send: names, messages, filters, times. PURE.

Refusals are ``Refused``; their order is that of a Java proxy, since clients show the first only.

Source: proxy/grpc/v2/common/GrpcValidator.java, proxy/grpc/v2/producer/SendMessageActivity.java;
the limits: proxy/config/ProxyConfig.java.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from triomq.remoting.core.errors import LocalProtocolError
from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.messaging.status_codes import Refused
from triomq.remoting.protocol import names
from triomq.remoting.protocol.bodies.heartbeat import TAG
from triomq.remoting.protocol.consuming.tag_expressions import subscription
from triomq.remoting.protocol.message_properties import RESERVED_PROPERTIES

BODY_BYTES_MAX = 4 * 1024 * 1024
"""maxMessageSize"""
USER_PROPERTIES_MAX = 128
"""userPropertyMaxNum"""
PROPERTIES_BYTES_MAX = 16 * 1024
"""maxUserPropertySize: user properties, tag and keys as UTF-8"""
MESSAGE_GROUP_BYTES = 64
"""maxMessageGroupSize: a group has fewer bytes of UTF-8"""
RECOVERY_SECONDS_MAX = 3600
"""maxTransactionRecoverySecond"""
DELAY_MS_MAX = 24 * 3600 * 1000
"""maxDelayTimeMills"""

SQL92 = "SQL92"
# As Java's Character.isISOControl.
_control = re.compile("[\x00-\x1f\x7f-\x9f]").search
_NAMES_KEPT = 4096
_TRANSACTION = pb.MessageType.TRANSACTION
_NEWER_TYPES = (pb.MessageType.LITE, pb.MessageType.PRIORITY)


# Names


def topic_name(resource: pb.Resource, *, system_allowed: bool = False) -> str:
    """Return the brokers' name of a topic: ``<namespace>%<name>`` if there is a namespace.

    ``system_allowed``: whether system topics are accepted.

    Raises: Refused (ILLEGAL_TOPIC).
    """
    return _topic_name(resource.resource_namespace, resource.name, system_allowed)


@lru_cache(maxsize=_NAMES_KEPT)
def _topic_name(namespace: str, name: str, system_allowed: bool) -> str:
    full = _full_name(namespace, name)
    # The name alone is checked too: with a namespace, a blank one would not be found.
    complaint = names.topic_complaint(name) or names.topic_complaint(full)
    if complaint is not None:
        raise Refused(pb.Code.ILLEGAL_TOPIC, complaint)
    if not system_allowed and _is_system_topic(name):
        raise Refused(
            pb.Code.ILLEGAL_TOPIC, f"cannot access system topic {name}; use a topic of your own"
        )
    return full


def group_name(resource: pb.Resource) -> str:
    """Return the brokers' name of a group: ``<namespace>%<name>`` if there is a namespace.

    Raises: Refused (ILLEGAL_CONSUMER_GROUP).
    """
    return _group_name(resource.resource_namespace, resource.name)


@lru_cache(maxsize=_NAMES_KEPT)
def _group_name(namespace: str, name: str) -> str:
    full = _full_name(namespace, name)
    complaint = names.group_complaint(name) or names.group_complaint(full)
    if complaint is not None:
        raise Refused(pb.Code.ILLEGAL_CONSUMER_GROUP, complaint)
    if names.is_system_group(name):
        raise Refused(
            pb.Code.ILLEGAL_CONSUMER_GROUP,
            f"cannot use system consumer group {name}; use a group of your own",
        )
    return full


def _full_name(namespace: str, name: str) -> str:
    """Return a name with its namespace, unless it has it, or is one of the system's.

    Source: remoting/protocol/NamespaceUtil.java#wrapNamespace.
    """
    if not namespace or _is_system_topic(name) or names.is_system_group(name):
        return name
    for prefix in (names.RETRY_PREFIX, names.DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix + _full_name(namespace, name.removeprefix(prefix))
    return name if name.startswith(f"{namespace}%") else f"{namespace}%{name}"


def _is_system_topic(name: str) -> bool:
    return name in names.WELL_KNOWN_SYSTEM_TOPICS or name.startswith(names.SYSTEM_TOPIC_PREFIX)


# Messages


def check_messages(messages: Sequence[pb.Message], now_ms: int) -> str:
    """Check the messages of a send; return the brokers' name of their topic.

    Raises: Refused.
    """
    topic = common_topic(messages)
    for message in messages:
        check_message(message, now_ms)
    return topic


def common_topic(messages: Sequence[pb.Message]) -> str:
    """Return the brokers' name of the topic that all messages of a send have. Raises: Refused."""
    if not messages:
        raise Refused(pb.Code.MESSAGE_CORRUPTED, "no message to send; a request needs at least one")
    first = messages[0].topic
    if len(messages) > 1 and any(message.topic != first for message in messages):
        raise Refused(
            pb.Code.MESSAGE_CORRUPTED,
            "the messages of a request have different topics; send one request for each topic",
        )
    return topic_name(first)


def check_message(message: pb.Message, now_ms: int) -> None:
    """Check a message of a producer; its type is checked by ``require_type``.

    ``now_ms``: the time, which ``delivery_timestamp`` may be ahead of by ``DELAY_MS_MAX``.

    Raises: Refused.
    """
    topic_name(message.topic)
    body_bytes = len(message.body)
    if not body_bytes:
        raise Refused(pb.Code.MESSAGE_BODY_EMPTY, "message body cannot be empty")
    if body_bytes > BODY_BYTES_MAX:
        raise Refused(
            pb.Code.MESSAGE_BODY_TOO_LARGE,
            f"message body cannot exceed the max {BODY_BYTES_MAX} bytes (maxMessageSize), it has"
            f" {body_bytes}; compress it, or split it",
        )
    system = message.system_properties
    _check_properties(message, system)
    _check_times(system, now_ms)
    if group := system.message_group:
        _check_group(group)
    # Java stores these unchecked: a control character would end a property, and begin another.
    for text in (system.born_host, system.trace_context):
        if text and _control(text):
            raise Refused(
                pb.Code.BAD_REQUEST, "born_host and trace_context cannot contain control characters"
            )
    if system.message_type in _NEWER_TYPES or system.lite_topic or system.HasField("priority"):
        raise Refused(
            pb.Code.UNSUPPORTED,
            "this server has no lite topics and no priorities; send the message without",
        )


def _check_properties(message: pb.Message, system: pb.SystemProperties) -> None:
    """Check user properties, tag, keys and id. Raises: Refused."""
    size = 0
    if message.user_properties:  # a copy of an empty one takes twenty times as long as this look
        user = dict(message.user_properties)
        if len(user) > USER_PROPERTIES_MAX:
            raise Refused(
                pb.Code.MESSAGE_PROPERTIES_TOO_LARGE,
                f"too many user properties: {len(user)}, max is {USER_PROPERTIES_MAX}"
                " (userPropertyMaxNum)",
            )
        if not RESERVED_PROPERTIES.isdisjoint(user):
            reserved = sorted(RESERVED_PROPERTIES & user.keys())
            raise Refused(
                pb.Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
                f"property is used by system: {', '.join(reserved)}; choose another name",
            )
        text = "".join([*user, *user.values()])
        if _control(text):
            raise Refused(
                pb.Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
                "the key and the value of a user property cannot contain control characters",
            )
        size = _utf8_bytes(text)
    if tag := system.tag:
        _check_tag(tag)
        size += _utf8_bytes(tag)
    if keys := system.keys:
        joined = "".join(keys)
        for key in keys:
            if key and key.isspace():
                raise Refused(pb.Code.ILLEGAL_MESSAGE_KEY, "a message key cannot be blank")
        if _control(joined):
            raise Refused(
                pb.Code.ILLEGAL_MESSAGE_KEY, "a message key cannot contain control characters"
            )
        size += _utf8_bytes(joined)
    if size > PROPERTIES_BYTES_MAX:
        raise Refused(
            pb.Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"user properties, tag and keys have {size} bytes, max is {PROPERTIES_BYTES_MAX}"
            " (maxUserPropertySize); put large values into the body",
        )
    message_id = system.message_id
    if not message_id or message_id.isspace():
        raise Refused(pb.Code.ILLEGAL_MESSAGE_ID, "message id cannot be null or blank")
    if _control(message_id):
        raise Refused(pb.Code.ILLEGAL_MESSAGE_ID, "message id cannot contain control characters")


def _check_tag(tag: str) -> None:
    if tag.isspace():
        raise Refused(pb.Code.ILLEGAL_MESSAGE_TAG, "tag cannot be blank")
    if "|" in tag:
        raise Refused(pb.Code.ILLEGAL_MESSAGE_TAG, f"tag {tag!r} cannot contain '|'")
    if _control(tag):
        raise Refused(pb.Code.ILLEGAL_MESSAGE_TAG, "tag cannot contain control characters")


def _check_group(group: str) -> None:
    if group.isspace():
        raise Refused(pb.Code.ILLEGAL_MESSAGE_GROUP, "message group cannot be blank")
    if _utf8_bytes(group) >= MESSAGE_GROUP_BYTES:
        raise Refused(
            pb.Code.ILLEGAL_MESSAGE_GROUP,
            f"message group has {_utf8_bytes(group)} bytes, max is {MESSAGE_GROUP_BYTES - 1}"
            " (maxMessageGroupSize)",
        )
    if _control(group):
        raise Refused(
            pb.Code.ILLEGAL_MESSAGE_GROUP, "message group cannot contain control characters"
        )


def _check_times(system: pb.SystemProperties, now_ms: int) -> None:
    if system.message_type == _TRANSACTION:
        seconds = system.orphaned_transaction_recovery_duration.seconds
        if seconds > RECOVERY_SECONDS_MAX:
            raise Refused(
                pb.Code.BAD_REQUEST,
                f"the transaction recovery time is {seconds} s, max is {RECOVERY_SECONDS_MAX} s"
                " (maxTransactionRecoverySecond)",
            )
    if system.HasField("delivery_timestamp"):
        delay_ms = time_ms(system.delivery_timestamp) - now_ms
        if delay_ms > DELAY_MS_MAX:
            raise Refused(
                pb.Code.ILLEGAL_DELIVERY_TIME,
                f"the delivery time is {delay_ms} ms ahead, max is {DELAY_MS_MAX} ms"
                " (maxDelayTimeMills)",
            )


def _utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


# Filters


def check_filter(expression: pb.FilterExpression) -> tuple[str, str]:
    """Return a filter's type, ``TAG`` or ``SQL92``, and its text, as the remoting protocol has it.

    No text stands for all tags. The broker checks the syntax of SQL.

    Raises: Refused (ILLEGAL_FILTER_EXPRESSION).
    """
    text = expression.expression
    if expression.type == pb.FilterType.SQL:
        if not text.strip():
            raise Refused(
                pb.Code.ILLEGAL_FILTER_EXPRESSION,
                "a SQL filter needs an expression, for example 'price > 10'",
            )
        return SQL92, text
    try:
        return TAG, subscription("", text, 0).sub_string
    except LocalProtocolError as error:
        raise Refused(pb.Code.ILLEGAL_FILTER_EXPRESSION, str(error)) from None


# Times


def time_ms(time: Any) -> int:
    """Return a timestamp or duration in ms, rounded down.

    The method of the same purpose raises ValueError for a time beyond the year 9999.
    """
    return int(time.seconds) * 1000 + int(time.nanos) // 1_000_000


def check_invisible_time(invisible_ms: int, *, minimum_ms: int, maximum_ms: int) -> None:
    """Check the time for which a message is hidden; a change of it may be as short as 0.

    Raises: Refused (ILLEGAL_INVISIBLE_TIME).
    """
    if invisible_ms < minimum_ms:
        raise Refused(
            pb.Code.ILLEGAL_INVISIBLE_TIME,
            f"the invisibleTime is too small: {invisible_ms} ms, min is {minimum_ms} ms"
            " (minInvisibleTimeMillsForRecv)",
        )
    if invisible_ms > maximum_ms:
        raise Refused(
            pb.Code.ILLEGAL_INVISIBLE_TIME,
            f"the invisibleTime is too large: {invisible_ms} ms, max is {maximum_ms} ms"
            " (maxInvisibleTimeMills)",
        )
