"""What a broker with ``enableSlaveActingMaster`` has to do with the name servers beside its registration: signs of life (904), and who is in its group (901).

Source: broker/BrokerController.java#sendHeartbeat, #syncBrokerMemberGroup, broker/out/BrokerOuterAPI.java.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import attrs
import trio

from triomq.broker.services.registration import Registration
from triomq.remoting.errors import RemotingError
from triomq.remoting.protocol.bodies.cluster import BrokerMembersBody
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command, request
from triomq.remoting.protocol.headers.route import BrokerHeartbeatHeader, BrokerMembersHeader

ASK_SECONDS = 3.0


@attrs.define(eq=False)
class GroupMembers:
    """The brokers of this broker's name, as the name servers know them."""

    registration: Registration
    alive_seconds: float = 1.0
    alive_timeout_seconds: float = 1.0

    @property
    def askable(self) -> bool:
        """Whether there are name servers, or a way to find some."""
        return bool(self.registration.servers) or self.registration.discover is not None

    async def views(self) -> list[Mapping[int, str]]:
        """id -> address, from each name server that answers."""
        found: list[Mapping[int, str]] = []
        addresses = list(self.registration.servers)
        if not addresses and self.registration.discover is not None:  # nobody has registered yet
            with contextlib.suppress(RemotingError):  # the registration says why
                addresses = list(await self.registration.discover())
        async with trio.open_nursery() as nursery:
            for address in addresses:
                nursery.start_soon(self._ask, address, found)
        return found

    async def _ask(self, address: str, found: list[Mapping[int, str]]) -> None:
        settings = self.registration.settings
        command = request(RequestCode.GET_BROKER_MEMBER_GROUP, BrokerMembersHeader(settings.cluster_name, settings.broker_name))
        try:
            answer = await self.registration.connector.invoke(address, command, timeout=ASK_SECONDS)
            if answer.code == ResponseCode.SUCCESS:
                members = BrokerMembersBody.decode(bytes(answer.body)).broker_member_group
                found.append({} if members is None else members.broker_addrs)
        except (RemotingError, ValueError):
            return  # the registration says in the log which name servers do not answer

    async def run_heartbeat(self) -> None:
        """The task "broker-heartbeat": name servers forget this broker within seconds when it hangs."""
        settings = self.registration.settings
        header = BrokerHeartbeatHeader(
            cluster_name=settings.cluster_name,
            broker_addr=settings.broker_address,
            broker_name=settings.broker_name,
            broker_id=settings.broker_id,
            heartbeat_timeout_ms=settings.not_active_ms,
        )
        async with trio.open_nursery() as nursery:
            while True:
                for server in list(self.registration.servers.values()):
                    if server.registered:
                        nursery.start_soon(self._beat, server.address, request(RequestCode.BROKER_HEARTBEAT, header))
                await trio.sleep(self.alive_seconds)

    async def _beat(self, address: str, command: Command) -> None:
        try:
            await self.registration.connector.oneway(address, command, timeout=self.alive_timeout_seconds)
        except RemotingError:
            return  # a lost connection makes the registration say so, and try again
