"""EndTransaction and RecallMessage in batches: each call is one request to the broker.

The ends of all calls of one read are one append, with one op record.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import attrs
import trio

from triomq.remoting.grpc.apache_rocketmq.definition_pb2 import Code
from triomq.remoting.grpc.apache_rocketmq.service_pb2 import (
    EndTransactionResponse,
    RecallMessageResponse,
)
from triomq.remoting.grpc.methods import CallContext, UnaryCall
from triomq.remoting.messaging.checks import topic_name
from triomq.remoting.messaging.cluster import DirectRequest, DirectRequests
from triomq.remoting.messaging.known_clients import KnownClients
from triomq.remoting.messaging.sending import QUESTION_SECONDS, end_question, recall_question
from triomq.remoting.messaging.status_codes import Refused, refused_by_broker, unknown_topic
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.server.requests import Response


@attrs.define(eq=False)
class BatchedQuestions:
    """The batches of one method."""

    direct: DirectRequests
    clients: KnownClients
    code: RequestCode

    def takes(self, request: Any, call: CallContext) -> bool:
        if not self.direct.usable:
            return False
        if self.code == RequestCode.END_TRANSACTION:
            return True
        try:
            return self.direct.sendable(topic_name(request.topic)) is not None
        except Refused:
            return False

    def requests(self, call: UnaryCall) -> Sequence[DirectRequest]:
        """Return the request of a call. Raises: Refused."""
        asked, context, code = call.request, call.context, self.code
        client = self.clients.find(context)
        header: Any
        answer: Any
        if code == RequestCode.END_TRANSACTION:
            header, answer = end_question(asked)
        else:
            sendable = self.direct.sendable(topic := topic_name(asked.topic))
            if sendable is None:  # since it was taken
                raise unknown_topic(topic)
            header, answer = recall_question(asked, sendable.accepted)
        pending = _PendingQuestion(call, answer, header.broker_name)
        seconds = QUESTION_SECONDS[code]
        call.give_up_at(trio.current_time() + seconds, partial(pending.give_up, seconds))
        return (
            DirectRequest(
                client.link, context.peer, client.language, code, header, b"", pending.answered
            ),
        )


@attrs.define(eq=False)
class _PendingQuestion:
    """A call that waits for the broker's response. ``answer``: of a success."""

    call: UnaryCall
    answer: EndTransactionResponse | RecallMessageResponse
    broker_name: str

    def answered(self, response: Response) -> None:
        if response.code == ResponseCode.SUCCESS:
            self.call.answer(self.answer)
        else:
            self._refuse(refused_by_broker(response.code, response.remark))

    def give_up(self, seconds: float) -> None:
        """Answer that the broker has not answered in time; it may still do what it was asked."""
        text = f"{self.broker_name} has not answered within {seconds:g} s"
        self._refuse(Refused(Code.PROXY_TIMEOUT, text))

    def _refuse(self, refused: Refused) -> None:
        self.call.answer(type(self.answer)(status=refused.status()))
