"""Figures that every program has: those of its process, under Prometheus' usual names, and those of its listening server."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

from triomq.remoting.monitor.metrics import Family, Sample, counter, gauge, histogram_samples
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.server.statistics import ServerStatistics

BUCKETS = range(6, 25, 2)
"""of the latency histograms: from 64 µs to 16.8 s, each four times the last"""


def process_figures(started: float) -> Iterator[Family]:
    """Memory, processor time, open files of this process; `started` is the wall clock at its start (s)."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    yield gauge("process_start_time_seconds", "When the process started (seconds since 1970).", started)
    yield counter("process_cpu_seconds_total", "Processor time, user and system.", usage.ru_utime + usage.ru_stime)
    resident = _resident_bytes()
    if resident is not None:
        yield gauge("process_resident_memory_bytes", "Memory of the process.", resident)
    if os.path.isdir("/proc/self/fd"):
        yield gauge("process_open_fds", "Open files and sockets.", len(os.listdir("/proc/self/fd")))
    yield gauge("process_max_fds", "How many files and sockets may be open.", resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _resident_bytes() -> int | None:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def server_figures(figures: ServerStatistics) -> Iterator[Family]:
    """Connections, requests by code, refusals and waiting requests by pool."""
    yield gauge("triomq_connections", "Open connections.", figures.connections)
    yield counter("triomq_connections_accepted_total", "Connections accepted.", figures.accepted)
    yield counter("triomq_received_bytes_total", "Bytes of requests.", figures.received_bytes)
    yield counter("triomq_sent_bytes_total", "Bytes of answers.", figures.sent_bytes)
    codes = [(one, {"request_code": str(code), "request": code_name(code)}) for code, one in sorted(figures.codes.items()) if one.requests or one.refused]
    yield Family("triomq_requests_total", "counter", "Requests that came to their handler.", [Sample(one.requests, labels) for one, labels in codes])
    yield Family("triomq_request_errors_total", "counter", "Answers that say no.", [Sample(one.errors, labels) for one, labels in codes])
    latencies = []
    for one, labels in codes:
        if not one.answered:
            continue
        counts, done = [], 0
        for bucket in BUCKETS:
            counts.append(sum(one.latency[done : bucket + 1]))
            done = bucket + 1
        counts.append(sum(one.latency[done:]))
        latencies += histogram_samples(labels, [2**bucket / 1e6 for bucket in BUCKETS], counts, one.answer_seconds)
    yield Family("triomq_request_latency_seconds", "histogram", "Time from reading a request to its answer.", latencies)
    reasons = ("overloaded", "rejected", "expired", "stalled")
    refused = [Sample(getattr(pool, reason), {"pool": name, "reason": reason}) for name, pool in figures.pools.items() for reason in reasons]
    yield Family("triomq_requests_refused_total", "counter", "Requests that were answered SYSTEM_BUSY.", refused)
    waiting = [Sample(pool.queued_requests, {"processor": name.replace("-", "_")}) for name, pool in figures.pools.items()]
    yield Family("rocketmq_processor_watermark", "gauge", "Requests that wait in the queue of their pool.", waiting)


def code_name(code: int) -> str:
    """The name of a request code, for labels."""
    return RequestCode(code).name if code in RequestCode._value2member_map_ else "UNKNOWN"
