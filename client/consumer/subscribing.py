"""Subscriptions as users write them, and as heartbeats and pulls carry them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from triomq.client.errors import SettingsError
from triomq.client.names import check_topic
from triomq.remoting.protocol.bodies.heartbeat import SubscriptionData
from triomq.remoting.protocol.message import subscription

Subscriptions = str | Sequence[str] | Mapping[str, str]
"""One topic, several topics, or topic → tag expression (`"paid || refunded"`, `"*"`)."""


def make_subscriptions(wanted: Subscriptions, version: int) -> dict[str, SubscriptionData]:
    """Turn what the user wrote into topic → subscription.  Errors: `TopicInvalid`, `SettingsError` for an empty tag expression."""
    pairs = (
        {wanted: "*"}
        if isinstance(wanted, str)
        else dict(wanted)
        if isinstance(wanted, Mapping)
        else dict.fromkeys(wanted, "*")
    )
    made = {}
    for topic, expression in pairs.items():
        check_topic(topic)
        if expression and not any(tag.strip() for tag in expression.split("||")):
            raise SettingsError(
                f"subscription to {topic}: {expression!r} names no tag; write '*' for all, or 'TagA || TagB'"
            )
        made[topic] = subscription(topic, expression or "*", version)
    return made
