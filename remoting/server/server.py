"""The server: its stages, the order in which they start, and the order in which they stop.

::

    Server.run ─┬ boss                    cancelled first: nothing new comes in
                └ stages ─┬ selector-i    go on
                          ├ codec-j       answer GO_AWAY
                          ├ pool-NAME-k   finish what was let in
                          ├ sweeper
                          ├ buffer-guard
                          └ idle-scan     … then all connections are closed
"""

import itertools
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial

import attrs
import trio

from triomq.remoting.address import format_address
from triomq.remoting.log_limit import LogLimit
from triomq.remoting.server.boss import Boss
from triomq.remoting.server.codec import Codec
from triomq.remoting.server.config import ServerConfig
from triomq.remoting.server.connection import Connection, Outboxes
from triomq.remoting.server.handlers import HandlerTable, Request
from triomq.remoting.server.listen import open_listener
from triomq.remoting.server.pool import Pool, Route
from triomq.remoting.server.selector import Selector
from triomq.remoting.server.statistics import ServerStatistics, StageStatistics
from triomq.remoting.server.sweeper import BufferGuard, IdleScan, Sweeper
from triomq.remoting.server.tasks import format_tasks

_log = logging.getLogger(__name__)

_FLUSH_POLL_SECONDS = 0.005
_SILENCE_SECONDS = 0.010


