"""The server: its stages, and the order in which they start and stop.

::

    Server.run ─┬ boss                    cancelled first: no new connections
                └ stages ─┬ selector-i    go on
                          ├ codec-j       answer GO_AWAY
                          ├ pool-NAME-k   finish the requests that were let in
                          ├ sweeper
                          ├ buffer-guard
                          └ idle-scan     … then all connections are closed
"""

import itertools
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from functools import partial

import attrs
import trio

from triomq.remoting.core.address import format_address
from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.core.open_files import ConnectionBudget, Places
from triomq.remoting.core.task_dump import format_tasks
from triomq.remoting.protocol.command import Command
from triomq.remoting.server.boss import AddressPlaces, Boss, new_stream, take_place
from triomq.remoting.server.buffer_guard import BufferGuard
from triomq.remoting.server.codec import Codec
from triomq.remoting.server.config import ServerConfig
from triomq.remoting.server.connection import Connection, Outboxes
from triomq.remoting.server.handlers import HandlerTable
from triomq.remoting.server.idle_scan import IdleScan
from triomq.remoting.server.listen import OPEN_FIX, open_listener, warn_if_open
from triomq.remoting.server.local_connection import LocalConnection
from triomq.remoting.server.pool import Pool, Sweeper
from triomq.remoting.server.requests import Destination
from triomq.remoting.server.selector import Selector
from triomq.remoting.server.statistics import ServerStatistics

_log = logging.getLogger(__name__)

_FLUSH_POLL_SECONDS = 0.005
_SILENCE_SECONDS = 0.010


