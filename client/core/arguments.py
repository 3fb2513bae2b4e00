"""Check the arguments that applications pass, before anything happens.

An error names the argument, the value and what is accepted. Any type that Python takes for a whole
number (NumPy's, for example) is returned as an ``int``; a bool is refused. Wrong arguments raise
``SettingsError``; ``MessageInvalid`` if a message cannot be sent. ``names.py`` checks topics and
groups.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Awaitable, Callable, Iterable
from math import inf, isnan, nan
from numbers import Real
from typing import Any, TypeVar

from triomq.client.core.errors import HandlerInvalid, MessageInvalid, SettingsError
from triomq.remoting.protocol.bodies.route import MessageQueue

S = TypeVar("S")

_SHOWN_MAX = 60
OFFSET_MAX = (1 << 63) - 1
_DELAY_LEVEL_FIELD_MAX = (1 << 31) - 1
_LEVELS = "1 (1 s) to 18 (2 h), or more if the broker has more (messageDelayLevel)"


def shown(value: object) -> str:
    """Return how an error shows a wrong value: its type and the beginning of its repr."""
    text = repr(value)
    return (
        f"the {type(value).__name__} {text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + '…'}"
    )


def check_settings(settings: object, kind: type[S]) -> S:
    """Return the settings, or the defaults for None.

    Raises: ``SettingsError`` for an object of another class.
    """
    if settings is None:
        return kind()
    if not isinstance(settings, kind):
        raise SettingsError(f"settings must be {kind.__name__}(…), not {shown(settings)}")
    return settings


def whole_number(value: Any) -> int | None:
    """Return a whole number of any type as an ``int``, or None if the value is not one."""
    if type(value) is int:
        return value
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def check_count(name: str, value: object) -> int:
    """Return a number of at least 1."""
    number = whole_number(value)
    if number is None:
        raise SettingsError(f"{name} must be a whole number, not {shown(value)}")
    if number < 1:
        raise SettingsError(f"{name} must be 1 or greater, not {number}")
    return number


def check_seconds(name: str, value: object) -> float | None:
    """Return a duration in seconds; None means no limit."""
    seconds = _seconds(value)
    if seconds is not None and not seconds >= 0:  # `not >=` also refuses NaN
        raise SettingsError(
            f"{name} must be a number of seconds, 0 or greater, or None for no limit, not"
            f" {shown(value)}"
        )
    return seconds


def check_timeout(value: object) -> float | None:
    """Return the seconds that a call may wait; None means no limit.

    A negative value counts as 0, so that callers can pass ``deadline - now``.
    """
    seconds = _seconds(value)
    if seconds is not None and isnan(seconds):
        raise SettingsError(
            f"timeout must be a number of seconds, or None for no limit, not {shown(value)}"
        )
    return None if seconds is None else max(seconds, 0.0)


def _seconds(value: object) -> float | None:
    """Return a number as a ``float``, or NaN if the value is not a number."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real):
        return nan
    try:
        return float(value)
    except OverflowError:  # larger than any float
        return inf if operator.gt(value, 0) else -inf


def check_callable(name: str, value: object) -> None:
    """Refuse an object that cannot be called, unless it is None."""
    if value is not None and not callable(value):
        raise SettingsError(f"{name} must be a function, not {shown(value)}")


def check_plain(name: str, value: object) -> None:
    """Refuse an async function, which a worker thread cannot run; None is accepted."""
    check_callable(name, value)
    if is_async(value):
        raise SettingsError(
            f"{name} must be a plain function, and {shown(value)} is an async one: use"
            " triomq.aio.PushConsumer (asyncio) or triomq.PushConsumer (Trio)"
        )


