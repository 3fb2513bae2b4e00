"""EndpointSettings: where a broker serves clients that speak gRPC."""

# ruff: noqa: RUF009  (group() is an attrs field specifier)
from __future__ import annotations

import attrs

from triomq.remoting.core.settings import flag, group, number, optional_text
from triomq.remoting.grpc.grpc_settings import GrpcSettings
from triomq.remoting.messaging.messaging_settings import MessagingSettings

DEFAULT_GRPC_PORT = 8081


@attrs.frozen(kw_only=True)
class EndpointSettings:
    """The gRPC endpoint of a master. Source: proxy/…/config/ProxyConfig.java.

    port: port for clients that speak gRPC (RocketMQ 5 clients); -1: 8081 if it is free, and none
        with listenPort=0; 0: none
    listen_host: address that grpcServerPort listens on; empty: bindAddress
    self_signed: without tls.server.certPath: make a certificate for TLS on the gRPC port, which
        official clients use unless they are told otherwise and do not verify
    """

    port: int = number("grpcServerPort", -1, low=-1, high=65_535, own=True)
    listen_host: str = optional_text("grpcBindAddress", own=True)
    self_signed: bool = flag("tlsTestModeEnable", True)
    grpc: GrpcSettings = group(GrpcSettings)
    messaging: MessagingSettings = group(MessagingSettings)