@attrs.define(eq=False)
class Server:
    """One listening port with its stages, and side ports.

    ``on_close`` is called with every connection that has ended. ``places`` are shared with the
    other servers of the process; without them the server takes all connections that the limit of
    open files leaves. A side port has a boss, a selector and a codec of its own, named after it;
    handlers and pools are those of the server.
    """

    config: ServerConfig
    table: HandlerTable
    on_close: Callable[[Connection], None] | None = attrs.field(default=None, kw_only=True)
    name: str = attrs.field(default="broker", kw_only=True)
    places: Places = attrs.field(
        factory=lambda: ConnectionBudget.of_process().clients, kw_only=True
    )
    host: str = attrs.field(default="", init=False)
    port: int = attrs.field(default=0, init=False)
    side_ports: dict[str, int] = attrs.field(factory=dict, init=False)
    pools: dict[str, Pool] = attrs.field(factory=dict, init=False)
    limit: LogLimit = attrs.field(factory=LogLimit, init=False)
    _destinations: dict[int, Destination] = attrs.field(factory=dict, init=False)
    _codecs: list[Codec] = attrs.field(factory=list, init=False)
    _selectors: list[Selector] = attrs.field(factory=list, init=False)
    _sweeper: Sweeper = attrs.field(factory=Sweeper, init=False)
    _idle_scan: IdleScan = attrs.field(init=False)
    _outboxes: Outboxes = attrs.field(init=False)
    _stage_tasks: list[tuple[str, Callable[[], Awaitable[None]]]] = attrs.field(
        factory=list, init=False
    )
    _bosses: dict[str, Boss] = attrs.field(factory=dict, init=False)
    _local: set[Connection] = attrs.field(factory=set, init=False)
    _task: trio.lowlevel.Task | None = attrs.field(default=None, init=False)
    _stages_run: bool = attrs.field(default=False, init=False)
    _closed_count: int = attrs.field(default=0, init=False)
    _closed_bytes: int = attrs.field(default=0, init=False)  # sent on closed connections
    _turned_away: int = attrs.field(default=0, init=False)
    _origins: AddressPlaces = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        config = self.config
        most, setting = config.address_connections_max, "serverConnectionsPerAddressMax"
        self._origins = AddressPlaces(most, "a connection", setting, self.limit)
        self.pools = {
            name: Pool(name, pool, self._sweeper.wake, self.limit, config.slow_seconds)
            for name, pool in config.pools.items()
        }
        self._sweeper.pools = [pool for pool in self.pools.values() if pool.config.wait_ms_max]
        batch_keys: dict[object, int] = {}
        for number, (code, handler) in enumerate(self.table.handlers.items()):
            if handler.pool not in self.pools:
                raise ValueError(
                    f"the handler of request {code} names the pool {handler.pool!r}, which is not"
                    f" configured; the pools are {', '.join(self.pools)}"
                )
            key = batch_keys.setdefault(handler.call, number) if handler.batch else number
            self._destinations[code] = self.pools[handler.pool].destination(handler, key)
        self._idle_scan = IdleScan(self.connections, config.idle_seconds, self.limit)
        self._outboxes = Outboxes(
            config.outbox_high_bytes, config.outbox_hard_bytes, config.buffers_max_bytes
        )

    def connections(self) -> Iterator[Connection]:
        """Iterate over all open connections."""
        return itertools.chain(
            itertools.chain.from_iterable(
                selector.connections.values() for selector in self._selectors
            ),
            self._local,
        )

    def open_local(
        self, peer: tuple[str, int], on_request: Callable[[Command], None]
    ) -> LocalConnection:
        """Return a connection of a client in this process; *peer*: its address in all tables.

        It takes no descriptor, and is closed when it is idle, like any other.

        Checkpoint: never.
        """
        selector = self._selectors[0]
        made = LocalConnection.open(
            peer,
            selector.codec,
            on_request,
            self._outboxes,
            selector.poller,
            self._local_closed,
            frame_max_bytes=self.config.frame_max_bytes,
            limit=self.limit,
        )
        self._local.add(made.server_side)
        return made

    def drop_connections(self) -> None:
        """Close every connection now; peers get no answers to pending requests."""
        for connection in list(self.connections()):
            connection.close("all connections are dropped")

    async def run(
        self, *, task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve until cancelled; ``started((host, port))`` once connections are accepted.

        Raises: AddressInUse or ListenFailed (both OSError) if it cannot listen.
        """
        self._task = trio.lowlevel.current_task()
        listeners = ExitStack()
        try:
            self._open_ports(listeners)
            stages = trio.CancelScope(shield=True)
            async with trio.open_nursery() as nursery:
                # Not `start`: if cancelled, it would wait for the shielded stages for ever.
                nursery.start_soon(self._run_stages, stages, name="stages")
                for name, boss in self._bosses.items():
                    nursery.start_soon(boss.run, name=name)
                _log.info("%s listens on %s", self.name, format_address(self.host, self.port))
                for name, port in self.side_ports.items():
                    address = format_address(self.host, port)
                    _log.info("%s listens on %s (%s port)", self.name, address, name)
                task_status.started((self.host, self.port))
                try:
                    await trio.sleep_forever()
                finally:
                    listeners.close()
                    with trio.CancelScope(
                        shield=True, deadline=trio.current_time() + self.config.drain_seconds
                    ):
                        await self._drain()
                    stages.cancel()
        finally:
            listeners.close()
            self._close_stages()

    def _open_ports(self, listeners: ExitStack) -> None:
        """Open every port with its stages. If a port fails, *listeners* has the open ones."""
        config = self.config

        def open_port(port: int, setting: str) -> socket.socket:
            listener = open_listener(config.host, port, config.backlog, setting)
            return listeners.enter_context(listener)

        main = open_port(config.port, config.port_setting)
        others = [open_port(side.port, side.setting) for side in config.side_ports]
        self.host, self.port = main.getsockname()[:2]
        if not config.checks_callers:
            warn_if_open(main, "read, write and delete", OPEN_FIX)
        codecs = [f"codec-{number}" for number in range(config.codec_count)]
        selectors = [f"selector-{number}" for number in range(config.selector_count)]
        self._add_stages("boss", main, self.table, codecs, selectors)
        for side, listener in zip(config.side_ports, others):
            name = side.name
            self.side_ports[name] = listener.getsockname()[1]
            table = self.table.restricted(side.exclude_codes)
            self._add_stages(
                f"boss-{name}", listener, table, [f"codec-{name}"], [f"selector-{name}"]
            )

    def _add_stages(
        self,
        boss_name: str,
        listener: socket.socket,
        table: HandlerTable,
        codec_names: list[str],
        selector_names: list[str],
    ) -> None:
        """Make the boss, selectors and codecs of one port."""
        config = self.config
        destinations = {code: self._destinations[code] for code in table.handlers}
        decoder = table.decoder()
        codecs = [
            Codec(decoder, destinations, self.limit, config.request_hooks) for _ in codec_names
        ]
        selectors = [
            Selector(
                config.poller_factory(),
                codecs[number % len(codecs)],
                self._outboxes,
                config.frame_max_bytes,
                config.filter_factory,
                self._connection_closed,
                self.limit,
            )
            for number in range(len(selector_names))
        ]
        self._codecs += codecs
        self._selectors += selectors
        self._stage_tasks += zip(codec_names, [codec.run for codec in codecs])
        self._stage_tasks += zip(selector_names, [selector.run for selector in selectors])
        self._bosses[boss_name] = Boss(listener, partial(self._deal, selectors), self.places)

    async def _run_stages(self, scope: trio.CancelScope) -> None:
        with scope:
            async with trio.open_nursery() as nursery:
                self._stages_run = True
                try:
                    for name, run in self._stage_tasks:
                        nursery.start_soon(run, name=name)
                    for pool in self.pools.values():
                        for number in range(pool.config.workers):
                            nursery.start_soon(pool.work, name=f"pool-{pool.name}-{number}")
                    nursery.start_soon(self._sweeper.run, name="sweeper")
                    nursery.start_soon(self._idle_scan.scan_in_rounds, name="idle-scan")
                    guard = BufferGuard(self.connections, self._outboxes)
                    nursery.start_soon(guard.guard_buffers, name="buffer-guard")
                    await trio.sleep_forever()
                finally:
                    self._stages_run = False

    async def _drain(self) -> None:
        """Send new requests away, and wait for all earlier answers unless a stage has crashed."""
        for codec in self._codecs:
            codec.leave()
        while self._stages_run:
            for pool in self.pools.values():
                await pool.wait_quiet()
            sent_away = sum(codec.sent_away_count for codec in self._codecs)
            # Requests that are on their way get GO_AWAY too.
            await trio.sleep(_SILENCE_SECONDS)
            if sent_away == sum(codec.sent_away_count for codec in self._codecs):
                break
        for selector in self._selectors:
            selector.stop_reading()
        while self._stages_run and any(  # noqa: ASYNC110
            connection.outbox_bytes for connection in self.connections()
        ):
            await trio.sleep(_FLUSH_POLL_SECONDS)

    def _close_stages(self) -> None:
        for connection in list(self.connections()):
            connection.close("the server stopped")
        for selector in self._selectors:
            selector.poller.close()
        for pool in self.pools.values():
            pool.abandon()

    def _deal(self, selectors: list[Selector], number: int, sock: socket.socket) -> None:
        """Pass a new socket to its selector. Checkpoint: never."""
        if not self._has_room():
            self._turned_away += 1
            sock.close()
            return
        address = new_stream(sock, self.places)
        if address is None:
            return
        if not self._origins.take(address[0]):
            self._turned_away += 1
            self.places.leave()
            sock.close()
            return
        selectors[number % len(selectors)].add(number, sock, address)

    def _has_room(self) -> bool:
        open_count = sum(len(selector.connections) for selector in self._selectors)
        most, setting = self.config.connections_max, "serverConnectionsMax"
        return take_place(self.places, open_count, most, "a connection", setting, self.limit)

    def _local_closed(self, connection: Connection) -> None:
        self._local.discard(connection)
        self._note_closed(connection)

    def _connection_closed(self, connection: Connection) -> None:
        self.places.leave()
        self._origins.leave(connection.origin)
        self._note_closed(connection)

    def _note_closed(self, connection: Connection) -> None:
        self._closed_count += 1
        self._closed_bytes += connection.sent_bytes
        _log.debug("connection from %s closed: %s", connection.peer_text, connection.close_reason)
        if self.on_close is None:
            return
        try:
            self.on_close(connection)
        except Exception as error:
            message = "the callback for the end of the connection from %s failed"
            self.limit.log(_log, logging.ERROR, message, connection.peer_text, error=error)

    def task_dump(self) -> str:
        """Return every task of this server with its name, one a line, and where it waits."""
        return "" if self._task is None else format_tasks(self._task)

    def statistics(self) -> ServerStatistics:
        """Return a snapshot of all counters."""
        connections = list(self.connections())
        parts = {}
        for code, destination in self._destinations.items():
            if destination.counters.requests or destination.counters.refused:
                parts[code, False] = destination.counters.snapshot()
            if destination.resumed is not None:
                parts[code, True] = destination.resumed.counters.snapshot()
        return ServerStatistics(
            connections=len(connections),
            accepted=sum(boss.accepted for boss in self._bosses.values()),
            accepted_by_side_port={
                name.removeprefix("boss-"): boss.accepted
                for name, boss in self._bosses.items()
                if name != "boss"
            },
            turned_away=self._turned_away,
            closed=self._closed_count,
            closed_idle=self._idle_scan.closed_count,
            closed_greedy=self._outboxes.closed_count,
            broken=sum(codec.broken_count for codec in self._codecs),
            received_bytes=sum(selector.received_bytes for selector in self._selectors),
            sent_bytes=self._closed_bytes
            + sum(connection.sent_bytes for connection in connections),
            requests=sum(codec.request_count for codec in self._codecs),
            sent_away=sum(codec.sent_away_count for codec in self._codecs),
            unknown_requests=sum(codec.unknown_count for codec in self._codecs),
            pools={name: pool.statistics() for name, pool in self.pools.items()},
            parts=parts,
        )
