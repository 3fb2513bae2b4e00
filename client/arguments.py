"""Checks of what applications pass as arguments: a wrong kind is told before anything happens, with the argument's name, what came, and what is wanted.

Errors are `SettingsError`, and `MessageInvalid` where a message cannot be sent.  Names of topics and groups have their own checks (`names.py`).
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from math import isnan
from typing import Any, TypeVar

from triomq.client.errors import HandlerInvalid, MessageInvalid, SettingsError
from triomq.remoting.protocol.bodies.route import MessageQueue

S = TypeVar("S")

_SHOWN_MAX = 60
OFFSET_MAX = (1 << 63) - 1


def shown(value: object) -> str:
    """Return how an error shows a wrong value: its kind, and its beginning."""
    text = repr(value)
    return f"the {type(value).__name__} {text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + '…'}"


def check_settings(settings: object, kind: type[S]) -> S:
    """Return settings of the wanted kind, the defaults for None.  Errors: `SettingsError`."""
    if settings is None:
        return kind()
    if not isinstance(settings, kind):
        raise SettingsError(f"settings must be {kind.__name__}(…), not {shown(settings)}")
    return settings


def check_count(name: str, value: object) -> None:
    """Refuse what is no number of at least 1.  Errors: `SettingsError`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise SettingsError(f"{name} must be a whole number, not {shown(value)}")
    if value < 1:
        raise SettingsError(f"{name} must be 1 or greater, not {value}")


def check_seconds(name: str, value: object) -> None:
    """Refuse what is no duration; None is no limit.  Errors: `SettingsError`."""
    if value is None:
        return
    if not isinstance(value, int | float) or isinstance(value, bool) or isnan(value) or value < 0:
        raise SettingsError(f"{name} must be a number of seconds, 0 or greater, or None for no limit, not {shown(value)}")


def check_callable(name: str, value: object) -> None:
    """Refuse what cannot be called; None is none.  Errors: `SettingsError`."""
    if value is not None and not callable(value):
        raise SettingsError(f"{name} must be a function, not {shown(value)}")


def check_queue(queue: object) -> None:
    """Refuse what is no queue.  Errors: `SettingsError`."""
    if not isinstance(queue, MessageQueue):
        raise SettingsError(
            f"a queue is wanted, not {shown(queue)}: take it from `assignment`, from `queues(topic)`, or write MessageQueue(topic, broker_name, queue_id)"
        )


def checked_queues(queues: object) -> set[MessageQueue]:
    """Return some queues.  Errors: `SettingsError`."""
    if isinstance(queues, str | bytes | MessageQueue) or not isinstance(queues, Iterable):
        raise SettingsError(f"queues must be a list of queues, not {shown(queues)}: take them from `await consumer.queues(topic)`")
    found = list(queues)
    for queue in found:
        check_queue(queue)
    return set(found)


def check_offset(offset: object) -> None:
    """Refuse what is no offset.  Errors: `SettingsError`."""
    if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset <= OFFSET_MAX:
        raise SettingsError(f"an offset must be a whole number from 0 on, not {shown(offset)}")


def check_delay_level(level: object, highest: int) -> None:
    """Refuse what is no delay level.  Errors: `MessageInvalid`."""
    if not isinstance(level, int) or isinstance(level, bool):
        raise MessageInvalid(f"delay_level must be a whole number, not {shown(level)}: 1 (1 s) to {highest} (2 h), 0 for no delay")
    if not 0 <= level <= highest:
        raise MessageInvalid(f"delay_level {level} does not exist: 1 (1 s) to {highest} (2 h), 0 for no delay")


def key_words(keys: object) -> Sequence[str]:
    """Return a message's keys.  Errors: `MessageInvalid`."""
    if isinstance(keys, str):
        raise MessageInvalid(f"keys must be a list of texts, not the text {keys!r}: write keys=[{keys!r}]")
    if not isinstance(keys, Sequence) or isinstance(keys, bytes | bytearray | memoryview):
        raise MessageInvalid(f"keys must be a list of texts, not {shown(keys)}")
    for key in keys:
        if not isinstance(key, str):
            raise MessageInvalid(f"a key must be a text, not {shown(key)}: write {_as_text(key)}")
        if not key or " " in key:
            raise MessageInvalid(
                f"key {key!r} cannot be used: a message's keys are stored separated by blanks, so one needs a character and may have no blank inside"
            )
    return keys


def _as_text(value: object) -> str:
    return f"{value!r}.decode()" if isinstance(value, bytes) else f"str({value!r})"


def awaiting(handler: Callable[[Any], Awaitable[object]]) -> Callable[[Any], Awaitable[object]]:
    """Return a handler that can be awaited, or raises `HandlerInvalid` when it is called.  Errors: `SettingsError` if it cannot even be called.

    What is declared with `async def` is returned as it is; of anything else only a call tells.
    """
    if not callable(handler):
        raise SettingsError(f"a handler must be an async function, not {shown(handler)}")
    if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None)):  # noqa: B004 - the method itself is looked at
        return handler

    async def call(what: Any) -> object:
        outcome = handler(what)
        if not inspect.isawaitable(outcome):
            raise HandlerInvalid(
                f"the handler {getattr(handler, '__qualname__', handler)!s} is no async function, it returned {shown(outcome)}: write `async def`, "
                "or use triomq.sync.PushConsumer, whose handlers are plain functions in threads"
            )
        return await outcome

    return call
