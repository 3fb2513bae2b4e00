"""Requests of administration to one server, to any name server, or to many servers at once.

A request is never repeated at the same server, but for a name server that was silent at its first
turn; a refused connection is an error at once: a server that is down must not delay the answers of
the others. Transport errors and refusals are
raised as the SDK's errors (``triomq.client.core.errors``), so callers handle one tree.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import attrs
import trio

from triomq.client.admin.answers import Answers, read_body
from triomq.client.admin.errors import ChangeUnanswered, ClientSilent
from triomq.client.admin.unsent import UnsentRequest, changes_server, success
from triomq.client.core.errors import (
    BrokerError,
    NoNameServer,
    RequestNotSupported,
    RequestTimeout,
    TrioMQError,
    broker_error,
    from_remoting,
    request_name,
)
from triomq.remoting.client.connector import Connector
from triomq.remoting.client.name_servers import NameServers
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.protocol.bodies.schema import JsonBody
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command, request

T = TypeVar("T")
B = TypeVar("B", bound=JsonBody)
CONCURRENT_MAX = 64
"""requests in flight to all servers: a cluster of hundreds of brokers must not take hundreds of
sockets at once
"""
CONCURRENT_PER_SERVER_MAX = 16
"""requests in flight to one server: a server that hangs must leave room for the others"""
RELAYED_CODES = frozenset(
    {
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
    }
)
"""requests that a broker relays to a client: a late answer does not mean that the broker hangs"""


@attrs.define(eq=False)
class AdminRequests:
    """The transport of one ``Admin``."""

    connector: Connector
    namesrv_addresses: Sequence[str]
    timeout_seconds: float
    names: NameServers = attrs.field(init=False)
    """the same name servers, and which of them is asked first"""
    held: list[UnsentRequest] | None = attrs.field(default=None, init=False)
    """None: all requests are sent; otherwise those that change a server are put here instead"""
    _deadline: float = attrs.field(default=math.inf, init=False)
    """Trio's clock; requests end by then"""
    _limit: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(CONCURRENT_MAX), init=False
    )
    _limits: dict[str, trio.CapacityLimiter] = attrs.field(factory=dict, init=False)
    _silent: dict[str, RequestTimeout] = attrs.field(factory=dict, init=False)
    """servers that did not answer in time since ``limit_to`` → the first such error"""

    @names.default
    def _names(self) -> NameServers:
        return NameServers(list(self.namesrv_addresses))

    def limit_to(self, seconds: float) -> None:
        """End all requests from now on within ``seconds``.

        In this time, a server is not asked again after a time-out.
        """
        self._deadline = trio.current_time() + seconds
        self._silent.clear()

    async def server(
        self,
        address: str,
        code: RequestCode,
        header: object | None = None,
        body: bytes = b"",
        *,
        accept: Sequence[int] = (),
        timeout_seconds: float | None = None,
    ) -> Command:
        """Ask one server.

        Only single requests count against the limits on requests in flight: a fan-out that counted
        itself and started another fan-out could wait for itself.

        Raises: BrokerError for response codes other than success and those in ``accept``.
        """
        if self.held is not None and changes_server(code):
            self.held.append(UnsentRequest(address, code, header, body))
            return success(code)
        seconds = timeout_seconds or self.timeout_seconds
        response: Command | None = None
        limit = self._limits.setdefault(address, trio.CapacityLimiter(CONCURRENT_PER_SERVER_MAX))
        with trio.move_on_at(self._deadline):
            async with limit, self._limit:
                if (silent := self._silent.get(address)) is not None:
                    raise RequestTimeout(silent.address, silent.request, silent.seconds)
                try:
                    response = await self.connector.invoke(
                        address, request(code, header, body), timeout=seconds
                    )
                except RemotingError as error:
                    failure = from_remoting(error)
                    if isinstance(failure, RequestTimeout):
                        failure = _unanswered(code, address, seconds)
                    if (
                        isinstance(failure, RequestTimeout)
                        and self._deadline < math.inf
                        and seconds >= self.timeout_seconds
                        and code not in RELAYED_CODES
                    ):
                        self._silent[address] = failure
                    raise failure from error
        if response is None:
            raise _unanswered(code, address, seconds)
        if response.code != ResponseCode.SUCCESS and response.code not in accept:
            raise broker_error(response.code, response.remark, address, request_name(code))
        return response

    async def body(
        self,
        kind: type[B],
        address: str,
        code: RequestCode,
        header: object | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> B:
        """Ask one server and read the body of its answer."""
        return read_body(
            kind, await self.server(address, code, header, timeout_seconds=timeout_seconds)
        )

    async def any_name_server(self, code: RequestCode, header: object | None = None) -> Command:
        """Ask the name servers in turn until one answers; a refusal is an answer."""
        reasons: dict[str, str] = {}
        if not self.namesrv_addresses:
            raise NoNameServer(reasons)
        deadline = trio.current_time() + self.timeout_seconds * len(self.names.addresses)
        for turn in self.names.turns(trio.current_time, deadline, reasons):
            seconds = min(turn.seconds, self.timeout_seconds)
            try:
                answer = await self.server(turn.address, code, header, timeout_seconds=seconds)
                self.names.answered(turn.address)
                return answer
            except RequestNotSupported as error:
                # Most likely the port of another kind of server.
                reasons[turn.address] = str(error)
            except BrokerError:
                self.names.answered(turn.address)
                raise
            except TrioMQError as error:
                reasons[turn.address] = getattr(error, "reason", None) or str(error)
        raise NoNameServer(reasons)

    async def servers(
        self, addresses: Iterable[str], code: RequestCode, header: object | None = None
    ) -> Answers[Command]:
        """Send the same request to several servers."""
        return await self.fan_out(addresses, lambda address: self.server(address, code, header))

    async def fan_out(
        self, addresses: Mapping[str, str] | Iterable[str], call: Callable[[str], Awaitable[T]]
    ) -> Answers[T]:
        """Run ``call(address)`` for each address at the same time.

        ``addresses``: label → address, or addresses that are their own labels. One failure does not
        stop the others.
        """
        if not isinstance(addresses, Mapping):
            addresses = {address: address for address in addresses}
        values: dict[str, T] = {}
        failures: dict[str, TrioMQError] = {}

        async def ask_server(label: str, address: str) -> None:
            try:
                values[label] = await call(address)
            except TrioMQError as error:
                failures[label] = error

        async with trio.open_nursery() as nursery:
            for label, address in addresses.items():
                nursery.start_soon(ask_server, label, address)
        return Answers(
            {label: values[label] for label in addresses if label in values},
            {label: failures[label] for label in addresses if label in failures},
        )


def _unanswered(code: RequestCode, address: str, seconds: float) -> RequestTimeout:
    """Return the error of a request without an answer: whose fault it is, what is uncertain."""
    kind = RequestTimeout
    if code in RELAYED_CODES:
        kind = ClientSilent
    elif changes_server(code):
        kind = ChangeUnanswered
    return kind(address, request_name(code), seconds)
