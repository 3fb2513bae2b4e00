"""Line charts as SVG, made on the server. Pure.

The lines stretch with the page and the texts do not, so that they can be read at every width: they
are HTML around the drawing. Colours come from the style sheet, since the pages' policy forbids
styles inside elements. A time without a value is a gap in the line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

from markupsafe import Markup, escape

WIDTH, HEIGHT = 960, 120


def scale_top(value: float) -> float:
    """Return the smallest of 1, 2, 5, 10, 20 … that is not below a value."""
    if value <= 1:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next(unit * step for step in (1, 2, 5, 10) if unit * step >= value)


def line_chart(
    title: str, lines: Sequence[tuple[str, Sequence[float | None]]], times: Sequence[float] = ()
) -> Markup:
    """Return a chart of lines ``(label, values)``, all from the same times, the newest last.

    ``times``: those of the values, in seconds since 1970.
    """
    most = max((value for _, values in lines for value in values if value is not None), default=0.0)
    top = scale_top(most)
    ticks = Markup("").join(
        Markup("<span>{}</span>").format(f"{part:,g}") for part in (top, top / 2, 0)
    )
    grid = Markup("").join(
        Markup('<line class="axis" x1="0" y1="{y}" x2="{w}" y2="{y}"/>').format(y=y, w=WIDTH)
        for y in (0, HEIGHT // 2, HEIGHT)
    )
    drawn = Markup("").join(
        Markup('<polyline class="line-{n}" points="{p}"/>').format(n=number, p=piece)
        for number, (_, values) in enumerate(lines, 1)
        for piece in _pieces(values, top)
    )
    clock = Markup("").join(
        Markup("<span>{}</span>").format(f"{datetime.fromtimestamp(at).astimezone():%H:%M:%S}")
        for at in ((times[0], times[len(times) // 2], times[-1]) if times else ())
    )
    legend = Markup("").join(
        Markup('<span class="label-{n}">{t}</span>').format(n=number, t=label)
        for number, (label, _) in enumerate(lines, 1)
    )
    return Markup(
        '<figure class="chart"><div class="ticks" aria-hidden="true">{ticks}</div>'
        '<svg viewBox="0 0 {w} {h}" preserveAspectRatio="none" role="img" aria-label="{title}">'
        '{grid}{drawn}</svg><div class="times">{clock}</div>'
        "<figcaption>{legend}</figcaption></figure>"
    ).format(
        ticks=ticks,
        w=WIDTH,
        h=HEIGHT,
        title=title,
        grid=grid,
        drawn=drawn,
        clock=clock,
        legend=legend,
    )


def _pieces(values: Sequence[float | None], top: float) -> list[str]:
    """Return the points of each run of known values; a single value is a short dash."""
    step = WIDTH / max(1, len(values) - 1)
    pieces: list[list[str]] = [[]]
    for position, value in enumerate(values):
        if value is None:
            pieces.append([])
            continue
        pieces[-1].append(f"{position * step:.1f},{HEIGHT - value / top * HEIGHT:.1f}")
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
