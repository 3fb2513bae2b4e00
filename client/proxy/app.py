"""Build and run a proxy: the nesting of its tasks is the order of start, its reverse that of stop.

::

    run_proxy ─┬ audit-log
               ├ monitor
               ├ Connector          connections to name servers and brokers
               ├ remote-cluster ──── broker-list, registrations
               ├ access-copy        where calls are checked
               ├ messaging-service
               ├ name-servers        with an address server
               └ grpc-server         stops first, when its calls have ended

A stop (``ProxyReady.stop``): parked receives and streams end at once, other calls may finish, what
push consumers hold stays theirs until its time is over, brokers forget the proxy's groups.
"""

from __future__ import annotations

import logging
import os
import random
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import trio

from triomq.client.core.background import open_background
from triomq.client.core.calls import Calls
from triomq.client.core.client_id import make_client_id, own_address
from triomq.client.core.config import ClientSettings
from triomq.client.core.errors import SettingsError
from triomq.client.core.failure_log import FailureLog
from triomq.client.core.route_finder import RouteFinder, update_name_servers
from triomq.client.core.servers import checked_access, listed_name_servers
from triomq.client.proxy.access_copy import AccessCopy
from triomq.client.proxy.heartbeat_connections import HeartbeatConnections
from triomq.client.proxy.monitor_source import ProxySource
from triomq.client.proxy.passed_requests import PassedRequests
from triomq.client.proxy.proxy_config import ProxyConfig
from triomq.client.proxy.remote_cluster import ProxyEndpoint, RemoteCluster
from triomq.remoting.access.control import AccessControl
from triomq.remoting.audit.decision_log import DecisionLog, open_audit, writing
from triomq.remoting.audit.decision_notes import DecisionNotes
from triomq.remoting.client.connector import Connector, ConnectorConfig, PeerHandler
from triomq.remoting.client.discovery import DEFAULT_SUBGROUP, address_server_url
from triomq.remoting.client.name_servers import NameServers
from triomq.remoting.core.address import bare_host, format_address
from triomq.remoting.core.open_files import ConnectionBudget
from triomq.remoting.core.periodic import every
from triomq.remoting.grpc.grpc_server import ALPN, GrpcServer
from triomq.remoting.messaging.call_access import CallAccess
from triomq.remoting.messaging.service import GrpcMessaging
from triomq.remoting.monitor.http_server import monitoring
from triomq.remoting.server.connection_sniffer import (
    ConnectionSniffer,
    open_sniffer,
    self_signed_sniffer,
)
from triomq.remoting.tls.security_settings import Security, TlsMode, resolve

logger = logging.getLogger(__name__)

UNREGISTER_SECONDS = 1.0
"""How long brokers have to forget the proxy's groups."""
PEER_REQUESTS_MAX = 1024
"""Requests of brokers that wait for answers of clients at once."""


@attrs.frozen
class ProxyReady:
    """A proxy that answers calls on this address."""

    host: str
    port: int
    stop: Callable[[], None] = attrs.field(eq=False, repr=False)
    """Begin an orderly stop; ``run_proxy`` returns when it is done."""

    def banner(self) -> str:
        """Return the line that a process prints when it is ready."""
        return f"proxy ready on {format_address(self.host, self.port)}"


