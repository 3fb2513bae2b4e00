"""What a call of ``send`` names: the message, and how its queue is chosen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from triomq.client.core.arguments import key_words, shown
from triomq.client.core.errors import MessageInvalid
from triomq.client.sending.queue_choice import Selector, choose_by_key
from triomq.client.sending.sender import SendTarget
from triomq.remoting.protocol.message import Message

MESSAGE_AND_FIELDS = (
    "a Message brings its own body, tag, keys, properties and flag: give one or the other"
)
NO_BODY = "a message needs a body: send(topic, body), or send(Message(…))"


def as_message(
    topic: str | Message,
    body: bytes | None,
    tag: str | None,
    keys: Iterable[str],
    properties: Mapping[str, str] | None,
    flag: int,
    wait_stored: bool = True,
) -> Message:
    """Return the message of a call. Raises: ``MessageInvalid``."""
    if isinstance(topic, Message):
        if body is not None or tag is not None or keys or properties or flag or not wait_stored:
            raise MessageInvalid(MESSAGE_AND_FIELDS)
        return topic
    if body is None:
        raise MessageInvalid(NO_BODY)
    return Message(
        topic=topic,
        body=body,
        tag=tag,
        keys=tuple(key_words(keys)) if keys else (),
        properties=properties or {},
        flag=flag,
        wait_stored=wait_stored,
    )


def queue_choice(
    message: Message | None, sharding_key: str | None, select: Selector | None
) -> SendTarget | None:
    """Return how the queue of a directed send is chosen, or None if the send is not directed."""
    if select is not None:
        if not callable(select):
            raise MessageInvalid(f"select must be a function, not {shown(select)}")
        assert message is not None
        return lambda queues: select(queues, message)
    return None if sharding_key is None else lambda queues: choose_by_key(queues, sharding_key)
