"""ProxyConfig: every setting of ``mqproxy`` that has an effect, under its Java name.

Source: proxy/…/config/ProxyConfig.java.
"""

# ruff: noqa: RUF009  (setting() and group() are attrs field specifiers)
from __future__ import annotations

from pathlib import Path

import attrs

from triomq.remoting.access.access_settings import ProxyAccessSettings
from triomq.remoting.audit.audit_settings import AuditSettings
from triomq.remoting.core.java_keys import KeyTable, Reason
from triomq.remoting.core.settings import (
    ADDRESSES,
    TEXT,
    flag,
    group,
    number,
    optional_text,
    setting,
)
from triomq.remoting.grpc.grpc_settings import GrpcSettings
from triomq.remoting.messaging.messaging_settings import MessagingSettings
from triomq.remoting.monitor.export_settings import ExportSettings
from triomq.remoting.monitor.monitor_settings import MonitorSettings
from triomq.remoting.tls.security_settings import SecuritySettings

DEFAULT_PORT = 8081
_DAY_SECONDS = 24 * 3600
_ENTRIES_MAX = 10_000_000


@attrs.frozen(kw_only=True)
class CacheSettings:
    """How long answers of name servers and brokers are used. Times: seconds.

    routes_seconds: how long a route is used; that of a broker that is lost is looked up at once
    routes_max: routes that are kept
    topics_seconds: how long the settings of a topic are used
    topics_max: settings of topics that are kept
    groups_seconds: how long the settings of a consumer group are used
    groups_max: settings of consumer groups that are kept
    """

    routes_seconds: int = number("topicRouteServiceCacheRefreshSeconds", 20, high=_DAY_SECONDS)
    routes_max: int = number("topicRouteServiceCacheMaxNum", 20_000, high=_ENTRIES_MAX)
    topics_seconds: int = number("topicConfigCacheRefreshSeconds", 20, high=_DAY_SECONDS)
    topics_max: int = number("topicConfigCacheMaxNum", 20_000, high=_ENTRIES_MAX)
    groups_seconds: int = number(
        "subscriptionGroupConfigCacheRefreshSeconds", 20, high=_DAY_SECONDS
    )
    groups_max: int = number("subscriptionGroupConfigCacheMaxNum", 20_000, high=_ENTRIES_MAX)


@attrs.frozen(kw_only=True)
class HeartbeatSettings:
    """How brokers hear of the groups of a proxy's clients.

    groups_per_connection: groups of clients of which a broker hears over one connection; not more
        than the brokers' groupsPerConnectionMax
    connections_max: connections to each broker, made when the groups need them; groups that need
        more are not made known
    """

    groups_per_connection: int = number(
        "heartbeatGroupsPerConnection", 1_000, high=1_000_000, own=True
    )
    connections_max: int = number("heartbeatConnectionsMax", 20, high=10_000, own=True)


@attrs.frozen(kw_only=True)
class ProxyConfig:
    """All settings of one proxy.

    cluster_name: cluster whose masters are asked first for the settings of consumer groups; routes
        lead to all clusters of the name servers
    namesrv_addresses: name servers: host:port, separated by ;
    namesrv_domain: without namesrvAddr: the address server that lists the name servers
    namesrv_subgroup: part of the address server's path, nsaddr if it is empty
    listen_host: address to listen on; :: takes IPv6 and IPv4
    listen_port: port for clients that speak gRPC (RocketMQ 5 clients); 0: any free one
    advertised_host: address or host name of this proxy for clients that do not say how they came;
        empty: this machine's address on the way to the name servers
    keeps_ports: routes have the port that the client dialled, as behind a load balancer or a
        published port, instead of grpcServerPort
    self_signed: without a certificate: make one for TLS, which official clients use unless they are
        told otherwise and do not verify
    certificate: another name of tls.server.certPath, which wins
    key: another name of tls.server.keyPath, which wins
    key_password: another name of tls.server.keyPassword, which wins
    """

    cluster_name: str = setting("rocketMQClusterName", TEXT, "DefaultCluster")
    namesrv_addresses: tuple[str, ...] = setting(
        "namesrvAddr", ADDRESSES, (), default_text="environment NAMESRV_ADDR"
    )
    namesrv_domain: str = optional_text("namesrvDomain")
    namesrv_subgroup: str = optional_text("namesrvDomainSubgroup")
    listen_host: str = setting("bindAddress", TEXT, "0.0.0.0", own=True)
    listen_port: int = number("grpcServerPort", DEFAULT_PORT, low=0, high=65_535)
    advertised_host: str = optional_text("localServeAddr")
    keeps_ports: bool = flag("useEndpointPortFromRequest", False)
    self_signed: bool = flag("tlsTestModeEnable", True)
    certificate: str = optional_text("tlsCertPath")
    key: str = optional_text("tlsKeyPath")
    key_password: str = optional_text("tlsKeyPassword", secret=True)
    caches: CacheSettings = group(CacheSettings)
    heartbeats: HeartbeatSettings = group(HeartbeatSettings)
    grpc: GrpcSettings = group(GrpcSettings)
    messaging: MessagingSettings = group(MessagingSettings)
    monitor: MonitorSettings = group(MonitorSettings)
    exports: ExportSettings = group(ExportSettings)
    security: SecuritySettings = group(SecuritySettings)
    access: ProxyAccessSettings = group(ProxyAccessSettings)
    audit: AuditSettings = group(AuditSettings)

    def security_settings(self) -> SecuritySettings:
        """Return the settings for TLS, with the proxy's own names of the certificate's files."""
        given = self.security
        if given.certificate or not self.certificate:
            return given
        return attrs.evolve(
            given,
            certificate=self.certificate,
            key=given.key or self.key,
            key_password=given.key_password or self.key_password,
        )


_REASONS = {
    "access copy": Reason(
        "the class that keeps or caches users and rules; here they are copied from a broker"
    ),
    "white list": Reason("request codes that are not checked; calls have none"),
    "checks": Reason("a limit of messages whose value is fixed here"),
    "fixed": Reason("a time or number of Java's proxy that is fixed here"),
    "heartbeat topic": Reason(
        "Java's proxies tell each other their clients through a topic; here brokers know the groups"
        " of each proxy"
    ),
    "internal": Reason("set by Java itself or by its launch scripts"),
    "jstack": Reason("what Java prints into its own log"),
    "latency": Reason("avoiding slow brokers; a message goes on to the next broker when one fails"),
    "lite": Reason("lite topics"),
    "local": Reason(
        "the local mode",
        "remove the key: in the local mode a broker serves these clients itself (grpcServerPort of"
        " mqbroker)",
    ),
    "metrics": Reason("sending metrics by OTLP; monitorPort has them for Prometheus"),
    "netty": Reason("a detail of Netty or of gRPC for Java"),
    "remoting": Reason("the proxy's port for clients of the remoting protocol"),
    "threads": Reason("sizes a Java thread pool or queue that has no counterpart here"),
    "transactions": Reason(
        "how long Java remembers open transactions; here their ids have all that their end needs"
    ),
}

PROXY_KEYS = KeyTable("mqproxy", Path(__file__).with_name("java_keys.tsv"), _REASONS)
"""The keys of Java's ProxyConfig, and those of its AuthConfig and TLS."""
