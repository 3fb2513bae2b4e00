"""Reading the JSON body of a request: what cannot be read is the sender's error, not ours."""

from __future__ import annotations

from typing import TypeVar

from triomq.remoting.errors import Rejected, RemoteProtocolError
from triomq.remoting.protocol.bodies.schema import JsonBody
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.loose_json import is_standard, too_long_for_loose
from triomq.remoting.server.handlers import Request

LOOSE_BODY_BYTES_MAX = 65_536
"""Bodies that are not standard JSON; to read them takes up to a microsecond a byte, in which nobody else is served."""
B = TypeVar("B", bound=JsonBody)


def read_body(cls: type[B], request: Request) -> B:
    """The body as ``cls``; Rejected with SYSTEM_ERROR, as a Java broker answers, when it is missing, of another shape, or long and no standard JSON."""
    try:
        if len(request.body) > LOOSE_BODY_BYTES_MAX and not is_standard(request.body):
            raise too_long_for_loose(len(request.body), LOOSE_BODY_BYTES_MAX)
        return cls.decode(request.body)
    except RemoteProtocolError as error:
        raise Rejected(ResponseCode.SYSTEM_ERROR, str(error)) from None
