"""The settings of Java's metrics exporters, the same for broker and proxy.

Source: common/BrokerConfig.java, proxy/config/ProxyConfig.java, common/metrics/MetricsExporterType.
"""

# ruff: noqa: RUF009  (setting() is an attrs field specifier)
from __future__ import annotations

import enum

import attrs

from triomq.remoting.core.settings import OPTIONAL_TEXT, ConfigError, Kind, number, setting
from triomq.remoting.monitor.monitor_settings import MonitorSettings


class ExporterType(enum.Enum):
    """Who brings the metrics to whom."""

    DISABLE = "DISABLE"
    OTLP_GRPC = "OTLP_GRPC"
    PROM = "PROM"


_NUMBERS = {"0": ExporterType.DISABLE, "1": ExporterType.OTLP_GRPC, "2": ExporterType.PROM}


def _read_type(text: str) -> ExporterType:
    found = _NUMBERS.get(text) or ExporterType.__members__.get(text.upper())
    if found is None:
        if text.upper() in ("LOG", "3"):
            raise ValueError("metrics are not written to the log; use PROM or OTLP_GRPC")
        raise ValueError("unknown exporter; use DISABLE, OTLP_GRPC or PROM")
    return found


def _read_pairs(text: str) -> tuple[tuple[str, str], ...]:
    pairs = []
    for part in filter(None, text.split(",")):
        name, colon, value = part.partition(":")
        if not colon or not name.strip():
            raise ValueError(f"{part} is no name:value; write name:value,name:value")
        pairs.append((name.strip(), value.strip()))
    return tuple(pairs)


EXPORTER_TYPE = Kind("DISABLE, OTLP_GRPC, PROM", _read_type, lambda value: value.value)
PAIRS = Kind(
    "name:value,...", _read_pairs, lambda pairs: ",".join([":".join(pair) for pair in pairs])
)


@attrs.frozen(kw_only=True)
class ExportSettings:
    """Where metrics go, beside ``monitorPort``.

    exporter: DISABLE; OTLP_GRPC: push to metricsGrpcExporterTarget (pip install 'triomq[otlp]');
        PROM: /metrics at metricsPromExporterPort, unless monitorPort is set
    target: collector for OTLP_GRPC: host:port, http://host:port, or https://host:port with TLS
    headers: metadata of the pushes: name:value,name:value
    timeout_ms: longest push (ms)
    interval_ms: time from one push to the next (ms)
    labels: labels that every metric gets: name:value,name:value
    prom_port: port of PROM
    prom_host: address that PROM listens on; empty: 0.0.0.0. Java's broker uses brokerIP1
    """

    exporter: ExporterType = setting("metricsExporterType", EXPORTER_TYPE, ExporterType.DISABLE)
    target: str = setting("metricsGrpcExporterTarget", OPTIONAL_TEXT, "")
    headers: tuple[tuple[str, str], ...] = setting("metricsGrpcExporterHeader", PAIRS, ())
    timeout_ms: int = number("metricGrpcExporterTimeOutInMills", 3000, low=1, high=600_000)
    interval_ms: int = number("metricGrpcExporterIntervalInMills", 60_000, low=10, high=86_400_000)
    labels: tuple[tuple[str, str], ...] = setting("metricsLabel", PAIRS, ())
    prom_port: int = number("metricsPromExporterPort", 5557, low=0, high=65_535)
    prom_host: str = setting("metricsPromExporterHost", OPTIONAL_TEXT, "")

    def monitor(self, own: MonitorSettings) -> MonitorSettings:
        """Return the settings of the HTTP port, which PROM opens if nothing else does."""
        if self.exporter is not ExporterType.PROM or own.port:
            return own
        return attrs.evolve(own, port=self.prom_port, host=self.prom_host or "0.0.0.0")

    def endpoint(self) -> str | None:
        """Return the URL to push to; None without a push. Raises: ConfigError."""
        if self.exporter is not ExporterType.OTLP_GRPC:
            return None
        if not self.target:
            raise ConfigError(
                "metricsGrpcExporterTarget",
                "OTLP_GRPC has no collector",
                "set it to the collector's host:port",
            )
        return self.target if "://" in self.target else f"http://{self.target}"
