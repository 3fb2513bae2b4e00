"""A line plot as SVG, without a plotting library: both axes logarithmic, a few series of points."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 78, 120, 40, 52
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd")


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = math.log10(min(values)), math.log10(max(values))
    return math.floor(low * 2 - 0.2) / 2, max(
        math.ceil(high * 2 + 0.2) / 2, math.floor(low * 2 - 0.2) / 2 + 0.5
    )


def _ticks(low: float, high: float) -> list[float]:
    steps = (1, 3) if high - low <= 4 else (1,)
    found = [
        step * 10.0**power
        for power in range(math.floor(low), math.ceil(high) + 1)
        for step in steps
    ]
    return [tick for tick in found if low - 1e-9 <= math.log10(tick) <= high + 1e-9]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def line_plot(
    title: str, x_name: str, y_name: str, series: Mapping[str, Sequence[tuple[float, float]]]
) -> str:
    """The text of an SVG file; all numbers must be above 0."""
    points = [point for line in series.values() for point in line]
    x_low, x_high = _range([x for x, _ in points])
    y_low, y_high = _range([y for _, y in points])

    def x_of(value: float) -> float:
        return LEFT + (math.log10(value) - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)

    def y_of(value: float) -> float:
        return (
            HEIGHT
            - BOTTOM
            - (math.log10(value) - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM)
        )

    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0'
            f' 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">'
        ),
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    for tick in _ticks(x_low, x_high):
        x = x_of(tick)
        parts.append(
            f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}" stroke="#ddd"/>'
        )
        parts.append(
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}"'
            f' text-anchor="middle">{_number(tick)}</text>'
        )
    for tick in _ticks(y_low, y_high):
        y = y_of(tick)
        parts.append(
            f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#ddd"/>'
        )
        parts.append(
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_number(tick)}</text>'
        )
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.1f}" y="{HEIGHT - 12}"'
        f' text-anchor="middle">{escape(x_name)}</text>'
    )
    parts.append(
        f'<text x="16" y="{(TOP + HEIGHT - BOTTOM) / 2:.1f}" text-anchor="middle"'
        f' transform="rotate(-90 16 {(TOP + HEIGHT - BOTTOM) / 2:.1f})">{escape(y_name)}</text>'
    )
    for number, (name, line) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="3"'
            f' fill="{colour}"><title>{escape(name)}: {x:,.0f}, {y:,.1f}</title></circle>'
            for x, y in line
        ]
        parts.append(
            f'<text x="{WIDTH - RIGHT + 10}" y="{TOP + 16 + 18 * number}"'
            f' fill="{colour}">{escape(name)}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])
