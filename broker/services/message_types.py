"""Message types of topics (attribute ``message.type``) and of messages, and whether the two agree.

RocketMQ 5 keeps the attribute on the broker and checks it where clients come in by gRPC; a broker
itself takes any message. With ``enforceMessageType`` this broker checks messages of the remoting
protocol too. Source: common/attribute/TopicMessageType.java,
proxy/…/validator/DefaultTopicMessageTypeValidator.java.
"""

from __future__ import annotations

from collections.abc import Mapping

from triomq.remoting.protocol import message_properties as property_names
from triomq.remoting.protocol.bodies.topics import TopicConfig

ATTRIBUTE = "message.type"
NORMAL, FIFO, DELAY, TRANSACTION, MIXED = "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"
DELAY_PROPERTIES = (
    property_names.DELAY,
    property_names.TIMER_DELIVER_MS,
    property_names.TIMER_DELAY_SEC,
    property_names.TIMER_DELAY_MS,
)


def type_of_topic(config: TopicConfig) -> str:
    """Return the type that a topic accepts; NORMAL by default."""
    return config.attributes.get(ATTRIBUTE, NORMAL)


def type_of_message(properties: Mapping[str, str]) -> str:
    """Return the type of a message: TRANSACTION, DELAY, FIFO (with a sharding key) or NORMAL."""
    if properties.get(property_names.TRAN_MSG, "").lower() == "true":
        return TRANSACTION
    if any(name in properties for name in DELAY_PROPERTIES):
        return DELAY
    return FIFO if property_names.SHARDING_KEY in properties else NORMAL


def type_complaint(topic: str, accepted: str, properties: Mapping[str, str]) -> str | None:
    """Return why a topic of this type does not accept the message; None if it does."""
    found = type_of_message(properties)
    if accepted in (MIXED, found):
        return None
    return (
        f"current message type not match with topic accept message types: topic {topic} takes"
        f" {accepted} messages (attribute {ATTRIBUTE}), this one is {found}; send it to a topic of"
        " its type, or change the attribute"
    )
