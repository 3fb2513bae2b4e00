"""Look messages up: QUERY_MESSAGE (12) by key, VIEW_MESSAGE_BY_ID (33) by log offset.

Source: broker/processor/QueryMessageProcessor.java.
"""

from __future__ import annotations

import attrs

from triomq.broker.store.store import MessageStore
from triomq.remoting.access.resources import Action
from triomq.remoting.core.errors import Rejected
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.query import (
    INDEX_OF_TAGS,
    QueryMessageHeader,
    QueryMessageResponseHeader,
    ViewMessageHeader,
)
from triomq.remoting.protocol.record_reader import decode_records
from triomq.remoting.server.access_check import AccessCheck
from triomq.remoting.server.requests import Request, Response

UNIQUE_COUNT_MAX = 32


@attrs.define(eq=False)
class QueryMessages:
    """The handlers; both may wait for the disk."""

    store: MessageStore
    access: AccessCheck | None = None
    """Set where requests are authorized."""

    async def by_key(self, request: Request) -> Response:
        """Return the messages that the key index names; the client compares the keys.

        The client must: two keys may share a hash.
        """
        header: QueryMessageHeader = request.header
        unique = bool(header.unique_key)
        found = await self.store.query(
            header.topic,
            f"T#{header.key}" if header.index_type == INDEX_OF_TAGS else header.key,
            max_count=UNIQUE_COUNT_MAX if unique else header.count_max,
            begin_ms=header.begin_timestamp,
            end_ms=header.end_timestamp,
            unique=unique,
        )
        made = QueryMessageResponseHeader(found.last_update_ms, found.last_update_offset)
        if not found.chunks:
            remark = "can not find message, maybe time range not correct"
            return Response(ResponseCode.QUERY_NOT_FOUND, made, remark=remark)
        return Response(header=made, body=found.chunks)

    async def by_offset(self, request: Request) -> Response:
        """Return the record that begins at a log offset."""
        header: ViewMessageHeader = request.header
        record = await record_at(self.store, header.offset)
        may_read(self.access, request, record, Action.GET)
        return Response(body=record)


async def record_at(store: MessageStore, offset: int) -> bytes:
    """Return the record that begins at a log offset. Raises: Rejected."""
    record = await store.read_record(offset)
    if record is None:
        raise Rejected(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
    return record


def may_read(access: AccessCheck | None, request: Request, record: bytes, action: Action) -> None:
    """Refuse a request that names a record by its place, unless its user may do *action* on the
    topic. Raises: Rejected.
    """
    if access is not None:
        for message in decode_records(record):
            access.require_message(request, message, action)
