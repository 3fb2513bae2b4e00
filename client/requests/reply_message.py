"""``ReplyMessage``: the reply to a request, as the requester gets it."""

from __future__ import annotations

import ipaddress

from triomq.client.core.errors import MessageInvalid
from triomq.client.receiving.pushed_message import PushedMessage
from triomq.remoting.protocol.headers.send import ReplyMessageHeader
from triomq.remoting.protocol.message_properties import ARRIVE_TIME, CORRELATION_ID
from triomq.remoting.protocol.record import HOST_V4_BYTES, StoredMessage, encode_host
from triomq.remoting.protocol.short_repr import short_text
from triomq.remoting.protocol.sys_flags import COMPRESSION_MASK

_NO_PLACE = -1
"""The queue offset and the log offset of a reply: the broker does not say where it is stored."""


class ReplyMessage(PushedMessage):
    """The reply to a request; read-only.

    It came over the network and not from a queue: ``queue_offset`` and ``log_offset`` are -1.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {short_text(self.message_id)} to request"
            f" {short_text(self.correlation_id)}, {len(self._record.body):,} bytes>"
        )

    @property
    def body(self) -> bytes:
        """The body as the replier had it."""
        try:
            return super().body
        except MessageInvalid:
            if self._record.sys_flag & COMPRESSION_MASK:
                raise
            # The Go client marks a reply of 4 KiB as compressed, with no type, and sends it plain.
            return self._record.body

    @property
    def correlation_id(self) -> str:
        """The id of the request that it answers."""
        return self._record.properties.get(CORRELATION_ID, "")

    @property
    def settled(self) -> bool:
        """True: the request has its reply."""
        return True


def reply_record(header: ReplyMessageHeader, body: bytes, now_ms: int) -> StoredMessage:
    """Return a pushed reply as a record, with its time of arrival as in Java's client."""
    return StoredMessage(
        topic=header.topic,
        queue_id=header.queue_id,
        queue_offset=_NO_PLACE,
        log_offset=_NO_PLACE,
        size=len(body),
        flag=header.flag,
        sys_flag=header.sys_flag,
        born_timestamp=header.born_timestamp,
        born_host_bytes=_host(header.born_host),
        store_timestamp=header.store_timestamp,
        store_host_bytes=_host(header.store_host),
        reconsume_times=header.reconsume_times or 0,
        prepared_transaction_offset=0,
        body=body,
        body_crc=0,
        properties_bytes=(
            f"{(header.properties or '').rstrip(chr(2))}\x02{ARRIVE_TIME}\x01{now_ms}\x02"
        ).encode("utf-8", "replace"),
    )


def _host(text: str) -> bytes:
    """Return an encoded host; zeros for a host name, or a text that is not an address."""
    host, _, port = text.rpartition(":")
    try:
        return encode_host(ipaddress.ip_address(host.strip("[]")).packed, int(port))
    except (ValueError, OverflowError):
        return bytes(HOST_V4_BYTES)
