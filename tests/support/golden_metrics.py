"""Names, types, labels and edges of a page of metrics, to compare one broker with another."""

from __future__ import annotations

from pathlib import Path

import attrs
from prometheus_client.parser import text_string_to_metric_families

JAVA_PAGE = Path(__file__).parents[1] / "golden" / "metrics" / "java-5.5.0.txt"
"""A scrape of a Java broker after ``metric_load``."""
NOT_OURS = {
    # a scan of a buffer that this broker does not have: it hears of what is due
    "rocketmq_pop_buffer_scan_time_consume_milliseconds"
}
LABELS_THAT_DIFFER = {
    # half messages are kept by offset, without reading their topic
    "rocketmq_half_messages": {"topic"}
}
OUR_LABELS = {"broker_id"}


@attrs.frozen
class Shape:
    """What a query can see of a family."""

    kind: str
    labels: frozenset[str]
    edges: frozenset[str]


def shapes(page: str) -> dict[str, Shape]:
    """Return the families of a page by their names."""
    found = {}
    for family in text_string_to_metric_families(page):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels}
        edges = {sample.labels["le"] for sample in family.samples if "le" in sample.labels}
        found[name] = Shape(family.type, frozenset(labels - OUR_LABELS), frozenset(edges))
    return found


def complaints(page: str, java_page: str) -> list[str]:
    """Return where a page differs from Java's: names, types, labels, edges."""
    ours, found = shapes(page), []
    for name, java in shapes(java_page).items():
        if name in NOT_OURS:
            continue
        mine = ours.get(name)
        if mine is None:
            found.append(f"{name} is missing")
            continue
        labels = java.labels - LABELS_THAT_DIFFER.get(name, set())
        if mine.kind != java.kind:
            found.append(f"{name} is a {mine.kind}, not a {java.kind}")
        if mine.labels != labels:
            found.append(f"{name} has {sorted(mine.labels)}, not {sorted(labels)}")
        if mine.edges != java.edges:
            found.append(f"{name} has edges {sorted(mine.edges)}, not {sorted(java.edges)}")
    return found
