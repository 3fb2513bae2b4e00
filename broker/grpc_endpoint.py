"""The gRPC endpoint of a broker: its tasks and its figures.

::

    grpc-endpoint ─┬ messaging-service
                   └ GrpcServer.run

It starts when the broker answers, and loads its modules then: a start takes no longer with it.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

import attrs
import trio

from triomq.broker.config import BrokerConfig
from triomq.broker.config.endpoint_settings import DEFAULT_GRPC_PORT
from triomq.broker.service_set import ServiceSet
from triomq.remoting.monitor.metrics import Family
from triomq.remoting.open_files import Places
from triomq.remoting.server.server import Server
from triomq.remoting.tls.security_settings import Security, TlsMode

if TYPE_CHECKING:
    from triomq.remoting.grpc.grpc_server import GrpcServer
    from triomq.remoting.server.connection_sniffer import ConnectionSniffer

logger = logging.getLogger(__name__)


def grpc_port(config: BrokerConfig) -> int:
    """Return the port that the settings ask for; 0: none."""
    if config.endpoint.port >= 0:
        return config.endpoint.port
    return DEFAULT_GRPC_PORT if config.listen_port else 0


@attrs.define(eq=False)
class GrpcEndpoint:
    """The endpoint. ``server`` is the broker's own; ``address``: where clients reach it."""

    config: BrokerConfig
    port: int
    server: Server
    services: ServiceSet
    security: Security
    places: Places
    grpc: GrpcServer | None = attrs.field(default=None, init=False)

    async def run(self) -> None:
        """Serve until cancelled; return if the default port is taken.

        Raises: AddressInUse, ListenFailed for a port that the settings name.
        """
        # Start-up time and memory: only where it runs.
        from triomq.broker.local_cluster import LocalCluster
        from triomq.remoting.grpc.grpc_server import GrpcServer
        from triomq.remoting.messaging.service import MessagingService

        config, settings = self.config, self.config.endpoint
        async with trio.open_nursery() as nursery:
            # Shielded: calls need it until the last one has ended.
            behind = trio.CancelScope(shield=True)
            cluster = LocalCluster(
                self.server,
                self.services.topics,
                self.services.groups,
                config.cluster_name,
                config.broker_name,
                self.services.registrar.settings.broker_address,
                (config.broker_ip, self.port),
            )
            service = MessagingService(cluster, settings.messaging)
            self.grpc = GrpcServer(
                service.table(),
                settings.grpc,
                listen_host=config.listen_host,
                listen_port=self.port,
                port_setting="grpcServerPort",
                sniffer=self._sniffer(),
                places=self.places,
            )
            nursery.start_soon(service.run, behind, name="messaging-service")
            try:
                await service.started.wait()
                await self.grpc.run()
            except OSError as error:
                if settings.port >= 0 or error.errno != errno.EADDRINUSE:
                    raise
                self.grpc = None
                logger.warning(
                    "port %d is taken, so clients that speak gRPC are not served; give"
                    " grpcServerPort a free port, or 0 for none",
                    self.port,
                )
            finally:
                behind.cancel()

    def _sniffer(self) -> ConnectionSniffer | None:
        from triomq.remoting.grpc.grpc_server import ALPN
        from triomq.remoting.server.connection_sniffer import open_sniffer, self_signed_sniffer

        names = (self.config.broker_ip,)
        may_sign = self.config.endpoint.self_signed and self.security.mode is not TlsMode.DISABLED
        if self.security.server is None and may_sign:
            return self_signed_sniffer(self.security, names, ALPN)
        if self.security.plain_only:
            return None
        return open_sniffer(self.security, names, ALPN)

    def figures(self) -> Iterator[Family]:
        """Yield the endpoint's metrics; none while it does not run."""
        if self.grpc is not None:
            from triomq.remoting.grpc.call_statistics import grpc_figures

            yield from grpc_figures(self.grpc.statistics())
