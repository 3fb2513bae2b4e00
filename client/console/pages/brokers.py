"""The first page, how the cluster is; the list of brokers, and the counters of one."""

from __future__ import annotations

import trio
from starlette.responses import Response

from triomq.client.console.core.forms import FormInvalid
from triomq.client.console.core.page_visit import Page, PageVisit

MOST = 10


async def overview(visit: PageVisit) -> Response:
    await trio.lowlevel.checkpoint()
    view = visit.console.poller.view
    samples = list(visit.console.poller.samples)
    behind = sorted(
        (group for group in view.groups.values() if group.lag),
        key=lambda group: group.lag or 0,
        reverse=True,
    )
    return visit.page(
        "overview.html",
        behind=behind[:MOST],
        put=[sample.put for sample in samples],
        get=[sample.get for sample in samples],
        times=[sample.at for sample in samples],
        doctor=visit.console.doctor,
    )


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


PAGES = (
    Page("GET", "/", overview),
    Page("GET", "/brokers", brokers),
    Page("GET", "/broker", broker),
)
