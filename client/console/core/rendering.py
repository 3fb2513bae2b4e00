"""The templates, and how values are written in them. What is unknown is a dash, never 0."""

from __future__ import annotations

import re
from datetime import datetime
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from triomq.client.console.core.catalogue import LANGUAGES
from triomq.client.console.core.charts import line_chart, meter
from triomq.remoting.core.printable import printable

UNKNOWN = Markup('<span class="unknown">\N{EM DASH}</span>')
UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def number(value: float | None, digits: int = 0) -> str | Markup:
    """Return a number with separators of thousands."""
    return UNKNOWN if value is None else f"{value:,.{digits}f}"


def known(value: object) -> object:
    """Return any value, or the dash."""
    return UNKNOWN if value is None or value == "" else value


def clock(seconds: float | None) -> str | Markup:
    """Return seconds since 1970 as local time."""
    if seconds is None or seconds <= 0:
        return UNKNOWN
    moment = datetime.fromtimestamp(seconds).astimezone()
    return Markup('<time datetime="{iso}">{text}</time>').format(
        iso=moment.isoformat(timespec="seconds"), text=f"{moment:%Y-%m-%d %H:%M:%S}"
    )


def clock_ms(milliseconds: float | None) -> str | Markup:
    """Return milliseconds since 1970 as local time."""
    return clock(None if milliseconds is None else milliseconds / 1000)


def size(count: float | None) -> str | Markup:
    """Return bytes in the largest unit of which there is one."""
    if count is None:
        return UNKNOWN
    for unit, name in UNITS:
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count:.0f} B"


def ratio(value: float | None) -> str | Markup:
    """Return a part of 1 in percent."""
    return UNKNOWN if value is None else f"{value * 100:.1f} %"


def plain(text: object) -> str:
    """Return a text of the cluster without control characters."""
    return printable(str(text))


HEAD = re.compile(r"<t[hd](?: [^>]*)?>(.*?)</t[hd]>")
CELL = re.compile(r"<(th|td)(?=[ >])")


def labelled(table: Markup) -> Markup:
    """Give each cell the name of its column, which a narrow screen shows beside it."""
    head, body = table.split("<tbody>", 1)
    names = [Markup(one).striptags() for one in HEAD.findall(head)]

    def row_with_names(row: str) -> str:
        labels = iter(names)
        return CELL.sub(lambda cell: f'<{cell[1]} data-label="{escape(next(labels, ""))}"', row)

    return Markup(f"{head}<tbody>{'<tr'.join(map(row_with_names, body.split('<tr')))}")


@cache
def make_templates() -> Environment:
    """Return the environment: everything is escaped, a missing value is an error.

    All templates are compiled here, once in a process: one takes up to 40 ms, in which no page is
    answered.
    """
    environment = Environment(
        loader=PackageLoader("triomq.client.console", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.do"],
    )
    environment.filters.update(
        number=number,
        known=known,
        clock=clock,
        clock_ms=clock_ms,
        size=size,
        ratio=ratio,
        plain=plain,
        labelled=labelled,
    )
    environment.globals.update(line_chart=line_chart, meter=meter, languages=LANGUAGES)
    for name in environment.list_templates():
        environment.get_template(name)
    return environment
