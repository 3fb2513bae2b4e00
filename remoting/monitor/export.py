"""The task that pushes metrics with OTLP: when, and what becomes of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

import attrs
import trio

from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.core.periodic import every
from triomq.remoting.core.settings import ConfigError
from triomq.remoting.monitor.export_settings import ExportSettings
from triomq.remoting.monitor.metrics import Family, Sample, family

if TYPE_CHECKING:
    from triomq.remoting.monitor.otlp import OtlpPush

_log = logging.getLogger(__name__)


class MetricsSource(Protocol):
    """What an export reads: the monitor."""

    program: str
    started: float

    def labels(self) -> Mapping[str, str]:
        """Return the labels of every sample."""

    async def families(self) -> Iterator[Family]:
        """Return all metrics. Checkpoint: always."""


@attrs.define(eq=False)
class Export:
    """Pushes at each interval; a push that fails is left out, for the next has the same sums."""

    settings: ExportSettings
    limit: LogLimit = attrs.field(factory=LogLimit)
    pushed: int = attrs.field(default=0, init=False)
    failed: int = attrs.field(default=0, init=False)

    async def open(self, program: str) -> OtlpPush | None:
        """Load the exporter, if the settings name a collector. Raises: ConfigError."""
        endpoint = self.settings.endpoint()
        if endpoint is None:
            return None
        try:
            module = await trio.to_thread.run_sync(import_module, "triomq.remoting.monitor.otlp")
        except ModuleNotFoundError as error:
            raise ConfigError(
                "metricsExporterType",
                f"OTLP_GRPC needs a package that is missing ({error.name})",
                "pip install 'triomq[otlp]'",
            ) from None
        make: Callable[..., Any] = module.OtlpPush
        push: OtlpPush = await trio.to_thread.run_sync(
            partial(make, program, endpoint, self.settings)
        )
        return push

    async def run(self, source: MetricsSource, push: OtlpPush) -> None:
        """Run the task "otlp-export" until it is cancelled."""
        try:
            pushing = partial(self.push_once, source, push)
            await every(self.settings.interval_ms / 1000, pushing)
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 2):
                await trio.to_thread.run_sync(push.close, abandon_on_cancel=True)

    async def push_once(self, source: MetricsSource, push: OtlpPush) -> None:
        """Push all metrics once. Checkpoint: always."""
        labels = source.labels()
        metrics = []
        try:
            for metric in push.metrics(await source.families(), labels, source.started):
                if metric is not None:
                    metrics.append(metric)
                await trio.lowlevel.checkpoint()
            taken = await trio.to_thread.run_sync(
                push.push, metrics, labels, abandon_on_cancel=True
            )
        except Exception as error:
            taken = False
            self.limit.log(_log, logging.ERROR, "an export of metrics failed", error=error)
        if taken:
            self.pushed += 1
            return
        self.failed += 1
        self.limit.warning(
            _log,
            "the collector at %s did not take the metrics within %d ms: is it running, is"
            " metricsGrpcExporterTarget right?",
            push.endpoint,
            self.settings.timeout_ms,
        )

    def figures(self) -> Iterator[Family]:
        """Yield what became of the pushes."""
        yield family(
            "triomq_metric_exports_total",
            [Sample(self.pushed, {"outcome": "taken"}), Sample(self.failed, {"outcome": "failed"})],
        )
