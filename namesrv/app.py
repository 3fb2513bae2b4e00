"""Build and run a name server.

::

    run_namesrv ─┬ audit-log
                 ├ monitor
                 ├ expire (removes silent brokers), min-broker-id-notices
                 ├ controller (with enableControllerInNamesrv): a server on a port of its own
                 └ Server.run ── boss, selectors, codecs, pool workers, sweeper, idle scan
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import trio

from triomq.namesrv.access import writer_check
from triomq.namesrv.config import NamesrvConfig, RunningConfig
from triomq.namesrv.config_requests import ConfigRequests, route_rules
from triomq.namesrv.kv import KvConfig
from triomq.namesrv.kv_requests import KvRequests
from triomq.namesrv.min_broker_id_notices import MinBrokerIdNotices
from triomq.namesrv.monitor_source import NamesrvSource
from triomq.namesrv.registration_requests import RegistrationRequests
from triomq.namesrv.request_table import handler_table
from triomq.namesrv.route_requests import RouteRequests
from triomq.namesrv.routes import RouteTable
from triomq.namesrv.table_limits import namesrv_limits
from triomq.remoting.audit.decision_log import open_audit, writing
from triomq.remoting.client.access import Access
from triomq.remoting.client.connector import ConnectorConfig
from triomq.remoting.core.address import format_address
from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.core.open_files import ConnectionBudget
from triomq.remoting.core.periodic import every
from triomq.remoting.core.saved_settings import SavedSettings
from triomq.remoting.monitor.http_server import monitoring
from triomq.remoting.server.config import ServerConfig
from triomq.remoting.server.request_hooks import RequestHook
from triomq.remoting.server.server import Server
from triomq.remoting.tls.security_settings import resolve


@attrs.frozen
class NamesrvReady:
    """A name server, or a controller alone, that answers requests on this address."""

    host: str
    port: int
    name: str = attrs.field(default="name server", kw_only=True)
    stop: Callable[[], None] = attrs.field(eq=False, repr=False)
    """begins an orderly stop: accept no more, answer accepted requests, end ``run_namesrv``"""

    def banner(self) -> str:
        """Return the line that a process prints when it is ready."""
        return f"{self.name} ready on {format_address(self.host, self.port)}"


async def run_namesrv(
    config: NamesrvConfig,
    *,
    routes_too: bool = True,
    request_hooks: Sequence[RequestHook] = (),
    budget: ConnectionBudget | None = None,
    task_status: trio.TaskStatus[NamesrvReady] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled or stopped; ``started(NamesrvReady(...))`` when requests are answered.

    ``routes_too``: also the name server; otherwise only the controller, for ``mqcontroller``.
    ``request_hooks`` see every request first; ``budget``: of the process, for all its servers.

    Raises: KvFileError, AddressInUse, ListenFailed, ConfigError (TLS).
    Checkpoint: always.
    """
    security = resolve(config.security)
    sniffer = None
    if not security.plain_only:
        from triomq.remoting.server.connection_sniffer import open_sniffer  # start-up time

        sniffer = open_sniffer(security)
    audit = open_audit(config.audit, "name server" if routes_too else "controller")
    check = writer_check(config.access, audit)
    limits = namesrv_limits(config.limits)
    kv = KvConfig.open(config.kv_path, limits)
    routes = RouteTable(route_rules(config), limits)
    signing = Access(credentials=config.access.inner).hooks
    connecting = ConnectorConfig(tls=security.client, hooks=signing, busy_poll=False)
    notices = MinBrokerIdNotices(connecting) if config.notify_min_broker_id else None
    running, limit = RunningConfig(config), LogLimit()
    brokers = RegistrationRequests(
        config=running, routes=routes, kv=kv, now_ms=_now_ms, limit=limit, notices=notices
    )
    topics = RouteRequests(
        config=running, routes=routes, kv=kv, now_ms=_now_ms, started_ms=_now_ms(), limit=limit
    )
    saved = SavedSettings.open(config.saved_settings_path())
    budget = budget or ConnectionBudget.of_process()
    settings = ConfigRequests(running, routes, saved)

    def secured(plain: ServerConfig) -> ServerConfig:
        return attrs.evolve(
            plain,
            filter_factory=sniffer.filter if sniffer is not None else None,
            request_hooks=(*request_hooks, *([check] if check is not None else [])),
            checks_callers=bool(request_hooks) or config.access.authentication,
        )

    controller = None
    if config.controller.enabled:
        from triomq.namesrv.controller.serve_controller import ControllerParts  # start-up time

        controller = ControllerParts.open(lambda: running.current.controller, connecting)
    server = Server(
        secured(
            config.network.server_config(config.listen_host, config.listen_port, config.pools())
        ),
        handler_table(brokers, topics, KvRequests(kv, brokers.missing, _now_ms), settings),
        on_close=brokers.connection_closed,
        name="name server",
        places=budget.clients,
    )
    program = "mqnamesrv" if routes_too else "mqcontroller"
    async with writing(audit):
        with trio.CancelScope() as serving:
            async with (
                monitoring(config.monitor, program, budget, audit=audit) as monitor,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(
                    every, config.scan_interval_ms / 1000, brokers.expire, name="expire"
                )
                nursery.start_soon(brokers.run_leaving, name="leaving-brokers")
                if notices is not None:
                    nursery.start_soon(notices.send_notices, name="min-broker-id-notices")
                if sniffer is not None:
                    nursery.start_soon(sniffer.run, name="tls-files")
                if controller is not None:
                    controller_server = await nursery.start(
                        controller.run,
                        secured(config.controller_server()),
                        controller.handler_table(settings.get_config, settings.update_config),
                        budget.clients,
                        name="controller",
                    )
                if routes_too:
                    host, port = await nursery.start(server.run, name="server")
                    ready = NamesrvReady(host, port, serving.cancel)
                else:
                    server, own = controller_server, config.controller.own_peer()
                    ready = NamesrvReady(
                        config.listen_host, own.port, serving.cancel, name="controller"
                    )
                notes = None if check is None else check.notes
                monitor.serve(
                    NamesrvSource(
                        routes=routes,
                        server=server,
                        brokers=brokers,
                        notes=notes,
                        controller=controller,
                    )
                )
                task_status.started(ready)


def _now_ms() -> int:
    """Return a time for measuring ages: Trio's clock never jumps, unlike the wall clock."""
    return int(trio.current_time() * 1000)
