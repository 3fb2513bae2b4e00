"""Brokers: the list, and the counters of one."""

from __future__ import annotations

import trio
from starlette.responses import Response

from triomq.client.console.core.forms import FormInvalid
from triomq.client.console.core.visit import Page, PageVisit


async def brokers(visit: PageVisit) -> Response:
    await trio.lowlevel.checkpoint()
    return visit.page("brokers.html")


async def broker(visit: PageVisit) -> Response:
    await trio.lowlevel.checkpoint()
    address = visit.query.needed("address")
    row = visit.console.poller.view.broker(address)
    if row is None:
        raise FormInvalid(visit.text("brokers.none", address=address[:100]))
    search = visit.query.text("search")
    counters = {
        key: value
        for key, value in sorted((row.status or {}).items())
        if search.casefold() in key.casefold()
    }
    return visit.page("broker.html", broker=row, counters=counters, search=search)


PAGES = (Page("GET", "/brokers", brokers), Page("GET", "/broker", broker))
