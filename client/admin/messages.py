"""Read stored messages for administration: by offset, by key, by position in the commit log.

Pulls never wait and never commit: they carry their own subscription (`*`), so no heartbeat is needed, and no offset of any group moves.
"""

from __future__ import annotations

from triomq.client.admin.calls import Calls, read_header
from triomq.client.errors import BrokerFailed, from_remoting
from triomq.remoting.errors import RemotingError
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command
from triomq.remoting.protocol.headers.pull import SUBSCRIPTION, PullMessageHeader, PullMessageResponseHeader
from triomq.remoting.protocol.headers.query import QueryMessageHeader, ViewMessageHeader
from triomq.remoting.protocol.message import UNIQ_KEY
from triomq.remoting.protocol.record import StoredMessage, decode_records

TOOLS_GROUP = "TOOLS_CONSUMER"
"""the group that exists on every broker for such reads"""
FAR_FUTURE_MS = (1 << 63) - 1
PULL_MESSAGES_MAX = 32
PULL_TIMEOUT_SECONDS = 10.0
QUERY_TIMEOUT_SECONDS = 15.0
_PULL_ANSWERS = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)


async def read(
    calls: Calls, address: str, queue: MessageQueue, offset: int, *, count: int, end_offset: int | None, group: str
) -> list[StoredMessage]:
    """Read up to `count` messages from `offset` on; gaps and offsets below the queue's first one are skipped."""
    found: list[StoredMessage] = []
    while len(found) < count and (end_offset is None or offset < end_offset):
        header = PullMessageHeader(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            message_count_max=min(PULL_MESSAGES_MAX, count - len(found)),
            sys_flag=SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_ms=0,
            subscription="*",
            sub_version=0,
            expression_type="TAG",
        )
        response = await calls.server(
            address, RequestCode.PULL_MESSAGE, header, accept=_PULL_ANSWERS, timeout_seconds=PULL_TIMEOUT_SECONDS
        )
        answer = read_header(PullMessageResponseHeader, response)
        if response.code == ResponseCode.SUCCESS:
            batch = _records(response)
            found += [message for message in batch if end_offset is None or message.queue_offset < end_offset]
        if answer.next_begin_offset <= offset:
            break  # the end of the queue
        offset = answer.next_begin_offset
    return found


async def query(
    calls: Calls, address: str, topic: str, key: str, *, count: int, begin_ms: int, end_ms: int, unique: bool
) -> list[StoredMessage]:
    """Return the messages of one broker that have the key, newest first.

    The broker's index knows keys by hash only, so strangers are dropped here.
    """
    header = QueryMessageHeader(
        topic=topic, key=key, count_max=count, begin_timestamp=begin_ms, end_timestamp=end_ms, unique_key=unique
    )
    response = await calls.server(
        address,
        RequestCode.QUERY_MESSAGE,
        header,
        accept=(ResponseCode.QUERY_NOT_FOUND,),
        timeout_seconds=QUERY_TIMEOUT_SECONDS,
    )
    if response.code != ResponseCode.SUCCESS:
        return []
    matching = [message for message in _records(response) if message.topic == topic and _has_key(message, key, unique)]
    return sorted(matching, key=lambda message: (message.store_timestamp, message.log_offset), reverse=True)[:count]


def _records(response: Command) -> list[StoredMessage]:
    try:
        return decode_records(response.body)
    except RemotingError as error:
        raise from_remoting(error) from error


def _has_key(message: StoredMessage, key: str, unique: bool) -> bool:
    if unique:
        return message.properties.get(UNIQ_KEY) == key
    return key in message.keys


async def view(calls: Calls, address: str, log_offset: int, topic: str | None) -> StoredMessage | None:
    """Return the message that begins at a position of the commit log."""
    try:
        response = await calls.server(
            address, RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader(offset=log_offset, topic=topic)
        )
    except BrokerFailed:
        return None  # the broker's word for "nothing begins there"
    return next(iter(_records(response)), None)
