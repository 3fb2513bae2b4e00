"""The JSON form of a stored message, with the names of mqadmin. Pure."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from triomq.remoting.core.address import format_address
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.protocol.compression import plain_body

if TYPE_CHECKING:
    from triomq.remoting.protocol.record import StoredMessage


def message_document(message: StoredMessage) -> dict[str, Any]:
    """Return a message as JSON prints it; the body is text if it is UTF-8, otherwise base64."""
    try:
        body: bytes = plain_body(message.body, message.sys_flag)
    except RemotingError:
        body = message.body  # an unknown compression; shown as stored
    try:
        text, encoded = body.decode(), None
    except UnicodeDecodeError:
        text, encoded = None, base64.b64encode(body).decode()
    return {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "msgId": message.message_id,
        "offsetMsgId": message.offset_message_id,
        "tags": message.tag,
        "keys": list(message.keys),
        "properties": dict(message.properties),
        "body": text,
        "bodyBase64": encoded,
        "bornTimestamp": message.born_timestamp,
        "bornHost": format_address(*message.born_host),
        "storeTimestamp": message.store_timestamp,
        "storeHost": format_address(*message.store_host),
        "commitLogOffset": message.log_offset,
        "storeSize": message.size,
        "sysFlag": message.sys_flag,
        "flag": message.flag,
        "reconsumeTimes": message.reconsume_times,
    }
