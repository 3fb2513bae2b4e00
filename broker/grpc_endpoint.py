"""The gRPC endpoint of a broker: its tasks and its figures.

::

    grpc-endpoint ─┬ messaging     shielded: calls need it until the last one has ended
                   └ GrpcServer.run

It starts when the broker answers, and loads its modules then, in a thread: neither a start nor the
first clients wait for it.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING

import attrs
import trio

from triomq.broker.config import BrokerConfig
from triomq.broker.config.endpoint_settings import DEFAULT_GRPC_PORT
from triomq.broker.service_set import ServiceSet
from triomq.remoting.core.open_files import Places
from triomq.remoting.core.settings import ConfigError
from triomq.remoting.monitor.metrics import Family
from triomq.remoting.server.server import Server
from triomq.remoting.tls.security_settings import Security

if TYPE_CHECKING:
    from triomq.remoting.grpc.grpc_server import GrpcServer
    from triomq.remoting.messaging.service import GrpcMessaging

logger = logging.getLogger(__name__)

PACKAGES = ("hpack", "google")
"""What the extra ``grpc`` brings."""


def grpc_port(config: BrokerConfig) -> int:
    """Return the port that the settings ask for; 0: none."""
    if config.endpoint.port >= 0:
        return config.endpoint.port
    return DEFAULT_GRPC_PORT if config.listen_port else 0


@attrs.define(eq=False)
class GrpcEndpoint:
    """The endpoint. ``server`` is the broker's own."""

    config: BrokerConfig
    port: int
    server: Server
    services: ServiceSet
    security: Security
    places: Places
    _running: tuple[GrpcMessaging, GrpcServer] | None = attrs.field(default=None, init=False)

    async def run(self) -> None:
        """Serve until cancelled; return without packages for it, or if the default port is taken.

        Raises: AddressInUse, ListenFailed for a port that the settings name; ConfigError.
        """
        try:
            await trio.to_thread.run_sync(import_module, "triomq.broker.endpoint_parts")
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in PACKAGES:
                raise
            self._explain(f"the package {error.name} is missing", "pip install 'triomq[grpc]'")
            return
        from triomq.broker.endpoint_parts import open_parts  # start-up time and memory

        service, grpc = self._running = open_parts(
            self.config, self.port, self.server, self.services, self.security, self.places
        )
        async with trio.open_nursery() as nursery:
            behind = trio.CancelScope(shield=True)
            nursery.start_soon(service.run, behind, name="messaging")
            try:
                await service.started.wait()
                await grpc.run()
            except OSError as error:
                if self.config.endpoint.port >= 0 or error.errno != errno.EADDRINUSE:
                    raise
                self._explain(f"port {self.port} is taken", "give grpcServerPort a free port")
            finally:
                self._running = None
                behind.cancel()

    async def drain(self) -> None:
        """Finish the calls of clients; cancelled, they end at once. Then cancel ``run``."""
        if self._running is not None:
            await self._running[1].drain()

    def _explain(self, cause: str, fix: str) -> None:
        """Log why clients are not served. Raises: ConfigError if the settings name the port."""
        if self.config.endpoint.port > 0:
            raise ConfigError("grpcServerPort", cause, fix)
        logger.warning(
            "%s, so clients that speak gRPC are not served; %s, or set grpcServerPort=0", cause, fix
        )

    def figures(self) -> Iterator[Family]:
        """Yield the endpoint's metrics; none while it does not run."""
        if self._running is None:
            return
        from triomq.remoting.grpc.call_statistics import grpc_figures  # only where it runs

        service, grpc = self._running
        yield from grpc_figures(grpc.statistics())
        yield from service.figures()
