"""Checks of what applications pass as arguments: a wrong kind is told before anything happens, with the argument's name, what came, and what is wanted.

Whatever is a whole number to Python (NumPy's, for instance) is one here, and the checks return it as an `int`; a bool is none.  Errors are
`SettingsError`, and `MessageInvalid` where a message cannot be sent.  Names of topics and groups have their own checks (`names.py`).
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Awaitable, Callable, Iterable
from math import inf, isnan, nan
from numbers import Real
from typing import Any, TypeVar

from triomq.client.errors import HandlerInvalid, MessageInvalid, SettingsError
from triomq.remoting.protocol.bodies.route import MessageQueue

S = TypeVar("S")

_SHOWN_MAX = 60
OFFSET_MAX = (1 << 63) - 1
_DELAY_LEVEL_FIELD_MAX = (1 << 31) - 1


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


def whole_number(value: Any) -> int | None:
    """Return a whole number of any type as an `int`; None for what is none."""
    if type(value) is int:
        return value
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def check_count(name: str, value: object) -> int:
    """Return a number of at least 1.  Errors: `SettingsError`."""
    number = whole_number(value)
    if number is None:
        raise SettingsError(f"{name} must be a whole number, not {shown(value)}")
    if number < 1:
        raise SettingsError(f"{name} must be 1 or greater, not {number}")
    return number


def check_seconds(name: str, value: object) -> float | None:
    """Return a duration; None is no limit.  Errors: `SettingsError`."""
    seconds = _seconds(value)
    if seconds is not None and not seconds >= 0:  # nor is NaN
        raise SettingsError(f"{name} must be a number of seconds, 0 or greater, or None for no limit, not {shown(value)}")
    return seconds


def check_timeout(value: object) -> float | None:
    """Return how long a call may wait, None for ever.  What is left of a time that is over, `deadline - now`, is 0.  Errors: `SettingsError`."""
    seconds = _seconds(value)
    if seconds is not None and isnan(seconds):
        raise SettingsError(f"timeout must be a number of seconds, or None for no limit, not {shown(value)}")
    return None if seconds is None else max(seconds, 0.0)


def _seconds(value: Any) -> float | None:
    """Return a number as a `float`, NaN for what is none."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real):
        return nan
    try:
        return float(value)
    except OverflowError:  # a whole number beyond all floats
        return inf if operator.gt(value, 0) else -inf


def check_callable(name: str, value: object) -> None:
    """Refuse what cannot be called; None is none.  Errors: `SettingsError`."""
    if value is not None and not callable(value):
        raise SettingsError(f"{name} must be a function, not {shown(value)}")


def check_plain(name: str, value: object) -> None:
    """Refuse what cannot be called, and async functions, which a worker thread cannot run; None is none.  Errors: `SettingsError`."""
    check_callable(name, value)
    if inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(getattr(value, "__call__", None)):  # noqa: B004 - the method itself is looked at
        raise SettingsError(f"{name} must be a plain function, and {shown(value)} is an async one: use triomq.aio.PushConsumer (asyncio) or triomq.PushConsumer (Trio)")


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


def check_offset(offset: object) -> int:
    """Return an offset.  Errors: `SettingsError`."""
    number = whole_number(offset)
    if number is None or not 0 <= number <= OFFSET_MAX:
        raise SettingsError(f"an offset must be a whole number from 0 on, not {shown(offset)}")
    return number


def check_delay_level(level: object, highest: int) -> int:
    """Return the delay level of a message to send.  Errors: `MessageInvalid`."""
    number = whole_number(level)
    if number is None:
        raise MessageInvalid(f"delay_level must be a whole number, not {shown(level)}: 1 (1 s) to {highest} (2 h), 0 for no delay")
    if not 0 <= number <= highest:
        raise MessageInvalid(f"delay_level {number} does not exist: 1 (1 s) to {highest} (2 h), 0 for no delay")
    return number


def check_retry_level(level: object) -> int:
    """Return the delay level of a second delivery; -1 is the dead letters, and how many levels there are is the broker's affair.

    Errors: `MessageInvalid`.
    """
    number = whole_number(level)
    levels = "0 for the broker's delay, which grows with each time, 1 (1 s) to 18 (2 h), or more if the broker has more (messageDelayLevel), -1 for the dead letters"
    if number is None:
        raise MessageInvalid(f"delay_level must be a whole number, not {shown(level)}: {levels}")
    if not -1 <= number <= _DELAY_LEVEL_FIELD_MAX:
        raise MessageInvalid(f"delay_level {number} does not exist: {levels}")
    return number


def key_words(keys: object) -> tuple[str, ...]:
    """Return a message's keys, whatever they are iterated from.  Errors: `MessageInvalid`."""
    if isinstance(keys, str):
        raise MessageInvalid(f"keys must be a list of texts, not the text {keys!r}: write keys={keys.split()!r}")
    if not isinstance(keys, Iterable) or isinstance(keys, bytes | bytearray | memoryview):
        raise MessageInvalid(f"keys must be a list of texts, not {shown(keys)}")
    words = tuple(keys)
    for key in words:
        if not isinstance(key, str):
            raise MessageInvalid(f"a key must be a text, not {shown(key)}: write {_as_text(key)}")
        if not key or " " in key:
            raise MessageInvalid(
                f"key {key!r} cannot be used: a message's keys are stored separated by blanks, so one needs a character and may have no blank inside"
            )
    return words


def _as_text(value: object) -> str:
    return f"{value!r}.decode()" if isinstance(value, bytes) else f"str({value!r})"


def _promises_awaitable(function: Callable[..., object]) -> bool:
    """Whether a plain function says by its annotation that what it returns can be awaited."""
    returns = str(getattr(function, "__annotations__", {}).get("return", ""))
    return any(word in returns for word in ("Awaitable", "Coroutine", "Future", "Task"))


def awaiting(handler: Callable[[Any], Awaitable[object]]) -> Callable[[Any], Awaitable[object]]:
    """Return a handler that can be awaited, or raises `HandlerInvalid` when it is called.

    What is declared with `async def` is returned as it is; of an object that can be called only a call tells.
    Errors: `SettingsError` if it cannot even be called; `HandlerInvalid` for a plain function that promises no awaitable (a lambda may return one).
    """
    if not callable(handler):
        raise SettingsError(f"a handler must be an async function, not {shown(handler)}")
    if inspect.isroutine(handler) and handler.__name__ != "<lambda>" and not inspect.iscoroutinefunction(inspect.unwrap(handler)) and not _promises_awaitable(handler):
        raise HandlerInvalid(
            f"the handler {getattr(handler, '__qualname__', handler)!s} is no async function: write `async def`, "
            "or use triomq.sync.PushConsumer, whose handlers are plain functions in threads"
        )
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
