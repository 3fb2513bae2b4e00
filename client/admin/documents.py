"""The JSON and text forms that several commands print: a message, the settings of a group."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from triomq.remoting.message_document import message_document

if TYPE_CHECKING:
    from triomq.remoting.protocol.bodies.groups import SubscriptionGroupConfig
    from triomq.remoting.protocol.record import StoredMessage

GROUP_FIELDS = {
    "consumeEnable": "consume_enable",
    "consumeFromMinEnable": "consume_from_min_enable",
    "consumeBroadcastEnable": "consume_broadcast_enable",
    "consumeMessageOrderly": "consume_message_orderly",
    "retryQueueNums": "retry_queue_count",
    "retryMaxTimes": "retry_max_times",
    "groupRetryPolicy": "retry_policy",
    "brokerId": "broker_id",
    "whichBrokerWhenConsumeSlowly": "which_broker_when_consume_slowly",
    "notifyConsumerIdsChanged": "notify_consumer_ids_changed_enable",
}
"""option → attribute of the group's settings"""


def group_document(config: SubscriptionGroupConfig) -> dict[str, Any]:
    """Return the settings of a group that have options, with RocketMQ's names."""
    document = {
        "groupName": config.group_name,
        **{name: getattr(config, attribute) for name, attribute in GROUP_FIELDS.items()},
    }
    return {**document, "groupRetryPolicy": json.loads(config.retry_policy.encode())}


def settings_line(settings: Mapping[str, object]) -> str:
    """Return the settings of a topic or group as RocketMQ's mqadmin prints them."""
    return "  ".join(
        f"{key}={str(value).lower() if isinstance(value, bool) else value}"
        for key, value in settings.items()
    )


def broker_message_document(message: StoredMessage, broker_name: str) -> dict[str, Any]:
    """Return a message of a broker as ``--json`` prints it."""
    document = message_document(message)
    return {"topic": document["topic"], "brokerName": broker_name, **document}


def body_text(document: Mapping[str, Any]) -> str:
    """Return a body as text."""
    return document["body"] if document["body"] is not None else f"base64:{document['bodyBase64']}"
