"""Decode the JSON bodies of requests, and of clients' responses.

A long body is decoded in a thread, so that the loop can serve other requests. A body of more than
``BODY_BYTES_MAX`` is refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

import trio

from triomq.remoting.core.errors import Rejected, RemoteProtocolError
from triomq.remoting.protocol.bodies.schema import JsonBody
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.fastjson import REQUEST_LIMITS
from triomq.remoting.server.requests import Request, Result

B = TypeVar("B", bound=JsonBody)
R = TypeVar("R", Result, list[Any])
"""A response, or what a batch handler needs of one request."""
INLINE_BYTES_MAX = 128 * 1024
"""Larger bodies are decoded in a thread. One of this size takes up to 40 ms in the loop."""
BODY_BYTES_MAX = 2 * 1024 * 1024
"""Ample: a heartbeat of a thousand groups has 300 KiB."""


def read_body(cls: type[B], body: bytes) -> B:
    """Decode the body of a request as a ``cls``.

    Raises: Rejected with SYSTEM_ERROR, as in Java, if the body is missing, does not fit ``cls``, or
        is long and not standard JSON.
    """
    try:
        return cls.decode(body, REQUEST_LIMITS)
    except RemoteProtocolError as error:
        raise Rejected(ResponseCode.SYSTEM_ERROR, str(error)) from None


RequireForBody: TypeAlias = Callable[[Request, JsonBody], None]
"""Refuses a request that its user may not make with this body. Raises: Rejected."""


def with_body(
    require: RequireForBody | None, cls: type[B], handle: Callable[[Request, B], R | Awaitable[R]]
) -> Callable[[Request], R | Awaitable[R]]:
    """Return a handler that decodes the body of a request, and calls ``handle`` with both.

    The handler raises Rejected for a body that is too long, cannot be decoded, or that ``require``
    refuses.
    """

    def call(request: Request) -> R | Awaitable[R]:
        size = len(request.body)
        if size > BODY_BYTES_MAX:
            remark = (
                f"the body has {size} bytes, and this request takes {BODY_BYTES_MAX}: name fewer"
                " groups, topics or queues in one request"
            )
            raise Rejected(ResponseCode.INVALID_PARAMETER, remark)
        if size > INLINE_BYTES_MAX:
            return read_elsewhere(request)
        return checked(request, read_body(cls, request.body))

    def checked(request: Request, body: B) -> R | Awaitable[R]:
        if require is not None:
            require(request, body)
        return handle(request, body)

    async def read_elsewhere(request: Request) -> R:
        answer = checked(request, await trio.to_thread.run_sync(read_body, cls, request.body))
        return await answer if inspect.isawaitable(answer) else answer

    return call


async def decode_answer(cls: type[B], body: bytes) -> B:
    """Return the body of a client's response, decoded in a thread if it is long.

    Raises: RemoteProtocolError. Checkpoint: maybe, only for a long body.
    """
    if len(body) > BODY_BYTES_MAX:
        raise RemoteProtocolError(
            f"the client's response has {len(body)} bytes; the limit is {BODY_BYTES_MAX}"
        )
    return (
        cls.decode(body)
        if len(body) <= INLINE_BYTES_MAX
        else await trio.to_thread.run_sync(cls.decode, body)
    )
