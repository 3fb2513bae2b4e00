"""What a name server shows to probes and Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import attrs
import trio

from triomq.namesrv.registration_requests import RegistrationRequests
from triomq.namesrv.routes import RouteTable
from triomq.remoting.audit.decision_notes import DecisionNotes
from triomq.remoting.monitor.access_figures import access_figures
from triomq.remoting.monitor.metrics import Family, Sample, by_label, family
from triomq.remoting.monitor.program_figures import server_figures
from triomq.remoting.protocol.bodies.cluster import MissingProcess
from triomq.remoting.server.server import Server

if TYPE_CHECKING:
    from triomq.namesrv.controller.serve_controller import ControllerParts


@attrs.define(eq=False, kw_only=True)
class NamesrvSource:
    """The figures of one name server."""

    routes: RouteTable
    server: Server
    brokers: RegistrationRequests
    notes: DecisionNotes | None = None
    controller: ControllerParts | None = None

    async def refresh(self, _series_max: int) -> None:
        """Read nothing: all figures are in memory. Checkpoint: always."""
        await trio.lowlevel.checkpoint()

    def labels(self) -> Mapping[str, str]:
        return {"node_type": "nameserver"}

    def not_ready(self) -> str | None:
        """Return None: an empty table must be ready too; otherwise no broker could fill it."""
        return None

    def status(self) -> Mapping[str, object]:
        """Return the cluster as registered at this name server."""
        table = self.routes.cluster_table()
        return {
            "clusters": table.cluster_addr_table,
            "brokers": {
                name: {str(broker_id): address for broker_id, address in data.broker_addrs.items()}
                for name, data in table.broker_addr_table.items()
            },
            "missing": {
                f"{gone.broker_name}:{gone.broker_id}": f"{gone.leave} {gone.seconds} s ago"
                for gone in self._missing()
            },
            "topics": len(self.routes.topic_names()),
        }

    def _refused(self) -> Counter[str]:
        refused = self.routes.limits.refused
        return refused if self.controller is None else refused + self.controller.refused()

    def _missing(self) -> list[MissingProcess]:
        return self.brokers.missing.processes(self.brokers.now_ms())

    def figures(self) -> Iterator[Family]:
        samples = [
            Sample(
                1,
                {
                    "cluster": data.cluster,
                    "broker": name,
                    "broker_id": str(broker_id),
                    "address": address,
                },
            )
            for name, data in self.routes.cluster_table().broker_addr_table.items()
            for broker_id, address in data.broker_addrs.items()
        ]
        yield family("triomq_namesrv_broker", samples)
        yield family(
            "triomq_namesrv_missing_broker",
            [
                Sample(
                    gone.seconds,
                    {
                        "cluster": gone.cluster,
                        "broker": gone.broker_name,
                        "broker_id": str(gone.broker_id),
                        "address": gone.address,
                        "leave": gone.leave,
                    },
                )
                for gone in self._missing()
            ],
        )
        yield family("triomq_namesrv_topics", len(self.routes.topic_names()))
        yield family("triomq_namesrv_moved_brokers_total", self.brokers.moved)
        yield family(
            "triomq_namesrv_foreign_unregistrations_total", self.brokers.foreign_unregistrations
        )
        yield family("triomq_limit_refusals_total", by_label("limit", self._refused()))
        if self.notes is not None:
            yield from access_figures(self.notes)
        if self.controller is not None:
            yield from self.controller.figures()
        yield from server_figures(self.server.statistics())
