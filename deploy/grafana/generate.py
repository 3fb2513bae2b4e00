"""Write the dashboards: one list of panels for each, everything else is the same.

python deploy/grafana/generate.py            writes deploy/grafana/dashboards/*.json
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

DASHBOARDS = Path(__file__).parent / "dashboards"
WIDTH, HEIGHT = 8, 8
"""Three panels side by side; Grafana's grid is 24 wide."""
RATE = "[$__rate_interval]"
BROKERS = 'cluster=~"$cluster",node_id=~"$node"'

Query = tuple[str, str]
"""PromQL, and the legend of its lines."""
Panel = tuple[str, str, Sequence[Query]]
"""Title, unit of Grafana, and queries."""


def panel(title: str, unit: str, *queries: Query) -> Panel:
    """Return a panel."""
    return title, unit, queries


def labelled(promql: str, by: str, legend: str) -> Query:
    """Return a query; ``{}`` in the legend stands for the values of the labels."""
    return promql, legend.replace("{}", " ".join(f"{{{{{label}}}}}" for label in by.split(", ")))


def rate(name: str, by: str, more: str = "", legend: str = "{}") -> Query:
    """Return the sum of a counter's rate."""
    return labelled(f"sum by ({by}) (rate({name}{{{BROKERS}{more}}}{RATE}))", by, legend)


def quantile(share: float, name: str, by: str, more: str = "", legend: str = "{}") -> Query:
    """Return a quantile of a histogram."""
    buckets = f"sum by ({by}, le) (rate({name}_bucket{{{BROKERS}{more}}}{RATE}))"
    return labelled(f"histogram_quantile({share}, {buckets})", by, legend)


def quantiles(name: str, by: str, more: str = "") -> Iterator[Query]:
    """Yield the median and the 99th percentile."""
    for share in (0.5, 0.99):
        yield quantile(share, name, by, more, f"p{share * 100:g} {{}}")


def plain(name: str, by: str, more: str = "", legend: str = "{}", how: str = "sum") -> Query:
    """Return a gauge, summed up by labels."""
    return labelled(f"{how} by ({by}) ({name}{{{BROKERS}{more}}})", by, legend)


def each(promql: str, legend: str = "{}") -> Query:
    """Return a line for each server; ``{labels}`` in the query stands for the chosen brokers."""
    return labelled(promql.replace("{labels}", f"{{{BROKERS}}}"), "node_id, broker_id", legend)


def top(query: Query) -> Query:
    """Return the ten largest."""
    return f"topk(10, {query[0]})", query[1]


def ratio(query: Query, divisor: Query) -> Query:
    """Return one query divided by another, with the legend of the first."""
    return f"{query[0]} / {divisor[0]}", query[1]


NOT_SYSTEM = ',is_system="false"'
THE_TOPIC, THE_GROUP = ',topic=~"$topic"', ',consumer_group=~"$group"'
OF_TOPIC = NOT_SYSTEM + THE_TOPIC
OF_GROUP = OF_TOPIC + THE_GROUP
GROUP_FIRST = "{{consumer_group}} {{topic}}"

CLUSTER: Sequence[Panel] = [
    panel(
        "Ready servers",
        "short",
        ('sum by (job) (triomq_ready{cluster=~"$cluster|"})', "{{job}}"),
    ),
    panel(
        "Brokers that name servers know",
        "short",
        ('count by (cluster) (triomq_namesrv_broker{cluster=~"$cluster"})', "{{cluster}}"),
    ),
    panel(
        "Members that subscribe to different things",
        "short",
        plain("triomq_subscription_mismatch", "consumer_group"),
    ),
    panel("Messages in", "cps", rate("rocketmq_messages_in_total", "node_id", NOT_SYSTEM)),
    panel("Messages out", "cps", rate("rocketmq_messages_out_total", "node_id", NOT_SYSTEM)),
    panel(
        "Bytes in and out",
        "Bps",
        rate("rocketmq_throughput_in_total", "cluster", NOT_SYSTEM, "in {}"),
        rate("rocketmq_throughput_out_total", "cluster", NOT_SYSTEM, "out {}"),
    ),
    panel(
        "Time to answer a send",
        "ms",
        *quantiles("rocketmq_rpc_latency_milliseconds", "node_id", ',request_code=~"send.*"'),
    ),
    panel(
        "Messages that wait for consumers",
        "short",
        top(plain("rocketmq_consumer_lag_messages", "consumer_group")),
    ),
    panel(
        "Age of the oldest of them",
        "ms",
        top(plain("rocketmq_consumer_lag_latency_milliseconds", "consumer_group", how="max")),
    ),
    panel(
        "Used disk",
        "percentunit",
        plain("triomq_storage_used_ratio", "node_id, broker_id", how="max"),
    ),
    panel(
        "Slaves behind their master",
        "bytes",
        plain("triomq_replication_behind_bytes", "node_id, slave", how="max"),
    ),
    panel("Refused requests", "cps", rate("triomq_requests_refused_total", "node_id, reason")),
    panel(
        "Clients",
        "short",
        plain("rocketmq_producer_connections", "cluster", legend="producers"),
        plain("rocketmq_consumer_connections", "cluster", legend="consumers"),
    ),
    panel(
        "Topics and groups",
        "short",
        plain("rocketmq_topic_number", "node_id", legend="topics of {}", how="max"),
        plain("rocketmq_consumer_group_number", "node_id", legend="groups of {}", how="max"),
    ),
    panel("Dead letters", "cps", rate("rocketmq_send_to_dlq_messages_total", "consumer_group")),
    panel(
        "Proxies: calls and clients",
        "short",
        (
            f'sum by (status) (rate(triomq_grpc_calls_total{{cluster=~"$cluster"}}{RATE}))',
            "calls a second {{status}}",
        ),
        ('sum (triomq_grpc_clients{cluster=~"$cluster"})', "clients"),
    ),
]

