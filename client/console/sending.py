"""Send a test message, and send stored messages again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from triomq.client.config import ClientSettings, ProducerSettings
from triomq.client.producer.producer import Producer
from triomq.remoting.protocol.bodies.route import PERM_WRITE
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.send import SendMessageHeader
from triomq.remoting.protocol.message_properties import (
    KEYS,
    ORIGIN_MESSAGE_ID,
    RESERVED_PROPERTIES,
    RETRY_TOPIC,
    SHARDING_KEY,
    TAGS,
    UNIQ_KEY,
    WAIT,
    joined_properties,
)
from triomq.remoting.protocol.names import DEFAULT_TOPIC, DLQ_PREFIX, RETRY_PREFIX
from triomq.remoting.protocol.sys_flags import COMPRESSED, COMPRESSION_MASK

if TYPE_CHECKING:
    from triomq.client.console.visit import Console
    from triomq.client.producer.receipt import SendReceipt
    from triomq.remoting.protocol.record import StoredMessage

SEND_GROUP = "TOOLS_PRODUCER"
SEND_SECONDS = 3.0
KEPT = frozenset({KEYS, TAGS, UNIQ_KEY, SHARDING_KEY, "BUYER_ID"})
"""reserved properties that a copy has as well; the others tell the earlier way through brokers"""


async def send_new(
    console: Console, topic: str, body: bytes, *, tag: str | None, keys: Sequence[str]
) -> SendReceipt:
    """Send one message with a producer of its own. Raises: TrioMQError."""
    settings = console.settings
    client = ClientSettings(
        tls=settings.tls,
        credentials=settings.credentials,
        request_timeout=SEND_SECONDS,
        route_timeout=SEND_SECONDS,
    )
    async with Producer(
        list(console.admin.namesrv_addresses),
        group=SEND_GROUP,
        settings=ProducerSettings(client=client, send_timeout=SEND_SECONDS),
    ) as producer:
        return await producer.send(topic, body, tag=tag, keys=keys)


def origin_topic(message: StoredMessage) -> str | None:
    """Return the topic that a dead letter was sent to first, None if it does not say."""
    properties = message.properties
    found = properties.get("DLQ_ORIGIN_TOPIC") or properties.get(RETRY_TOPIC)
    if found and not found.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        return found
    return None


async def send_again(console: Console, message: StoredMessage, topic: str, group: str) -> None:
    """Send a copy of a stored message, with the same body, id, tag, keys and own properties.

    With a ``group`` the copy goes to its retry topic, so no other group gets it; the group's
    consumers see it as a message of ``topic``. Without one it goes to ``topic``, and all groups of
    that get it.

    Raises: TrioMQError.
    """
    target = RETRY_PREFIX + group if group else topic
    properties = {
        name: value
        for name, value in message.properties.items()
        if name not in RESERVED_PROPERTIES or name in KEPT
    }
    properties[WAIT] = "true"
    if group:
        properties[RETRY_TOPIC] = topic
        properties[ORIGIN_MESSAGE_ID] = message.properties.get(UNIQ_KEY, message.message_id)
    route = await console.admin.route(target)
    masters = route.masters
    writable = [
        data
        for data in route.queue_datas
        if data.perm & PERM_WRITE and data.write_queue_count and data.broker_name in masters
    ]
    if not writable:
        raise ValueError(f"topic {target} has no queue that may be written now")
    now_ms = time.time_ns() // 1_000_000
    chosen = writable[now_ms % len(writable)]
    header = SendMessageHeader(
        producer_group=SEND_GROUP,
        topic=target,
        default_topic=DEFAULT_TOPIC,
        default_topic_queue_count=4,
        queue_id=now_ms // 7 % chosen.write_queue_count,
        sys_flag=message.sys_flag & (COMPRESSED | COMPRESSION_MASK),
        born_timestamp=now_ms,
        flag=message.flag,
        properties=joined_properties(properties),
        reconsume_times=0,
        unit_mode=False,
        batch=False,
        broker_name=chosen.broker_name,
    )
    await console.admin.ask(
        masters[chosen.broker_name], RequestCode.SEND_MESSAGE_V2, header, bytes(message.body)
    )
