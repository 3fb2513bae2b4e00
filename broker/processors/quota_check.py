"""The stage that refuses requests beyond a quota: a request hook, behind access control.

Only sends and reads count: without heartbeats, acknowledgements and offsets a member would lose its
group, and its messages would come again, which is more work for the broker. A refused send is
answered SYSTEM_BUSY, at which producers try again; a refused read FLOW_CONTROL, at which consumers
pause. Over one connection too many of a user every request is refused.

Source: client/…/DefaultMQProducer.java (retryResponseCodes),
impl/consumer/DefaultMQPushConsumerImpl.java (PULL_TIME_DELAY_MILLS_WHEN_BROKER_FLOW_CONTROL).
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import attrs
import trio

from triomq.remoting.access.quotas import Quotas, Use
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.signing import PROXIED_USER
from triomq.remoting.server.requests import Request

SENDS = frozenset(
    {
        *(Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE),
        *(Code.SEND_REPLY_MESSAGE, Code.SEND_REPLY_MESSAGE_V2),
    }
)
READS = frozenset(
    {
        *(Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE, Code.PEEK_MESSAGE, Code.POP_MESSAGE),
        *(Code.QUERY_MESSAGE, Code.VIEW_MESSAGE_BY_ID),
    }
)
_SIZE = struct.Struct(">i")


@attrs.frozen(eq=False)
class QuotaCheck:
    """The hook. *clock*: steady, in seconds."""

    quotas: Quotas
    clock: Callable[[], float] = trio.current_time

    def __call__(self, request: Request) -> None:
        """Refuse a request beyond a quota. Raises: Rejected."""
        code, user = request.code, request.user
        sends, reads = code in SENDS, code in READS
        if user is None and not (sends or reads):
            return
        header, counts = request.header, sends or reads
        # Only a super user is believed: any other user could charge its requests to another one.
        proxied = request.ext().get(PROXIED_USER) if user is not None and user.is_super else None
        use = Use(
            user=proxied or (None if user is None else user.name),
            topic=getattr(header, "topic", None) if counts else None,
            group=getattr(header, "consumer_group", None) if counts else None,
            messages=_count(request) if sends else 0,
            size=len(request.body) if sends else 0,
            requests=int(counts),
            connection=None if proxied else request.connection,
        )
        self.quotas.require(use, self.clock(), reads=reads)


def _count(request: Request) -> int:
    """Return the number of messages of a send: in a batch each begins with its size."""
    if request.code != Code.SEND_BATCH_MESSAGE and not getattr(request.header, "batch", False):
        return 1
    body, at, count = request.body, 0, 0
    while at + _SIZE.size <= len(body):
        (size,) = _SIZE.unpack_from(body, at)
        if size < _SIZE.size:
            break  # the handler refuses it
        at += size
        count += 1
    return max(1, count)
