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

Panel = tuple[str, str, Sequence[tuple[str, str]]]
"""Title, unit of Grafana, and (query, legend) pairs."""


def rate(name: str, by: str, more: str = "") -> str:
    """Return the sum of a counter's rate."""
    return f"sum by ({by}) (rate({name}{{{BROKERS}{more}}}{RATE}))"


def quantile(share: float, name: str, by: str, more: str = "") -> str:
    """Return a quantile of a histogram."""
    labels = f"{by}, le" if by else "le"
    return (
        f"histogram_quantile({share}, sum by ({labels})"
        f" (rate({name}_bucket{{{BROKERS}{more}}}{RATE})))"
    )


def plain(name: str, by: str, more: str = "", how: str = "sum") -> str:
    """Return a gauge, summed up by labels."""
    return f"{how} by ({by}) ({name}{{{BROKERS}{more}}})"


NOT_SYSTEM = ',is_system="false"'
OF_TOPIC = NOT_SYSTEM + ',topic=~"$topic"'
OF_GROUP = OF_TOPIC + ',consumer_group=~"$group"'

CLUSTER: Sequence[Panel] = [
    (
        "Ready servers",
        "short",
        [('sum by (job) (triomq_ready{cluster=~"$cluster|"})', "{{job}}")],
    ),
    (
        "Brokers that name servers know",
        "short",
        [('count by (cluster) (triomq_namesrv_broker{cluster=~"$cluster"})', "{{cluster}}")],
    ),
    (
        "Members that subscribe to different things",
        "short",
        [(plain("triomq_subscription_mismatch", "consumer_group"), "{{consumer_group}}")],
    ),
    (
        "Messages in",
        "cps",
        [(rate("rocketmq_messages_in_total", "node_id", NOT_SYSTEM), "{{node_id}}")],
    ),
    (
        "Messages out",
        "cps",
        [(rate("rocketmq_messages_out_total", "node_id", NOT_SYSTEM), "{{node_id}}")],
    ),
    (
        "Bytes in and out",
        "Bps",
        [
            (rate("rocketmq_throughput_in_total", "cluster", NOT_SYSTEM), "in {{cluster}}"),
            (rate("rocketmq_throughput_out_total", "cluster", NOT_SYSTEM), "out {{cluster}}"),
        ],
    ),
    (
        "Time to answer a send",
        "ms",
        [
            (
                quantile(
                    share, "rocketmq_rpc_latency_milliseconds", "node_id", ',request_code=~"send.*"'
                ),
                f"p{share * 100:g} {{{{node_id}}}}",
            )
            for share in (0.5, 0.99)
        ],
    ),
    (
        "Messages that wait for consumers",
        "short",
        [
            (
                "topk(10, " + plain("rocketmq_consumer_lag_messages", "consumer_group") + ")",
                "{{consumer_group}}",
            )
        ],
    ),
    (
        "Age of the oldest of them",
        "ms",
        [
            (
                "topk(10, "
                + plain("rocketmq_consumer_lag_latency_milliseconds", "consumer_group", how="max")
                + ")",
                "{{consumer_group}}",
            )
        ],
    ),
    (
        "Used disk",
        "percentunit",
        [
            (
                plain("triomq_storage_used_ratio", "node_id, broker_id", how="max"),
                "{{node_id}} {{broker_id}}",
            )
        ],
    ),
    (
        "Slaves behind their master",
        "bytes",
        [
            (
                plain("triomq_replication_behind_bytes", "node_id, slave", how="max"),
                "{{node_id}} {{slave}}",
            )
        ],
    ),
    (
        "Refused requests",
        "cps",
        [(rate("triomq_requests_refused_total", "node_id, reason"), "{{node_id}} {{reason}}")],
    ),
    (
        "Clients",
        "short",
        [
            (plain("rocketmq_producer_connections", "cluster"), "producers"),
            (plain("rocketmq_consumer_connections", "cluster"), "consumers"),
        ],
    ),
    (
        "Topics and groups",
        "short",
        [
            (plain("rocketmq_topic_number", "node_id", how="max"), "topics of {{node_id}}"),
            (
                plain("rocketmq_consumer_group_number", "node_id", how="max"),
                "groups of {{node_id}}",
            ),
        ],
    ),
    (
        "Dead letters",
        "cps",
        [(rate("rocketmq_send_to_dlq_messages_total", "consumer_group"), "{{consumer_group}}")],
    ),
    (
        "Proxies: calls and clients",
        "short",
        [
            ('sum by (status) (rate(triomq_grpc_calls_total{cluster=~"$cluster"}' + RATE + "))",
             "calls a second {{status}}"),
            ('sum (triomq_grpc_clients{cluster=~"$cluster"})', "clients"),
        ],
    ),
]  # fmt: skip

