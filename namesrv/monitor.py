"""What a name server tells its probes and Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from triomq.namesrv.processor import NamesrvProcessor
from triomq.namesrv.routes import RouteTable
from triomq.remoting.monitor.metrics import Family, Sample, counter, gauge
from triomq.remoting.monitor.process import server_figures
from triomq.remoting.server.server import Server


@attrs.define(eq=False, kw_only=True)
class NamesrvSource:
    """Reads, changes nothing."""

    routes: RouteTable
    server: Server
    processor: NamesrvProcessor

    def labels(self) -> Mapping[str, str]:
        return {"node_type": "nameserver"}

    def not_ready(self) -> str | None:
        """An empty table is no reason: brokers fill it within their period, and nobody could register if this were one."""
        return None

    def status(self) -> Mapping[str, Any]:
        """The cluster as this name server sees it."""
        table = self.routes.cluster_table()
        brokers = {name: {str(broker_id): address for broker_id, address in data.broker_addrs.items()} for name, data in table.broker_addr_table.items()}
        return {"clusters": {cluster: list(names) for cluster, names in table.cluster_addr_table.items()}, "brokers": brokers, "topics": len(self.routes.topic_names())}

    def figures(self) -> Iterator[Family]:
        table = self.routes.cluster_table()
        clusters = {name: cluster for cluster, names in table.cluster_addr_table.items() for name in names}
        samples = [
            Sample(1, {"cluster": clusters.get(name, ""), "broker": name, "broker_id": str(broker_id), "address": address})
            for name, data in table.broker_addr_table.items()
            for broker_id, address in data.broker_addrs.items()
        ]
        yield Family("triomq_namesrv_broker", "gauge", "1 for each broker process that is registered.", samples)
        yield gauge("triomq_namesrv_topics", "Topics in the routes.", len(self.routes.topic_names()))
        yield counter("triomq_namesrv_moved_brokers_total", "Registrations that moved a living broker to another address.", self.processor.moved)
        yield counter("triomq_namesrv_foreign_unregistrations_total", "Unregistrations on another connection than the broker's.", self.processor.foreign_unregistrations)
        refused = [Sample(count, {"limit": name}) for name, count in sorted(self.routes.limits.refused.items())]
        yield Family("triomq_limit_refusals_total", "counter", "What was refused or left out because a limit of the name server's tables was reached.", refused)
        yield from server_figures(self.server.statistics())
