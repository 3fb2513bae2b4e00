"""The metrics of every program: its process, under Prometheus' usual names, and its server."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from triomq.remoting.core.open_files import ConnectionBudget, limit
from triomq.remoting.monitor.metrics import Family, Histogram, Sample, family
from triomq.remoting.protocol.codes import RequestCode, ResponseCode, request_name
from triomq.remoting.server.statistics import (
    CREATE_EDGES_SECONDS,
    RPC_EDGES_SECONDS,
    CodedAnswers,
    ServerStatistics,
    rebucketed,
)

EDGES = tuple(2**power / 1e6 for power in range(6, 25, 2))
"""of our latency histograms: from 64 µs to 16.8 s, each four times the one before"""
RPC_EDGES_MS = tuple(round(edge * 1000) for edge in RPC_EDGES_SECONDS)
JAVA_POOLS = {"query": "query_message"}
"""The names of Java's queues where ours differ. Source: broker/metrics/BrokerMetricsManager.java"""


def process_figures(started: float) -> Iterator[Family]:
    """Yield memory, CPU time and open files of this process.

    ``started``: its wall clock at the start, in seconds.
    """
    yield family("process_start_time_seconds", started)
    yield family("process_cpu_seconds_total", time.process_time())
    resident = _resident_bytes()
    if resident is not None:
        yield family("process_resident_memory_bytes", resident)
    if os.path.isdir("/proc/self/fd"):
        yield family("process_open_fds", len(os.listdir("/proc/self/fd")))
    yield family("process_max_fds", limit())


def open_file_figures(budget: ConnectionBudget) -> Iterator[Family]:
    """Yield the connections that the limit of open files allows and refused, by kind of port."""
    ports = budget.by_port().items()
    most = [Sample(places.most, {"port": port}) for port, places in ports]
    yield family("triomq_connection_places", most)
    refused = [
        Sample(places.refused, {"port": port, "reason": "no_place"}) for port, places in ports
    ]
    refused += [
        Sample(places.failed_accepts, {"port": port, "reason": "no_descriptor"})
        for port, places in ports
    ]
    yield family("triomq_open_file_refusals_total", refused)


def _resident_bytes() -> int | None:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def server_figures(figures: ServerStatistics) -> Iterator[Family]:
    """Yield connections, requests by code, and refused and waiting requests by pool."""
    yield family("triomq_connections", figures.connections)
    yield family("triomq_connections_accepted_total", figures.accepted)
    yield family("triomq_connections_turned_away_total", figures.turned_away)
    yield family("triomq_received_bytes_total", figures.received_bytes)
    yield family("triomq_sent_bytes_total", figures.sent_bytes)
    codes = [
        (one, {"request_code": str(code), "request": request_name(code)})
        for code, one in sorted(figures.codes.items())
        if one.requests or one.refused
    ]
    yield family("triomq_requests_total", [Sample(one.requests, labels) for one, labels in codes])
    yield family(
        "triomq_request_errors_total", [Sample(one.errors, labels) for one, labels in codes]
    )
    yield family(
        "triomq_request_latency_seconds",
        [
            Histogram(labels, EDGES, rebucketed(one.latency, EDGES), one.answer_seconds)
            for one, labels in codes
            if one.answered
        ],
    )
    yield family("rocketmq_rpc_latency_milliseconds", [*_rpc_latencies(figures)])
    yield family(
        "triomq_request_wait_seconds_total",
        [Sample(one.wait_seconds, labels) for one, labels in codes],
    )
    yield family(
        "triomq_requests_queued_total", [Sample(one.queued, labels) for one, labels in codes]
    )
    reasons = ("overloaded", "rejected", "expired", "stalled")
    refused = [
        Sample(getattr(pool, reason), {"pool": name, "reason": reason})
        for name, pool in figures.pools.items()
        for reason in reasons
    ]
    yield family("triomq_requests_refused_total", refused)
    pools = figures.pools.items()
    yield family(
        "triomq_pool_queued_bytes",
        [Sample(pool.queued_bytes, {"pool": name}) for name, pool in pools],
    )
    yield family(
        "triomq_pool_workers_busy",
        [Sample(pool.workers - pool.idle_workers, {"pool": name}) for name, pool in pools],
    )
    waiting = [
        Sample(pool.queued_requests, {"processor": JAVA_POOLS.get(name, name.replace("-", "_"))})
        for name, pool in figures.pools.items()
    ]
    yield family("rocketmq_processor_watermark", waiting)


def _rpc_latencies(figures: ServerStatistics) -> Iterator[Histogram]:
    for (code, held), one in sorted(figures.parts.items()):
        answers = {int(ResponseCode.SUCCESS): one.successes(), **one.coded}
        for response, of_code in sorted(answers.items()):
            counts = rebucketed(of_code.latency, RPC_EDGES_SECONDS)
            if any(counts):
                labels = {
                    "protocol_type": "remoting",
                    "request_code": request_name(code).lower(),
                    "response_code": _response_name(response),
                    "is_long_polling": "true" if held else "false",
                    "result": "success",
                }
                yield Histogram(labels, RPC_EDGES_MS, counts, of_code.seconds * 1000)


CREATIONS = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: "rocketmq_topic_create_execution_time_milliseconds",
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: (
        "rocketmq_consumer_group_create_execution_time_milliseconds"
    ),
}


def creation_figures(figures: ServerStatistics) -> Iterator[Family]:
    """Yield how long it took a broker to create topics and groups."""
    edges = CREATE_EDGES_SECONDS
    for code, name in CREATIONS.items():
        one = figures.codes.get(code)
        if one is None:
            continue
        done, failed = one.successes(), CodedAnswers()
        for answers in one.coded.values():
            failed = failed.plus(answers)
        yield family(
            name,
            [
                Histogram(
                    {"invocation_status": status, "is_system": "false"},
                    [edge * 1000 for edge in edges],
                    rebucketed(answers.latency, edges),
                    answers.seconds * 1000,
                )
                for status, answers in (("success", done), ("failure", failed))
                if any(answers.latency)
            ],
        )


def _response_name(code: int) -> str:
    known = code in ResponseCode._value2member_map_
    return ResponseCode(code).name.lower() if known else str(code)
