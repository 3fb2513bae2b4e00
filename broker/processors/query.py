"""Looking messages up: by key (12) and by log offset (33).

Source: broker/processor/QueryMessageProcessor.java.
"""

from __future__ import annotations

import attrs

from triomq.broker.store.store import MessageStore
from triomq.remoting.errors import Rejected
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.query import QueryMessageHeader, QueryMessageResponseHeader, ViewMessageHeader
from triomq.remoting.server.handlers import Request, Response

UNIQUE_COUNT_MAX = 32


@attrs.define(eq=False)
class QueryMessages:
    """Both look-ups read the disk where need be."""

    store: MessageStore

    async def by_key(self, request: Request) -> Response:
        """QUERY_MESSAGE: candidates from the key index; two keys may share a hash, so the client compares the keys itself."""
        header: QueryMessageHeader = request.header
        unique = bool(header.unique_key)
        found = await self.store.query(
            header.topic,
            header.key,
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
        """VIEW_MESSAGE_BY_ID: one record at exactly this log offset."""
        header: ViewMessageHeader = request.header
        record = await self.store.read_record(header.offset)
        if record is None:
            raise Rejected(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {header.offset}")
        return Response(body=record)
