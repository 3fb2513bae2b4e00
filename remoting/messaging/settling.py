"""The calls that settle messages: acknowledge, change the invisible time, dead letters.

Source: proxy/…/grpc/v2/consumer/AckMessageActivity.java, ChangeInvisibleDurationActivity.java,
grpc/v2/producer/ForwardMessageToDLQActivity.java.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import attrs
import trio

from triomq.remoting.core.errors import RemotingError
from triomq.remoting.grpc.apache_rocketmq.definition_pb2 import Code
from triomq.remoting.grpc.apache_rocketmq.service_pb2 import (
    AckMessageEntry,
    AckMessageRequest,
    AckMessageResponse,
    AckMessageResultEntry,
    ChangeInvisibleDurationRequest,
    ChangeInvisibleDurationResponse,
    ForwardMessageToDeadLetterQueueRequest,
    ForwardMessageToDeadLetterQueueResponse,
)
from triomq.remoting.grpc.methods import CallContext
from triomq.remoting.messaging.checks import check_invisible_time, group_name, topic_name
from triomq.remoting.messaging.cluster import refused_by_network
from triomq.remoting.messaging.known_clients import KnownClient, KnownClients
from triomq.remoting.messaging.popped_messages import PoppedMessage
from triomq.remoting.messaging.renewal import Renewals
from triomq.remoting.messaging.status_codes import Refused, code_name, status, top_status

T = TypeVar("T")

ENTRIES_MAX = 1024
"""Messages of one AckMessage."""
REQUESTS_MAX = 32
"""Requests to brokers at once of one AckMessage."""


@attrs.define(eq=False)
class PatientClock:
    """The wall clock without its jumps ahead, by which no receipt handle may end (ms).

    Handles have wall times, and brokers count invisible times by the steady clock. A handle that is
    called valid for too long harms nothing: its broker decides.
    """

    wall_ms: Callable[[], int]
    steady_ms: Callable[[], int]
    _apart: int = attrs.field(init=False)
    """Least difference of the clocks so far."""

    def __attrs_post_init__(self) -> None:
        self._apart = self.wall_ms() - self.steady_ms()

    def __call__(self) -> int:
        steady = self.steady_ms()
        self._apart = min(self._apart, self.wall_ms() - steady)
        return steady + self._apart


@attrs.define(eq=False)
class Settling:
    """The handlers."""

    clients: KnownClients
    renewals: Renewals
    clock_ms: Callable[[], int]

    # Acknowledge

    async def acknowledge(
        self, request: AckMessageRequest, call: CallContext
    ) -> AckMessageResponse:
        """Acknowledge messages, each for itself. Raises: Refused."""
        client = self.clients.of_call(call)
        topic = topic_name(request.topic, system_allowed=True)
        group = group_name(request.group)
        if len(request.entries) > ENTRIES_MAX:
            raise Refused(
                Code.BAD_REQUEST,
                f"{len(request.entries)} messages are acknowledged at once; the limit is"
                f" {ENTRIES_MAX}: send several requests",
            )
        results = [AckMessageResultEntry()] * len(request.entries)

        entries = iter(enumerate(request.entries))

        async def next_ones() -> None:
            for index, entry in entries:
                await trio.lowlevel.checkpoint_if_cancelled()
                results[index] = await self._acknowledge(client, group, topic, entry)

        if len(results) == 1:  # what clients send: not worth a nursery
            await next_ones()
        else:
            async with trio.open_nursery() as nursery:
                for _ in range(min(len(results), REQUESTS_MAX)):
                    nursery.start_soon(next_ones)
        return AckMessageResponse(
            status=top_status(result.status.code for result in results), entries=results
        )

    async def _acknowledge(
        self, client: KnownClient, group: str, topic: str, entry: AckMessageEntry
    ) -> AckMessageResultEntry:
        made = status(Code.OK, code_name(Code.OK))

        async def ask(newest: PoppedMessage) -> None:
            self.require_valid(newest)
            await newest.acknowledge(client.link)

        try:
            await self._settle(client, self.message(group, topic, entry.receipt_handle), ask)
        except Refused as error:
            made = error.status()
        return AckMessageResultEntry(
            message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=made
        )

    async def _settle(
        self,
        client: KnownClient,
        message: PoppedMessage,
        ask: Callable[[PoppedMessage], Awaitable[T]],
    ) -> T:
        """Ask the broker with the newest handle of a message. Raises: Refused.

        The message is renewed again if that fails, since its client tries again. A cancelled call
        goes on until the broker has answered: what it did to the message is known then.
        """
        with trio.CancelScope(shield=True):
            newest = await self.renewals.take(client, message)
            try:
                answer = await ask(newest)
            except RemotingError as error:
                refused = refused_by_network(error)
                self.keep_renewing(client, message, newest, refused)
                raise refused from None
        return answer

    def keep_renewing(
        self, client: KnownClient, message: PoppedMessage, newest: PoppedMessage, refused: Refused
    ) -> None:
        """Go on renewing a message whose settlement failed, if it was renewed: its client tries
        again. A refused handle does not become valid.
        """
        if newest is not message and refused.code != Code.INVALID_RECEIPT_HANDLE:
            self.renewals.keep(client, message, newest)

    def message(self, group: str, topic: str, text: str) -> PoppedMessage:
        """Return the message of a handle. Raises: Refused."""
        try:
            return PoppedMessage.of(group, topic, text)
        except RemotingError as error:
            raise Refused(Code.INVALID_RECEIPT_HANDLE, str(error)) from None

    def require_valid(self, message: PoppedMessage) -> None:
        """Refuse a handle whose time is over. Raises: Refused."""
        late_ms = self.clock_ms() - message.handle.visible_at
        if late_ms >= 0:
            raise Refused(
                Code.INVALID_RECEIPT_HANDLE,
                f"the invisible time of the message ended {late_ms} ms ago, so it is delivered"
                " again; use a longer time, or change it while you work",
            )

    # Other times

    async def change_time(
        self, request: ChangeInvisibleDurationRequest, call: CallContext
    ) -> ChangeInvisibleDurationResponse:
        """Hide a message for another time from now. Raises: Refused."""
        client = self.clients.of_call(call)
        message, invisible_ms = self.asked_change(request)

        async def ask(newest: PoppedMessage) -> PoppedMessage:
            self.require_valid(newest)
            return await newest.change_time(client.link, invisible_ms)

        try:
            changed = await self._settle(client, message, ask)
        except Refused as error:
            return unchanged(request, error)
        return ChangeInvisibleDurationResponse(status=status(), receipt_handle=changed.text)

    def asked_change(self, request: ChangeInvisibleDurationRequest) -> tuple[PoppedMessage, int]:
        """Return the message and its new invisible time (ms). Raises: Refused."""
        topic = topic_name(request.topic, system_allowed=True)
        group = group_name(request.group)
        invisible_ms = request.invisible_duration.ToMilliseconds()
        longest_ms = self.renewals.settings.invisible_ms_max
        check_invisible_time(invisible_ms, minimum_ms=0, maximum_ms=longest_ms)
        return self.message(group, topic, request.receipt_handle), invisible_ms

    # Dead letters

    async def to_dead_letters(
        self, request: ForwardMessageToDeadLetterQueueRequest, call: CallContext
    ) -> ForwardMessageToDeadLetterQueueResponse:
        """Make a message a dead letter of its group. Raises: Refused.

        A handle whose time is over is taken, as Java's proxy takes it: Java's client repeats a
        refusal of this call at once, and for ever.
        """
        client = self.clients.of_call(call)
        topic = topic_name(request.topic, system_allowed=True)
        group = group_name(request.group)
        message = self.message(group, topic, request.receipt_handle)

        async def ask(newest: PoppedMessage) -> None:
            await newest.require_stored(client.link)
            await newest.to_dead_letters(client.link)

        await self._settle(client, message, ask)
        return ForwardMessageToDeadLetterQueueResponse(status=status())


def unchanged(
    request: ChangeInvisibleDurationRequest, refused: Refused
) -> ChangeInvisibleDurationResponse:
    """Return the answer to a refused change: with the handle, if it may be tried again."""
    answer = ChangeInvisibleDurationResponse(status=refused.status())
    if refused.code == Code.TOO_MANY_REQUESTS:
        answer.receipt_handle = request.receipt_handle
    return answer