def is_async(function: object) -> bool:
    """Return whether a function, or an object's ``__call__``, is an ``async def``."""
    call = getattr(function, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def check_queue(queue: object) -> None:
    """Refuse an object that is not a ``MessageQueue``."""
    if not isinstance(queue, MessageQueue):
        raise SettingsError(
            f"a queue is wanted, not {shown(queue)}: take it from `assignment`, from"
            " `queues(topic)`, or write MessageQueue(topic, broker_name, queue_id)"
        )


def checked_queues(queues: object) -> set[MessageQueue]:
    """Return the given queues as a set."""
    if isinstance(queues, str | bytes | MessageQueue) or not isinstance(queues, Iterable):
        raise SettingsError(
            f"queues must be a list of queues, not {shown(queues)}: take them from `await"
            " consumer.queues(topic)`"
        )
    found = list(queues)
    for queue in found:
        check_queue(queue)
    return set(found)


def check_offset(offset: object) -> int:
    """Return a queue offset."""
    number = whole_number(offset)
    if number is None or not 0 <= number <= OFFSET_MAX:
        raise SettingsError(f"an offset must be a whole number from 0 on, not {shown(offset)}")
    return number


def check_delay_level(level: object) -> int:
    """Return the delay level of a message to send; a broker takes one above its last for this."""
    return _level(level, 0, f"0 for no delay, {_LEVELS}")


def check_retry_level(level: object) -> int:
    """Return the delay level of a retry; -1: the dead letters. The broker sets the highest."""
    return _level(
        level,
        -1,
        f"0 for the broker's delay, which grows with each time, {_LEVELS}, -1 for the dead letters",
    )


def _level(level: object, lowest: int, levels: str) -> int:
    number = whole_number(level)
    if number is None:
        raise MessageInvalid(f"delay_level must be a whole number, not {shown(level)}: {levels}")
    if not lowest <= number <= _DELAY_LEVEL_FIELD_MAX:
        raise MessageInvalid(f"delay_level {number} does not exist: {levels}")
    return number


def key_words(keys: object) -> tuple[str, ...]:
    """Return a message's keys from any iterable of texts."""
    if isinstance(keys, str):
        raise MessageInvalid(
            f"keys must be a list of texts, not the text {keys!r}: write keys={keys.split()!r}"
        )
    if not isinstance(keys, Iterable) or isinstance(keys, bytes | bytearray | memoryview):
        raise MessageInvalid(f"keys must be a list of texts, not {shown(keys)}")
    words = tuple(keys)
    for key in words:
        if not isinstance(key, str):
            raise MessageInvalid(f"a key must be a text, not {shown(key)}: write {_as_text(key)}")
        if not key or " " in key:
            raise MessageInvalid(
                f"key {key!r} cannot be used: a message's keys are stored separated by blanks, so"
                " one needs a character and may have no blank inside"
            )
    return words


def _as_text(value: object) -> str:
    return f"{value!r}.decode()" if isinstance(value, bytes) else f"str({value!r})"


def _promises_awaitable(function: Callable[..., object]) -> bool:
    """Return whether the return annotation of a plain function names an awaitable."""
    returns = str(getattr(function, "__annotations__", {}).get("return", ""))
    return any(word in returns for word in ("Awaitable", "Coroutine", "Future", "Task"))


def awaiting(handler: Callable[[Any], Awaitable[object]]) -> Callable[[object], Awaitable[object]]:
    """Return the handler in a form that can be awaited.

    An ``async def`` function is returned unchanged. Other callables are wrapped: the wrapper raises
    ``HandlerInvalid`` at the first call whose result cannot be awaited.

    Raises: ``SettingsError`` for an object that cannot be called; ``HandlerInvalid`` for a function
    that is not async and whose annotation promises no awaitable (lambdas are accepted).
    """
    if not callable(handler):
        raise SettingsError(f"a handler must be an async function, not {shown(handler)}")
    if (
        inspect.isroutine(handler)
        and handler.__name__ != "<lambda>"
        and not inspect.iscoroutinefunction(inspect.unwrap(handler))
        and not _promises_awaitable(handler)
    ):
        raise _not_async(handler)
    if is_async(handler):
        return handler

    async def call(what: object) -> object:
        outcome = handler(what)
        if not inspect.isawaitable(outcome):
            raise _not_async(handler, f", it returned {shown(outcome)}")
        return await outcome

    return call


def require_nothing(handler: object, outcome: object) -> None:
    """Refuse what a handler returns: code that was ported from Java returns its verdict, and it
    would be an acknowledgement whatever it says.

    Raises: ``HandlerInvalid``.
    """
    if outcome is not None:
        raise HandlerInvalid(
            f"the handler {_name_of(handler)} returned {shown(outcome)}: a handler returns nothing;"
            " its normal end acks the message, `await message.retry()` or an exception has it come"
            " again"
        )


def require_one_argument(handler: Callable[..., object]) -> None:
    """Refuse a handler that cannot be called with what it gets. Raises: ``HandlerInvalid``."""
    try:
        signature = inspect.signature(handler, follow_wrapped=False)
    except (TypeError, ValueError):  # a builtin that does not say
        return
    try:
        signature.bind(None)
    except TypeError:
        raise HandlerInvalid(
            f"the handler {_name_of(handler)}{signature} cannot be called with one argument: it"
            " gets the message, or the list of messages of a batch"
        ) from None


def _name_of(handler: object) -> str:
    return str(getattr(handler, "__qualname__", handler))


def _not_async(handler: object, returned: str = "") -> HandlerInvalid:
    return HandlerInvalid(
        f"the handler {_name_of(handler)} is not an async function{returned}: write `async def`, or"
        " use triomq.sync.PushConsumer, whose handlers are plain functions in threads"
    )
