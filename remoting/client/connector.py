"""The connector: one connection for each address, opened on demand, shared by all callers.

::

    async with Connector(ConnectorConfig()) as connector:
        command = request(RequestCode.GET_BROKER_CLUSTER_INFO)
        answer = await connector.invoke("127.0.0.1:9876", command)

Tasks, all inside the ``async with``: a reader and a writer for each address, one timer for all
deadlines, one idle scan, and one task for each request of a server. The connector repeats a request
in one case only: a server that is shutting down answers GO_AWAY without having done anything, and
the request is sent once more over a new connection.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

import attrs
import trio
from attrs import validators

from triomq.remoting.client.connection import ClientConnection
from triomq.remoting.client.dial import dial, dial_through
from triomq.remoting.client.proxies import SocksProxies
from triomq.remoting.client.rpc_hooks import RpcHook
from triomq.remoting.core.address import parse_address
from triomq.remoting.core.errors import (
    ConnectFailed,
    ConnectionLost,
    LocalProtocolError,
    Rejected,
    RemoteProtocolError,
    TlsFailed,
)
from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.core.open_files import explained
from triomq.remoting.core.periodic import every
from triomq.remoting.core.settings import ConfigError
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import (
    RESPONSE_FLAG,
    Command,
    Outgoing,
    encode_command,
    response_to,
)
from triomq.remoting.protocol.framing import FRAME_BYTES_MAX
from triomq.remoting.protocol.peer import ClientPeer
from triomq.remoting.tls.client import Tls

if TYPE_CHECKING:
    import ssl

    from triomq.remoting.tls.stream import TlsStream


_log = logging.getLogger(__name__)

PeerHandler = Callable[[str, Command], Awaitable[Command | None]]
InstantHandler = Callable[[str, Command], Command | None]
"""The same without waiting: it runs where the request is read, so any number may come at once."""
"""(address, request of that server) -> response; None: no response. May raise Rejected."""


@attrs.frozen(kw_only=True)
class ConnectorConfig:
    """The settings of one connector.

    ``peer_requests_max``: how many requests of servers are answered at once. ``tls``: every
    connection uses TLS; None: no connection does. ``socks``: the proxies that lead to servers.
    ``hooks`` see every request, in this order. ``busy_poll``: ask the sockets for up to 150 µs
    whether an answer has come before the loop sleeps (``remoting/core/busy_poll.py``).
    """

    connect_seconds: float = attrs.field(default=3.0, validator=validators.gt(0))
    idle_seconds: float = attrs.field(default=120.0, validator=validators.gt(0))
    frame_max_bytes: int = attrs.field(default=FRAME_BYTES_MAX, validator=validators.ge(64))
    outbox_high_bytes: int = attrs.field(default=4 * 1024 * 1024, validator=validators.ge(1))
    peer_requests_max: int = attrs.field(default=64, validator=validators.ge(1))
    tls: Tls | None = None
    socks: SocksProxies = attrs.field(factory=SocksProxies)
    hooks: Sequence[RpcHook] = ()
    busy_poll: bool = True


def _context_of(tls: Tls) -> "ssl.SSLContext":
    from triomq.remoting.tls.contexts import current_client_context  # ssl, only with TLS

    return current_client_context(tls)


@attrs.define(eq=False)
class _Attempt:
    """One attempt to connect, shared by all callers for that address."""

    done: trio.Event = attrs.field(factory=trio.Event)
    connection: ClientConnection | None = None
    reason: str = ""


@attrs.frozen(kw_only=True)
class ConnectorStatistics:
    """Connections ``opened`` since the start and ``open`` now.

    ``pending`` requests and ``late`` answers, which came after the caller had given up, are those
    of open connections.
    """

    open: int
    opened: int
    pending: int
    late: int


@attrs.define(eq=False)
class Connector:
    """Sends requests to any address; ``handlers`` answer the requests of servers.

    ``on_connected(address)`` and ``on_lost(address, reason)`` are callbacks and must not block.
    """

    config: ConnectorConfig = attrs.Factory(ConnectorConfig)
    handlers: Mapping[int, PeerHandler] = attrs.field(factory=dict, kw_only=True)
    instant_handlers: dict[int, InstantHandler] = attrs.field(factory=dict, init=False)
    on_connected: Callable[[str], None] | None = attrs.field(default=None, kw_only=True)
    on_lost: Callable[[str, str], None] | None = attrs.field(default=None, kw_only=True)
    _connections: dict[str, ClientConnection] = attrs.field(factory=dict, init=False)
    _retiring: set[ClientConnection] = attrs.field(factory=set, init=False)
    _attempts: dict[str, _Attempt] = attrs.field(factory=dict, init=False)
    _timer: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _watched: float = attrs.field(default=math.inf, init=False)  # the timer's deadline
    _limit: LogLimit = attrs.field(factory=LogLimit, init=False)
    _serving: int = attrs.field(default=0, init=False)
    _opened: int = attrs.field(default=0, init=False)
    _opening: AbstractAsyncContextManager[trio.Nursery, bool | None] | None = attrs.field(
        default=None, init=False
    )
    _nursery: trio.Nursery | None = attrs.field(default=None, init=False)

    async def __aenter__(self) -> "Connector":
        if self.config.tls is not None:
            _context_of(self.config.tls)  # raises if its files cannot be used
        self._opening = trio.open_nursery()
        self._nursery = await self._opening.__aenter__()
        self._nursery.start_soon(self._run_timer, name="connector-timer")
        pause = self.config.idle_seconds / 4
        self._nursery.start_soon(every, pause, self._scan_idle, name="connector-idle-scan")
        return self

    async def __aexit__(self, *raised: Any) -> None:
        assert self._opening is not None
        assert self._nursery is not None
        crashed = self._nursery.cancel_scope.cancel_called
        self._nursery.cancel_scope.cancel()
        for connection in (*self._connections.values(), *self._retiring):
            connection.flush_nowait()
            connection.close("the connector was closed")
        # The body's error only after a crash: otherwise it is raised without a group around it.
        await self._opening.__aexit__(*(raised if crashed else (None, None, None)))

    # Requests

    @property
    def hooked(self) -> bool:
        """Whether there are hooks: then requests must be Commands."""
        return bool(self.config.hooks)

    def invoke(
        self,
        address: str,
        command: Outgoing,
        *,
        timeout: float = 3.0,
        deadline: float | None = None,
    ) -> Coroutine[object, object, Command]:
        """Send a request and wait for its answer, whatever its code.

        *timeout*: seconds, connecting included, from now unless there is a *deadline*.

        Raises: ConnectFailed, ConnectionLost, RequestTimeout; ValueError for an invalid address.
        Checkpoint: always.
        """
        if deadline is None:
            deadline = trio.current_time() + timeout
        connection = self._connections.get(address)
        if connection is not None and not self.config.hooks:  # fast path
            return connection.invoke(command, deadline=deadline, timeout=timeout)
        return self._invoke(address, command, deadline, timeout)

    async def _invoke(
        self,
        address: str,
        command: Outgoing,
        deadline: float,
        timeout: float,
        *,
        again: bool = True,
    ) -> Command:
        """Do the same where a connection must be made or hooks must be called."""
        connection = await self._connection(address, deadline, timeout)
        if self.config.hooks:
            self._before_request(address, command)
        answer = await connection.invoke(command, deadline=deadline, timeout=timeout, again=again)
        if again and self.config.hooks:  # hooks see the last answer only
            assert isinstance(command, Command)
            for hook in self.config.hooks:
                hook.after_response(address, command, answer)
        return answer

    async def _repeat(
        self, connection: ClientConnection, command: Outgoing, deadline: float, timeout: float
    ) -> Command:
        """Repeat a request over a new connection: the server is going away and has done nothing."""
        self._retire(connection)
        return await self._invoke(connection.address, command, deadline, timeout, again=False)

    def _before_request(self, address: str, command: Outgoing) -> None:
        if not isinstance(command, Command):
            raise TypeError(
                f"hooks can change Commands only, not {type(command).__name__}: see `hooked`"
            )
        for hook in self.config.hooks:
            hook.before_request(address, command)

    async def oneway(self, address: str, command: Outgoing, *, timeout: float = 3.0) -> None:
        """Send a one-way request; whether it arrives is not known.

        Raises: ConnectFailed, ConnectionLost, RequestTimeout; ValueError for an invalid address.
        Checkpoint: always.
        """
        deadline = trio.current_time() + timeout
        connection = await self._connection(address, deadline, timeout)
        if self.config.hooks:
            self._before_request(address, command)
        await connection.oneway(command, deadline=deadline, timeout=timeout)

    def close_address(self, address: str) -> None:
        """Close the connection to an address, if there is one; its callers get ConnectionLost."""
        connection = self._connections.get(address)
        if connection is not None:
            connection.close("closed by this side")

    def connected(self, address: str) -> bool:
        """Return whether there is a connection now."""
        return address in self._connections

    def statistics(self) -> ConnectorStatistics:
        peers = [
            connection.peer.statistics()
            for connection in (*self._connections.values(), *self._retiring)
        ]
        return ConnectorStatistics(
            open=len(peers),
            opened=self._opened,
            pending=sum(peer.pending for peer in peers),
            late=sum(peer.late_replies for peer in peers),
        )

    # Connections

    async def _connection(self, address: str, deadline: float, timeout: float) -> ClientConnection:
        """Return the connection to an address, after connecting if there is none."""
        if address in self._connections:
            return self._connections[address]
        parse_address(address)
        if self._nursery is None or self._nursery.cancel_scope.cancel_called:
            raise ConnectFailed(address, "the connector is not open; use it inside `async with`")
        attempt = self._attempts.get(address)
        if attempt is None:
            attempt = self._attempts[address] = _Attempt()
            self._nursery.start_soon(self._dial, address, attempt, name=f"connect {address}")
        with trio.move_on_at(deadline):
            await attempt.done.wait()
        if not attempt.done.is_set():
            raise ConnectFailed(address, f"no connection within {timeout:g} s")
        if attempt.connection is None:
            raise ConnectFailed(address, attempt.reason)
        if attempt.connection.lost:
            raise ConnectionLost(address, attempt.connection.reason)
        return attempt.connection

    async def _dial(self, address: str, attempt: _Attempt) -> None:
        """Connect once. Goes on when its callers are cancelled: other callers may wait for it."""
        assert self._nursery is not None
        stream: TlsStream | None = None
        try:
            with trio.fail_after(self.config.connect_seconds):
                host, port = parse_address(address)
                proxy = self.config.socks.for_host(host)
                context = None if self.config.tls is None else _context_of(self.config.tls)
                sock = await (
                    dial(host, port) if proxy is None else dial_through(proxy, host, port)
                )
                if context is not None:
                    from triomq.remoting.client.tls_handshake import secure  # ssl, only with TLS

                    stream = await secure(sock, context, host)
        except trio.TooSlowError:
            attempt.reason = f"no answer within {self.config.connect_seconds:g} s"
        except OSError as error:
            attempt.reason = explained(error)
        except (TlsFailed, RemoteProtocolError, ConfigError) as error:
            attempt.reason = str(error)
        else:
            connection = ClientConnection(
                address,
                sock,
                ClientPeer(frame_max_bytes=self.config.frame_max_bytes),
                self.config.outbox_high_bytes,
                self._take_request,
                self._forget,
                self._watch_deadline,
                self._limit,
                stream,
                self._repeat,
                self.config.busy_poll,
            )
            connection.idle_since = trio.current_time()
            attempt.connection = self._connections[address] = connection
            self._opened += 1
            self._nursery.start_soon(connection.run, name=f"reader {address}")
            self._call_back(self.on_connected, address)
        finally:
            del self._attempts[address]
            attempt.reason = attempt.reason or "the connector was closed"
            attempt.done.set()

    def _retire(self, connection: ClientConnection) -> None:
        """Send new requests over a new connection after GO_AWAY; let answers in flight arrive."""
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]
            self._retiring.add(connection)
            connection.retire()

    def _forget(self, connection: ClientConnection) -> None:
        self._retiring.discard(connection)
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]
        _log.debug("connection to %s ended: %s", connection.address, connection.reason)
        self._call_back(self.on_lost, connection.address, connection.reason)

    def _call_back(self, callback: Callable[..., None] | None, *arguments: str) -> None:
        if callback is None:
            return
        try:
            callback(*arguments)
        except Exception:
            _log.exception("a callback about the connection to %s failed", arguments[0])

    # Time

    def _watch_deadline(self, deadline: float) -> None:
        if deadline < self._watched:
            self._watched = self._timer.deadline = deadline

    async def _run_timer(self) -> None:
        """Expire requests at the earliest deadline, which a new request may bring forward."""
        while True:
            connections = (*self._connections.values(), *self._retiring)
            deadlines = [connection.peer.next_deadline() for connection in connections]
            earliest = min(
                (deadline for deadline in deadlines if deadline is not None), default=math.inf
            )
            self._watched = earliest
            with trio.CancelScope(deadline=earliest) as self._timer:
                await trio.sleep_forever()
            now = trio.current_time()
            for connection in (*self._connections.values(), *self._retiring):
                connection.expire(now)

    def _scan_idle(self) -> None:
        """Close connections without traffic and without pending requests."""
        now = trio.current_time()
        for connection in list(self._connections.values()):
            if connection.traffic != connection.idle_traffic or connection.peer.pending_count:
                connection.idle_traffic = connection.traffic
                connection.idle_since = now
            elif now - connection.idle_since >= self.config.idle_seconds:
                connection.close("idle")

    # Requests of servers

    def _take_request(self, connection: ClientConnection, command: Command) -> None:
        """Answer a request of a server in a new task, or refuse it at once. Checkpoint: never."""
        assert self._nursery is not None
        instant = self.instant_handlers.get(command.code)
        if instant is not None:
            self._serve_at_once(connection, command, instant)
            return
        handler = self.handlers.get(command.code)
        if handler is not None and self._serving < self.config.peer_requests_max:
            self._serving += 1
            self._nursery.start_soon(
                self._serve,
                connection,
                command,
                handler,
                name=f"answer {command.code} of {connection.address}",
            )
            return
        code, remark = (
            (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {command.code} not supported")
            if handler is None
            else (ResponseCode.SYSTEM_BUSY, "[OVERLOAD]system busy, start flow control for a while")
        )
        self._answer(connection, command, response_to(command, code, remark=remark))

    def _serve_at_once(
        self, connection: ClientConnection, command: Command, handler: InstantHandler
    ) -> None:
        try:
            answer = handler(connection.address, command)
        except Exception as error:
            answer = _failure(connection, command, error)
        if answer is not None:
            self._answer(connection, command, answer)

    async def _serve(
        self, connection: ClientConnection, command: Command, handler: PeerHandler
    ) -> None:
        try:
            answer = await handler(connection.address, command)
        except Exception as error:
            answer = _failure(connection, command, error)
        finally:
            self._serving -= 1
        if answer is not None:
            self._answer(connection, command, answer)

    def _answer(self, connection: ClientConnection, command: Command, answer: Command) -> None:
        if command.is_oneway:
            return
        answer.opaque = command.opaque
        answer.flag |= RESPONSE_FLAG
        answer.serialize = command.serialize
        try:
            connection.post(encode_command(answer))
        except LocalProtocolError:
            _log.exception(
                "the answer to request %d of %s cannot be encoded", command.code, connection.address
            )


def _failure(connection: ClientConnection, command: Command, error: Exception) -> Command:
    """Return the answer to a request whose handler raised; log unexpected errors."""
    if isinstance(error, Rejected):
        return response_to(command, error.code, remark=error.remark)
    _log.error(
        "request %d from %s failed in its handler", command.code, connection.address, exc_info=error
    )
    return response_to(
        command, ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}"
    )
