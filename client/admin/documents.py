"""The JSON and text forms that several commands print: messages, settings, numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import attrs

from triomq.remoting.protocol.bodies.schema import wire_name
from triomq.remoting.protocol.message_document import message_document

if TYPE_CHECKING:
    from triomq.remoting.protocol.bodies.groups import SubscriptionGroupConfig
    from triomq.remoting.protocol.bodies.running import ConsumerRunning
    from triomq.remoting.protocol.bodies.topics import TopicConfig
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


def members_of(value: attrs.AttrsInstance, *names: str) -> dict[str, Any]:
    """Return members of a wire body, or of a result, by the names that they have in JSON."""
    attributes = _attributes(type(value))
    return {name: getattr(value, attributes[name]) for name in names}


@cache
def _attributes(kind: type[attrs.AttrsInstance]) -> Mapping[str, str]:
    """Return name in JSON → attribute."""
    return {wire_name(field): field.name for field in attrs.fields(kind)}


def group_document(config: SubscriptionGroupConfig) -> dict[str, object]:
    """Return the settings of a group that have options, with RocketMQ's names."""
    document = {
        "groupName": config.group_name,
        **{name: getattr(config, attribute) for name, attribute in GROUP_FIELDS.items()},
    }
    return {**document, "groupRetryPolicy": json.loads(config.retry_policy.encode())}


def topic_document(config: TopicConfig) -> dict[str, object]:
    """Return a topic's settings with RocketMQ's names."""
    names = ("topicName", "readQueueNums", "writeQueueNums", "perm", "order", "topicSysFlag")
    return {**members_of(config, *names), "attributes": dict(config.attributes)}


def settings_line(settings: Mapping[str, object]) -> str:
    """Return the settings of a topic or group as RocketMQ's mqadmin prints them."""
    return "  ".join(
        f"{key}={json.dumps(value) if isinstance(value, bool | dict) else value}"
        for key, value in settings.items()
    )


def broker_message_document(message: StoredMessage, broker_name: str) -> dict[str, object]:
    """Return a message of a broker as ``--json`` prints it."""
    document = message_document(message)
    return {"topic": document["topic"], "brokerName": broker_name, **document}


def body_text(document: Mapping[str, Any]) -> str:
    """Return a body as text."""
    return document["body"] if document["body"] is not None else f"base64:{document['bodyBase64']}"


def running_document(state: ConsumerRunning) -> dict[str, Any]:
    """Return the state of a running consumer."""
    return {
        "properties": dict(sorted(state.properties.items())),
        "subscriptions": {one.topic: one.sub_string for one in state.subscriptions},
        "queues": [
            {
                **members_of(queue, "topic", "brokerName", "queueId"),
                "commitOffset": held.commit_offset,
                "cachedMessages": held.cached_count,
                "locked": held.locked,
                "lastPull": held.last_pull_timestamp,
                "lastConsume": held.last_consume_timestamp,
            }
            for queue, held in sorted(state.queues.items())
        ],
        "rates": {
            topic: members_of(
                rate, "pullRT", "pullTPS", "consumeRT", "consumeOKTPS", "consumeFailedTPS"
            )
            for topic, rate in sorted(state.rates.items())
        },
        "jstack": state.jstack,
    }


def count_of(count: int, noun: str) -> str:
    """Return ``1 retry``, ``2 retries``, ``0 messages``."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun[:-1]}ies" if noun.endswith("y") else f"{count} {noun}s"


def fewer_queues(topic: str, server: str, before: int, after: int) -> str:
    """Return the warning about queues that are not read any more."""
    which = f"queue {after} is" if before - after == 1 else f"queues {after} to {before - 1} are"
    return (
        f"{which} no longer read of topic {topic} at {server}: messages that wait there come when"
        f" it has {before} queues to read again"
    )
