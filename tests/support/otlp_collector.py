"""A collector of OpenTelemetry: the official gRPC server with the official classes of OTLP."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import attrs
import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as messages
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as services


class Collector(services.MetricsServiceServicer):  # type: ignore[misc]
    """Keeps what it got."""

    def __init__(self) -> None:
        self.pushes: queue.Queue[Push] = queue.Queue()

    def Export(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.pushes.put(Push(request, dict(context.invocation_metadata())))
        return messages.ExportMetricsServiceResponse()


@attrs.frozen
class Push:
    """One request and its metadata."""

    request: Any
    metadata: dict[str, Any]

    def metrics(self) -> dict[str, Any]:
        """Return the metrics by name."""
        return {
            metric.name: metric
            for resource in self.request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def resource(self) -> dict[str, str]:
        """Return the attributes of the sender."""
        return attributes(self.request.resource_metrics[0].resource.attributes)


def attributes(pairs: Any) -> dict[str, str]:
    """Return the attributes of a resource or a point."""
    return {pair.key: pair.value.string_value for pair in pairs}


@contextmanager
def collecting(port: int = 0) -> Iterator[tuple[Collector, int]]:
    """Run a collector for the block."""
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(2))
    services.add_MetricsServiceServicer_to_server(collector, server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield collector, port
    finally:
        server.stop(None).wait()
