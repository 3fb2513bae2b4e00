"""Requests of a client and their responses, with errors of the SDK instead of the transport's."""

from __future__ import annotations

from typing import TypeVar

import attrs

from triomq.client.core.errors import ProtocolBroken, broker_error, from_remoting, request_name
from triomq.remoting.client.connector import Connector
from triomq.remoting.core.errors import ProtocolError, RemotingError
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import Command, Outgoing

H = TypeVar("H")


@attrs.define(eq=False)
class Calls:
    """Sends requests to servers by their addresses."""

    connector: Connector
    """the connections, for callers that handle transport errors with ``from_remoting``"""

    async def invoke(self, address: str, command: Outgoing, timeout: float) -> Command:
        """Send a request and return the response, whatever its code.

        Raises: ``ConnectionFailed``, ``ConnectionLost``, ``RequestTimeout``, ``ProtocolBroken``.
        """
        try:
            return await self.connector.invoke(address, command, timeout=timeout)
        except RemotingError as error:
            raise from_remoting(error) from error

    async def call(self, address: str, command: Command, timeout: float) -> Command:
        """Send a request and return its successful response.

        Raises: as ``invoke``; ``BrokerError`` for any code other than SUCCESS.
        """
        response = await self.invoke(address, command, timeout)
        if response.code != ResponseCode.SUCCESS:
            raise broker_error(response.code, response.remark, address, request_name(command.code))
        return response

    def reconnect(self, address: str) -> None:
        """Close a connection because its server asked for it; the next request opens a new one."""
        self.connector.close_address(address)

    async def oneway(self, address: str, command: Outgoing, timeout: float) -> None:
        """Send a request that has no response; return when it is written. Raises: as ``invoke``."""
        try:
            await self.connector.oneway(address, command, timeout=timeout)
        except RemotingError as error:
            raise from_remoting(error) from error


def read_header(response: Command, answer: type[H], address: str) -> H:
    """Return a response's header as an object. Raises: ``ProtocolBroken``."""
    try:
        return response.header(answer)
    except ProtocolError as error:
        raise ProtocolBroken(f"{address} answered with an unreadable header: {error}") from error
