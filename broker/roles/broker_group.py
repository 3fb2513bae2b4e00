"""The other brokers of this broker's name, with ``enableSlaveActingMaster``.

Signs of life go to the name servers (904), which tell the members of the group (901). Source:
broker/BrokerController.java#sendHeartbeat, #syncBrokerMemberGroup,
broker/out/BrokerOuterAPI.java.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import attrs
import trio

from triomq.broker.services.registration import Registrar
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.protocol.bodies.cluster import BrokerMembersBody
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command, request
from triomq.remoting.protocol.headers.registration import BrokerHeartbeatHeader, BrokerMembersHeader

ASK_SECONDS = 3.0


@attrs.define(eq=False)
class BrokerGroup:
    """Asks the name servers that ``registrar`` knows."""

    registrar: Registrar
    alive_seconds: float = 1.0
    alive_timeout_seconds: float = 1.0

    @property
    def askable(self) -> bool:
        """Whether there are name servers, or a way to find some."""
        return bool(self.registrar.servers) or self.registrar.discover is not None

    async def members(self) -> list[Mapping[int, str]]:
        """Return id -> address of the members, once for each name server that answers."""
        views: list[Mapping[int, str]] = []
        addresses = list(self.registrar.servers)
        if not addresses and self.registrar.discover is not None:  # registration has not begun
            with contextlib.suppress(RemotingError):  # the registrar logs why
                addresses = list(await self.registrar.discover())
        async with trio.open_nursery() as nursery:
            for address in addresses:
                nursery.start_soon(self._ask, address, views)
        return views

    async def _ask(self, address: str, views: list[Mapping[int, str]]) -> None:
        settings = self.registrar.settings
        command = request(
            RequestCode.GET_BROKER_MEMBER_GROUP,
            BrokerMembersHeader(settings.cluster_name, settings.broker_name),
        )
        try:
            answer = await self.registrar.connector.invoke(address, command, timeout=ASK_SECONDS)
            if answer.code == ResponseCode.SUCCESS:
                group = BrokerMembersBody.decode(bytes(answer.body)).broker_member_group
                views.append({} if group is None else group.broker_addrs)
        except (RemotingError, ValueError):
            return  # the registrar logs which name servers do not answer

    async def run_heartbeat(self) -> None:
        """Run the task "broker-heartbeat".

        Name servers forget this broker within seconds when it hangs.
        """
        settings = self.registrar.settings
        header = BrokerHeartbeatHeader(
            cluster_name=settings.cluster_name,
            broker_addr=settings.broker_address,
            broker_name=settings.broker_name,
            broker_id=settings.broker_id,
            heartbeat_timeout_ms=settings.not_active_ms,
        )
        async with trio.open_nursery() as nursery:
            while True:
                for server in list(self.registrar.servers.values()):
                    if server.registered:
                        nursery.start_soon(
                            self._beat,
                            server.address,
                            request(RequestCode.BROKER_HEARTBEAT, header),
                        )
                await trio.sleep(self.alive_seconds)

    async def _beat(self, address: str, command: Command) -> None:
        try:
            await self.registrar.connector.oneway(
                address, command, timeout=self.alive_timeout_seconds
            )
        except RemotingError:
            return  # a lost connection makes the registrar log it, and register again
