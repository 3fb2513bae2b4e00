"""Metrics pushed to a collector, by the keys of Java's broker."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import trio
from brokers import peer_of, running_broker
from monitor_pages import get, value
from otlp_collector import Push, attributes, collecting
from processes import free_port

from triomq.broker.java_keys import BROKER_KEYS
from triomq.remoting.core.properties_file import Entry
from triomq.remoting.core.settings import ConfigError, Source, load
from triomq.remoting.monitor.export_settings import ExporterType, ExportSettings
from triomq.remoting.monitor.monitor_settings import MonitorSettings


@pytest.mark.feature("185a")
async def test_a_broker_pushes_what_its_page_shows(tmp_path: Path) -> None:
    port = free_port()
    with collecting() as (collector, target):
        settings = {
            "metricsExporterType": "OTLP_GRPC",
            "metricsGrpcExporterTarget": f"127.0.0.1:{target}",
            "metricsGrpcExporterHeader": "X-Tenant:shop",
            "metricGrpcExporterIntervalInMills": 200,
            "metricsLabel": "site:north",
            "monitorPort": port,
        }
        async with running_broker(tmp_path, **settings) as ready, peer_of(ready) as peer:
            await peer.create_topic("orders", queues=1)
            await peer.send("orders")
            push: Push | None = None
            with trio.fail_after(20):
                while push is None or "rocketmq_messages_in_total" not in push.metrics():
                    push = await trio.to_thread.run_sync(partial(collector.pushes.get, timeout=10))
            # A push that the collector has is counted when its answer is back.
            page = ""
            with trio.fail_after(20):
                while "triomq_metric_exports_total{" not in page or not value(
                    page, "triomq_metric_exports_total", outcome="taken", site="north"
                ):
                    page = (await get(port, "/metrics"))[2]
    assert push.metadata["x-tenant"] == "shop"
    assert push.resource()["service.name"] == "mqbroker"
    metrics = push.metrics()
    incoming = metrics["rocketmq_messages_in_total"]
    assert incoming.sum.is_monotonic
    assert incoming.sum.aggregation_temporality == 2  # cumulative
    (point,) = incoming.sum.data_points
    assert point.as_double == 1
    assert attributes(point.attributes) == {
        "site": "north", "cluster": "TestCluster", "node_type": "broker", "node_id": "broker-a",
        "broker_id": "0", "topic": "orders", "message_type": "normal", "is_system": "false",
    }  # fmt: skip
    latency = metrics["rocketmq_rpc_latency"]
    assert latency.unit == "milliseconds"
    (sends,) = [
        point
        for point in latency.histogram.data_points
        if attributes(point.attributes)["request_code"].startswith("send_message")
    ]
    assert list(sends.explicit_bounds) == [1, 3, 5, 7, 10, 100, 1000, 2000, 3000]
    assert sum(sends.bucket_counts) == sends.count == 1
    assert metrics["rocketmq_topic_number"].gauge.data_points[0].as_double > 1
    assert value(page, "triomq_metric_exports_total", outcome="failed") == 0


async def test_a_collector_that_is_away_costs_nothing_but_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port, away = free_port(), free_port()
    settings = {
        "metricsExporterType": "1",
        "metricsGrpcExporterTarget": f"http://127.0.0.1:{away}",
        "metricGrpcExporterIntervalInMills": 50,
        "metricGrpcExporterTimeOutInMills": 300,
        "monitorPort": port,
    }
    async with running_broker(tmp_path, **settings) as ready, peer_of(ready) as peer:
        failed = 0.0
        with trio.fail_after(20):
            while not failed:
                await trio.sleep(0.1)
                page = (await get(port, "/metrics"))[2]
                failed = value(page, "triomq_metric_exports_total", outcome="failed")
        await peer.create_topic("orders", queues=1)
        await peer.send("orders")
        assert "metricsGrpcExporterTarget right?" in caplog.text
        with collecting(away) as (collector, _):
            await trio.to_thread.run_sync(partial(collector.pushes.get, timeout=15))


async def test_java_s_prometheus_port(tmp_path: Path) -> None:
    port = free_port()
    settings = {
        "metricsExporterType": "PROM",
        "metricsPromExporterPort": port,
        "metricsPromExporterHost": "127.0.0.1",
    }
    async with running_broker(tmp_path, **settings):
        page = (await get(port, "/metrics"))[2]
    assert value(page, "rocketmq_broker_permission") == 6


def settings_of(**entries: str) -> ExportSettings:
    source = Source("test", tuple(Entry(key, text) for key, text in entries.items()))
    return load(ExportSettings, [source], BROKER_KEYS).config


def test_settings_as_java_writes_them() -> None:
    assert settings_of(metricsExporterType="2").exporter is ExporterType.PROM
    assert settings_of(metricsExporterType="otlp_grpc").exporter is ExporterType.OTLP_GRPC
    own = MonitorSettings(port=7)
    assert settings_of(metricsExporterType="PROM").monitor(own) is own
    opened = settings_of(metricsExporterType="PROM").monitor(MonitorSettings())
    assert (opened.host, opened.port) == ("0.0.0.0", 5557)
    assert settings_of(metricsLabel="a:b:c, d:e").labels == (("a", "b:c"), ("d", "e"))
    for wrong, words in (
        ({"metricsExporterType": "LOG"}, "not written to the log"),
        ({"metricsExporterType": "statsd"}, "use DISABLE, OTLP_GRPC or PROM"),
        ({"metricsLabel": "a"}, "write name:value"),
    ):
        with pytest.raises(ConfigError, match=words):
            settings_of(**wrong)
    with pytest.raises(ConfigError, match="collector's host:port"):
        settings_of(metricsExporterType="OTLP_GRPC").endpoint()