@attrs.define(eq=False)
class Server:
    """One listening port with its stages, and side ports. `on_close` is told of every connection that ended.

    A side port has a boss, a selector and a codec of its own, named after it; handlers and pools are those of the server.
    """

    config: ServerConfig
    table: HandlerTable
    on_close: Callable[[Connection], None] | None = attrs.field(default=None, kw_only=True)
    name: str = attrs.field(default="broker", kw_only=True)
    host: str = attrs.field(default="", init=False)
    port: int = attrs.field(default=0, init=False)
    side_ports: dict[str, int] = attrs.field(factory=dict, init=False)
    pools: dict[str, Pool] = attrs.field(factory=dict, init=False)
    limit: LogLimit = attrs.field(factory=LogLimit, init=False)
    _routes: dict[int, Route] = attrs.field(factory=dict, init=False)
    _codecs: list[Codec] = attrs.field(factory=list, init=False)
    _selectors: list[Selector] = attrs.field(factory=list, init=False)
    _sweeper: Sweeper = attrs.field(factory=Sweeper, init=False)
    _idle_scan: IdleScan = attrs.field(init=False)
    _outboxes: Outboxes = attrs.field(init=False)
    _buffer_guard: BufferGuard = attrs.field(init=False)
    _stage_tasks: list[tuple[Callable[[], Awaitable[None]], str]] = attrs.field(factory=list, init=False)
    _bosses: dict[str, Boss] = attrs.field(factory=dict, init=False)
    _task: trio.lowlevel.Task | None = attrs.field(default=None, init=False)
    _stages_run: bool = attrs.field(default=False, init=False)
    _closed_count: int = attrs.field(default=0, init=False)
    _closed_bytes: int = attrs.field(default=0, init=False)  # sent on connections that are gone
    _turned_away: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        config = self.config
        self.pools = {name: Pool(name, pool, self._sweeper.wake, self.limit) for name, pool in config.pools.items()}
        self._sweeper.pools = [pool for pool in self.pools.values() if pool.config.wait_ms_max]
        batch_keys: dict[object, int] = {}
        for number, (code, handler) in enumerate(self.table.handlers.items()):
            if handler.pool not in self.pools:
                raise ValueError(
                    f"the handler of request {code} wants pool {handler.pool!r}; configured are {', '.join(self.pools)}"
                )
            key = batch_keys.setdefault(handler.call, number) if handler.batch else number
            self._routes[code] = self.pools[handler.pool].route(handler, key)
        self._idle_scan = IdleScan(self.connections, config.idle_seconds, self.limit)
        self._outboxes = Outboxes(config.outbox_high_bytes, config.outbox_hard_bytes, config.buffers_max_bytes)
        self._buffer_guard = BufferGuard(self.connections, self._outboxes, config.buffers_max_bytes, self.limit)

    def connections(self) -> Iterator[Connection]:
        """All open connections."""
        return itertools.chain.from_iterable(selector.connections.values() for selector in self._selectors)

    def drop_connections(self) -> None:
        """Close every connection now, whatever waits for an answer: from here on nobody is told anything. No checkpoint."""
        for connection in list(self.connections()):
            connection.close("all connections are dropped")

    def submit(self, requests: Iterable[Request]) -> None:
        """Let requests into their pools once more, as if they arrived now (a held pull whose message came). No checkpoint."""
        now = trio.current_time()
        by_pool: dict[Pool, list[Request]] = {}
        for request in requests:
            request.arrived = now
            by_pool.setdefault(request.route.pool, []).append(request)
        for pool, batch in by_pool.items():
            pool.submit(batch)

    async def run(self, *, task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen and serve until cancelled; `started((host, port))` once connections are accepted.

        Raises AddressInUse or ListenFailed (both OSError) if it cannot listen.
        """
        self._task = trio.lowlevel.current_task()
        listeners: list[socket.socket] = []
        try:
            self._open_listeners(listeners)
            stages = trio.CancelScope(shield=True)
            async with trio.open_nursery() as nursery:
                # Not `start`: cancelled while it waits, it would wait for the shielded stages for ever.
                nursery.start_soon(self._run_stages, stages, name="stages")
                for name, boss in self._bosses.items():
                    nursery.start_soon(boss.run, name=name)
                _log.info("%s listens on %s", self.name, format_address(self.host, self.port))
                for name, port in self.side_ports.items():
                    _log.info("%s listens on %s (%s port)", self.name, format_address(self.host, port), name)
                task_status.started((self.host, self.port))
                try:
                    await trio.sleep_forever()
                finally:
                    _close_all(listeners)
                    with trio.CancelScope(shield=True, deadline=trio.current_time() + self.config.drain_seconds):
                        await self._drain()
                    stages.cancel()
        finally:
            _close_all(listeners)
            self._close_stages()

    def _open_listeners(self, listeners: list[socket.socket]) -> None:
        """Open every port, each with the stages behind it; what is open stands in *listeners* when one fails."""
        config = self.config
        listeners.append(open_listener(config.host, config.port, config.backlog, config.port_setting))
        self.host, self.port = listeners[0].getsockname()[:2]
        for side in config.side_ports:
            listeners.append(open_listener(config.host, side.port, config.backlog, side.setting))
            self.side_ports[side.name] = listeners[-1].getsockname()[1]
        codecs = self._open_codecs([f"codec-{number}" for number in range(config.codec_count)], self.table)
        selectors = self._open_selectors([f"selector-{number}" for number in range(config.selector_count)], codecs)
        self._bosses["boss"] = Boss(listeners[0], partial(self._deal, selectors))
        for side, listener in zip(config.side_ports, listeners[1:]):
            codecs = self._open_codecs([f"codec-{side.name}"], self.table.restricted(side.exclude_codes))
            selectors = self._open_selectors([f"selector-{side.name}"], codecs)
            self._bosses[f"boss-{side.name}"] = Boss(listener, partial(self._deal, selectors))

    def _open_codecs(self, names: list[str], table: HandlerTable) -> list[Codec]:
        routes = {code: self._routes[code] for code in table.handlers}
        decoder = table.decoder()
        codecs = [Codec(decoder, routes, list(self.pools.values()), self.limit, self.config.request_hooks) for _ in names]
        self._codecs += codecs
        self._stage_tasks += [(codec.run, name) for codec, name in zip(codecs, names)]
        return codecs

    def _open_selectors(self, names: list[str], codecs: list[Codec]) -> list[Selector]:
        config = self.config
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
            for number in range(len(names))
        ]
        self._selectors += selectors
        self._stage_tasks += [(selector.run, name) for selector, name in zip(selectors, names)]
        return selectors

    async def _run_stages(self, scope: trio.CancelScope) -> None:
        with scope:
            async with trio.open_nursery() as nursery:
                self._stages_run = True
                try:
                    for run, name in self._stage_tasks:
                        nursery.start_soon(run, name=name)
                    for pool in self.pools.values():
                        for number in range(pool.config.workers):
                            nursery.start_soon(pool.work, name=f"pool-{pool.name}-{number}")
                    nursery.start_soon(self._sweeper.run, name="sweeper")
                    nursery.start_soon(self._idle_scan.run, name="idle-scan")
                    nursery.start_soon(self._buffer_guard.run, name="buffer-guard")
                    await trio.sleep_forever()
                finally:
                    self._stages_run = False

    async def _drain(self) -> None:
        """Send new requests away, and wait until all that came before is answered. Nothing to wait for if a stage has crashed."""
        for codec in self._codecs:
            codec.leave()
        while self._stages_run:
            for pool in self.pools.values():
                await pool.wait_quiet()
            heard = sum(codec.sent_away_count for codec in self._codecs)
            await trio.sleep(_SILENCE_SECONDS)  # requests that are on their way are told to go elsewhere, not cut off
            if heard == sum(codec.sent_away_count for codec in self._codecs):
                break
        for selector in self._selectors:
            selector.stop_reading()
        while self._stages_run and any(connection.outbox_bytes for connection in self.connections()):  # noqa: ASYNC110 - rare, bounded
            await trio.sleep(_FLUSH_POLL_SECONDS)

    def _close_stages(self) -> None:
        for connection in list(self.connections()):
            connection.close("the server stopped")
        for selector in self._selectors:
            selector.poller.close()
        for pool in self.pools.values():
            pool.abandon()

    def _deal(self, selectors: list[Selector], number: int, sock: socket.socket) -> None:
        """Give a new socket to its selector. No checkpoint."""
        open_count = sum(len(selector.connections) for selector in self._selectors)
        try:
            if open_count >= self.config.connections_max:
                self._turned_away += 1
                self.limit.log(_log, logging.WARNING, "turning away a connection: %d are open, the limit; raise serverConnectionsMax and the limit of open files (ulimit -n), or close clients", open_count)
                sock.close()
                return
            host, port = sock.getpeername()[:2]
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            sock.close()  # it was reset before we looked at it
            return
        selectors[number % len(selectors)].add(number, sock, (_plain_host(host), port))

    def _connection_closed(self, connection: Connection) -> None:
        self._closed_count += 1
        self._closed_bytes += connection.sent_bytes
        _log.debug("connection from %s closed: %s", connection.peer_text, connection.close_reason)
        if self.on_close is None:
            return
        try:
            self.on_close(connection)
        except Exception as error:
            message = "what should follow the end of the connection from %s failed"
            self.limit.log(_log, logging.ERROR, message, connection.peer_text, error=error)

    def task_dump(self) -> str:
        """Every task of this server by its name, one a line, and where it waits."""
        return "" if self._task is None else format_tasks(self._task)

    def statistics(self) -> ServerStatistics:
        """A snapshot of all counters."""
        connections = list(self.connections())
        stages = [selector.statistics() for selector in self._selectors]
        return ServerStatistics(
            connections=len(connections),
            accepted=sum(boss.accepted for boss in self._bosses.values()),
            accepted_by_side_port={
                name: self._bosses[f"boss-{name}"].accepted if self._bosses else 0 for name in self.side_ports
            },
            turned_away=self._turned_away,
            closed=self._closed_count,
            closed_idle=self._idle_scan.closed_count,
            closed_greedy=self._outboxes.closed_count,
            broken=sum(codec.broken_count for codec in self._codecs),
            received_bytes=sum(selector.received_bytes for selector in self._selectors),
            sent_bytes=self._closed_bytes + sum(connection.sent_bytes for connection in connections),
            requests=sum(codec.request_count for codec in self._codecs),
            sent_away=sum(codec.sent_away_count for codec in self._codecs),
            unknown_requests=sum(codec.unknown_count for codec in self._codecs),
            selectors=StageStatistics(
                turns=sum(stage.turns for stage in stages),
                batches_in_place=sum(stage.batches_in_place for stage in stages),
                batches_queued=sum(stage.batches_queued for stage in stages),
            ),
            pools={name: pool.statistics() for name, pool in self.pools.items()},
            codes={code: route.statistics() for code, route in self._routes.items() if route.requests or route.refused},
        )


def _close_all(listeners: Iterable[socket.socket]) -> None:
    for listener in listeners:
        listener.close()


def _plain_host(host: str) -> str:
    """An IPv4 peer of an IPv6 socket shows its IPv4 address."""
    return host.removeprefix("::ffff:") if host.startswith("::ffff:") and "." in host else host
