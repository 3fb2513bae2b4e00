"""Figures in Prometheus' text format (version 0.0.4).  Pure.

A `Family` is one metric name with its type and its samples; names and units follow Prometheus' rules, RocketMQ's names are kept
where RocketMQ has the figure.  Source of the format: prometheus.io, "Exposition formats".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import attrs

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = Mapping[str, str]


@attrs.frozen
class Sample:
    """One value; ``suffix`` is that of a histogram's series (``_bucket``, ``_sum``, ``_count``)."""

    value: float
    labels: Labels = attrs.field(factory=dict)
    suffix: str = ""


@attrs.frozen
class Family:
    """One metric: its name, what it means, and its samples."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    meaning: str
    samples: Sequence[Sample]


def gauge(name: str, meaning: str, value: float) -> Family:
    """Return a gauge with one sample."""
    return Family(name, "gauge", meaning, [Sample(value)])


def counter(name: str, meaning: str, value: float) -> Family:
    """Return a counter with one sample."""
    return Family(name, "counter", meaning, [Sample(value)])


def histogram_samples(labels: Labels, edges: Sequence[float], counts: Sequence[int], total: float) -> list[Sample]:
    """Return the series of one histogram: `counts` of each bucket up to its edge, one more count for all that is beyond, `total` the sum."""
    samples, seen = [], 0
    for edge, count in zip(edges, counts, strict=False):
        seen += count
        samples.append(Sample(seen, {**labels, "le": _number(edge)}, "_bucket"))
    everything = sum(counts)
    samples.append(Sample(everything, {**labels, "le": "+Inf"}, "_bucket"))
    return [*samples, Sample(total, labels, "_sum"), Sample(everything, labels, "_count")]


def exposition(families: Iterable[Family], common: Labels) -> str:
    """Return the page; every sample gets the `common` labels.  A family without samples is left out."""
    return "".join(family_text(family, common) for family in families)


def family_text(family: Family, common: Labels) -> str:
    """Return the lines of one family."""
    if not family.samples:
        return ""
    lines = [f"# HELP {family.name} {_escape(family.meaning)}", f"# TYPE {family.name} {family.kind}"]
    for sample in family.samples:
        labels = {**common, **sample.labels}
        inside = ",".join(f'{name}="{_escape(value, quotes=True)}"' for name, value in labels.items())
        lines.append(f"{family.name}{sample.suffix}{{{inside}}} {_number(sample.value)}")
    return "\n".join([*lines, ""])


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _escape(text: str, *, quotes: bool = False) -> str:
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n")
    return escaped.replace('"', '\\"') if quotes else escaped
