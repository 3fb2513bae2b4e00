"""AckMessage in batches: the acknowledgements of all calls of one read are one append.

A call that names a message whose time is just being renewed waits for the newest handle, and so has
its task and handler.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import attrs
import trio

from triomq.remoting.grpc.apache_rocketmq.definition_pb2 import Code, Status
from triomq.remoting.grpc.apache_rocketmq.service_pb2 import AckMessageRequest, AckMessageResponse
from triomq.remoting.grpc.methods import CallContext, UnaryCall
from triomq.remoting.messaging.checks import group_name, topic_name
from triomq.remoting.messaging.cluster import DirectRequest, DirectRequests
from triomq.remoting.messaging.known_clients import KnownClient
from triomq.remoting.messaging.popped_messages import CALL_SECONDS, PoppedMessage
from triomq.remoting.messaging.settling import REQUESTS_MAX, Settling
from triomq.remoting.messaging.status_codes import OK, Refused, refused_by_broker, top_status
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.consuming.popped_requests import ack_header
from triomq.remoting.server.requests import Response


@attrs.define(eq=False)
class BatchedAcks:
    """The batches."""

    direct: DirectRequests
    settling: Settling

    def takes(self, request: AckMessageRequest, call: CallContext) -> bool:
        return (
            0 < len(request.entries) <= REQUESTS_MAX
            and not self.settling.renewals.under_way
            and self.direct.usable
        )

    def requests(self, call: UnaryCall) -> Sequence[DirectRequest]:
        """Return the requests for the entries that can be acknowledged. Raises: Refused."""
        asked, context, settling = call.request, call.context, self.settling
        client = settling.clients.find(context)
        topic = topic_name(asked.topic, system_allowed=True)
        group = group_name(asked.group)
        pending = _PendingAcks(call, client, settling, [None] * len(asked.entries))
        made = []
        for index, entry in enumerate(asked.entries):
            try:
                message = settling.message(group, topic, entry.receipt_handle)
                newest = settling.renewals.take_nowait(client, message)
                settling.require_valid(newest)
            except Refused as refused:
                pending.results[index] = refused.status()
                continue
            header = ack_header(group, newest.stored_topic, newest.handle)
            pending.waiting[index] = message, newest
            made.append(
                DirectRequest(
                    client.link,
                    context.peer,
                    client.language,
                    RequestCode.ACK_MESSAGE,
                    header,
                    b"",
                    partial(pending.answered, index),
                )
            )
        call.give_up_at(trio.current_time() + CALL_SECONDS, pending.give_up)
        pending.finish_if_done()
        return made


@attrs.define(eq=False)
class _PendingAcks:
    """A call that waits for responses of the broker. ``results``: None where one is missing."""

    call: UnaryCall
    client: KnownClient
    settling: Settling
    results: list[Status | None]
    waiting: dict[int, tuple[PoppedMessage, PoppedMessage]] = attrs.field(factory=dict)
    """Entry -> its message, and the same with its newest handle."""

    def answered(self, index: int, response: Response) -> None:
        if index not in self.waiting:
            return  # too late
        try:
            if response.code:
                self._refused(index, refused_by_broker(response.code, response.remark))
            else:
                del self.waiting[index]
                self.results[index] = OK
            self.finish_if_done()
        except Exception as error:  # other requests of the broker's step are not to suffer
            self.call.fail(error)

    def give_up(self) -> None:
        """Answer without the missing responses; what they are about may still be acknowledged."""
        for index, (message, _) in list(self.waiting.items()):
            text = f"{message.handle.broker_name} has not answered within {CALL_SECONDS:g} s"
            self._refused(index, Refused(Code.PROXY_TIMEOUT, text))
        self.finish_if_done()

    def _refused(self, index: int, refused: Refused) -> None:
        """Go on renewing a message whose acknowledgement failed: its client tries again."""
        message, newest = self.waiting.pop(index)
        self.settling.keep_renewing(self.client, message, newest, refused)
        self.results[index] = refused.status()

    def finish_if_done(self) -> None:
        if self.waiting:
            return
        answer = AckMessageResponse()
        codes = set()
        for entry, made in zip(self.call.request.entries, self.results, strict=True):
            assert made is not None
            codes.add(made.code)
            result = answer.entries.add()
            result.message_id = entry.message_id
            result.receipt_handle = entry.receipt_handle
            result.status.CopyFrom(made)
        answer.status.CopyFrom(top_status(codes))
        self.call.answer(answer)
