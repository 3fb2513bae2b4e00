"""The settings of a gRPC server: its limits, under Java's names where the proxy has them.

Source: proxy/…/config/ProxyConfig.java.
"""

from __future__ import annotations

import attrs

from triomq.remoting.core.settings import number

_MIB = 1024 * 1024


@attrs.frozen(kw_only=True)
class GrpcSettings:
    """Limits of one gRPC server; each refusal because of one names it and is counted under it.

    message_bytes_max: bytes of one message of a request; a larger one is refused with
        RESOURCE_EXHAUSTED; a body has 4 MiB at most, and 130 MiB, as Java's proxy takes, would hold
        the loop for long
    inflated_bytes_max: bytes of a message that came compressed by gzip, when it is decompressed in
        the loop (official clients compress bodies instead); a larger one is refused
    fields_bytes_max: bytes of a message of a request without the bodies that it sends; a field of a
        SendMessage counts as 64 at least; more would hold the loop while they are parsed, and is
        refused with RESOURCE_EXHAUSTED
    idle_ms: a connection without calls for this time is closed
    drain_seconds: how long a stopping server finishes calls
    backlog: connections that the system may hold before they are accepted
    connections_max: open gRPC connections; further ones are closed as soon as they are accepted
    address_connections_max: of these, most of one address (0: no limit of its own); behind a load
        balancer all clients have its address
    calls_max: calls of one connection at once; further ones are refused, and the client tries again
    stream_window_bytes: bytes of a call that a client may send before the handler takes them
    connection_window_bytes: bytes of all calls of a connection that a client may send before
        handlers take them
    buffers_bytes_max: bytes of requests that no handler has taken, of all connections; above it the
        call that sends is refused
    header_bytes_max: bytes of the headers of a call; at four times as much the connection is closed
    resets_per_second: cancelled calls a second and connection, in bursts of ten times as many;
        above it the connection is closed
    address_resets_per_second: cancelled calls a second of all connections of an address, in bursts
        of ten times as many, not counting one a second of each connection; above it the connection
        that cancels is closed
    settings_per_second: SETTINGS frames a second and connection, in bursts of ten times as many;
        above it the connection is closed
    pings_per_second: PING frames a second and connection beside one for each data frame, in bursts
        of ten times as many; above it the connection is closed
    controls_per_second: other frames without data a second and connection beside four for each data
        frame, in bursts of ten times as many; above it the connection is closed
    stall_ms: how long a client may take no byte of an answer, or send none of a begun request,
        before the call ends
    handshake_ms: how long a new connection may take until its first frame, TLS included
    keepalive_ms: a connection with calls that is silent for this time is asked for a sign of life
    keepalive_timeout_ms: how long the sign of life may take, before the connection is closed
    """

    message_bytes_max: int = number("grpcMaxInboundMessageSize", 16 * _MIB)
    inflated_bytes_max: int = number("grpcInflatedMessageSize", 2 * _MIB, own=True)
    fields_bytes_max: int = number(
        "grpcFieldsMaxBytes", 512 * 1024, low=1024, high=64 * _MIB, own=True
    )
    idle_ms: int = number("grpcClientIdleTimeMills", 120_000)
    drain_seconds: int = number("grpcShutdownTimeSeconds", 30, low=0, high=3600)
    backlog: int = number("grpcSocketBacklog", 1024, high=65_535, own=True)
    connections_max: int = number("grpcConnectionsMax", 50_000, high=1_000_000, own=True)
    address_connections_max: int = number(
        "grpcConnectionsPerAddressMax", 0, low=0, high=1_000_000, own=True
    )
    calls_max: int = number("grpcConnectionCallsMax", 2000, high=1_000_000, own=True)
    stream_window_bytes: int = number("grpcStreamWindowBytes", 4 * _MIB, low=65_535, own=True)
    connection_window_bytes: int = number(
        "grpcConnectionWindowBytes", 32 * _MIB, low=65_535, own=True
    )
    buffers_bytes_max: int = number(
        "grpcBuffersMaxBytes", 1024 * _MIB, low=_MIB, high=2**62, own=True
    )
    header_bytes_max: int = number("grpcHeadersMaxBytes", 16 * 1024, low=1024, high=_MIB, own=True)
    resets_per_second: int = number("grpcResetsPerSecond", 500, own=True)
    address_resets_per_second: int = number("grpcResetsPerAddressPerSecond", 2000, own=True)
    settings_per_second: int = number("grpcSettingsPerSecond", 10, own=True)
    pings_per_second: int = number("grpcPingsPerSecond", 500, own=True)
    controls_per_second: int = number("grpcControlsPerSecond", 1000, own=True)
    stall_ms: int = number("grpcStallMs", 60_000, own=True)
    handshake_ms: int = number("grpcHandshakeMs", 10_000, own=True)
    keepalive_ms: int = number("grpcKeepaliveMs", 60_000, own=True)
    keepalive_timeout_ms: int = number("grpcKeepaliveTimeoutMs", 20_000, own=True)
