"""Calls that are served in batches by the broker of this process, without a task for each.

The requests of all calls of one read go to their handlers in one step: the sends of a step are one
append to the log. A call that must wait for anything but the broker's response is not taken: it
gets a task and the method's handler, which gives the same answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import attrs
import trio

from triomq.remoting.core.errors import RemotingError
from triomq.remoting.grpc.apache_rocketmq.definition_pb2 import Code
from triomq.remoting.grpc.apache_rocketmq.service_pb2 import (
    SendMessageRequest,
    SendMessageResponse,
    SendResultEntry,
)
from triomq.remoting.grpc.methods import CallContext, UnaryCall
from triomq.remoting.messaging.call_access import CallAccess
from triomq.remoting.messaging.checks import check_messages, topic_name
from triomq.remoting.messaging.cluster import DirectRequest, DirectRequests, refused_by_network
from triomq.remoting.messaging.known_clients import KnownClients
from triomq.remoting.messaging.sending import (
    SEND_SECONDS,
    Sending,
    refused_entry,
    result_entry,
    send_header,
)
from triomq.remoting.messaging.sent_message import SentMessage, require_type, sent_message
from triomq.remoting.messaging.status_codes import Refused, top_status, unknown_topic
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.refused_sends import is_refused_for_now
from triomq.remoting.server.requests import Response


class CallBatches(Protocol):
    """The batches of one method."""

    direct: DirectRequests

    def takes(self, request: Any, call: CallContext) -> bool:
        """Return whether a call can be in a batch."""

    def requests(self, call: UnaryCall) -> Sequence[DirectRequest]:
        """Return the requests that a call becomes. Raises: RemotingError, a refusal of the call."""


def batch_of(
    access: CallAccess | None, name: str, response: Any, batch: CallBatches
) -> Callable[[Sequence[UnaryCall]], None]:
    """Return what runs the batches of a method. A call that fails affects no other."""

    def run(calls: Sequence[UnaryCall]) -> None:
        requests: list[DirectRequest] = []
        for call in calls:
            try:
                if access is not None:
                    access.require(name, call.request, call.context)
                requests += batch.requests(call)
            except RemotingError as error:
                call.answer(response(status=refused_by_network(error).status()))
            except Exception as error:
                call.fail(error)
        batch.direct.submit(requests)

    return run


@attrs.define(eq=False)
class BatchedSends:
    """SendMessage with one message, as official clients send it."""

    direct: DirectRequests
    clients: KnownClients
    sending: Sending
    clock_ms: Callable[[], int]

    def takes(self, request: SendMessageRequest, call: CallContext) -> bool:
        """Take single messages for known topics; the handler says what is wrong with others."""
        messages = request.messages
        if len(messages) != 1 or not self.direct.usable:
            return False
        try:
            return self.direct.sendable(topic_name(messages[0].topic)) is not None
        except Refused:
            return False

    def requests(self, call: UnaryCall) -> Sequence[DirectRequest]:
        """Return the request that stores the message. Raises: Refused."""
        context, messages, now_ms = call.context, call.request.messages, self.clock_ms()
        client = self.clients.find(context)
        topic = check_messages(messages, now_ms)
        sendable = self.direct.sendable(topic)
        if sendable is None:  # since it was taken
            raise unknown_topic(topic)
        (message,) = messages
        sent = sent_message(message, context.peer[0], now_ms)
        require_type(sent.kind, sendable.accepted, topic)
        system = message.system_properties
        queues = sendable.queues
        broker_name, queue_id = queues.at(self.sending.place(system.message_group, len(queues)))
        pending = _PendingSend(call, sent, broker_name, system.message_id)
        call.give_up_at(trio.current_time() + SEND_SECONDS, pending.give_up)
        return (
            DirectRequest(
                client.link,
                context.peer,
                client.language,
                RequestCode.SEND_MESSAGE_V2,
                send_header(sent, broker_name, queue_id),
                sent.body,
                pending.answered,
            ),
        )


@attrs.define(eq=False)
class _PendingSend:
    """A send that waits for the broker's response."""

    call: UnaryCall
    sent: SentMessage
    broker_name: str
    message_id: str

    def answered(self, response: Response) -> None:
        if is_refused_for_now(response.code, response.remark):
            self.call.hand_over()  # the handler waits for a master that takes it
            return
        try:
            entry = result_entry(
                self.sent,
                self.broker_name,
                self.message_id,
                response.code,
                response.remark,
                response.header,
            )
        except Exception as error:
            self.call.fail(error)
        else:
            self._answer(entry)

    def give_up(self) -> None:
        """Answer that the broker has not answered in time; the message may still be stored."""
        text = f"{self.broker_name} has not answered within {SEND_SECONDS:g} s"
        self._answer(refused_entry(Refused(Code.PROXY_TIMEOUT, text), self.message_id))

    def _answer(self, entry: SendResultEntry) -> None:
        answer = SendMessageResponse()  # arguments of its constructor take three times as long
        answer.status.CopyFrom(top_status((entry.status.code,)))
        answer.entries.append(entry)
        self.call.answer(answer)
