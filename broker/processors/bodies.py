"""Reading the JSON body of a request: what cannot be read is the sender's error, not ours."""

from __future__ import annotations

from typing import TypeVar

from triomq.remoting.errors import Rejected, RemoteProtocolError
from triomq.remoting.protocol.bodies.schema import JsonBody
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.loose_json import LOOSE_BYTES_MAX
from triomq.remoting.server.handlers import Request

B = TypeVar("B", bound=JsonBody)


def read_body(cls: type[B], request: Request) -> B:
    """The body as ``cls``; Rejected with SYSTEM_ERROR, as a Java broker answers, when it is missing, of another shape, or long without being standard JSON."""
    try:
        return cls.decode(request.body, LOOSE_BYTES_MAX)
    except RemoteProtocolError as error:
        raise Rejected(ResponseCode.SYSTEM_ERROR, str(error)) from None
