"""Send a test message, and a copy of a stored message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from triomq.client.admin.resend.copy_sender import CopySender
from triomq.client.admin.resend.message_copy import COPY_GROUP, copy_to
from triomq.client.core.config import ClientSettings, ProducerSettings
from triomq.client.sdk.producer import Producer

if TYPE_CHECKING:
    from triomq.client.console.core.page_visit import Console
    from triomq.client.sending.receipt import SendReceipt
    from triomq.remoting.protocol.record import StoredMessage

SEND_SECONDS = 3.0


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
        group=COPY_GROUP,
        settings=ProducerSettings(client=client, send_timeout=SEND_SECONDS),
    ) as producer:
        return await producer.send(topic, body, tag=tag, keys=keys)


async def send_again(console: Console, message: StoredMessage, topic: str, group: str) -> None:
    """Send a copy to a topic, or with a ``group`` to that group only. Raises: TrioMQError."""
    await CopySender(console.admin).send(copy_to(message, topic, group))
