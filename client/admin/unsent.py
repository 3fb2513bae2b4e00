"""Requests that change a server: which they are, and how ``--dry-run`` holds them back. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import RESPONSE_FLAG, Command

READING_PREFIXES = (
    "GET_",
    "QUERY_",
    "VIEW_",
    "SEARCH_",
    "AUTH_GET_",
    "AUTH_LIST_",
    "CONTROLLER_GET_",
)
READING_CODES = frozenset(
    {
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.PEEK_MESSAGE,
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS,
        RequestCode.CONTROLLER_GET_METADATA_INFO,
        RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
        RequestCode.CONTROLLER_GET_REPLICA_INFO,
    }
)
EMPTY_ANSWERS: Mapping[RequestCode, tuple[dict[str, str], bytes]] = {
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: ({}, b'{"offsetTable":{}}'),
    RequestCode.SEND_MESSAGE_V2: ({"msgId": "", "queueId": "0", "queueOffset": "0"}, b""),
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: ({"wipeTopicCount": "0"}, b""),
    RequestCode.ADD_WRITE_PERM_OF_BROKER: ({"addTopicCount": "0"}, b""),
}
"""header fields and body of answers that commands read; others read none"""


@attrs.frozen
class UnsentRequest:
    """A request that would change a server, and was not sent."""

    address: str
    code: RequestCode
    header: object | None
    body: bytes


def changes_server(code: RequestCode) -> bool:
    """Return whether a request may change its server: all but those that are known to read."""
    return not code.name.startswith(READING_PREFIXES) and code not in READING_CODES


def success(code: RequestCode) -> Command:
    """Return the answer to a request that was held back, as if it had nothing to do."""
    ext, body = EMPTY_ANSWERS.get(code, ({}, b""))
    return Command(code=0, flag=RESPONSE_FLAG, ext=dict(ext), body=body)
