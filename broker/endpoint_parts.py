"""The parts of the gRPC endpoint; only the endpoint imports this module, when it starts."""

from __future__ import annotations

from functools import partial
from typing import Any

import trio

from triomq.broker.config import BrokerConfig
from triomq.broker.local_cluster import LocalCluster
from triomq.broker.service_set import ServiceSet
from triomq.remoting.access.quotas import Quotas, Use
from triomq.remoting.core.open_files import Places
from triomq.remoting.grpc.grpc_server import ALPN, GrpcServer
from triomq.remoting.grpc.methods import CallContext
from triomq.remoting.messaging.call_access import CallAccess
from triomq.remoting.messaging.service import GrpcMessaging
from triomq.remoting.server.connection_sniffer import (
    ConnectionSniffer,
    open_sniffer,
    self_signed_sniffer,
)
from triomq.remoting.server.server import Server
from triomq.remoting.tls.security_settings import Security, TlsMode


def open_parts(
    config: BrokerConfig,
    port: int,
    server: Server,
    services: ServiceSet,
    security: Security,
    places: Places,
) -> tuple[GrpcMessaging, GrpcServer]:
    """Return the service in front of this broker, and the server of its methods.

    Raises: ConfigError.
    """
    cluster = LocalCluster(
        server,
        services.topics,
        services.groups,
        config.cluster_name,
        config.broker_name,
        services.registrar.settings.broker_address,
        (config.broker_ip, port),
    )
    spend = None if services.quotas is None else partial(spend_of_call, services.quotas)
    access = None if services.check is None else CallAccess(services.check.notes, spend=spend)
    service = GrpcMessaging(cluster, config.endpoint.messaging, access=access, direct=cluster)
    grpc = GrpcServer(
        service.table(),
        config.endpoint.grpc,
        listen_host=config.endpoint.listen_host or config.listen_host,
        listen_port=port,
        port_setting="grpcServerPort",
        sniffer=_sniffer(config, security),
        places=places,
        checks_callers=cluster.verifies_signatures,
    )
    return service, grpc


def spend_of_call(quotas: Quotas, user: str, name: str, request: Any, call: CallContext) -> None:
    """Refuse a call beyond the quota of its user. Raises: Rejected.

    What its topics and groups may is checked where it becomes requests to this broker.
    """
    messages = request.messages if name == "SendMessage" else ()
    use = Use(
        user=user,
        topic=None,
        group=None,
        messages=len(messages),
        size=sum(len(message.body) for message in messages),
        requests=int(name in ("SendMessage", "ReceiveMessage")),
        connection=call.connection,
    )
    quotas.require(use, trio.current_time(), reads=name == "ReceiveMessage")


def _sniffer(config: BrokerConfig, security: Security) -> ConnectionSniffer | None:
    names = (config.broker_ip,)
    may_sign = config.endpoint.self_signed and security.mode is not TlsMode.DISABLED
    if security.server is None and may_sign:
        return self_signed_sniffer(security, names, ALPN)
    if security.plain_only:
        return None
    return open_sniffer(security, names, ALPN)
