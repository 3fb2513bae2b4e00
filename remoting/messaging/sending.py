"""The calls of producers: SendMessage, EndTransaction, RecallMessage.

Source: proxy/…/grpc/v2/producer/SendMessageActivity.java, RecallMessageActivity.java,
grpc/v2/transaction/EndTransactionActivity.java.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import attrs
import trio

from triomq.remoting.core.errors import ConnectFailed, RemotingError
from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.grpc.apache_rocketmq.definition_pb2 import Code
from triomq.remoting.grpc.apache_rocketmq.service_pb2 import (
    EndTransactionRequest,
    EndTransactionResponse,
    RecallMessageRequest,
    RecallMessageResponse,
    SendMessageRequest,
    SendMessageResponse,
    SendResultEntry,
)
from triomq.remoting.grpc.methods import CallContext
from triomq.remoting.messaging.checks import check_message, common_topic, topic_name
from triomq.remoting.messaging.cluster import Cluster, known_route, refused_by_network
from triomq.remoting.messaging.known_clients import KnownClient, KnownClients
from triomq.remoting.messaging.route_answers import accepted_types
from triomq.remoting.messaging.routing import message_type
from triomq.remoting.messaging.sent_message import (
    SentMessage,
    queue_of_group,
    require_type,
    sent_message,
)
from triomq.remoting.messaging.status_codes import (
    OK,
    Refused,
    refused_by_broker,
    status,
    top_status,
)
from triomq.remoting.messaging.transaction_place import TransactionPlace
from triomq.remoting.messaging.writable_queues import WritableQueues
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import request as new_request
from triomq.remoting.protocol.headers.send import (
    RecallMessageHeader,
    SendMessageHeader,
    SendMessageResponseHeader,
)
from triomq.remoting.protocol.headers.transaction import (
    COMMIT,
    ROLLBACK,
    UNDECIDED,
    EndTransactionHeader,
)
from triomq.remoting.protocol.ids import decode_offset_message_id
from triomq.remoting.protocol.message_properties import properties_text
from triomq.remoting.protocol.names import DEFAULT_TOPIC
from triomq.remoting.protocol.recall_handle import RecallHandle
from triomq.remoting.protocol.refused_sends import is_refused_for_now
from triomq.remoting.server.turns import Turns, in_turns

SEND_SECONDS = 3.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.05, 0.5
"""While no master takes a message."""
MESSAGES_MAX = 1024
"""Messages of one SendMessage. Clients of RocketMQ send one."""
MESSAGES_AT_ONCE = 64
"""Messages of a request that are stored in a turn: some milliseconds."""
QUESTION_SECONDS = {RequestCode.END_TRANSACTION: 3.0, RequestCode.RECALL_MESSAGE: 2.0}
_DEFAULT_QUEUES = 4
STORED: dict[int, Code] = {
    ResponseCode.SUCCESS: Code.OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: Code.MASTER_PERSISTENCE_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: Code.SLAVE_PERSISTENCE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
}
"""Answers of brokers that have stored the message."""
_TRANSACTION = pb.MessageType.TRANSACTION
_VERDICTS = {pb.TransactionResolution.COMMIT: COMMIT, pb.TransactionResolution.ROLLBACK: ROLLBACK}


def send_header(sent: SentMessage, broker_name: str, queue_id: int) -> SendMessageHeader:
    """Return the header of the request that stores a message."""
    return SendMessageHeader(
        producer_group=sent.topic,
        topic=sent.topic,
        default_topic=DEFAULT_TOPIC,
        default_topic_queue_count=_DEFAULT_QUEUES,
        queue_id=queue_id,
        sys_flag=sent.sys_flag,
        born_timestamp=sent.born_timestamp,
        flag=0,
        properties=properties_text(sent.properties),
        reconsume_times=0,
        unit_mode=False,
        batch=False,
        broker_name=broker_name,
    )


def result_entry(
    sent: SentMessage,
    broker_name: str,
    message_id: str,
    code: int,
    remark: str | None,
    place: SendMessageResponseHeader | None,
) -> SendResultEntry:
    """Return the entry for what a broker has answered. ``place``: of a message that is stored."""
    stored = STORED.get(code)
    if stored is None or place is None:
        refused = refused_by_broker(code, remark or "")
        return refused_entry(refused, message_id)
    transaction_id = message_id
    if sent.kind == _TRANSACTION:
        log_offset = decode_offset_message_id(place.message_id)[2]
        transaction_id = TransactionPlace(
            broker_name, place.queue_offset, log_offset, message_id
        ).encode()
    return SendResultEntry(
        status=OK
        if code == ResponseCode.SUCCESS and not remark
        else status(stored, remark or "OK"),
        message_id=message_id,
        transaction_id=transaction_id,
        offset=place.queue_offset,
        recall_handle=place.recall_handle or "",
    )


def refused_entry(refused: Refused, message_id: str) -> SendResultEntry:
    """Return the entry of a message that is not stored."""
    return SendResultEntry(status=refused.status(), message_id=message_id)


@attrs.define(eq=False)
class Sending:
    """The handlers."""

    cluster: Cluster
    clients: KnownClients
    clock_ms: Callable[[], int]
    _turn: int = attrs.field(default=0, init=False)
    """Which queue is next for messages without a group."""

    async def send(self, request: SendMessageRequest, call: CallContext) -> SendMessageResponse:
        """Store messages of one topic, one after the other; an entry for each. Raises: Refused."""
        client = self.clients.of_call(call)
        if len(request.messages) > MESSAGES_MAX:
            raise Refused(
                Code.BAD_REQUEST,
                f"{len(request.messages)} messages are sent at once; the limit is {MESSAGES_MAX}:"
                " send several requests",
            )
        now_ms = self.clock_ms()
        topic, turns = common_topic(request.messages), Turns(MESSAGES_AT_ONCE)
        async for message in in_turns(request.messages, turns):
            check_message(message, now_ms)
        queues = await self._writable(topic)
        accepted = await self._accepted(topic)
        sents, entries = [], []
        # All, before one is stored: the answer refuses the whole request.
        async for message in in_turns(request.messages, turns):
            sent = sent_message(message, call.peer[0], now_ms)
            require_type(sent.kind, accepted, topic)
            sents.append(sent)
        async for sent, message in in_turns(zip(sents, request.messages, strict=True), turns):
            entries.append(await self._send(client, sent, message, queues, call))
        return SendMessageResponse(
            status=top_status(entry.status.code for entry in entries), entries=entries
        )

    def place(self, group: str, count: int) -> int:
        """Return the place of the queue for a message: of its group, or the next one."""
        if group:
            return queue_of_group(group, count)
        self._turn += 1
        return self._turn % count

    async def _writable(self, topic: str) -> WritableQueues:
        """Return the queues of the topic that take messages. Raises: Refused."""
        queues = WritableQueues.of(await known_route(self.cluster, topic))
        if not queues:
            raise Refused(
                Code.FORBIDDEN,
                f"topic {topic} has no writable queue: its permissions do not allow sends, or no"
                " master of it runs",
            )
        return queues

    async def _accepted(self, topic: str) -> Sequence[int]:
        return accepted_types(message_type(await self.cluster.topic(topic)))

    async def _send(
        self,
        client: KnownClient,
        sent: SentMessage,
        message: pb.Message,
        queues: WritableQueues,
        call: CallContext,
    ) -> SendResultEntry:
        """Send a message. While no master takes it, and nothing is stored, wait for the next one:
        official clients try three times in milliseconds, and half messages once.
        """
        ends = trio.current_time() + min(SEND_SECONDS, call.time_left())
        pause = FIRST_PAUSE_SECONDS
        while True:
            entry, again = await self._send_once(client, sent, message, queues, call)
            if not again or trio.current_time() + pause >= ends:
                return entry
            await trio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            with suppress(Refused):  # no route, or no writable queue, for the moment
                queues = await self._writable(sent.topic)

    async def _send_once(
        self,
        client: KnownClient,
        sent: SentMessage,
        message: pb.Message,
        queues: WritableQueues,
        call: CallContext,
    ) -> tuple[SendResultEntry, bool]:
        """Send to the queue of the message's group, or to the next one.

        A message without a group goes to another broker if one has no master: nothing is stored.

        Returns: the entry, and whether no broker had a master.
        """
        message_id = message.system_properties.message_id
        group = message.system_properties.message_group
        place = self.place(group, len(queues))
        while True:
            broker_name, queue_id = queues.at(place)
            try:
                entry, again = await self._send_to(
                    broker_name, queue_id, client, sent, message_id, call
                )
            except RemotingError as error:
                entry = refused_entry(refused_by_network(error), message_id)
                again = isinstance(error, ConnectFailed | Refused)
            queues = queues.without(broker_name)
            if group or not again or not queues or call.time_left() <= 0:
                return entry, again
            place = self._turn % len(queues)

    async def _send_to(
        self,
        broker_name: str,
        queue_id: int,
        client: KnownClient,
        sent: SentMessage,
        message_id: str,
        call: CallContext,
    ) -> tuple[SendResultEntry, bool]:
        """Send to a queue; return what its broker says, and whether it takes nothing for now.

        Raises: RemotingError.
        """
        header = send_header(sent, broker_name, queue_id)
        command = new_request(RequestCode.SEND_MESSAGE_V2, header, sent.body)
        command.language = client.language
        answer = await client.link.invoke(broker_name, command, min(SEND_SECONDS, call.time_left()))
        place = answer.header(SendMessageResponseHeader) if answer.code in STORED else None
        entry = result_entry(sent, broker_name, message_id, answer.code, answer.remark, place)
        return entry, is_refused_for_now(answer.code, answer.remark)

    # Transactions, recall

    async def end_transaction(
        self, request: EndTransactionRequest, call: CallContext
    ) -> EndTransactionResponse:
        """Commit a half message or roll it back. Raises: Refused."""
        client = self.clients.of_call(call)
        header, answer = end_question(request)
        await self._ask(client, call, RequestCode.END_TRANSACTION, header)
        return answer

    async def recall(
        self, request: RecallMessageRequest, call: CallContext
    ) -> RecallMessageResponse:
        """Take a message back whose time of delivery has not come. Raises: Refused."""
        client = self.clients.of_call(call)
        accepted = await self._accepted(topic_name(request.topic))
        header, answer = recall_question(request, accepted)
        await self._ask(client, call, RequestCode.RECALL_MESSAGE, header)
        return answer

    async def _ask(
        self,
        client: KnownClient,
        call: CallContext,
        code: RequestCode,
        header: EndTransactionHeader | RecallMessageHeader,
    ) -> None:
        """Send a request to the broker that its header names. Raises: Refused."""
        command = new_request(code, header)
        command.language = client.language
        timeout = min(QUESTION_SECONDS[code], call.time_left())
        try:
            answer = await client.link.invoke(header.broker_name or "", command, timeout)
        except RemotingError as error:
            raise refused_by_network(error) from None
        if answer.code != ResponseCode.SUCCESS:
            raise refused_by_broker(answer.code, answer.remark or "")


def end_question(
    request: EndTransactionRequest,
) -> tuple[EndTransactionHeader, EndTransactionResponse]:
    """Return what a broker is asked to end a transaction, and the answer if it does so.

    Raises: Refused.
    """
    topic = topic_name(request.topic)
    if not request.transaction_id.strip():
        raise Refused(
            Code.INVALID_TRANSACTION_ID,
            "the transaction id is blank; give back the one of the send's answer",
        )
    place = TransactionPlace.decode(request.transaction_id)
    header = EndTransactionHeader(
        producer_group=topic,
        half_queue_offset=place.queue_offset,
        log_offset=place.log_offset,
        verdict=_VERDICTS.get(request.resolution, UNDECIDED),
        message_id=request.message_id or place.message_id,
        from_check=request.source == pb.TransactionSource.SOURCE_SERVER_CHECK,
        transaction_id=place.message_id,
        topic=topic,
        broker_name=place.broker_name,
    )
    return header, EndTransactionResponse(status=OK)


def recall_question(
    request: RecallMessageRequest, accepted: Sequence[int]
) -> tuple[RecallMessageHeader, RecallMessageResponse]:
    """Return what a broker is asked to recall a message, and the answer if it does so.

    ``accepted``: the types of messages that the topic takes. Raises: Refused.
    """
    topic = topic_name(request.topic)
    require_type(pb.MessageType.DELAY, accepted, topic)
    try:
        handle = RecallHandle.decode(request.recall_handle)
    except RemotingError as error:
        raise Refused(Code.INTERNAL_SERVER_ERROR, str(error)) from None
    header = RecallMessageHeader(
        topic=topic,
        recall_handle=request.recall_handle,
        producer_group=topic,
        broker_name=handle.broker_name,
    )
    return header, RecallMessageResponse(status=OK, message_id=handle.message_id)
