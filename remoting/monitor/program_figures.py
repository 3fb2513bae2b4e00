"""The metrics of every program: its process, under Prometheus' usual names, and its server."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

from triomq.remoting.monitor.metrics import Family, Sample, counter, gauge, histogram_samples
from triomq.remoting.open_files import ConnectionBudget
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.server.statistics import ServerStatistics

BUCKETS = range(6, 25, 2)
"""buckets of the latency histograms: from 64 µs to 16.8 s, each four times the one before"""


def process_figures(started: float) -> Iterator[Family]:
    """Yield memory, CPU time and open files of this process.

    ``started``: its wall clock at the start, in seconds.
    """
    usage = resource.getrusage(resource.RUSAGE_SELF)
    yield gauge(
        "process_start_time_seconds", "When the process started (seconds since 1970).", started
    )
    yield counter(
        "process_cpu_seconds_total",
        "Processor time, user and system.",
        usage.ru_utime + usage.ru_stime,
    )
    resident = _resident_bytes()
    if resident is not None:
        yield gauge("process_resident_memory_bytes", "Memory of the process.", resident)
    if os.path.isdir("/proc/self/fd"):
        yield gauge("process_open_fds", "Open files and sockets.", len(os.listdir("/proc/self/fd")))
    yield gauge(
        "process_max_fds",
        "How many files and sockets may be open.",
        resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    )


def open_file_figures(budget: ConnectionBudget) -> Iterator[Family]:
    """Yield the connections that the limit of open files allows and refused, by kind of port."""
    ports = budget.by_port().items()
    most = [Sample(places.most, {"port": port}) for port, places in ports]
    yield gauge(
        "triomq_connection_places",
        "Connections that the limit of open files leaves for a kind of port.",
        most,
    )
    refused = [
        Sample(places.refused, {"port": port, "reason": "no_place"}) for port, places in ports
    ]
    refused += [
        Sample(places.failed_accepts, {"port": port, "reason": "no_descriptor"})
        for port, places in ports
    ]
    yield counter(
        "triomq_open_file_refusals_total",
        "Connections that were turned away, or had to wait, because of the limit of open files.",
        refused,
    )


def _resident_bytes() -> int | None:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def server_figures(figures: ServerStatistics) -> Iterator[Family]:
    """Yield connections, requests by code, and refused and waiting requests by pool."""
    yield gauge("triomq_connections", "Open connections.", figures.connections)
    yield counter("triomq_connections_accepted_total", "Connections accepted.", figures.accepted)
    yield counter(
        "triomq_connections_turned_away_total",
        "Connections that found serverConnectionsMax, or all that the limit of open files leaves,"
        " in use.",
        figures.turned_away,
    )
    yield counter("triomq_received_bytes_total", "Bytes of requests.", figures.received_bytes)
    yield counter("triomq_sent_bytes_total", "Bytes of answers.", figures.sent_bytes)
    codes = [
        (one, {"request_code": str(code), "request": code_name(code)})
        for code, one in sorted(figures.codes.items())
        if one.requests or one.refused
    ]
    yield counter(
        "triomq_requests_total",
        "Requests that came to their handler.",
        [Sample(one.requests, labels) for one, labels in codes],
    )
    yield counter(
        "triomq_request_errors_total",
        "Requests that were answered with an error code.",
        [Sample(one.errors, labels) for one, labels in codes],
    )
    latencies = []
    for one, labels in codes:
        if not one.answered:
            continue
        counts, done = [], 0
        for bucket in BUCKETS:
            counts.append(sum(one.latency[done : bucket + 1]))
            done = bucket + 1
        counts.append(sum(one.latency[done:]))
        latencies += histogram_samples(
            labels, [2**bucket / 1e6 for bucket in BUCKETS], counts, one.answer_seconds
        )
    yield Family(
        "triomq_request_latency_seconds",
        "histogram",
        "Time from reading a request to its answer.",
        latencies,
    )
    reasons = ("overloaded", "rejected", "expired", "stalled")
    refused = [
        Sample(getattr(pool, reason), {"pool": name, "reason": reason})
        for name, pool in figures.pools.items()
        for reason in reasons
    ]
    yield counter(
        "triomq_requests_refused_total", "Requests that were answered SYSTEM_BUSY.", refused
    )
    waiting = [
        Sample(pool.queued_requests, {"processor": name.replace("-", "_")})
        for name, pool in figures.pools.items()
    ]
    yield gauge(
        "rocketmq_processor_watermark", "Requests that wait in the queue of their pool.", waiting
    )


def code_name(code: int) -> str:
    """Return the name of a request code, for labels."""
    return RequestCode(code).name if code in RequestCode._value2member_map_ else "UNKNOWN"
