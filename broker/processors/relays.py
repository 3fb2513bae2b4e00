"""Requests that only a client can answer, relayed over the connection that the client opened.

Codes: GET_CONSUMER_RUNNING_INFO (307), CONSUME_MESSAGE_DIRECTLY (309),
INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223: the offsets in a client's memory). Also sends
RESET_CONSUMER_CLIENT_OFFSET (220). Source: broker/processor/AdminBrokerProcessor.java#callConsumer,
#consumeMessageDirectly, broker/client/net/Broker2Client.java.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import attrs
import trio

from triomq.broker.processors.bodies import decode_answer
from triomq.broker.processors.query import may_read, record_at
from triomq.broker.services.groups import ConsumerGroup, GroupTable, Member
from triomq.broker.store.store import MessageStore
from triomq.remoting.access.resources import Action
from triomq.remoting.core.errors import Rejected, RemotingError, RequestTimeout
from triomq.remoting.protocol.bodies.offsets import (
    ConsumerStatus,
    QueueOffset,
    QueueOffsetList,
    QueueOffsets,
)
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.codes import LanguageCode, RequestCode, ResponseCode, version_name
from triomq.remoting.protocol.command import Command
from triomq.remoting.protocol.command import request as new_request
from triomq.remoting.protocol.headers.client import (
    ConsumeDirectlyHeader,
    ConsumerRunningHeader,
    ConsumerStatusHeader,
)
from triomq.remoting.protocol.headers.offset import ResetOffsetHeader
from triomq.remoting.protocol.ids import decode_offset_message_id
from triomq.remoting.protocol.signing import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE
from triomq.remoting.server.access_check import AccessCheck
from triomq.remoting.server.connection import Connection
from triomq.remoting.server.requests import Request, Response
from triomq.remoting.server.turns import encoded, in_turns

UNANSWERED_MAX = 16
"""Requests that wait for one client at a time: a silent client cannot occupy the whole pool."""
CLIENT_SECONDS = 10.0
STATUS_SECONDS = 5.0
VERSION_THAT_ANSWERS = 62
"""V3_1_8_SNAPSHOT: older clients do not answer ``running`` and ``consume_directly``."""


@attrs.define(eq=False)
class Relays:
    """The handlers. Each waits for a client as long as Java's does, so they have their own pool."""

    store: MessageStore
    clients: GroupTable[Connection]
    broker_name: str
    access: AccessCheck | None = None
    """Set where requests are authorized."""
    _unanswered: Counter[Connection] = attrs.field(factory=Counter, init=False)

    async def running(self, request: Request) -> Response:
        """Return the client's running state unchanged. Raises: Rejected."""
        header: ConsumerRunningHeader = request.header
        member = self._member(header.consumer_group, header.client_id)
        return await self._relay(
            header.consumer_group, member, Command(request.code, ext=_unsigned(request))
        )

    async def consume_directly(self, request: Request) -> Response:
        """Send a client a message by its id; return the response unchanged. Raises: Rejected."""
        header: ConsumeDirectlyHeader = request.header
        member = self._member(header.consumer_group, header.client_id)
        record = await self._record(header.message_id)
        may_read(self.access, request, record, Action.SUB)
        ext = {**_unsigned(request), "brokerName": self.broker_name}
        return await self._relay(
            header.consumer_group, member, Command(request.code, ext=ext, body=record)
        )

    async def status(self, request: Request) -> Response:
        """Return the offsets that each client of a group has in memory. Raises: Rejected."""
        header: ConsumerStatusHeader = request.header
        group = self.clients.consumers.get(header.group)
        if group is None:
            raise Rejected(
                ResponseCode.SYSTEM_ERROR,
                f"No Any Consumer online in the consumer group: [{header.group}]",
            )
        found: dict[str, dict[MessageQueue, int]] = {}
        asked = new_request(
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
            ConsumerStatusHeader(header.topic, header.group),
        )

        async def ask(member: Member[Connection]) -> None:
            try:
                answer = await member.connection.invoke(asked, STATUS_SECONDS)
                if answer.code == ResponseCode.SUCCESS:
                    found[member.client_id] = dict(
                        (
                            await decode_answer(ConsumerStatus, bytes(answer.body))
                        ).message_queue_table
                    )
            except RemotingError:
                return  # the response leaves this client out, as Java's does

        async with trio.open_nursery() as nursery:
            for member in list(group.members.values()):
                if not header.client_id or header.client_id == member.client_id:
                    nursery.start_soon(ask, member)
        return Response(body=ConsumerStatus(consumer_table=found).encode())

    async def tell_reset(
        self,
        group: ConsumerGroup[Connection],
        header: ResetOffsetHeader,
        offsets: Mapping[MessageQueue, int],
    ) -> None:
        """Send every member of a group its new offsets, one-way. Checkpoint: maybe.

        C++ clients get a list, since they cannot read a table whose keys are objects.
        """
        table = await encoded(QueueOffsets(dict(offsets)), len(offsets))
        rows = [
            QueueOffset(
                broker_name=queue.broker_name,
                topic=queue.topic,
                queue_id=queue.queue_id,
                offset=offset,
            )
            async for queue, offset in in_turns(offsets.items())
        ]
        listed = await encoded(QueueOffsetList(rows), len(rows))
        async for member in in_turns(list(group.members.values())):
            body = listed if member.language == LanguageCode.CPP else table
            member.connection.oneway(
                new_request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header, body, oneway=True)
            )

    async def by_queue(self, topic: str, offsets: Mapping[int, int]) -> dict[MessageQueue, int]:
        """Return offsets by queue of this broker. Checkpoint: maybe."""
        return {
            MessageQueue(topic, self.broker_name, queue_id): offset
            async for queue_id, offset in in_turns(offsets.items())
        }

    async def tell_moved(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Tell members of our own kind that their group was moved, one-way. Checkpoint: maybe.

        They drop what they have pulled, also if a full cache keeps them from the next pull. A Java
        client would stop for ten seconds; it hears of the move at its next pull.
        """
        consumers = self.clients.consumers.get(group)
        if consumers is None:
            return
        header = ResetOffsetHeader(group=group, topic=topic, timestamp=-1, force=True)
        body = QueueOffsets(await self.by_queue(topic, offsets)).encode()
        ours = [
            member
            for member in consumers.members.values()
            if member.language == LanguageCode.PYTHON
        ]
        async for member in in_turns(ours):
            member.connection.oneway(
                new_request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header, body, oneway=True)
            )

    def _member(self, group_name: str, client_id: str | None) -> Member[Connection]:
        group = self.clients.consumers.get(group_name)
        member = (
            next((other for other in group.members.values() if other.client_id == client_id), None)
            if group is not None
            else None
        )
        if member is None:
            raise Rejected(
                ResponseCode.SYSTEM_ERROR, f"The Consumer <{group_name}> <{client_id}> not online"
            )
        if member.version < VERSION_THAT_ANSWERS:
            remark = (
                f"The Consumer <{client_id}> Version <{version_name(member.version)}> too low to"
                " finish, please upgrade it to V3_1_8_SNAPSHOT"
            )
            raise Rejected(ResponseCode.SYSTEM_ERROR, remark)
        return member

    async def _record(self, message_id: str | None) -> bytes:
        try:
            _, _, log_offset = decode_offset_message_id(message_id or "")
        except ValueError:
            raise Rejected(
                ResponseCode.INVALID_PARAMETER,
                f"msgId {message_id!r} is not an offset message id of a broker (32 or 56 hex"
                " digits)",
            ) from None
        return await record_at(self.store, log_offset)

    async def _relay(self, group: str, member: Member[Connection], command: Command) -> Response:
        connection = member.connection
        if self._unanswered[connection] >= UNANSWERED_MAX:
            remark = (
                f"consumer <{group}> <{member.client_id}> has left {UNANSWERED_MAX} requests"
                " unanswered, the maximum for one client: try again later, or restart the client"
            )
            raise Rejected(ResponseCode.SYSTEM_BUSY, remark)
        self._unanswered[connection] += 1
        try:
            answer = await connection.invoke(command, CLIENT_SECONDS)
        except RequestTimeout as error:
            raise Rejected(
                ResponseCode.CONSUME_MSG_TIMEOUT,
                f"consumer <{group}> <{member.client_id}> Timeout: {error}",
            ) from None
        except RemotingError as error:
            raise Rejected(
                ResponseCode.SYSTEM_ERROR,
                f"invoke consumer <{group}> <{member.client_id}> Exception: {error}",
            ) from None
        finally:
            self._unanswered[connection] -= 1
            if not self._unanswered[connection]:
                del self._unanswered[connection]
        return Response(
            answer.code, body=bytes(answer.body), remark=answer.remark, ext=dict(answer.ext or {})
        )


def _unsigned(request: Request) -> dict[str, str]:
    """Return the fields of a request for a client, which must not be able to repeat it."""
    signing = (ACCESS_KEY, SECURITY_TOKEN, SIGNATURE)
    return {name: value for name, value in request.ext().items() if name not in signing}
