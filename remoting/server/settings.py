"""The network settings that name server and broker share, under the names of Java's NettyServerConfig."""

from collections.abc import Mapping, Sequence
from functools import partial

import attrs

from triomq.remoting import open_files
from triomq.remoting.server.config import PoolConfig, ServerConfig, SidePort
from triomq.remoting.server.poller import open_poller
from triomq.remoting.settings import INTEGER, setting

_OUTBOX_HIGH_BYTES = 4 * 1024 * 1024
_OUTBOX_HARD_FACTOR = 16


@attrs.frozen(kw_only=True)
class NetworkSettings:
    """Stages and limits of the listening server; a thread count of Java is a task count here."""

    selector_count: int = setting("serverSelectorThreads", INTEGER, 1, "tasks that poll the sockets; for fairness, not for speed", low=1, high=64)
    codec_count: int = setting("serverWorkerThreads", INTEGER, 1, "tasks that decode requests; for fairness, not for speed", low=1, high=64)
    idle_seconds: int = setting("serverChannelMaxIdleTimeSeconds", INTEGER, 120, "a connection silent for so many seconds is closed", low=1, high=86_400)
    backlog: int = setting("serverSocketBacklog", INTEGER, 1024, "connections that the system may hold before they are accepted", low=1, high=65_535)
    outbox_high_bytes: int = setting(
        "writeBufferHighWaterMark",
        INTEGER,
        0,
        "unsent bytes of a connection at which its requests are no longer read (0: 4 MiB); at 16 times as much it is closed",
        low=0,
        high=2**31 - 1,
    )
    connections_max: int = setting(
        "serverConnectionsMax", INTEGER, 50_000, "open connections, fewer where the limit of open files (ulimit -n) is low; one more is closed as soon as it is accepted", low=1, high=1_000_000, own=True
    )
    buffers_max_bytes: int = setting(
        "serverBuffersMaxBytes",
        INTEGER,
        1024 * 1024 * 1024,
        "bytes of half-read requests and unsent answers of all connections; above it the greediest ones are closed",
        low=1024 * 1024,
        high=2**62,
        own=True,
    )
    busy_poll_micros: int = setting(
        "serverBusyPollMicros",
        INTEGER,
        150,
        "how long a selector whose last waits were short looks, at most, for the next request before it sleeps (0: not at all); quicker answers for senders of one request at a time",
        low=0,
        high=10_000,
        own=True,
    )
    drain_seconds: int = setting("shutdownWaitTimeSeconds", INTEGER, 5, "how long a stopping server finishes what it has accepted", low=0, high=3600)

    def server_config(self, host: str, port: int, pools: Mapping[str, PoolConfig], side_ports: Sequence[SidePort] = ()) -> ServerConfig:
        """The settings of one listening server with these stages and limits."""
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
            connections_max=open_files.connections_allowed(self.connections_max),
            idle_seconds=self.idle_seconds,
            buffers_max_bytes=self.buffers_max_bytes,
            outbox_high_bytes=high,
            outbox_hard_bytes=_OUTBOX_HARD_FACTOR * high,
            drain_seconds=self.drain_seconds,
            poller_factory=partial(open_poller, self.busy_poll_micros / 1e6),
        )
