"""The lines and the documents of a benchmark. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from triomq.client.mqadmin.bench.latency_histogram import LatencyHistogram
from triomq.client.mqadmin.bench.load_run import LoadCounts
from triomq.client.mqadmin.core.result import Row

QUANTILES: Mapping[str, float] = {"P50": 0.5, "P90": 0.9, "P99": 0.99, "P999": 0.999}
TITLES = {"Min": "min", "Avg": "avg", "P50": "p50", "P90": "p90", "P99": "p99", "P999": "p99.9"}
LATENCY_KEYS = ("Min", "Avg", *QUANTILES, "Max")
MB = 1_000_000


def latency_fields(prefix: str, latency: LatencyHistogram) -> dict[str, float | None]:
    """Return ``<prefix>MinMs``, …: milliseconds, None without values."""
    some = latency.count > 0
    values = {
        "Min": latency.min_seconds if some else None,
        "Avg": latency.mean_seconds,
        **{key: latency.quantile(share) for key, share in QUANTILES.items()},
        "Max": latency.max_seconds if some else None,
    }
    return {
        f"{prefix}{key}Ms": None if value is None else round(value * 1000, 3)
        for key, value in values.items()
    }


def latency_line(title: str, prefix: str, document: Mapping[str, object]) -> str:
    """Return the percentiles as a line of text."""
    if document[f"{prefix}MaxMs"] is None:
        return f"{title}: no message"
    parts = [
        f"{TITLES.get(key, key.lower())} {document[f'{prefix}{key}Ms']:.3f}" for key in LATENCY_KEYS
    ]
    return f"{title} (ms): {', '.join(parts)}"


def per_second(count: float, seconds: float, digits: int = 1) -> float | None:
    """Return a rate, None if no time has passed."""
    return round(count / seconds, digits) if seconds > 0 else None


@attrs.define
class ProgressLines:
    """The line of each second: what has changed since the last one."""

    before: int = 0
    before_seconds: float = 0.0

    def line(self, seconds: float, done: int, *more: str) -> str:
        """Return the line; ``done``: messages so far."""
        span = seconds - self.before_seconds
        rate = (done - self.before) / span if span > 0 else 0.0
        self.before, self.before_seconds = done, seconds
        return ", ".join((f"{seconds:6.1f} s: {rate:,.1f} msg/s", *more))


def load_progress(counts: LoadCounts) -> tuple[str, str]:
    """Return the parts of a line about the sending side."""
    return f"{counts.in_flight} in flight", f"{sum(counts.failed.values())} failed"


def send_document(
    topic: str, counts: LoadCounts, size: int, *, interrupted: bool, now: float
) -> dict[str, object]:
    """Return the document of ``bench send``; ``size``: bytes of a body, ``now``: Trio's clock."""
    seconds = counts.seconds(now)
    return {
        "topic": topic,
        "interrupted": interrupted,
        "seconds": round(seconds, 3),
        "sent": counts.sent,
        "failed": sum(counts.failed.values()),
        "failedBy": dict(counts.failed),
        "overdue": counts.overdue,
        "rate": per_second(counts.sent, seconds),
        "mbPerSecond": per_second(counts.sent * size / MB, seconds, 3),
        **latency_fields("latency", counts.latency),
    }


def send_lines(document: Mapping[str, object], counts: LoadCounts) -> list[str]:
    """Return the summary of ``bench send``."""
    head = f"sent {document['sent']:,} messages to {document['topic']} in"
    return [
        f"{head} {_speed(document)}",
        *failure_lines(counts),
        latency_line("latency", "latency", document),
    ]


def failure_lines(counts: LoadCounts) -> list[str]:
    """Return a line for each kind of failure, and one for messages that were never sent."""
    lines = [
        f"failed {count:,}: {reason}: {counts.examples[reason]}"
        for reason, count in counts.failed.most_common()
    ]
    if counts.overdue:
        lines.append(
            f"overdue {counts.overdue:,}: due and never sent, because all requests in flight waited"
            " for answers: give a lower --rate or a higher --in-flight"
        )
    return lines


def _speed(document: Row) -> str:
    """Return time and rates, in seconds, messages and MB per second."""
    rate, mb_per_second = _number(document["rate"]), _number(document["mbPerSecond"])
    return f"{document['seconds']:.1f} s: {rate} msg/s, {mb_per_second} MB/s"


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:,.1f}"


def consume_lines(document: Row, load: LoadCounts | None) -> list[str]:
    """Return the summary of ``bench consume``."""
    lag = "?" if document["lag"] is None else f"{document['lag']:,}"
    head = f"received {document['received']:,} messages of {document['topic']} in"
    lines = [
        f"{head} {_speed(document)}",
        f"duplicates {document['duplicates']:,}, lag at the end {lag}",
        latency_line("stored to received", "storeLatency", document),
        latency_line("sent to received", "bornLatency", document),
    ]
    if load is not None:
        lines[1:1] = [f"sent {load.sent:,}", *failure_lines(load)]
    return lines
