"""A name server put together: key-value table, routes, requests, server; and the task that looks for silent brokers.

::

    run_namesrv ─┬ monitor
                 ├ expire, smallest-id-notices
                 └ Server.run ── boss, selectors, codecs, pool workers, sweeper, idle scan
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import trio

from triomq.namesrv.config import NamesrvConfig
from triomq.namesrv.kv import KvConfig
from triomq.namesrv.limits import namesrv_limits
from triomq.namesrv.monitor import NamesrvSource
from triomq.namesrv.notices import SmallestIdNotices
from triomq.namesrv.processor import NamesrvProcessor, handler_table, route_rules
from triomq.namesrv.routes import RouteTable
from triomq.remoting.address import format_address
from triomq.remoting.monitor.server import monitoring
from triomq.remoting.saved_settings import SavedSettings
from triomq.remoting.server.hooks import RequestHook
from triomq.remoting.server.server import Server
from triomq.remoting.tls.settings import resolve


@attrs.frozen
class NamesrvReady:
    """A name server that answers requests on this address."""

    host: str
    port: int
    _stop: Callable[[], None] = attrs.field(eq=False, repr=False)

    def stop(self) -> None:
        """Begin an orderly stop: accept nothing more, answer what was accepted, leave `run_namesrv`."""
        self._stop()

    def banner(self) -> str:
        """What runs where."""
        return f"name server ready on {format_address(self.host, self.port)}"


async def run_namesrv(
    config: NamesrvConfig, *, request_hooks: Sequence[RequestHook] = (), task_status: trio.TaskStatus[NamesrvReady] = trio.TASK_STATUS_IGNORED
) -> None:
    """Serve until cancelled or stopped; `started(NamesrvReady(...))` when requests are answered. `request_hooks` see every request first.

    Raises KvFileError, AddressInUse or ListenFailed, ConfigError (TLS) if it cannot start.
    """
    security = resolve(config.security)
    entrance = None
    if not security.open_door:
        from triomq.remoting.server.entrance import open_entrance  # start-up time: only where it is needed

        entrance = open_entrance(security)
    limits = namesrv_limits(config.limits)
    kv = KvConfig.open(config.kv_path, limits)
    routes = RouteTable(route_rules(config), limits)
    notices = SmallestIdNotices(security.client) if config.notify_smallest_id else None
    processor = NamesrvProcessor(config, routes, kv, _now_ms, SavedSettings.open(config.saved_settings_path()), started_ms=_now_ms(), notices=notices)
    server = Server(
        attrs.evolve(
            config.network.server_config(config.listen_host, config.listen_port, config.pools()),
            filter_factory=entrance.filter if entrance is not None else None,
            request_hooks=tuple(request_hooks),
        ),
        handler_table(processor),
        on_close=processor.connection_closed,
        name="name server",
    )
    with trio.CancelScope() as serving:
        async with monitoring(config.monitor, "mqnamesrv") as monitor, trio.open_nursery() as nursery:
            nursery.start_soon(_expire, processor, config.scan_interval_ms / 1000, name="expire")
            if notices is not None:
                nursery.start_soon(notices.run, name="smallest-id-notices")
            if entrance is not None:
                nursery.start_soon(entrance.run, name="tls-files")
            host, port = await nursery.start(server.run, name="server")
            monitor.serve(NamesrvSource(routes=routes, server=server, processor=processor))
            task_status.started(NamesrvReady(host, port, serving.cancel))


async def _expire(processor: NamesrvProcessor, period_seconds: float) -> None:
    while True:
        await trio.sleep(period_seconds)
        processor.expire()


def _now_ms() -> int:
    """Time for ages only: it never jumps, unlike the wall clock."""
    return int(trio.current_time() * 1000)
