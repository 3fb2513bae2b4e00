"""Write metrics in Prometheus' text format (version 0.0.4). Pure.

A ``Family`` is one metric name with its type and its samples. Names and units follow Prometheus'
rules, except for metrics that RocketMQ has, which keep its names.

Source: prometheus.io, "Exposition formats".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import attrs

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = Mapping[str, str]


@attrs.frozen
class Sample:
    """One value; ``suffix`` is ``_bucket``, ``_sum`` or ``_count`` in a histogram."""

    value: float
    labels: Labels = attrs.field(factory=dict)
    suffix: str = ""


@attrs.frozen
class Family:
    """One metric: its name, its meaning and its samples."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    meaning: str
    samples: Sequence[Sample]


def gauge(name: str, meaning: str, value: float | Sequence[Sample]) -> Family:
    """Return a gauge. A number is its only sample, without labels."""
    return Family(name, "gauge", meaning, _samples(value))


def counter(name: str, meaning: str, value: float | Sequence[Sample]) -> Family:
    """Return a counter. A number is its only sample, without labels."""
    return Family(name, "counter", meaning, _samples(value))


def _samples(value: float | Sequence[Sample]) -> Sequence[Sample]:
    return value if isinstance(value, Sequence) else [Sample(value)]


def samples_by_limit(refused: Mapping[str, int]) -> list[Sample]:
    """Return the numbers of refusals, with the limits' names as labels."""
    return [Sample(count, {"limit": name}) for name, count in sorted(refused.items())]


def histogram_samples(
    labels: Labels, edges: Sequence[float], counts: Sequence[int], total: float
) -> list[Sample]:
    """Return the series of one histogram.

    ``counts``: one for each bucket up to its edge, and one more for larger values; ``total``: the
    sum of the values.
    """
    samples, seen = [], 0
    for edge, count in zip(edges, counts, strict=False):
        seen += count
        samples.append(Sample(seen, {**labels, "le": _number(edge)}, "_bucket"))
    everything = sum(counts)
    samples.append(Sample(everything, {**labels, "le": "+Inf"}, "_bucket"))
    return [*samples, Sample(total, labels, "_sum"), Sample(everything, labels, "_count")]


def family_text(family: Family, common: Labels) -> str:
    """Return the lines of one family, none without samples. Every sample gets ``common`` labels."""
    if not family.samples:
        return ""
    lines = [
        f"# HELP {family.name} {_escape(family.meaning)}",
        f"# TYPE {family.name} {family.kind}",
    ]
    for sample in family.samples:
        labels = {**common, **sample.labels}
        inside = ",".join(
            f'{name}="{_escape(value, quotes=True)}"' for name, value in labels.items()
        )
        lines.append(f"{family.name}{sample.suffix}{{{inside}}} {_number(sample.value)}")
    return "\n".join([*lines, ""])


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _escape(text: str, *, quotes: bool = False) -> str:
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n")
    return escaped.replace('"', '\\"') if quotes else escaped
