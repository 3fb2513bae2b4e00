"""Requests to brokers by their names: the directory, and one connection to each address.

A broker that moved is found again: a request that could not be sent goes to the new address. An
address that does not answer at all fails at once for some seconds, so that calls have time to go to
another broker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import attrs
import trio

from triomq.client.core.broker_errors import broker_error
from triomq.client.core.errors import NoNameServer, TrioMQError
from triomq.client.core.failure_log import FailureLog
from triomq.client.core.route_finder import RouteFinder
from triomq.client.proxy.broker_directory import BrokerDirectory
from triomq.remoting.client.connector import Connector
from triomq.remoting.core.errors import ConnectFailed, ConnectionLost, RemotingError
from triomq.remoting.grpc.apache_rocketmq.definition_pb2 import Code
from triomq.remoting.messaging.status_codes import Refused
from triomq.remoting.protocol.bodies.cluster import ClusterTable
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command
from triomq.remoting.protocol.command import request as new_request
from triomq.remoting.protocol.refused_sends import is_refused_for_now

logger = logging.getLogger(__name__)

LIST_SECONDS = 10.0
"""Between two look-ups of the list of all brokers."""
LIST_RETRY_SECONDS = 1.0
"""The same while no name server answers, and the least between two that requests cause."""
SILENT_SECONDS = 1.0
"""A connection that could not be made within this time: the address is silent, not refusing."""
SPARED_SECONDS = 5.0
"""For how long requests to a silent address fail at once."""


@attrs.define(eq=False)
class BrokerCalls:
    """The brokers behind a proxy. ``on_failed``: called with an address that cannot be reached."""

    connector: Connector
    finder: RouteFinder
    on_failed: Callable[[str], None]
    directory: BrokerDirectory = attrs.field(factory=BrokerDirectory, init=False)
    unreached: str | None = attrs.field(default="no name server was asked yet", init=False)
    """Why the list of brokers is not up to date."""
    failures: FailureLog = attrs.field(factory=lambda: FailureLog(logger), init=False)
    _listed_at: float = attrs.field(default=-LIST_RETRY_SECONDS, init=False)
    _listing: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _spared: dict[str, float] = attrs.field(factory=dict, init=False)
    """Silent addresses -> until when requests to them fail at once."""

    async def run(self) -> None:
        """Keep the list of brokers up to date until cancelled."""
        while True:
            await trio.sleep(LIST_SECONDS if self.unreached is None else LIST_RETRY_SECONDS)
            await self.list_brokers()

    async def list_brokers(self) -> None:
        """Ask for the list of all brokers, unless that was done a moment ago. Does not fail."""
        async with self._listing:
            if trio.current_time() - self._listed_at < LIST_RETRY_SECONDS:
                return
            reasons: dict[str, str] = {}
            deadline = trio.current_time() + self.finder.settings.route_timeout
            for turn in self.finder.names.turns(trio.current_time, deadline, reasons):
                try:
                    table = await self._listed_by(turn.address, turn.seconds)
                except (RemotingError, TrioMQError) as error:
                    reasons[turn.address] = str(error)
                    continue
                self.finder.names.answered(turn.address)
                self.directory.note_all(table)
                self.unreached = None
                self.failures.worked("name servers")
                break
            else:
                self.unreached = str(NoNameServer(reasons))
                self.failures.failed("name servers", self.unreached)
            self._listed_at = trio.current_time()

    async def _listed_by(self, address: str, seconds: float) -> ClusterTable:
        command = new_request(RequestCode.GET_BROKER_CLUSTER_INFO)
        answer = await self.connector.invoke(address, command, timeout=seconds)
        if answer.code != ResponseCode.SUCCESS:
            raise broker_error(answer.code, answer.remark, address, "GET_BROKER_CLUSTER_INFO")
        return ClusterTable.decode(bytes(answer.body))

    async def invoke(self, broker_name: str, command: Command, timeout: float) -> Command:
        """Send a request to the master of a broker name, and wait *timeout* seconds at most.

        Raises: Refused if it has no master; RemotingError.
        """
        deadline = trio.current_time() + timeout
        address = self.directory.master(broker_name)
        if address is None:
            address = await self._missing_master(broker_name)
        try:
            answer = await self.call(address, command, timeout, deadline)
            if is_refused_for_now(answer.code, answer.remark):  # it may be a slave now
                self.on_failed(address)
                with trio.move_on_at(deadline):
                    await self.list_brokers()
            return answer
        except ConnectFailed:
            with trio.move_on_at(deadline):
                await self.list_brokers()
            moved = self.directory.master(broker_name)
            if moved is None or moved == address:
                raise
            logger.info("broker %s has moved from %s to %s", broker_name, address, moved)
        return await self.call(moved, command, timeout, deadline)

    async def _missing_master(self, broker_name: str) -> str:
        await self.list_brokers()
        address = self.directory.master(broker_name)
        if address is not None:
            return address
        if self.unreached is not None:
            raise Refused(Code.INTERNAL_SERVER_ERROR, self.unreached)
        if broker_name in self.directory:
            raise Refused(
                Code.INTERNAL_SERVER_ERROR,
                f"broker {broker_name} has no master now; start it, or use another broker",
            )
        raise Refused(
            Code.BAD_REQUEST, f"no broker has the name {broker_name[:60]!r}; query the route again"
        )

    async def call(
        self, address: str, command: Command, timeout: float, deadline: float | None = None
    ) -> Command:
        """Send a request to an address. Raises: RemotingError."""
        began = trio.current_time()
        until = self._spared.get(address)
        if until is not None:
            if began < until:
                raise ConnectFailed(address, "it was silent a moment ago; tried again soon")
            del self._spared[address]
        try:
            return await self.connector.invoke(address, command, timeout=timeout, deadline=deadline)
        except ConnectFailed:
            if trio.current_time() - began >= SILENT_SECONDS:
                self._spared[address] = trio.current_time() + SPARED_SECONDS
            self.on_failed(address)
            raise
        except ConnectionLost:
            self.on_failed(address)
            raise
