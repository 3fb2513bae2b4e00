"""The network settings of name server and broker, under the names of Java's NettyServerConfig."""

import math
from collections.abc import Mapping, Sequence
from functools import partial

import attrs

from triomq.remoting.core.settings import number
from triomq.remoting.server.config import PoolConfig, ServerConfig, SidePort
from triomq.remoting.server.poller import open_poller

_OUTBOX_HIGH_BYTES = 4 * 1024 * 1024
_OUTBOX_HARD_FACTOR = 16


@attrs.frozen(kw_only=True)
class NetworkSettings:
    """Stages and limits of the listening server; Java's thread counts are task counts here.

    selector_count: tasks that poll the sockets; more are fairer, not faster
    codec_count: tasks that decode requests; more are fairer, not faster
    idle_seconds: a connection without traffic for this time is closed
    backlog: connections that the system may hold before they are accepted
    outbox_high_bytes: unsent bytes of a connection at which its requests are no longer read (0: 4
        MiB); at 16 times as much it is closed
    connections_max: open connections, fewer where the limit of open files (ulimit -n) is low;
        further ones are closed as soon as they are accepted
    address_connections_max: of these, most of one address (0: no limit of its own); behind a load
        balancer all clients have its address
    buffers_max_bytes: bytes of half-read requests and unsent answers of all connections; above it
        the greediest ones are closed
    busy_poll_micros: how long a selector may ask its sockets for the next request before it sleeps
        (busy poll; 0: not at all): quicker answers for senders of one request at a time
    slow_ms: a request that takes longer is logged, with the time of each stage (0: none is); one
        that waits for messages counts from their arrival
    drain_seconds: how long a stopping server finishes accepted requests
    """

    selector_count: int = number("serverSelectorThreads", 1, high=64)
    codec_count: int = number("serverWorkerThreads", 1, high=64)
    idle_seconds: int = number("serverChannelMaxIdleTimeSeconds", 120, high=86_400)
    backlog: int = number("serverSocketBacklog", 1024, high=65_535)
    outbox_high_bytes: int = number("writeBufferHighWaterMark", 0, low=0)
    connections_max: int = number("serverConnectionsMax", 50_000, high=1_000_000, own=True)
    address_connections_max: int = number(
        "serverConnectionsPerAddressMax", 0, low=0, high=1_000_000, own=True
    )
    buffers_max_bytes: int = number(
        "serverBuffersMaxBytes", 1024 * 1024 * 1024, low=1024 * 1024, high=2**62, own=True
    )
    busy_poll_micros: int = number("serverBusyPollMicros", 150, low=0, high=10_000, own=True)
    slow_ms: int = number("slowRequestMillis", 1000, low=0, high=3_600_000, own=True)
    drain_seconds: int = number("shutdownWaitTimeSeconds", 5, low=0, high=3600)

    def server_config(
        self,
        host: str,
        port: int,
        pools: Mapping[str, PoolConfig],
        side_ports: Sequence[SidePort] = (),
    ) -> ServerConfig:
        """Return the configuration of one listening server with these stages and limits."""
        high = self.outbox_high_bytes or _OUTBOX_HIGH_BYTES
        return ServerConfig(
            host=host,
            port=port,
            port_setting="listenPort",
            side_ports=side_ports,
            backlog=self.backlog,
            selector_count=self.selector_count,
            codec_count=self.codec_count,
            pools=pools,
            connections_max=self.connections_max,
            address_connections_max=self.address_connections_max,
            idle_seconds=self.idle_seconds,
            buffers_max_bytes=self.buffers_max_bytes,
            outbox_high_bytes=high,
            outbox_hard_bytes=_OUTBOX_HARD_FACTOR * high,
            drain_seconds=self.drain_seconds,
            slow_seconds=self.slow_ms / 1000 if self.slow_ms else math.inf,
            poller_factory=partial(open_poller, self.busy_poll_micros / 1e6),
        )
