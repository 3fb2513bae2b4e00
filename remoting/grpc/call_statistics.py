"""Snapshots and metrics of a gRPC server, in the form of ``remoting.monitor``. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import attrs

from triomq.remoting.grpc.status import GrpcStatus
from triomq.remoting.monitor.metrics import Family, Histogram, Sample, by_label, family
from triomq.remoting.monitor.program_figures import EDGES
from triomq.remoting.server.statistics import CodeStatistics, rebucketed

UNKNOWN_PATH = "unknown"
"""stands for all paths without a method, which clients choose"""


@attrs.define(eq=False)
class CallCounters:
    """The counters of one server since its start, changed by its connections.

    ``latency`` has the paths of methods; ``statuses`` counts ends by path and status.
    """

    latency: dict[str, CodeStatistics] = attrs.field(factory=dict)
    statuses: Counter[tuple[str, GrpcStatus]] = attrs.field(factory=Counter)
    received_bytes: int = 0
    sent_bytes: int = 0
    closed: int = 0
    broken: int = 0
    """connections closed because of invalid input"""
    turned_away: int = 0

    def note_end(self, path: str, status: GrpcStatus, seconds: float) -> None:
        """Count the end of a call. *path*: of a method, or ``UNKNOWN_PATH``."""
        figures = self.latency.get(path)
        if figures is None:
            figures = self.latency[path] = CodeStatistics()
        figures.requests += 1
        figures.note_answered(1, seconds)
        self.statuses[path, status] += 1


@attrs.frozen(kw_only=True)
class GrpcStatistics:
    """A snapshot of one server. ``refused``: setting of a limit -> refusals because of it."""

    connections: int
    calls: int
    kept_bytes: int
    accepted: int
    turned_away: int
    closed: int
    broken: int
    received_bytes: int
    sent_bytes: int
    refused: Mapping[str, int]
    statuses: Mapping[tuple[str, GrpcStatus], int]
    latency: Mapping[str, CodeStatistics]


def grpc_figures(figures: GrpcStatistics) -> Iterator[Family]:
    """Yield connections, calls by method and status, latencies, and refusals by limit."""
    yield family("triomq_grpc_connections", figures.connections)
    yield family("triomq_grpc_calls", figures.calls)
    yield family("triomq_grpc_kept_bytes", figures.kept_bytes)
    yield family("triomq_grpc_connections_accepted_total", figures.accepted)
    yield family("triomq_grpc_connections_turned_away_total", figures.turned_away)
    yield family("triomq_grpc_connections_broken_total", figures.broken)
    yield family("triomq_grpc_received_bytes_total", figures.received_bytes)
    yield family("triomq_grpc_sent_bytes_total", figures.sent_bytes)
    yield family(
        "triomq_grpc_calls_total",
        [
            Sample(count, {"method": path, "status": status.name})
            for (path, status), count in sorted(figures.statuses.items())
        ],
    )
    yield family(
        "triomq_grpc_call_seconds",
        [
            Histogram({"method": path}, EDGES, rebucketed(one.latency, EDGES), one.answer_seconds)
            for path, one in sorted(figures.latency.items())
        ],
    )
    yield family("triomq_grpc_refused_total", by_label("limit", figures.refused))
