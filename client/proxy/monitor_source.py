"""What a proxy shows to probes and Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs
import trio

from triomq.client.proxy.remote_cluster import RemoteCluster
from triomq.remoting.access.quotas import Quotas
from triomq.remoting.audit.decision_notes import DecisionNotes
from triomq.remoting.grpc.call_statistics import grpc_figures
from triomq.remoting.grpc.grpc_server import GrpcServer
from triomq.remoting.messaging.service import GrpcMessaging
from triomq.remoting.monitor.access_figures import access_figures, quota_figures
from triomq.remoting.monitor.metrics import Family, family


@attrs.frozen(eq=False)
class ProxySource:
    """The figures of one proxy."""

    cluster: RemoteCluster
    service: GrpcMessaging
    server: GrpcServer
    notes: DecisionNotes | None
    quotas: Quotas

    async def refresh(self, _series_max: int) -> None:
        """Read nothing: all figures are in memory. Checkpoint: always."""
        await trio.lowlevel.checkpoint()

    def labels(self) -> Mapping[str, str]:
        """Return Java's common labels."""
        return {
            "node_type": "proxy",
            "proxy_mode": "cluster",
            "cluster": self.cluster.config.cluster_name,
            "node_id": self.cluster.client_id,
        }

    def not_ready(self) -> str | None:
        """Return why clients should not be sent here, None if they may be."""
        return self.cluster.calls.unreached

    def status(self) -> Mapping[str, object]:
        """Return what this proxy knows."""
        registrations = self.cluster.registrations
        return {
            "cluster": self.cluster.config.cluster_name,
            "clientId": self.cluster.client_id,
            "nameServers": list(self.cluster.finder.names.addresses),
            "brokers": len(self.cluster.calls.directory),
            "clients": len(self.service.clients.by_id),
            "registeredWith": sorted(registrations.known_to),
        }

    def figures(self) -> Iterator[Family]:
        yield family("rocketmq_proxy_up", 1)
        yield family("triomq_proxy_brokers", len(self.cluster.calls.directory))
        connections = self.cluster.connector.statistics()
        yield family("triomq_proxy_broker_connections", connections.open + self.cluster.more.open)
        joined = self.cluster.registrations.joined
        yield family("triomq_proxy_groups", sum(1 for _ in joined.groups()))
        yield family("triomq_proxy_groups_refused_total", joined.refused)
        yield family("triomq_proxy_broker_requests", connections.pending)
        if self.notes is not None:
            yield from access_figures(self.notes)
        if self.quotas.quotas:
            yield quota_figures(self.quotas)
        yield from grpc_figures(self.server.statistics())
        yield from self.service.figures()
