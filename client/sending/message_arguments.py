"""What a call of ``send`` names: the message, its queue, its time of delivery."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from math import ceil, isfinite

from triomq.client.core.arguments import key_words, shown
from triomq.client.core.errors import MessageInvalid
from triomq.client.sending.queue_choice import Selector, choose_by_key
from triomq.client.sending.sender import SendTarget
from triomq.remoting.protocol.message import Message
from triomq.remoting.protocol.message_properties import TIMER_DELAY_MS, TIMER_DELIVER_MS

MESSAGE_AND_FIELDS = (
    "a Message brings its own body, tag, keys, properties and flag: give one or the other"
)
Delay = float | timedelta
"""Seconds, or a timedelta."""
_DELAY = "delay is seconds (a number) or a timedelta, 0 or more"
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


def timer_property(
    delay: Delay | None, deliver_at: datetime | None, delay_level: object
) -> tuple[str, str] | None:
    """Return name and value of the property; None for a message that goes at once.

    A delay goes as such, so that the broker's clock alone counts; a time as milliseconds.

    Raises: ``MessageInvalid``.
    """
    if delay is None and deliver_at is None:
        return None
    if delay_level or (delay is not None and deliver_at is not None):
        raise MessageInvalid("give one of delay, deliver_at and delay_level, not several")
    if deliver_at is not None:
        return TIMER_DELIVER_MS, str(_time_ms(deliver_at))
    if isinstance(delay, timedelta):
        milliseconds = -(-delay // timedelta(milliseconds=1))
    elif (
        isinstance(delay, (int, float))
        and not isinstance(delay, bool)
        and isfinite(delay)
        and abs(delay) < 1e12
    ):
        milliseconds = ceil(delay * 1000)
    else:
        raise MessageInvalid(f"{_DELAY}, not {shown(delay)}")
    if milliseconds < 0:
        raise MessageInvalid(f"{_DELAY}, not {delay}")
    return (TIMER_DELAY_MS, str(milliseconds)) if milliseconds else None


def _time_ms(time: object) -> int:
    if not isinstance(time, datetime) or time.tzinfo is None:
        what = "one without a time zone" if isinstance(time, datetime) else shown(time)
        raise MessageInvalid(
            f"deliver_at is a datetime with a time zone, not {what}: for example"
            " datetime.now(timezone.utc) + timedelta(hours=1)"
        )
    epoch = datetime.fromtimestamp(0, time.tzinfo)
    return -(-(time - epoch) // timedelta(milliseconds=1))
