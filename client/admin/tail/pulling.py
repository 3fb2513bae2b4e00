"""One plain pull: it does not wait, commits no offset, and needs no heartbeat."""

from __future__ import annotations

from typing import TYPE_CHECKING

from triomq.client.admin.answers import read_header
from triomq.client.admin.messages import (
    PULL_ANSWERS,
    PULL_MESSAGES_MAX,
    TOOLS_GROUP,
    pull_header,
    records,
)
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.headers.pull import PullMessageResponseHeader

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin
    from triomq.remoting.protocol.bodies.route import MessageQueue
    from triomq.remoting.protocol.record import StoredMessage


async def pull(
    admin: Admin, address: str, queue: MessageQueue, offset: int, *, sql: str = ""
) -> tuple[list[StoredMessage], int]:
    """Return what one pull gets, and the offset to go on at: not a later one at the end.

    ``sql``: a condition that the broker checks; empty: none.

    Raises: BrokerError, for instance for a condition without ``enablePropertyFilter=true``.
    """
    header = pull_header(queue, offset, PULL_MESSAGES_MAX, TOOLS_GROUP, sql)
    response = await admin.ask(address, RequestCode.PULL_MESSAGE, header, b"", *PULL_ANSWERS)
    answer = read_header(PullMessageResponseHeader, response)
    found = records(response) if response.code == ResponseCode.SUCCESS else []
    return found, answer.next_begin_offset
