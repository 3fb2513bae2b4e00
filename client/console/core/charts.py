"""Line charts as SVG, made on the server. Pure.

Colours come from the style sheet, since the pages' policy forbids styles inside elements. A time
without a value is a gap in the line.
"""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup, escape

WIDTH, HEIGHT, MARGIN = 960, 120, 4
LABEL = 18


def line_chart(title: str, lines: Sequence[tuple[str, Sequence[float | None]]]) -> Markup:
    """Return a chart of lines ``(label, values)``, all from the same times, the newest last."""
    top = max((value for _, values in lines for value in values if value is not None), default=0.0)
    scale = top or 1.0
    parts = [
        Markup('<svg class="chart" viewBox="0 0 {w} {h}" role="img" aria-label="{t}">').format(
            w=WIDTH, h=HEIGHT + LABEL, t=title
        ),
        Markup('<line class="axis" x1="0" y1="{y}" x2="{w}" y2="{y}"/>').format(
            y=HEIGHT - MARGIN, w=WIDTH
        ),
        Markup('<text x="2" y="12">{top}</text>').format(top=f"{top:,.1f}"),
    ]
    for number, (label, values) in enumerate(lines, 1):
        parts.extend(
            Markup('<polyline class="line-{n}" points="{p}"/>').format(n=number, p=piece)
            for piece in _pieces(values, scale)
        )
        parts.append(
            Markup('<text class="label-{n}" x="{x}" y="{y}">{t}</text>').format(
                n=number, x=2 + 200 * (number - 1), y=HEIGHT + LABEL - 4, t=label
            )
        )
    return Markup("").join([*parts, Markup("</svg>")])


def _pieces(values: Sequence[float | None], scale: float) -> list[str]:
    """Return the points of each run of known values; a single value is a short dash."""
    step = WIDTH / max(1, len(values) - 1)
    pieces: list[list[str]] = [[]]
    for position, value in enumerate(values):
        if value is None:
            pieces.append([])
            continue
        y = HEIGHT - MARGIN - value / scale * (HEIGHT - 4 * MARGIN)
        pieces[-1].append(f"{position * step:.1f},{y:.1f}")
    return [
        " ".join(piece if len(piece) > 1 else [piece[0], _moved(piece[0])])
        for piece in pieces
        if piece
    ]


def _moved(point: str) -> str:
    x, _, y = point.partition(",")
    return f"{float(x) + 2:.1f},{y}"


def meter(ratio: float | None, label: str) -> Markup:
    """Return a bar for a part of 1, empty if it is unknown."""
    if ratio is None:
        return Markup("")
    width = round(min(max(ratio, 0.0), 1.0) * 60, 1)
    state = "bad" if ratio >= 0.85 else "warn" if ratio >= 0.75 else "good"
    return Markup(
        '<svg class="meter" viewBox="0 0 60 8" role="img" aria-label="{t}"><rect class="track"'
        ' width="60" height="8"/><rect class="{s}" width="{w}" height="8"/></svg>'
    ).format(t=escape(label), s=state, w=width)
