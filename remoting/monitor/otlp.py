"""Push metrics to an OpenTelemetry collector, with OpenTelemetry's own exporter.

Its modules take 0.2 s to load, and 20 MB, so only a program with
``metricsExporterType=OTLP_GRPC`` loads them (in a thread), and its pushes run in a thread, too.
Names are those of RocketMQ's instruments: a unit is not part of the name, a collector adds it for
Prometheus.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Histogram as HistogramData
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from triomq.remoting.monitor.export_settings import ExportSettings
from triomq.remoting.monitor.metrics import Family, Histogram, Labels, Sample

UNITS = ("milliseconds", "seconds", "bytes")
NAMES_WITH_UNITS = ("rocketmq_storage_flush_behind_bytes", "rocketmq_storage_dispatch_behind_bytes")
"""Java's instruments whose names contain the unit."""
POINTS_PER_STEP = 500
"""They take about 3 ms."""
_CUMULATIVE = AggregationTemporality.CUMULATIVE


def instrument(family: Family) -> tuple[str, str]:
    """Return the name and the unit of a family in OTLP."""
    for unit in UNITS:
        if family.name.endswith(f"_{unit}"):
            if family.name in NAMES_WITH_UNITS or not family.name.startswith("rocketmq_"):
                return family.name, unit
            return family.name.removesuffix(f"_{unit}"), unit
    return family.name, ""


def metric_steps(
    family: Family, common: Labels, start_ns: int, now_ns: int
) -> Iterator[Metric | None]:
    """Yield a family as OpenTelemetry's SDK has it, in the end; before that None, in steps."""
    points: list[object] = []
    for sample in family.samples:
        points.append(_point(sample, common, start_ns, now_ns))
        if len(points) % POINTS_PER_STEP == 0:
            yield None
    if not points:
        return
    if family.kind == "histogram":
        data = HistogramData(points, _CUMULATIVE)
    elif family.kind == "counter":
        data = Sum(points, _CUMULATIVE, is_monotonic=True)
    else:
        data = Gauge(points)
    name, unit = instrument(family)
    yield Metric(name, family.meaning, unit, data)


def _point(sample: Sample | Histogram, common: Labels, start_ns: int, now_ns: int) -> object:
    labels = {**common, **sample.labels}
    if isinstance(sample, Sample):
        return NumberDataPoint(labels, start_ns, now_ns, float(sample.value))
    return HistogramDataPoint(
        attributes=labels,
        start_time_unix_nano=start_ns,
        time_unix_nano=now_ns,
        count=sum(sample.counts),
        sum=sample.total,
        bucket_counts=list(sample.counts),
        explicit_bounds=[float(edge) for edge in sample.edges],
        min=0.0,
        max=0.0,
    )


@attrs.define(eq=False)
class OtlpPush:
    """The connection to one collector. Its calls block: a thread makes them."""

    program: str
    endpoint: str
    settings: ExportSettings
    exporter: OTLPMetricExporter = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.exporter = OTLPMetricExporter(
            endpoint=self.endpoint,
            headers=tuple((name.lower(), value) for name, value in self.settings.headers),
            timeout=self.settings.timeout_ms / 1000,
        )

    def metrics(
        self, families: Iterable[Family], common: Labels, started: float
    ) -> Iterator[Metric | None]:
        """Yield a metric, or None, in each step; other tasks run in between."""
        start_ns, now_ns = int(started * 1e9), time.time_ns()
        for family in families:
            yield from metric_steps(family, common, start_ns, now_ns)

    def push(self, metrics: Sequence[Metric], common: Mapping[str, str]) -> bool:
        """Send them; return whether the collector took them."""
        resource = Resource.create({"service.name": self.program, **common})
        scope = ScopeMetrics(InstrumentationScope("triomq"), metrics, "")
        data = MetricsData([ResourceMetrics(resource, [scope], "")])
        result = self.exporter.export(data, timeout_millis=self.settings.timeout_ms)
        return bool(result is MetricExportResult.SUCCESS)

    def close(self) -> None:
        """Close the connection."""
        self.exporter.shutdown(timeout_millis=1000)
