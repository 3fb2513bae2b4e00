"""Requests of a client and their answers, with errors of ours in place of the transport's."""

from __future__ import annotations

from typing import TypeVar

import attrs

from triomq.client.errors import ProtocolBroken, broker_error, from_remoting, request_name
from triomq.remoting.client.connector import Connector
from triomq.remoting.errors import ProtocolError, RemotingError
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import Command, Outgoing

H = TypeVar("H")


@attrs.define(eq=False)
class Calls:
    """Asks servers by their addresses."""

    _connector: Connector

    @property
    def connector(self) -> Connector:
        """The connections, for who wants their errors as they are (`from_remoting` translates them)."""
        return self._connector

    async def invoke(self, address: str, command: Outgoing, timeout: float) -> Command:
        """Send a request and return the response, whatever its code.  Errors: the transport's, as `TrioMQError`."""
        try:
            return await self._connector.invoke(address, command, timeout=timeout)
        except RemotingError as error:
            raise from_remoting(error) from error

    async def call(self, address: str, command: Command, timeout: float) -> Command:
        """Send a request and return the response; any other code than SUCCESS is raised as `BrokerError`."""
        response = await self.invoke(address, command, timeout)
        if response.code != ResponseCode.SUCCESS:
            raise broker_error(response.code, response.remark, address, request_name(command.code))
        return response

    async def ask(self, address: str, command: Command, timeout: float, answer: type[H]) -> H:
        """Send a request and return the header of its successful response.  Errors: as `call`, and `ProtocolBroken`."""
        return read_header(await self.call(address, command, timeout), answer, address)

    def reconnect(self, address: str) -> None:
        """Drop a connection whose server asked for that; the next request makes a new one."""
        self._connector.close_address(address)

    async def oneway(self, address: str, command: Outgoing, timeout: float) -> None:
        """Send a request that is not answered; returns when its bytes are written."""
        try:
            await self._connector.oneway(address, command, timeout=timeout)
        except RemotingError as error:
            raise from_remoting(error) from error


def read_header(response: Command, answer: type[H], address: str) -> H:
    """Return a response's header as an object.  Errors: `ProtocolBroken`."""
    try:
        return response.header(answer)
    except ProtocolError as error:
        raise ProtocolBroken(f"{address} answered with an unreadable header: {error}") from error
