"""Message types of topics (attribute ``message.type``) and of messages, and whether the two agree.

RocketMQ 5 keeps the attribute on the broker and checks it where clients come in by gRPC; a broker itself takes any message.  With
``enforceMessageType`` this broker checks messages of the remoting protocol too.
Source: common/attribute/TopicMessageType.java, proxy/…/validator/DefaultTopicMessageTypeValidator.java.
"""

from __future__ import annotations

from collections.abc import Mapping

from triomq.remoting.protocol import message
from triomq.remoting.protocol.bodies.topics import TopicConfig

ATTRIBUTE = "message.type"
NORMAL, FIFO, DELAY, TRANSACTION, MIXED = "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"
DELAY_PROPERTIES = (message.DELAY, message.TIMER_DELIVER_MS, message.TIMER_DELAY_SEC, message.TIMER_DELAY_MS)


def type_of_topic(config: TopicConfig) -> str:
    """What a topic takes; NORMAL if nothing is said."""
    return config.attributes.get(ATTRIBUTE, NORMAL)


def type_of_message(properties: Mapping[str, str]) -> str:
    """What a message is: a half of a transaction, for later, for one consumer in order, or none of these."""
    if properties.get(message.TRAN_MSG, "").lower() == "true":
        return TRANSACTION
    if any(name in properties for name in DELAY_PROPERTIES):
        return DELAY
    return FIFO if message.SHARDING_KEY in properties else NORMAL


def type_complaint(topic: str, accepted: str, properties: Mapping[str, str]) -> str | None:
    """What is wrong with sending this message to a topic of that type; None when they agree."""
    found = type_of_message(properties)
    if accepted in (MIXED, found):
        return None
    return (
        f"current message type not match with topic accept message types: topic {topic} takes {accepted} messages (attribute {ATTRIBUTE}), "
        f"this one is {found}; send it to a topic of its type, or change the attribute"
    )
