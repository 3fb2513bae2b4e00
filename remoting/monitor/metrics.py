"""Write metrics in Prometheus' text format (version 0.0.4), a piece at a time. Pure.

A ``Family`` is one metric name with its type and its samples; ``metrics.txt`` declares name, type
and meaning of the metrics of all programs. Names and units follow Prometheus' rules, except for
metrics that RocketMQ has, which keep its names.

Source: prometheus.io, "Exposition formats".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path

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
    kind: str
    """``counter``, ``gauge`` or ``histogram``"""
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


def _read_declarations() -> Mapping[str, tuple[str, str]]:
    """Return name → type and meaning of every metric."""
    lines = Path(__file__).with_name("metrics.txt").read_text(encoding="utf-8").splitlines()
    rows = [line.split(" ", 2) for line in lines if line and not line.startswith("#")]
    return {name: (kind, meaning) for name, kind, meaning in rows}


DECLARED = _read_declarations()


def family(
    name: str,
    value: float | Iterable[Sample | Histogram],
    *,
    size: int | None = None,
    left_out: int = 0,
) -> Family:
    """Return a declared metric. A number is its only sample, without labels."""
    kind, meaning = DECLARED[name]
    samples = value if isinstance(value, Iterable) else [Sample(value)]
    return Family(name, kind, meaning, samples, size, left_out)


def by_label(label: str, numbers: Mapping[str, float]) -> list[Sample]:
    """Return a sample for each number, with its key as the value of a label."""
    return [Sample(number, {label: value}) for value, number in numbers.items()]


def with_left_out(families: Iterable[Family], most: int) -> Iterator[Family]:
    """Yield the families, with at most this number of samples each, and what was left out.

    Call it where nothing else shortens them: the last family names the others.
    """
    missing: list[Sample] = []
    for each in families:
        samples, left_out = each.limited(most)
        if left_out:
            missing.append(Sample(left_out, {"metric": each.name}))
        yield Family(each.name, each.kind, each.meaning, samples)
    yield family(LEFT_OUT, missing or 0)


def page_pieces(
    families: Iterable[Family], common: Labels, clock: Callable[[], float]
) -> Iterator[str]:
    """Yield the page piece by piece, each after ``PIECE_SECONDS`` at the latest.

    Every sample gets the ``common`` labels. A family without samples has no lines.
    """
    shared = _inside(common)
    lines: list[str] = []
    begun = clock()
    for each in families:
        samples = iter(each.samples)
        first = next(samples, None)
        if first is None:
            continue
        lines.append(f"# HELP {each.name} {_escape(each.meaning)}")
        lines.append(f"# TYPE {each.name} {each.kind}")
        for sample in chain((first,), samples):
            inside = shared
            if sample.labels:
                inside = f"{shared},{_inside(sample.labels)}" if shared else _inside(sample.labels)
            if sample.__class__ is Sample:
                lines.append(f"{each.name}{{{inside}}} {_number(sample.value)}")
            else:
                lines += _histogram_lines(each.name, inside, sample)  # type: ignore[arg-type]
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