TOPIC: Sequence[Panel] = [
    panel(
        "Messages in, by type",
        "cps",
        rate("rocketmq_messages_in_total", "topic, message_type", OF_TOPIC),
    ),
    panel(
        "Messages out",
        "cps",
        rate("rocketmq_messages_out_total", "topic, consumer_group", OF_TOPIC),
    ),
    panel(
        "Bytes in and out",
        "Bps",
        rate("rocketmq_throughput_in_total", "topic", OF_TOPIC, "in {}"),
        rate("rocketmq_throughput_out_total", "topic", OF_TOPIC, "out {}"),
    ),
    panel("Size of a message", "bytes", *quantiles("rocketmq_message_size", "topic", OF_TOPIC)),
    panel(
        "Messages that wait for consumers",
        "short",
        plain("rocketmq_consumer_lag_messages", "topic, consumer_group", OF_TOPIC),
    ),
    panel(
        "Balance: messages in, by broker",
        "cps",
        rate("rocketmq_messages_in_total", "topic, node_id", OF_TOPIC),
    ),
    panel(
        "Timed messages that wait", "short", plain("rocketmq_timing_messages", "topic", THE_TOPIC)
    ),
    panel(
        "Transactions that ended",
        "cps",
        rate("rocketmq_commit_messages_total", "topic", THE_TOPIC, "committed {}"),
        rate("rocketmq_rollback_messages_total", "topic", THE_TOPIC, "rolled back {}"),
    ),
    panel(
        "Dead letters",
        "cps",
        rate("rocketmq_send_to_dlq_messages_total", "topic, consumer_group", OF_TOPIC),
    ),
]

GROUP: Sequence[Panel] = [
    *(
        panel(
            title,
            unit,
            plain(f"rocketmq_consumer_{name}", "topic, consumer_group", OF_GROUP, GROUP_FIRST, how),
        )
        for title, unit, name, how in (
            ("Messages that are not consumed", "short", "lag_messages", "sum"),
            ("Messages that are not handed out", "short", "ready_messages", "sum"),
            ("Messages that are being handled", "short", "inflight_messages", "sum"),
            ("Age of the oldest message not consumed", "ms", "lag_latency_milliseconds", "max"),
            (
                "Age of the oldest message not handed out",
                "ms",
                "queueing_latency_milliseconds",
                "max",
            ),
        )
    ),
    panel(
        "Messages out",
        "cps",
        rate("rocketmq_messages_out_total", "topic, consumer_group", OF_GROUP, GROUP_FIRST),
    ),
    panel(
        "Retries",
        "short",
        plain(
            "rocketmq_consumer_lag_messages",
            "consumer_group",
            ',is_retry="true"' + THE_GROUP,
            "waiting for a retry: {}",
        ),
    ),
    panel(
        "Dead letters",
        "cps",
        rate("rocketmq_send_to_dlq_messages_total", "topic, consumer_group", OF_GROUP, GROUP_FIRST),
    ),
    panel(
        "Members",
        "short",
        plain(
            "rocketmq_consumer_connections",
            "consumer_group, language, version, consume_mode",
            THE_GROUP,
        ),
    ),
]

