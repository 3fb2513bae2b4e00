"""ChangeInvisibleDuration in batches: the changes of all calls of one read are one append.

A call about a message whose time is just being renewed waits for the newest handle, and so has its
task and handler.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import trio

from triomq.remoting.grpc.apache_rocketmq.definition_pb2 import Code
from triomq.remoting.grpc.apache_rocketmq.service_pb2 import (
    ChangeInvisibleDurationRequest,
    ChangeInvisibleDurationResponse,
)
from triomq.remoting.grpc.methods import CallContext, UnaryCall
from triomq.remoting.messaging.cluster import DirectRequest, DirectRequests
from triomq.remoting.messaging.known_clients import KnownClient
from triomq.remoting.messaging.popped_messages import CALL_SECONDS, PoppedMessage
from triomq.remoting.messaging.settling import Settling, unchanged
from triomq.remoting.messaging.status_codes import OK, Refused, refused_by_broker
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.consuming.popped_requests import change_header
from triomq.remoting.server.requests import Response


@attrs.define(eq=False)
class BatchedTimeChanges:
    """The batches."""

    direct: DirectRequests
    settling: Settling

    def takes(self, request: ChangeInvisibleDurationRequest, call: CallContext) -> bool:
        return not self.settling.renewals.under_way and self.direct.usable

    def requests(self, call: UnaryCall) -> Sequence[DirectRequest]:
        """Return the request of a call. Raises: Refused."""
        context, settling = call.context, self.settling
        client = settling.clients.find(context)
        message, invisible_ms = settling.asked_change(call.request)
        newest = settling.renewals.take_nowait(client, message)
        settling.require_valid(newest)
        pending = _PendingChange(call, settling, client, message, newest)
        call.give_up_at(trio.current_time() + CALL_SECONDS, pending.give_up)
        return (
            DirectRequest(
                client.link,
                context.peer,
                client.language,
                RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
                change_header(message.group, newest.stored_topic, newest.handle, invisible_ms),
                b"",
                pending.answered,
            ),
        )


@attrs.define(eq=False)
class _PendingChange:
    """A call that waits for the broker's response. ``newest``: the message's newest handle."""

    call: UnaryCall
    settling: Settling
    client: KnownClient
    message: PoppedMessage
    newest: PoppedMessage
    over: bool = False

    def answered(self, response: Response) -> None:
        if self.over:
            return  # too late
        try:
            if response.code:
                self._refuse(refused_by_broker(response.code, response.remark))
                return
            answer = ChangeInvisibleDurationResponse()
            answer.status.CopyFrom(OK)
            answer.receipt_handle = self.newest.changed(response.header).text
            self.call.answer(answer)
        except Exception as error:  # other requests of the broker's step are not to suffer
            self.call.fail(error)

    def give_up(self) -> None:
        """Answer without the response; the time may still be changed."""
        text = f"{self.newest.handle.broker_name} has not answered within {CALL_SECONDS:g} s"
        self._refuse(Refused(Code.PROXY_TIMEOUT, text))

    def _refuse(self, refused: Refused) -> None:
        """Go on renewing the message: its client tries again."""
        self.over = True
        self.settling.keep_renewing(self.client, self.message, self.newest, refused)
        self.call.answer(unchanged(self.call.request, refused))
