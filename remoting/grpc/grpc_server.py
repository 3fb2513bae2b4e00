"""The gRPC server: one port, plain or TLS, and the order in which it starts and stops.

::

    GrpcServer.run ─┬ grpc-boss                   cancelled first: no new connections
                    └ grpc-connections ─┬ grpc-scan        stalls, idle and silent clients
                                        ├ grpc-tls-files   with TLS: changed certificates
                                        └ × grpc-connection

A server that stops says so (GOAWAY), still takes the calls that are on their way, then refuses new
ones and waits for the open ones; those that do not end in time get UNAVAILABLE.
"""

from __future__ import annotations

import logging
import socket
from functools import partial

import attrs
import trio

from triomq.remoting.core.address import format_address
from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.core.open_files import ConnectionBudget, Places
from triomq.remoting.grpc.call_statistics import CallCounters, GrpcStatistics
from triomq.remoting.grpc.frame_budgets import AddressResets
from triomq.remoting.grpc.grpc_connection import GrpcConnection, GrpcShared
from triomq.remoting.grpc.grpc_settings import GrpcSettings
from triomq.remoting.grpc.http2_session import Buffers
from triomq.remoting.grpc.methods import MethodTable
from triomq.remoting.protocol.limits import Limits
from triomq.remoting.server.boss import AddressPlaces, Boss, new_stream, take_place
from triomq.remoting.server.connection_sniffer import ConnectionSniffer
from triomq.remoting.server.listen import OPEN_FIX, open_listener, warn_if_open

_log = logging.getLogger(__name__)

ALPN = ("h2",)
"""for ``open_sniffer``"""
_SCANS_MAX = 4
"""scans in the shortest time that a limit names"""
_SCAN_SECONDS_MAX = 1.0
_ON_THEIR_WAY_SECONDS = 0.1
"""between the two GOAWAYs of a stop: calls that a client sent before it read the first are taken"""
_DRAIN_POLL_SECONDS = 0.01


