"""The producer of mqadmin's commands that send."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import attrs

from triomq.client.admin.times import request_seconds
from triomq.client.sending.receipt import SendStatus

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin
    from triomq.client.admin.arguments import Values
    from triomq.client.sdk.producer import Producer
    from triomq.client.sending.receipt import SendReceipt

SEND_SECONDS = 3.0
"""time limit for finding the topic, and for sending; less if ``--timeout`` is short"""
SEND_OK = "SEND_OK"
"""Java's text for a message that is stored as the broker's settings demand"""


def tools_producer(
    admin: Admin,
    options: Values,
    group: str,
    *,
    trace: bool = False,
    repeat: bool = True,
    compress: bool = True,
) -> AbstractAsyncContextManager[Producer]:
    """Return a producer with the access of this call.

    ``repeat``: whether to send again; ``compress``: whether to compress large bodies.
    """
    # Not for the help: start-up time.
    from triomq.client.admin.access import given_access
    from triomq.client.core.config import ClientSettings, ProducerSettings  # likewise
    from triomq.client.sdk.producer import Producer  # likewise

    tls, credentials = given_access(options)
    step = min(SEND_SECONDS, request_seconds(options.number("timeout")))
    client = ClientSettings(
        tls=tls, credentials=credentials, request_timeout=step, route_timeout=step, trace=trace
    )
    settings = ProducerSettings(client=client, send_timeout=step)
    if not repeat:
        settings = attrs.evolve(settings, retries=0)
    if not compress:
        settings = attrs.evolve(settings, compress_over_bytes=settings.message_bytes_max)
    return Producer(list(admin.namesrv_addresses), group=group, settings=settings)


def send_result(receipt: SendReceipt) -> str:
    """Return how a message is stored, in Java's words."""
    return SEND_OK if receipt.status is SendStatus.STORED else receipt.status.name