BROKER: Sequence[Panel] = [
    panel(
        "Time to answer, p99, by request",
        "ms",
        quantile(0.99, "rocketmq_rpc_latency_milliseconds", "request_code"),
    ),
    panel("Requests", "cps", rate("triomq_requests_total", "request")),
    panel("Errors", "cps", rate("triomq_request_errors_total", "request")),
    panel(
        "Requests in the queues of the pools",
        "short",
        plain("rocketmq_processor_watermark", "processor", how="max"),
    ),
    panel(
        "Wait in these queues",
        "s",
        ratio(
            rate("triomq_request_wait_seconds_total", "request"),
            rate("triomq_requests_queued_total", "request"),
        ),
    ),
    panel("Busy workers", "short", plain("triomq_pool_workers_busy", "pool")),
    panel("Event loop: how late tasks run", "s", *quantiles("triomq_loop_lag_seconds", "node_id")),
    panel("Append to the log", "s", *quantiles("triomq_storage_append_seconds", "node_id")),
    panel("fsync of the log", "s", *quantiles("triomq_fsync_seconds", "node_id")),
    panel(
        "Watermarks behind the end of the log",
        "bytes",
        plain("rocketmq_storage_flush_behind_bytes", "node_id", legend="not on disk {}"),
        plain("rocketmq_storage_dispatch_behind_bytes", "node_id", legend="not in the queues {}"),
    ),
    panel(
        "Log",
        "bytes",
        each("triomq_storage_max_offset_bytes{labels} - triomq_storage_min_offset_bytes{labels}"),
    ),
    panel(
        "Age of the oldest message",
        "ms",
        plain("rocketmq_storage_message_reserve_time_milliseconds", "node_id", how="max"),
    ),
    panel("Memory", "bytes", each("process_resident_memory_bytes{labels}")),
    panel("Processor", "percentunit", each(f"rate(process_cpu_seconds_total{{labels}}{RATE})")),
    panel(
        "Connections and open files",
        "short",
        each("triomq_connections{labels}", "connections {}"),
        each("process_open_fds{labels}", "open files {}"),
    ),
    panel("POP", "cps", rate("triomq_pops_total", "outcome")),
    panel(
        "Timers",
        "ms",
        plain(
            "rocketmq_timer_dequeue_latency_milliseconds",
            "node_id",
            legend="delivery behind {}",
            how="max",
        ),
        plain(
            "rocketmq_timer_enqueue_latency_milliseconds",
            "node_id",
            legend="wheel behind {}",
            how="max",
        ),
    ),
    panel(
        "Metrics: time and missing series",
        "short",
        each("triomq_scrape_duration_seconds{labels}", "seconds {}"),
        plain("triomq_metric_series_left_out", "metric", legend="left out {}"),
    ),
]

BOARDS = {
    "triomq-cluster": ("TrioMQ cluster", CLUSTER, ("cluster", "node")),
    "triomq-topic": ("TrioMQ topic", TOPIC, ("cluster", "node", "topic")),
    "triomq-group": ("TrioMQ consumer group", GROUP, ("cluster", "node", "topic", "group")),
    "triomq-broker": ("TrioMQ broker internals", BROKER, ("cluster", "node")),
}
VARIABLES = {
    "cluster": ("Cluster", "label_values(triomq_storage_writable, cluster)"),
    "node": ("Broker", 'label_values(triomq_storage_writable{cluster=~"$cluster"}, node_id)'),
    "topic": (
        "Topic",
        'label_values(rocketmq_messages_in_total{cluster=~"$cluster",is_system="false"}, topic)',
    ),
    "group": (
        "Group",
        'label_values(rocketmq_consumer_lag_messages{cluster=~"$cluster"}, consumer_group)',
    ),
}
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def dashboard(uid: str) -> dict[str, Any]:
    """Return one dashboard as Grafana stores it."""
    title, panels, names = BOARDS[uid]
    return {
        "uid": uid,
        "title": title,
        "tags": ["triomq"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "links": [
            {"type": "dashboards", "tags": ["triomq"], "title": "TrioMQ", "keepTime": True,
             "includeVars": True, "asDropdown": False}
        ],
        "templating": {"list": list(_variables(names))},
        "panels": [_panel(number, panel) for number, panel in enumerate(panels)],
    }  # fmt: skip


def _variables(names: Sequence[str]) -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    for name in names:
        label, query = VARIABLES[name]
        yield {
            "name": name,
            "label": label,
            "type": "query",
            "datasource": SOURCE,
            "query": {"query": query, "refId": name},
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"selected": True, "text": "All", "value": "$__all"},
        }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    title, unit, queries = panel
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": title,
        "datasource": SOURCE,
        "gridPos": {
            "x": number % 3 * WIDTH,
            "y": number // 3 * HEIGHT,
            "w": WIDTH,
            "h": HEIGHT,
        },
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {"refId": chr(ord("A") + place), "datasource": SOURCE, "expr": query,
             "legendFormat": legend}
            for place, (query, legend) in enumerate(queries)
        ],
    }  # fmt: skip


def pages() -> Iterator[tuple[Path, str]]:
    """Yield each file and its content."""
    for uid in BOARDS:
        text = json.dumps(dashboard(uid), indent=1, ensure_ascii=False) + "\n"
        yield DASHBOARDS / f"{uid}.json", text


if __name__ == "__main__":
    for path, text in pages():
        path.write_text(text)
        print(path.name)