@attrs.define(eq=False)
class GrpcServer:
    """One listening port with the methods of a table.

    ``sniffer``: how connections begin, made by ``open_sniffer(security, names, ALPN)``; without
    one, all are plain HTTP/2 (prior knowledge). ``places`` are shared with the other servers of the
    process. ``port_setting`` is named in the error when the port cannot be opened.
    ``checks_callers``: whether the methods refuse strangers; otherwise the start warns of an open
    port.
    """

    table: MethodTable
    settings: GrpcSettings = attrs.field(factory=GrpcSettings)
    listen_host: str = attrs.field(default="0.0.0.0", kw_only=True)
    listen_port: int = attrs.field(default=0, kw_only=True)
    port_setting: str = attrs.field(default="", kw_only=True)
    sniffer: ConnectionSniffer | None = attrs.field(default=None, kw_only=True)
    places: Places = attrs.field(
        factory=lambda: ConnectionBudget.of_process().clients, kw_only=True
    )
    name: str = attrs.field(default="grpc", kw_only=True)
    checks_callers: bool = attrs.field(default=False, kw_only=True)
    host: str = attrs.field(default="", init=False)
    port: int = attrs.field(default=0, init=False)
    limit: LogLimit = attrs.field(factory=LogLimit, init=False)
    connections: set[GrpcConnection] = attrs.field(factory=set, init=False)
    _origins: AddressPlaces = attrs.field(init=False)
    _shared: GrpcShared = attrs.field(init=False)
    _boss: Boss | None = attrs.field(default=None, init=False)
    _listener: socket.socket | None = attrs.field(default=None, init=False)
    _accepting: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _drains: bool = attrs.field(default=False, init=False)
    _nursery: trio.Nursery | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        most, setting = self.settings.address_connections_max, "grpcConnectionsPerAddressMax"
        self._origins = AddressPlaces(most, "a gRPC connection", setting, self.limit)
        limits = Limits(self.settings, self.name)
        self._shared = GrpcShared(
            settings=self.settings,
            table=self.table,
            limits=limits,
            resets=AddressResets(limits),
            buffers=Buffers(self.settings.buffers_bytes_max),
            counters=CallCounters(),
            draining=trio.Event(),
            limit=self.limit,
        )

    async def run(
        self, *, task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve until cancelled; ``started((host, port))`` once connections are accepted.

        Cancelled, it drains first, unless ``drain`` was called.

        Raises: AddressInUse or ListenFailed (both OSError) if it cannot listen.
        """
        listener = open_listener(
            self.listen_host, self.listen_port, self.settings.backlog, self.port_setting
        )
        with listener:
            self.host, self.port = listener.getsockname()[:2]
            if not self.checks_callers:
                warn_if_open(listener, "send, receive and acknowledge", OPEN_FIX)
            self._boss = Boss(listener, self._deal, self.places, limit=self.limit)
            self._listener = listener
            shield = trio.CancelScope(shield=True)
            async with trio.open_nursery() as nursery:
                # Not `start`: if cancelled, it would wait for the shielded tasks for ever.
                nursery.start_soon(self._run_connections, shield, name="grpc-connections")
                nursery.start_soon(self._accept, self._boss, name="grpc-boss")
                _log.info("%s listens on %s", self.name, format_address(self.host, self.port))
                task_status.started((self.host, self.port))
                try:
                    await trio.sleep_forever()
                finally:
                    listener.close()
                    if self._drains:
                        self._end_calls()
                    else:
                        with trio.CancelScope(shield=True):
                            await self.drain()
                    shield.cancel()

    async def _accept(self, boss: Boss) -> None:
        with self._accepting:
            await boss.run()

    async def _run_connections(self, scope: trio.CancelScope) -> None:
        with scope:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                try:
                    if self.sniffer is not None:
                        nursery.start_soon(self.sniffer.run, name="grpc-tls-files")
                    await self._scan()
                finally:
                    self._nursery = None

    async def _scan(self) -> None:
        settings = self.settings
        shortest = min(
            settings.idle_ms,
            settings.handshake_ms,
            settings.stall_ms,
            settings.keepalive_ms,
            settings.keepalive_timeout_ms,
        )
        pause = min(_SCAN_SECONDS_MAX, shortest / 1000 / _SCANS_MAX)
        while True:
            await trio.sleep(pause)
            now = trio.current_time()
            for connection in list(self.connections):
                connection.tick(now)

    def _deal(self, _number: int, sock: socket.socket) -> None:
        """Start the task of a new connection. Checkpoint: never."""
        if self._nursery is None or not self._has_room():
            self._shared.counters.turned_away += 1
            sock.close()
            return
        address = new_stream(sock, self.places)
        if address is None:
            return
        host = address[0]  # a PROXY header may name another one
        if not self._origins.take(host):
            self._shared.counters.turned_away += 1
            self.places.leave()
            sock.close()
            return
        connection = GrpcConnection(sock, address, self._shared, partial(self._ended, host))
        if self.sniffer is not None:
            connection.filter = self.sniffer.filter(connection)
        self.connections.add(connection)
        self._nursery.start_soon(connection.run, name="grpc-connection")

    def _has_room(self) -> bool:
        open_count, most = len(self.connections), self.settings.connections_max
        what, setting = "a gRPC connection", "grpcConnectionsMax"
        return take_place(self.places, open_count, most, what, setting, self.limit)

    def _ended(self, host: str, connection: GrpcConnection) -> None:
        self.connections.discard(connection)
        self._origins.leave(host)
        self.places.leave()
        _log.debug(
            "gRPC connection from %s closed: %s",
            format_address(*connection.peer),
            connection.close_reason,
        )

    async def drain(self) -> None:
        """Stop accepting, and finish the calls of clients for as long as the settings allow.

        A stop that may be hurried calls this before it cancels ``run``: a drain that is cancelled
        is over, and ``run`` then ends what is left at once.
        """
        self._drains = True
        self._accepting.cancel()
        if self._listener is not None:
            await trio.lowlevel.checkpoint()  # the boss leaves the socket
            self._listener.close()
        self._shared.draining.set()
        with trio.move_on_after(self.settings.drain_seconds):
            for connection in self.connections:
                connection.announce_end()
            if self.connections:
                await trio.sleep(_ON_THEIR_WAY_SECONDS)
            for connection in list(self.connections):
                connection.begin_drain()
            await self._wait_closed()
        self._end_calls()
        await self._wait_closed()

    def _end_calls(self) -> None:
        for connection in list(self.connections):
            connection.end("the server stops")

    async def _wait_closed(self) -> None:
        while self.connections and self._nursery is not None:  # noqa: ASYNC110
            await trio.sleep(_DRAIN_POLL_SECONDS)

    def statistics(self) -> GrpcStatistics:
        """Return a snapshot of all counters."""
        shared, counters = self._shared, self._shared.counters
        return GrpcStatistics(
            connections=len(self.connections),
            calls=sum(connection.calls for connection in self.connections),
            kept_bytes=shared.buffers.kept_bytes,
            accepted=self._boss.accepted if self._boss is not None else 0,
            turned_away=counters.turned_away,
            closed=counters.closed,
            broken=counters.broken,
            received_bytes=counters.received_bytes,
            sent_bytes=counters.sent_bytes,
            refused=dict(shared.limits.refused),
            statuses=dict(counters.statuses),
            latency={path: one.snapshot() for path, one in counters.latency.items()},
        )