async def run_proxy(
    config: ProxyConfig,
    *,
    budget: ConnectionBudget | None = None,
    task_status: trio.TaskStatus[ProxyReady] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled or stopped; ``started(ProxyReady(...))`` when calls are answered.

    It starts without name servers too, and is ready for probes when one answers.

    Raises: SettingsError, ConfigError (TLS), AddressInUse, ListenFailed, NoNameServer (an address
    server that does not answer).
    Checkpoint: always.
    """
    security = resolve(config.security_settings())
    address_server = _address_server(config)
    given = (
        config.namesrv_addresses
        if address_server is None
        else await listed_name_servers(address_server)
    )
    names = NameServers(list(given), random.randrange(len(given)))
    settings = ClientSettings(instance_name=f"mqproxy#{os.getpid()}#{uuid.uuid4().hex}")
    client_id = await make_client_id(settings, given[0])
    host = bare_host(config.advertised_host) or await own_address(given[0])
    sniffer = _sniffer(config, security, host)
    budget = budget or ConnectionBudget.of_process()
    handlers: dict[int, PeerHandler] = {}
    connecting = _connector_config(config, security)

    def lost(address: str, reason: str) -> None:  # `cluster` is made before any connection
        cluster.connection_lost(address)

    def heartbeats_lost(address: str, number: int) -> None:
        cluster.connection_lost(address, number)

    audit = open_audit(config.audit, "mqproxy")
    stopping = trio.Event()
    async with (
        writing(audit),
        monitoring(config.monitor, "mqproxy", budget, config.exports, audit) as monitor,
        Connector(connecting, handlers=handlers, on_lost=lost) as connector,
        open_background() as tasks,
    ):
        calls = Calls(connector)
        finder = RouteFinder(
            settings, names, lambda gone, added: None, lambda topic: True, calls, FailureLog(logger)
        )
        cluster = RemoteCluster(
            connector,
            HeartbeatConnections(
                connecting, handlers, connector.instant_handlers, heartbeats_lost, tasks
            ),
            finder,
            client_id,
            config,
            ProxyEndpoint(host, config.listen_port, config.keeps_ports),
            tasks,
        )
        directory = cluster.calls.directory
        copy = AccessCopy(connector, lambda: directory.masters(config.cluster_name))
        notes = _notes(config, copy, audit)
        checks = cluster.verifies_signatures = config.access.authentication
        spend = copy.spend if checks else None
        access = None if notes is None else CallAccess(notes, spend=spend)
        service = GrpcMessaging(cluster, config.messaging, access=access)
        passed = PassedRequests(
            service, cluster.registrations.joined, cluster.calls.directory.name_at
        )
        connector.instant_handlers.update(passed.instant_handlers())
        handlers.update(passed.handlers())
        grpc = GrpcServer(
            service.table(),
            config.grpc,
            listen_host=config.listen_host,
            listen_port=config.listen_port,
            port_setting="grpcServerPort",
            sniffer=sniffer,
            places=budget.clients,
            checks_callers=checks,
        )
        await tasks.start(cluster.run, name="remote-cluster")
        if checks:
            await tasks.start(copy.run, name="access-copy")
        await tasks.start(service.run, name="messaging-service")
        if address_server is not None:
            update = partial(update_name_servers, address_server, names, calls, FailureLog(logger))
            tasks.start_soon(every, settings.name_server_refresh, update, name="name-servers")
        async with open_background() as serving:
            listening, port = await serving.start(grpc.run, name="grpc-server")
            cluster.endpoint = attrs.evolve(cluster.endpoint, port=port)
            monitor.serve(ProxySource(cluster, service, grpc, notes, copy.quotas))
            task_status.started(ProxyReady(listening, port, stopping.set))
            await stopping.wait()
            monitor.leave()
            await grpc.drain()
        with trio.move_on_after(UNREGISTER_SECONDS):
            await cluster.registrations.unregister_all()


def _address_server(config: ProxyConfig) -> str | None:
    if config.namesrv_addresses:
        return None
    if not config.namesrv_domain:
        raise SettingsError(
            "no name server is configured: give -n HOST:PORT, namesrvAddr, or the environment"
            " variable NAMESRV_ADDR"
        )
    return address_server_url(config.namesrv_domain, config.namesrv_subgroup or DEFAULT_SUBGROUP)


def _notes(
    config: ProxyConfig, copy: AccessCopy, audit: DecisionLog | None
) -> DecisionNotes | None:
    """Return the check of all calls; None if no setting asks for one."""
    cluster = config.cluster_name
    if config.access.authentication:
        control = AccessControl(
            copy.table,
            cluster,
            config.access.authorization,
            date_window_seconds=config.access.date_window_seconds,
        )
        return DecisionNotes(control, audit)
    return None if audit is None else DecisionNotes(AccessControl.without_users(cluster), audit)


def _connector_config(config: ProxyConfig, security: Security) -> ConnectorConfig:
    """Return how servers are approached: TLS by the settings, the rest by the environment."""
    options: dict[str, Any] = checked_access(
        security.client, config.access.inner, None, config.security.socks_proxies
    ).options()
    return ConnectorConfig(busy_poll=False, peer_requests_max=PEER_REQUESTS_MAX, **options)


def _sniffer(config: ProxyConfig, security: Security, host: str) -> ConnectionSniffer | None:
    if security.server is None and config.self_signed and security.mode is not TlsMode.DISABLED:
        return self_signed_sniffer(security, (host,), ALPN)
    return None if security.plain_only else open_sniffer(security, (host,), ALPN)
