"""Requests about messages that were popped, for all calls that make them."""

from __future__ import annotations

import attrs

from triomq.remoting.grpc.apache_rocketmq.definition_pb2 import Code
from triomq.remoting.messaging.cluster import BrokerLink
from triomq.remoting.messaging.status_codes import Refused, refused_by_broker
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command
from triomq.remoting.protocol.command import request as new_request
from triomq.remoting.protocol.consuming.popped_requests import (
    ack_request,
    change_request,
    changed_handle,
    dead_letter_request,
    stored_topic,
)
from triomq.remoting.protocol.headers.pop import ChangeInvisibleTimeResponseHeader
from triomq.remoting.protocol.headers.query import ViewMessageHeader
from triomq.remoting.protocol.inner_batch import is_inner_batch, unwrap
from triomq.remoting.protocol.receipt_handle import ReceiptHandle, number
from triomq.remoting.protocol.record_reader import decode_records

CALL_SECONDS = 3.0
RETURN_MS = 1_000
"""The invisible time of messages that are given back, as Java's proxy has it."""


@attrs.frozen
class PoppedMessage:
    """A message of a group and topic by its handle. ``log_offset``: -1 if it is not known."""

    group: str
    topic: str
    handle: ReceiptHandle
    log_offset: int = -1

    @classmethod
    def of(cls, group: str, topic: str, text: str) -> PoppedMessage:
        """Return the message of a handle that a client gives back; its ninth field is optional.

        Raises: RemoteProtocolError.
        """
        handle = ReceiptHandle.decode(text)
        offset = number(text.rpartition(" ")[2]) if text.count(" ") == 8 else None
        return cls(group, topic, handle, -1 if offset is None else offset)

    @property
    def text(self) -> str:
        """The handle for clients."""
        return f"{self.handle.encode()} {self.log_offset}"

    @property
    def stored_topic(self) -> str:
        """The topic that it was popped from: the one that was asked for, or a retry topic."""
        return stored_topic(self.group, self.topic, self.handle)

    async def acknowledge(self, link: BrokerLink) -> None:
        """Acknowledge it. Raises: Refused, RemotingError."""
        await self._request(link, ack_request(self.group, self.stored_topic, self.handle))

    async def change_time(self, link: BrokerLink, invisible_ms: int) -> PoppedMessage:
        """Hide it for another time from now; return it with its new handle.

        Raises: Refused, RemotingError.
        """
        answer = await self._request(
            link, change_request(self.group, self.stored_topic, self.handle, invisible_ms)
        )
        return self.changed(answer.header(ChangeInvisibleTimeResponseHeader))

    def changed(self, answer: ChangeInvisibleTimeResponseHeader) -> PoppedMessage:
        """Return it with the handle of its new time."""
        return attrs.evolve(self, handle=changed_handle(self.handle, answer))

    async def require_stored(self, link: BrokerLink) -> None:
        """Refuse a handle that leads to another message, or to none: a client has invented it.

        A broker makes a dead letter of any message that it is asked for by its place in the log,
        so that a group could read other topics.

        Raises: Refused, RemotingError.
        """
        if self.log_offset < 0:
            raise _invalid("the handle does not say where the message is")
        header = ViewMessageHeader(self.log_offset, self.stored_topic, self.handle.broker_name)
        command = new_request(RequestCode.VIEW_MESSAGE_BY_ID, header)
        answer = await link.invoke(self.handle.broker_name, command, CALL_SECONDS)
        if answer.code == ResponseCode.SYSTEM_ERROR:
            raise _invalid("no message begins at the place that the handle names")
        if answer.code != ResponseCode.SUCCESS:
            raise refused_by_broker(answer.code, answer.remark)
        (message,) = decode_records(bytes(answer.body))
        found = unwrap(message) if is_inner_batch(message) else [message]
        place = self.stored_topic, self.handle.queue_id, self.handle.offset
        if all((one.topic, one.queue_id, one.queue_offset) != place for one in found):
            raise _invalid("another message is at the place that the handle names")

    async def to_dead_letters(self, link: BrokerLink) -> None:
        """Store it as a dead letter of its group, then acknowledge it.

        Raises: Refused, RemotingError.
        """
        await self._request(
            link,
            dead_letter_request(
                self.group, self.stored_topic, self.handle.broker_name, self.log_offset
            ),
        )
        await self.acknowledge(link)

    async def _request(self, link: BrokerLink, command: Command) -> Command:
        """Return the answer of its broker. Raises: Refused, RemotingError."""
        answer = await link.invoke(self.handle.broker_name, command, CALL_SECONDS)
        if answer.code != ResponseCode.SUCCESS:
            raise refused_by_broker(answer.code, answer.remark)
        return answer


def _invalid(cause: str) -> Refused:
    return Refused(
        Code.INVALID_RECEIPT_HANDLE, f"{cause}; give back the handle as it came with the message"
    )
