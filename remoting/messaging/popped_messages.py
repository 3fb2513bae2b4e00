"""Requests about messages that were popped, for all calls that make them."""

from __future__ import annotations

import attrs

from triomq.remoting.grpc.apache_rocketmq.definition_pb2 import Code
from triomq.remoting.messaging.cluster import BrokerLink
from triomq.remoting.messaging.status_codes import Refused, refused_by_broker
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import request as new_request
from triomq.remoting.protocol.headers.pop import (
    AckMessageHeader,
    ChangeInvisibleTimeHeader,
    ChangeInvisibleTimeResponseHeader,
)
from triomq.remoting.protocol.headers.query import ViewMessageHeader
from triomq.remoting.protocol.headers.send import SendBackHeader
from triomq.remoting.protocol.inner_batch import is_inner_batch, unwrap
from triomq.remoting.protocol.names import RETRY_PREFIX, pop_retry_topics
from triomq.remoting.protocol.receipt_handle import NORMAL, RETRY_V1, ReceiptHandle
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
        parts = text.split(" ")
        offset = parts[8] if len(parts) == 9 else ""
        known = offset.isascii() and offset.isdecimal() and len(offset) < 20
        return cls(group, topic, handle, int(offset) if known else -1)

    @property
    def text(self) -> str:
        """The handle for clients."""
        return f"{self.handle.encode()} {self.log_offset}"

    @property
    def stored_topic(self) -> str:
        """The topic that it was popped from: the one that was asked for, or a retry topic."""
        # A Java broker lists a retry topic that was asked for by its own name as one of kind 1.
        if self.handle.retry == NORMAL or self.topic.startswith(RETRY_PREFIX):
            return self.topic
        first, second = pop_retry_topics(self.group, self.topic)
        return first if self.handle.retry == RETRY_V1 else second

    async def acknowledge(self, link: BrokerLink) -> None:
        """Acknowledge it. Raises: Refused, RemotingError."""
        handle = self.handle
        answer = await link.invoke(
            handle.broker_name,
            new_request(
                RequestCode.ACK_MESSAGE,
                AckMessageHeader(
                    self.group,
                    self.stored_topic,
                    handle.queue_id,
                    handle.encode(),
                    handle.offset,
                    broker_name=handle.broker_name,
                ),
            ),
            CALL_SECONDS,
        )
        if answer.code != ResponseCode.SUCCESS:
            raise refused_by_broker(answer.code, answer.remark)

    async def change_time(self, link: BrokerLink, invisible_ms: int) -> PoppedMessage:
        """Hide it for another time from now; return it with its new handle.

        Raises: Refused, RemotingError.
        """
        handle = self.handle
        answer = await link.invoke(
            handle.broker_name,
            new_request(
                RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
                ChangeInvisibleTimeHeader(
                    self.group,
                    self.stored_topic,
                    handle.queue_id,
                    handle.encode(),
                    handle.offset,
                    invisible_ms,
                    broker_name=handle.broker_name,
                ),
            ),
            CALL_SECONDS,
        )
        if answer.code != ResponseCode.SUCCESS:
            raise refused_by_broker(answer.code, answer.remark)
        header = answer.header(ChangeInvisibleTimeResponseHeader)
        renewed = handle._replace(
            start_offset=handle.offset,
            pop_time=header.pop_time,
            invisible_ms=header.invisible_ms,
            revive_queue=header.revive_queue_id,
        )
        return attrs.evolve(self, handle=renewed)

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
        answer = await link.invoke(
            self.handle.broker_name,
            new_request(
                RequestCode.CONSUMER_SEND_MSG_BACK,
                SendBackHeader(
                    offset=self.log_offset,
                    group=self.group,
                    delay_level=-1,
                    origin_topic=self.stored_topic,
                    max_reconsume_times=0,
                    broker_name=self.handle.broker_name,
                ),
            ),
            CALL_SECONDS,
        )
        if answer.code != ResponseCode.SUCCESS:
            raise refused_by_broker(answer.code, answer.remark)
        await self.acknowledge(link)


def _invalid(cause: str) -> Refused:
    return Refused(
        Code.INVALID_RECEIPT_HANDLE, f"{cause}; give back the handle as it came with the message"
    )
