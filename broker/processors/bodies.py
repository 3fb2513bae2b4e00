"""Reading the JSON body of a request: what cannot be read is the sender's error, not ours.

A long body is read in a thread, so that the loop serves others meanwhile; a body beyond the limit is not read at all.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from triomq.remoting.errors import Rejected, RemoteProtocolError
from triomq.remoting.protocol.bodies.schema import JsonBody
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.loose_json import LOOSE_BYTES_MAX
from triomq.remoting.server.handlers import Request, Response

B = TypeVar("B", bound=JsonBody)
INLINE_BYTES_MAX = 128 * 1024
"""A body up to here is read in the loop: 40 ms for the slowest class."""
BODY_BYTES_MAX = 2 * 1024 * 1024
"""A heartbeat of a thousand groups has 300 KiB."""


def read_body(cls: type[B], body: bytes) -> B:
    """The body as ``cls``; Rejected with SYSTEM_ERROR, as a Java broker answers, when it is missing, of another shape, or long without being standard JSON."""
    try:
        return cls.decode(body, LOOSE_BYTES_MAX)
    except RemoteProtocolError as error:
        raise Rejected(ResponseCode.SYSTEM_ERROR, str(error)) from None


def with_body(cls: type[B], handle: Callable[[Request, B], Response | Awaitable[Response]]) -> Callable[[Request], Response | Awaitable[Response]]:
    """Return the handler of requests whose body is a ``cls``; `handle` gets it beside the request.

    Raises (the handler): Rejected.
    """

    def call(request: Request) -> Response | Awaitable[Response]:
        size = len(request.body)
        if size > BODY_BYTES_MAX:
            remark = f"the body has {size} bytes, and this request takes {BODY_BYTES_MAX}: name fewer groups, topics or queues in one request"
            raise Rejected(ResponseCode.INVALID_PARAMETER, remark)
        if size > INLINE_BYTES_MAX:
            return read_elsewhere(request)
        return handle(request, read_body(cls, request.body))

    async def read_elsewhere(request: Request) -> Response:
        answer = handle(request, await trio.to_thread.run_sync(read_body, cls, request.body))
        return await answer if inspect.isawaitable(answer) else answer

    return call
