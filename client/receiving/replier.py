"""How a consumer answers a request: SEND_REPLY_MESSAGE_V2 (325).

The reply goes to the broker that had the request, since the requester is connected to it; if that
broker does not take it, or has no connection of the requester, the reply goes to the other brokers
of the routes. The broker answers when the requester has the reply.

Source: client/…/utils/MessageUtil.java#createReplyMessage.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

import attrs
import trio

from triomq.client.core.arguments import check_timeout, shown
from triomq.client.core.client_id import make_unique_ids
from triomq.client.core.errors import (
    BrokerError,
    ConnectionFailed,
    ConnectionLost,
    MessageInvalid,
    NoNameServer,
    NotARequest,
    ReplyNotDelivered,
    RouteNotFound,
    SettingsError,
    TrioMQError,
)
from triomq.client.core.session import Session
from triomq.remoting.core.errors import LocalProtocolError
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.send import SendMessageHeader
from triomq.remoting.protocol.ids import UniqueIds
from triomq.remoting.protocol.message_properties import (
    CLUSTER,
    CORRELATION_ID,
    MESSAGE_TYPE,
    PROPERTIES_BYTES_MAX,
    REPLY_TO_CLIENT,
    REPLY_TTL,
    UNIQ_KEY,
    properties_text,
    user_properties,
)
from triomq.remoting.protocol.names import DEFAULT_TOPIC, REPLY_MESSAGE, reply_topic
from triomq.remoting.protocol.record import StoredMessage

BODY_BYTES_MAX = 4 * 1024 * 1024
"""The default limit of brokers (maxMessageSize)."""
_TEMPLATE_QUEUES = 4
_PAUSES = (0.1, 0.3, 1.0)
"""Seconds between rounds: a requester whose connection was lost registers again at once, and a new
Go client registers a second after its start.
"""


@attrs.define(eq=False)
class Replier:
    """Sends the replies of one consumer."""

    group: str
    session: Session
    _ids: UniqueIds | None = attrs.field(default=None, init=False)

    async def reply(
        self,
        record: StoredMessage,
        queue: MessageQueue,
        body: bytes,
        properties: Mapping[str, str] | None,
        timeout: float,
    ) -> None:
        """Send a reply and wait until the requester has it.

        Raises: ``NotARequest``, ``MessageInvalid``, ``SettingsError``; ``ReplyNotDelivered``,
        ``RequestTimeout``, ``ProtocolBroken``.
        """
        seconds = check_timeout(timeout)
        if not seconds:
            raise SettingsError(f"timeout must be a number greater than 0, not {timeout!r}")
        asked = _request_properties(record)
        header = self._header(asked, body, properties)
        deadline = trio.current_time() + seconds
        errors: list[TrioMQError] = []
        for pause in (0.0, *_PAUSES):
            if trio.current_time() + pause >= deadline:
                break
            await trio.sleep(pause)
            errors = []
            for name, address in self._brokers(queue):
                header.broker_name = name
                command = request(RequestCode.SEND_REPLY_MESSAGE_V2, header, bytes(body))
                left = max(0.0, deadline - trio.current_time())
                try:
                    await self.session.call(address, command, left)
                except (BrokerError, ConnectionFailed, ConnectionLost) as error:
                    errors.append(error)
                else:
                    return
            if not errors:  # the route may be older than the broker's new master
                with trio.move_on_at(deadline):
                    try:
                        await self.session.finder.refresh(queue.topic)
                    except NoNameServer as error:
                        errors.append(error)
        if not errors:
            raise RouteNotFound(queue.topic, f"broker {queue.broker_name} has no master now")
        client_id, correlation_id = asked[REPLY_TO_CLIENT], asked[CORRELATION_ID]
        raise ReplyNotDelivered(client_id, correlation_id, errors) from errors[0]

    def _brokers(self, queue: MessageQueue) -> Iterator[tuple[str, str]]:
        """Yield name and address of the request's broker, then of the others in the routes."""
        routes = self.session.routes
        others = [name for name in routes.broker_names() if name != queue.broker_name]
        for name in (queue.broker_name, *others):
            address = routes.master(name)
            if address is not None:
                yield name, address

    def _header(
        self, asked: dict[str, str], body: bytes, properties: Mapping[str, str] | None
    ) -> SendMessageHeader:
        """Return the header of a reply. Raises: ``MessageInvalid``."""
        if not isinstance(body, bytes | bytearray | memoryview) or not body:
            raise MessageInvalid(
                f"the body of a reply must be bytes, at least one, not {shown(body)}"
            )
        if len(body) > BODY_BYTES_MAX:
            raise MessageInvalid(
                f"the reply has {len(body)} bytes, the limit is {BODY_BYTES_MAX}: store the payload"
                " elsewhere and reply with a reference"
            )
        now_ms = time.time_ns() // 1_000_000
        if self._ids is None:
            self._ids = make_unique_ids(self.session.client_id)
        try:
            text = properties_text(
                {
                    **user_properties(properties or {}),
                    MESSAGE_TYPE: REPLY_MESSAGE,
                    REPLY_TO_CLIENT: asked[REPLY_TO_CLIENT],
                    UNIQ_KEY: self._ids.next(now_ms),
                    **({REPLY_TTL: asked[REPLY_TTL]} if REPLY_TTL in asked else {}),
                    CORRELATION_ID: asked[CORRELATION_ID],
                }
            )
        except LocalProtocolError as error:
            raise MessageInvalid(str(error)) from error
        if len(text.encode("utf-8", "replace")) > PROPERTIES_BYTES_MAX:
            raise MessageInvalid(
                f"the properties of the reply have more than {PROPERTIES_BYTES_MAX} bytes: put them"
                " into the body"
            )
        return SendMessageHeader(
            producer_group=self.group,
            topic=reply_topic(asked[CLUSTER]),
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_count=_TEMPLATE_QUEUES,
            queue_id=0,
            sys_flag=0,
            born_timestamp=now_ms,
            flag=0,
            properties=text,
            reconsume_times=0,
            unit_mode=False,
            batch=False,
        )


def _request_properties(record: StoredMessage) -> dict[str, str]:
    """Return the properties of a request. Raises: ``NotARequest``."""
    properties = record.properties
    missing = [
        name for name in (CORRELATION_ID, REPLY_TO_CLIENT, CLUSTER) if name not in properties
    ]
    if missing:
        raise NotARequest(record.message_id, record.topic, missing)
    return properties
