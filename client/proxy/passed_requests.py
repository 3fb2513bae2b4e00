"""Requests of brokers to the proxy, passed to one of its gRPC clients.

Brokers know the proxy as a member of each group, so what they ask it is for any client of the
group: the checks of transactions (39), and an operator's questions to a consumer (307, 309).

Source: proxy/…/service/mqclient/ProxyClientRemotingProcessor.java.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence

import attrs

from triomq.client.proxy.joined_clients import JoinedClients
from triomq.remoting.client.connector import InstantHandler, PeerHandler
from triomq.remoting.core.errors import Rejected
from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.messaging.known_clients import KnownClient
from triomq.remoting.messaging.service import GrpcMessaging, answer_to_broker
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command, response_to
from triomq.remoting.protocol.headers.client import ConsumeDirectlyHeader, ConsumerRunningHeader
from triomq.remoting.protocol.headers.transaction import CheckTransactionHeader
from triomq.remoting.protocol.record_reader import decode_records

logger = logging.getLogger(__name__)

PRODUCER_GROUP = "PGROUP"
"""The property of a half message with the group that is asked."""
BROKER_NAME = "bname"
"""The field of a check with the name of its broker; 4.x brokers of Java do not have it."""


@attrs.define(eq=False)
class PassedRequests:
    """The handlers. ``broker_at`` returns the name of the broker at an address."""

    service: GrpcMessaging
    joined: JoinedClients
    broker_at: Callable[[str], str | None]
    limit: LogLimit = attrs.field(factory=LogLimit, init=False)

    def instant_handlers(self) -> dict[int, InstantHandler]:
        """Return the handlers of requests without an answer."""
        return {
            RequestCode.CHECK_TRANSACTION_STATE: self.check,
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: lambda address, command: None,
        }

    def handlers(self) -> dict[int, PeerHandler]:
        """Return the handlers of requests that a client answers."""
        return {
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
        }

    def check(self, address: str, command: Command) -> None:
        """Pass the check of a transaction to a producer of its group. Checkpoint: never."""
        (half,) = decode_records(bytes(command.body))
        group = half.properties.get(PRODUCER_GROUP, "")
        client = self._reached(self.joined.producers(group))
        if client is None:
            self.limit.log(
                logger,
                logging.INFO,
                "the check of a transaction of producer group %s is not passed on: no client of it"
                " has a telemetry stream; the broker checks again",
                group,
            )
            return
        if not command.header(CheckTransactionHeader).broker_name:
            command.ext = {**(command.ext or {}), BROKER_NAME: self.broker_at(address) or ""}
        self.service.telemetry.take_request(client, command)

    async def running(self, address: str, command: Command) -> Command:
        """Ask a consumer what it does. Raises: Rejected."""
        return await self._ask_member(command.header(ConsumerRunningHeader).consumer_group, command)

    async def consume_directly(self, address: str, command: Command) -> Command:
        """Let a consumer consume one message. Raises: Rejected."""
        return await self._ask_member(command.header(ConsumeDirectlyHeader).consumer_group, command)

    async def _ask_member(self, group: str, command: Command) -> Command:
        client = self._reached(self.joined.consumers(group))
        if client is None:
            raise Rejected(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"no consumer of group {group} has a telemetry stream at this proxy",
            )
        answering = self.service.telemetry.take_request(client, command)
        if answering is None:
            return response_to(command)
        return await answer_to_broker(command, answering)

    def _reached(self, client_ids: Sequence[str]) -> KnownClient | None:
        """Return one of these clients that has a stream, None if none has one."""
        count = len(client_ids)
        begin = random.randrange(count) if count else 0
        for number in range(count):
            client = self.service.clients.by_id.get(client_ids[(begin + number) % count])
            if client is not None and client.commands is not None:
                return client
        return None
