"""``BodyCodec``: bodies as objects, at the edge of an application; the same for all interfaces."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Generic, Literal, NoReturn, Protocol, TypeVar, overload

import attrs

from triomq.client.core.arguments import check_callable, is_async, shown
from triomq.client.core.errors import HandlerInvalid, SettingsError
from triomq.client.receiving.message_view import MessageView

logger = logging.getLogger(__name__)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
M = TypeVar("M", bound=MessageView)
R = TypeVar("R", bound=Awaitable[None] | None)


class HandlerDecorator(Protocol[T_co]):
    """Makes a handler of messages from a function of an object and its message."""

    def __call__(self, handle: Callable[[T_co, M], R], /) -> Callable[[M], R]:
        """Return the handler."""


@attrs.frozen
class BodyCodec(Generic[T]):
    """Two functions that turn objects of one type into bodies and back.

    orders = BodyCodec(msgspec.json.encode, msgspec.json.Decoder(Order).decode)

    await producer.send("Orders", orders.encode(order))

    @orders.handler(unfit="dead_letter")
    async def handle(order: Order, message: ReceivedMessage) -> None: ...
    """

    encode: Callable[[T], bytes] = attrs.field(repr=False)
    decode: Callable[[bytes], T] = attrs.field(repr=False)
    """Raises any ``Exception`` for a body that does not fit."""

    def __attrs_post_init__(self) -> None:
        check_callable("encode", self.encode)
        check_callable("decode", self.decode)

    @overload
    def handler(
        self, *, unfit: Literal["retry", "dead_letter"] = "dead_letter"
    ) -> HandlerDecorator[T]: ...

    @overload
    def handler(
        self, *, unfit: Callable[[M, Exception], R]
    ) -> Callable[[Callable[[T, M], R]], Callable[[M], R]]: ...

    def handler(
        self,
        *,
        unfit: Literal["retry", "dead_letter"] | Callable[[Any, Exception], Any] = "dead_letter",
    ) -> Any:
        """Make a handler of messages from a function of an object and its message.

        ``unfit``: what happens to a message whose body ``decode`` refuses. ``"dead_letter"``: it
        never comes again. ``"retry"``: it fails as if the handler had raised the error. A function
        gets the message and the error instead of the handler, and settles the message by its end.
        The function is async if the handler is.

        Raises: ``SettingsError``.
        """
        if not callable(unfit) and unfit not in _REFUSALS:
            raise SettingsError(
                "unfit must be 'retry', 'dead_letter' or a function of the message and the error,"
                f" not {shown(unfit)}"
            )

        def decorate(handle: Callable[[T, M], R]) -> Callable[[M], R]:
            check_callable("a handler", handle)
            run: Callable[[M], Any]
            if is_async(handle):
                refuse = _REFUSALS.get(unfit, unfit)

                @functools.wraps(handle)
                async def run(message: M) -> Any:
                    return await self._call(handle, refuse, message)

            else:
                refuse = _PLAIN_REFUSALS.get(unfit, unfit)

                @functools.wraps(handle)
                def run(message: M) -> Any:
                    return self._call(handle, refuse, message)

            return run

        return decorate

    def _call(self, handle: Callable[..., Any], refuse: Callable[..., Any], message: object) -> Any:
        """Call the function that the body is for, and return its result."""
        if not isinstance(message, MessageView):
            raise HandlerInvalid(
                f"a handler of a codec takes one message, not {shown(message)}: in a batch handler"
                " call `codec.decode(message.body)` for each message"
            )
        try:
            value = self.decode(message.body)
        except Exception as error:  # of any library
            return refuse(message, error)
        return handle(value, message)


async def _bury(message: Any, error: Exception) -> None:
    _log_dead(message, error)
    await message.dead_letter()


def _bury_plainly(message: Any, error: Exception) -> None:
    _log_dead(message, error)
    message.dead_letter()


def _log_dead(message: MessageView, error: Exception) -> None:
    logger.warning("%r becomes a dead letter: its body does not fit: %s", message, error)


def _fail(_: object, error: Exception) -> NoReturn:
    raise error


_REFUSALS: dict[Any, Any] = {"retry": _fail, "dead_letter": _bury}
_PLAIN_REFUSALS: dict[Any, Any] = {"retry": _fail, "dead_letter": _bury_plainly}


def _to_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


json_codec: BodyCodec[Any] = BodyCodec(_to_json, json.loads)
"""JSON in UTF-8, by Python's ``json``: dictionaries, lists, texts, numbers, True, False, None."""