TOPIC: Sequence[Panel] = [
    (
        "Messages in, by type",
        "cps",
        [
            (
                rate("rocketmq_messages_in_total", "topic, message_type", OF_TOPIC),
                "{{topic}} {{message_type}}",
            )
        ],
    ),
    (
        "Messages out",
        "cps",
        [
            (
                rate("rocketmq_messages_out_total", "topic, consumer_group", OF_TOPIC),
                "{{topic}} {{consumer_group}}",
            )
        ],
    ),
    (
        "Bytes in and out",
        "Bps",
        [
            (rate("rocketmq_throughput_in_total", "topic", OF_TOPIC), "in {{topic}}"),
            (rate("rocketmq_throughput_out_total", "topic", OF_TOPIC), "out {{topic}}"),
        ],
    ),
    (
        "Size of a message",
        "bytes",
        [
            (
                quantile(share, "rocketmq_message_size", "topic", OF_TOPIC),
                f"p{share * 100:g} {{{{topic}}}}",
            )
            for share in (0.5, 0.99)
        ],
    ),
    (
        "Messages that wait for consumers",
        "short",
        [
            (
                plain("rocketmq_consumer_lag_messages", "topic, consumer_group", OF_TOPIC),
                "{{topic}} {{consumer_group}}",
            )
        ],
    ),
    (
        "Balance: messages in, by broker",
        "cps",
        [
            (
                rate("rocketmq_messages_in_total", "topic, node_id", OF_TOPIC),
                "{{topic}} {{node_id}}",
            )
        ],
    ),
    (
        "Timed messages that wait",
        "short",
        [
            (
                plain("rocketmq_timing_messages", "topic", ',topic=~"$topic"'),
                "{{topic}}",
            )
        ],
    ),
    (
        "Transactions that ended",
        "cps",
        [
            (
                rate("rocketmq_commit_messages_total", "topic", ',topic=~"$topic"'),
                "committed {{topic}}",
            ),
            (
                rate("rocketmq_rollback_messages_total", "topic", ',topic=~"$topic"'),
                "rolled back {{topic}}",
            ),
        ],
    ),
    (
        "Dead letters",
        "cps",
        [
            (
                rate("rocketmq_send_to_dlq_messages_total", "topic, consumer_group", OF_TOPIC),
                "{{topic}} {{consumer_group}}",
            )
        ],
    ),
]

GROUP: Sequence[Panel] = [
    (
        title,
        unit,
        [
            (
                plain(f"rocketmq_consumer_{name}", "topic, consumer_group", OF_GROUP, how),
                "{{consumer_group}} {{topic}}",
            )
        ],
    )
    for title, unit, name, how in (
        ("Messages that are not consumed", "short", "lag_messages", "sum"),
        ("Messages that are not handed out", "short", "ready_messages", "sum"),
        ("Messages that are being handled", "short", "inflight_messages", "sum"),
        ("Age of the oldest message not consumed", "ms", "lag_latency_milliseconds", "max"),
        ("Age of the oldest message not handed out", "ms", "queueing_latency_milliseconds", "max"),
    )
] + [
    (
        "Messages out",
        "cps",
        [
            (
                rate("rocketmq_messages_out_total", "topic, consumer_group", OF_GROUP),
                "{{consumer_group}} {{topic}}",
            )
        ],
    ),
    (
        "Retries",
        "short",
        [
            (
                plain(
                    "rocketmq_consumer_lag_messages",
                    "consumer_group",
                    ',is_retry="true",consumer_group=~"$group"',
                ),
                "waiting for a retry: {{consumer_group}}",
            )
        ],
    ),
    (
        "Dead letters",
        "cps",
        [
            (
                rate("rocketmq_send_to_dlq_messages_total", "topic, consumer_group", OF_GROUP),
                "{{consumer_group}} {{topic}}",
            )
        ],
    ),
    (
        "Members",
        "short",
        [
            (
                plain(
                    "rocketmq_consumer_connections",
                    "consumer_group, language, version, consume_mode",
                    ',consumer_group=~"$group"',
                ),
                "{{consumer_group}} {{language}} {{version}} {{consume_mode}}",
            )
        ],
    ),
]

