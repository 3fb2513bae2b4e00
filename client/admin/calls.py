"""Requests of administration: to one server, to the first name server that answers, or to many brokers at once.

A request goes out once and is never repeated at the same server.  Transport errors and refusals leave here as the SDK's errors
(`triomq.client.errors`), so callers handle one tree.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Generic, TypeVar

import attrs
import trio

from triomq.client.admin.errors import NoBrokerAnswered
from triomq.client.errors import (
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
from triomq.remoting.errors import RemotingError
from triomq.remoting.protocol.bodies.schema import JsonBody
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command, request

T = TypeVar("T")
B = TypeVar("B", bound=JsonBody)
H = TypeVar("H")
CONCURRENT_MAX = 64
"""requests under way at once, all servers together; a cluster of hundreds of brokers must not cost hundreds of sockets in one moment"""
CONCURRENT_PER_SERVER_MAX = 16
"""requests under way at once at one server: one that hangs leaves room for the others"""
RELAYED_CODES = frozenset(
    {
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
    }
)
"""requests that a broker passes on to a client: a late answer says nothing about the broker"""


@attrs.frozen
class Answers(Generic[T]):
    """What several servers said: `values` of those that answered, `failures` of the others, both by the caller's label."""

    values: Mapping[str, T]
    failures: Mapping[str, TrioMQError]

    @property
    def asked(self) -> int:
        return len(self.values) + len(self.failures)

    def reasons(self) -> dict[str, str]:
        """Return each failure as a text."""
        return {label: str(error) for label, error in self.failures.items()}

    def some(self) -> Mapping[str, T]:
        """Return `values`; raise if there are none and somebody failed."""
        if not self.values and self.failures:
            errors = list(self.failures.values())
            if all(isinstance(error, BrokerError) and type(error) is type(errors[0]) for error in errors):
                raise errors[0]  # all refuse for one reason: that reason is the answer
            raise NoBrokerAnswered(self.reasons())
        return self.values


def read_body(kind: type[B], response: Command) -> B:
    """Decode a body; `ProtocolBroken` if it is not what the request answers with."""
    try:
        return kind.decode(response.body)
    except RemotingError as error:
        raise from_remoting(error) from error


def read_header(kind: type[H], response: Command) -> H:
    """Read the header fields of an answer; `ProtocolBroken` if one is missing."""
    try:
        return response.header(kind)
    except RemotingError as error:
        raise from_remoting(error) from error


@attrs.define(eq=False)
class Calls:
    """The transport of one `Admin`."""

    connector: Connector
    namesrv_addresses: Sequence[str]
    timeout_seconds: float
    _deadline: float = attrs.field(default=math.inf, init=False)
    """Trio's clock; requests end by then"""
    _limit: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(CONCURRENT_MAX), init=False)
    _limits: dict[str, trio.CapacityLimiter] = attrs.field(factory=dict, init=False)
    _silent: dict[str, RequestTimeout] = attrs.field(factory=dict, init=False)
    """servers that did not answer a request in time since `limit_to`, and the first such time-out"""

    def limit_to(self, seconds: float) -> None:
        """End all requests from now on within some seconds; a server whose answer is overdue is not asked again meanwhile."""
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
        """Ask one server; response codes other than success and those in `accept` become a `BrokerError`.

        Only single requests take the limits on requests under way: a fan-out that took one and started another would wait for itself.
        """
        seconds = timeout_seconds or self.timeout_seconds
        response: Command | None = None
        limit = self._limits.setdefault(address, trio.CapacityLimiter(CONCURRENT_PER_SERVER_MAX))
        with trio.move_on_at(self._deadline):
            async with limit, self._limit:
                if (silent := self._silent.get(address)) is not None:
                    raise RequestTimeout(silent.address, silent.request, silent.seconds)
                try:
                    response = await self.connector.invoke(address, request(code, header, body), timeout=seconds)
                except RemotingError as error:
                    failure = from_remoting(error)
                    if isinstance(failure, RequestTimeout) and self._deadline < math.inf and code not in RELAYED_CODES:
                        self._silent[address] = failure
                    raise failure from error
        if response is None:
            raise RequestTimeout(address, request_name(code), seconds)
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
        return read_body(kind, await self.server(address, code, header, timeout_seconds=timeout_seconds))

    async def any_name_server(
        self, code: RequestCode, header: object | None = None, *, accept: Sequence[int] = ()
    ) -> Command:
        """Ask the name servers in their order until one answers; a refusal is an answer."""
        reasons: dict[str, str] = {}
        for address in self.namesrv_addresses:
            try:
                return await self.server(address, code, header, accept=accept)
            except RequestNotSupported as error:
                # Most likely the port of another kind of server.
                reasons[address] = str(error)
            except BrokerError:
                raise
            except TrioMQError as error:
                reasons[address] = getattr(error, "reason", None) or str(error)
        raise NoNameServer(reasons)

    async def every_name_server(self, code: RequestCode, header: object | None = None) -> Answers[Command]:
        """Tell all name servers the same; they do not talk to each other."""
        return await self.fan_out(
            {address: address for address in self.namesrv_addresses}, lambda address: self.server(address, code, header)
        )

    async def fan_out(self, addresses: Mapping[str, str], call: Callable[[str], Awaitable[T]]) -> Answers[T]:
        """Run `call(address)` for each label → address at the same time; one failure does not stop the others."""
        values: dict[str, T] = {}
        failures: dict[str, TrioMQError] = {}

        async def one(label: str, address: str) -> None:
            try:
                values[label] = await call(address)
            except TrioMQError as error:
                failures[label] = error

        async with trio.open_nursery() as nursery:
            for label, address in addresses.items():
                nursery.start_soon(one, label, address)
        order = list(addresses)
        return Answers(
            {label: values[label] for label in order if label in values},
            {label: failures[label] for label in order if label in failures},
        )
