"""Write metrics in Prometheus' text format (version 0.0.4), a piece at a time. Pure.

A ``Family`` is one metric name with its type and its samples. Names and units follow Prometheus'
rules, except for metrics that RocketMQ has, which keep its names.

Source: prometheus.io, "Exposition formats".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Literal

import attrs

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = Mapping[str, str]
PIECE_SECONDS = 0.004
"""How long the page is written before other tasks get their turn."""
LEFT_OUT = "triomq_metric_series_left_out"


@attrs.frozen
class Sample:
    """One value."""

    value: float
    labels: Labels = attrs.field(factory=dict)


@attrs.frozen
class Histogram:
    """The values of one histogram by size.

    ``counts``: one for each bucket up to its edge, and one more for larger values; ``total``: the
    sum of the values.
    """

    labels: Labels
    edges: Sequence[float]
    counts: Sequence[int]
    total: float

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Yield each edge with the number of values up to it."""
        seen = 0
        for edge, count in zip(self.edges, self.counts, strict=False):
            seen += count
            yield edge, seen


@attrs.frozen
class Family:
    """One metric: its name, its meaning and its samples.

    ``size``: the number of samples, if they are an iterator that makes them one by one;
    ``left_out``: samples that the source itself has left out.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    meaning: str
    samples: Iterable[Sample | Histogram]
    size: int | None = None
    left_out: int = 0

    def limited(self, most: int) -> tuple[Iterable[Sample | Histogram], int]:
        """Return at most this number of samples, and how many are missing."""
        size = self.size
        if size is None:
            size = len(self.samples) if isinstance(self.samples, Sequence) else most
        samples = self.samples if size <= most else islice(self.samples, most)
        return samples, self.left_out + max(0, size - most)


def gauge(
    name: str,
    meaning: str,
    value: float | Iterable[Sample],
    *,
    size: int | None = None,
    left_out: int = 0,
) -> Family:
    """Return a gauge. A number is its only sample, without labels."""
    return Family(name, "gauge", meaning, _samples(value), size, left_out)


def counter(
    name: str, meaning: str, value: float | Iterable[Sample], *, size: int | None = None
) -> Family:
    """Return a counter. A number is its only sample, without labels."""
    return Family(name, "counter", meaning, _samples(value), size)


def histogram(
    name: str, meaning: str, samples: Iterable[Histogram], *, size: int | None = None
) -> Family:
    """Return a histogram."""
    return Family(name, "histogram", meaning, samples, size)


def _samples(value: float | Iterable[Sample]) -> Iterable[Sample]:
    return value if isinstance(value, Iterable) else [Sample(value)]


def samples_by_limit(refused: Mapping[str, int]) -> list[Sample]:
    """Return the numbers of refusals, with the limits' names as labels."""
    return [Sample(count, {"limit": name}) for name, count in sorted(refused.items())]


def with_left_out(families: Iterable[Family], most: int) -> Iterator[Family]:
    """Yield the families, with at most this number of samples each, and what was left out.

    Call it where nothing else shortens them: the last family names the others.
    """
    missing: list[Sample] = []
    for family in families:
        samples, left_out = family.limited(most)
        if left_out:
            missing.append(Sample(left_out, {"metric": family.name}))
        yield Family(family.name, family.kind, family.meaning, samples)
    yield gauge(
        LEFT_OUT,
        "Series of a metric that monitorSeriesMax leaves out.",
        missing or 0,
    )


def page_pieces(
    families: Iterable[Family], common: Labels, clock: Callable[[], float]
) -> Iterator[str]:
    """Yield the page piece by piece, each after ``PIECE_SECONDS`` at the latest.

    Every sample gets the ``common`` labels. A family without samples has no lines.
    """
    shared = _inside(common)
    lines: list[str] = []
    begun = clock()
    for family in families:
        samples = iter(family.samples)
        first = next(samples, None)
        if first is None:
            continue
        lines.append(f"# HELP {family.name} {_escape(family.meaning)}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for sample in chain((first,), samples):
            inside = shared
            if sample.labels:
                inside = f"{shared},{_inside(sample.labels)}" if shared else _inside(sample.labels)
            if sample.__class__ is Sample:
                lines.append(f"{family.name}{{{inside}}} {_number(sample.value)}")
            else:
                lines += _histogram_lines(family.name, inside, sample)  # type: ignore[arg-type]
            if clock() - begun > PIECE_SECONDS:
                yield "\n".join([*lines, ""])
                lines = []
                begun = clock()
    if lines:
        yield "\n".join([*lines, ""])


def _histogram_lines(name: str, inside: str, values: Histogram) -> Iterator[str]:
    comma = "," if inside else ""
    for edge, count in values.cumulative():
        # Prometheus compares the text of an edge; this is the form that Java and Prometheus 3 use.
        yield f'{name}_bucket{{{inside}{comma}le="{float(edge)!r}"}} {count}'
    everything = sum(values.counts)
    yield f'{name}_bucket{{{inside}{comma}le="+Inf"}} {everything}'
    yield f"{name}_sum{{{inside}}} {_number(values.total)}"
    yield f"{name}_count{{{inside}}} {everything}"


def _inside(labels: Labels) -> str:
    return ",".join([f'{name}="{_escape(value, quotes=True)}"' for name, value in labels.items()])


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _escape(text: str, *, quotes: bool = False) -> str:
    if text.isalnum():
        return text
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n")
    return escaped.replace('"', '\\"') if quotes else escaped
