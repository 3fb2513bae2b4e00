"""Controllers: asks the one that leads, and finds it again when another one does.

Source: broker/controller/ReplicasManager.java, broker/out/BrokerOuterAPI.java.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import trio

from triomq.broker.services.registration import Caller
from triomq.remoting.core.errors import Rejected, RemoteProtocolError, RemotingError
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command, request
from triomq.remoting.protocol.headers.controller import ControllerMetadataHeader

ASK_SECONDS = 1.5
"""For the answer to who leads; a controller that hangs must not hold up the others."""
CALL_SECONDS = 3.0


class ControllersSilent(RemotingError):
    """No controller answers, or none of them leads."""

    def __init__(self, addresses: Sequence[str]) -> None:
        super().__init__(
            f"no controller of {', '.join(addresses)} leads now: see the controllers' logs"
        )


@attrs.define(eq=False)
class Controllers:
    """The controllers of one group of brokers. ``addresses``: all of them, as configured."""

    addresses: Sequence[str]
    caller: Caller
    leader: str | None = attrs.field(default=None, init=False)

    async def call(
        self, code: int, header: object | None = None, body: bytes = b"", *, accept: int = 0
    ) -> Command:
        """Ask the leader. ``accept``: a code besides success that is no refusal.

        Raises: Rejected: the leader has refused it, and nothing has changed; RemotingError: it may
        have been done.
        """
        for _ in range(2):
            leader = self.leader or await self.find_leader()
            command = request(RequestCode(code), header, body)
            try:
                answer = await self.caller.invoke(leader, command, timeout=CALL_SECONDS)
            except RemotingError:
                self.leader = None
                raise
            if answer.code in (ResponseCode.SUCCESS, accept):
                return answer
            if answer.code != ResponseCode.CONTROLLER_NOT_LEADER:
                raise Rejected(answer.code, answer.remark or "")
            self.leader = None
        raise ControllersSilent(self.addresses)

    async def find_leader(self) -> str:
        """Ask all controllers who leads; the first one that knows decides.

        Raises: ControllersSilent.
        """
        found: list[str] = []

        async def ask(address: str, scope: trio.CancelScope) -> None:
            try:
                answer = await self.caller.invoke(
                    address, request(RequestCode.CONTROLLER_GET_METADATA_INFO), timeout=ASK_SECONDS
                )
                leader = answer.header(ControllerMetadataHeader).controller_leader_address
            except (RemotingError, RemoteProtocolError, ValueError):
                return
            if leader:
                found.append(leader)
                scope.cancel()

        async with trio.open_nursery() as nursery:
            for address in self.addresses:
                nursery.start_soon(ask, address, nursery.cancel_scope)
        if not found:
            raise ControllersSilent(self.addresses)
        self.leader = found[0]
        return found[0]
