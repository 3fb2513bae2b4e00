"""Read stored messages for administration: by offset, by key.

Pulls do not wait and commit no offset. They carry their own subscription (``*``), so no heartbeat
is needed.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from triomq.client.admin.answers import read_header
from triomq.client.core.errors import from_remoting
from triomq.remoting.core.address import format_address
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command
from triomq.remoting.protocol.headers.pull import (
    SUBSCRIPTION,
    PullMessageHeader,
    PullMessageResponseHeader,
)
from triomq.remoting.protocol.headers.query import INDEX_OF_TAGS, QueryMessageHeader
from triomq.remoting.protocol.ids import decode_offset_message_id
from triomq.remoting.protocol.message_properties import UNIQ_KEY
from triomq.remoting.protocol.record import StoredMessage
from triomq.remoting.protocol.record_reader import decode_records

if TYPE_CHECKING:
    from triomq.client.admin.requests import AdminRequests

TOOLS_GROUP = "TOOLS_CONSUMER"
"""the group that every broker has for such reads"""
UNIQUE_COUNT_MAX = 32
"""messages that one unique id is searched for: a send that is repeated has the same id"""
FAR_FUTURE_MS = (1 << 63) - 1
PULL_MESSAGES_MAX = 32
PULL_TIMEOUT_SECONDS = 10.0
QUERY_TIMEOUT_SECONDS = 15.0
PULL_ANSWERS = (
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


async def read_messages(
    requests: AdminRequests,
    address: str,
    queue: MessageQueue,
    offset: int,
    *,
    count: int,
    end_offset: int | None,
    group: str,
) -> list[StoredMessage]:
    """Read up to ``count`` messages from ``offset`` on, past gaps and expired messages."""
    found: list[StoredMessage] = []
    while len(found) < count and (end_offset is None or offset < end_offset):
        header = pull_header(queue, offset, min(PULL_MESSAGES_MAX, count - len(found)), group)
        response = await requests.server(
            address,
            RequestCode.PULL_MESSAGE,
            header,
            accept=PULL_ANSWERS,
            timeout_seconds=PULL_TIMEOUT_SECONDS,
        )
        answer = read_header(PullMessageResponseHeader, response)
        if response.code == ResponseCode.SUCCESS:
            batch = records(response)
            found += [
                message
                for message in batch
                if end_offset is None or message.queue_offset < end_offset
            ]
        if answer.next_begin_offset <= offset:
            break  # the end of the queue
        offset = answer.next_begin_offset
    return found


def pull_header(
    queue: MessageQueue, offset: int, count: int, group: str, sql: str = ""
) -> PullMessageHeader:
    """Return the header of a pull that does not wait and commits nothing."""
    return PullMessageHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        message_count_max=count,
        sys_flag=SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_ms=0,
        subscription=sql or "*",
        sub_version=0,
        expression_type="SQL92" if sql else "TAG",
    )


async def query(
    requests: AdminRequests, address: str, header: QueryMessageHeader
) -> list[StoredMessage]:
    """Return the messages of one broker that have the key, newest first."""

    def matches(message: StoredMessage) -> bool:
        """Compare the key: a broker's index compares only its hash."""
        if message.topic != header.topic:
            return False
        if header.unique_key:
            return message.properties.get(UNIQ_KEY) == header.key
        if header.index_type == INDEX_OF_TAGS:
            return message.tag == header.key
        return header.key in message.keys

    response = await requests.server(
        address,
        RequestCode.QUERY_MESSAGE,
        header,
        accept=(ResponseCode.QUERY_NOT_FOUND,),
        timeout_seconds=QUERY_TIMEOUT_SECONDS,
    )
    if response.code != ResponseCode.SUCCESS:
        return []
    return sorted(
        filter(matches, records(response)),
        key=lambda message: (message.store_timestamp, message.log_offset),
        reverse=True,
    )[: header.count_max]


def records(response: Command) -> list[StoredMessage]:
    """Return the messages in the body of an answer. Raises: ProtocolBroken."""
    try:
        return decode_records(response.body)
    except RemotingError as error:
        raise from_remoting(error) from error


def parse_offset_id(text: str) -> tuple[str, int] | None:
    """Return broker address and commit-log offset of an offset message id, None for other ids."""
    try:
        host, port, log_offset = decode_offset_message_id(text)
    except ValueError:
        return None
    if not 0 < port < 65536:
        return None
    return format_address(str(ipaddress.ip_address(host)), port), log_offset