BROKER: Sequence[Panel] = [
    (
        "Time to answer, p99, by request",
        "ms",
        [
            (
                quantile(0.99, "rocketmq_rpc_latency_milliseconds", "request_code"),
                "{{request_code}}",
            )
        ],
    ),
    ("Requests", "cps", [(rate("triomq_requests_total", "request"), "{{request}}")]),
    ("Errors", "cps", [(rate("triomq_request_errors_total", "request"), "{{request}}")]),
    (
        "Requests in the queues of the pools",
        "short",
        [(plain("rocketmq_processor_watermark", "processor", how="max"), "{{processor}}")],
    ),
    (
        "Wait in these queues",
        "s",
        [
            (
                (
                    f"{rate('triomq_request_wait_seconds_total', 'request')}"
                    f" / {rate('triomq_requests_queued_total', 'request')}"
                ),
                "{{request}}",
            )
        ],
    ),
    ("Busy workers", "short", [(plain("triomq_pool_workers_busy", "pool"), "{{pool}}")]),
    (
        "Event loop: how late tasks run",
        "s",
        [
            (
                quantile(share, "triomq_loop_lag_seconds", "node_id"),
                f"p{share * 100:g} {{{{node_id}}}}",
            )
            for share in (0.5, 0.99)
        ],
    ),
    (
        "Append to the log",
        "s",
        [
            (
                quantile(share, "triomq_storage_append_seconds", "node_id"),
                f"p{share * 100:g} {{{{node_id}}}}",
            )
            for share in (0.5, 0.99)
        ],
    ),
    (
        "fsync of the log",
        "s",
        [
            (
                quantile(share, "triomq_fsync_seconds", "node_id"),
                f"p{share * 100:g} {{{{node_id}}}}",
            )
            for share in (0.5, 0.99)
        ],
    ),
    (
        "Watermarks behind the end of the log",
        "bytes",
        [
            (plain("rocketmq_storage_flush_behind_bytes", "node_id"), "not on disk {{node_id}}"),
            (
                plain("rocketmq_storage_dispatch_behind_bytes", "node_id"),
                "not in the queues {{node_id}}",
            ),
        ],
    ),
    (
        "Log",
        "bytes",
        [
            (
                (
                    f"triomq_storage_max_offset_bytes{{{BROKERS}}}"
                    f" - triomq_storage_min_offset_bytes{{{BROKERS}}}"
                ),
                "{{node_id}} {{broker_id}}",
            )
        ],
    ),
    (
        "Age of the oldest message",
        "ms",
        [
            (
                plain("rocketmq_storage_message_reserve_time_milliseconds", "node_id", how="max"),
                "{{node_id}}",
            )
        ],
    ),
    (
        "Memory",
        "bytes",
        [(f"process_resident_memory_bytes{{{BROKERS}}}", "{{node_id}} {{broker_id}}")],
    ),
    (
        "Processor",
        "percentunit",
        [
            (
                f"rate(process_cpu_seconds_total{{{BROKERS}}}{RATE})",
                "{{node_id}} {{broker_id}}",
            )
        ],
    ),
    (
        "Connections and open files",
        "short",
        [
            (f"triomq_connections{{{BROKERS}}}", "connections {{node_id}} {{broker_id}}"),
            (f"process_open_fds{{{BROKERS}}}", "open files {{node_id}} {{broker_id}}"),
        ],
    ),
    (
        "POP",
        "cps",
        [(rate("triomq_pops_total", "outcome"), "{{outcome}}")],
    ),
    (
        "Timers",
        "ms",
        [
            (
                plain("rocketmq_timer_dequeue_latency_milliseconds", "node_id", how="max"),
                "delivery behind {{node_id}}",
            ),
            (
                plain("rocketmq_timer_enqueue_latency_milliseconds", "node_id", how="max"),
                "wheel behind {{node_id}}",
            ),
        ],
    ),
    (
        "Metrics: time and missing series",
        "short",
        [
            (f"triomq_scrape_duration_seconds{{{BROKERS}}}", "seconds {{node_id}} {{broker_id}}"),
            (plain("triomq_metric_series_left_out", "metric"), "left out {{metric}}"),
        ],
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
