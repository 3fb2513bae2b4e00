"""The first page, how the cluster is; and the list of brokers."""

from __future__ import annotations

import trio
from starlette.responses import Response

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
    lags = view.slave_lags.values()
    known = [lag for lag in lags if lag is not None]
    return visit.page(
        "overview.html",
        behind=behind[:MOST],
        put=[sample.put for sample in samples],
        get=[sample.get for sample in samples],
        times=[sample.at for sample in samples],
        doctor=visit.console.doctor,
        slaves=(max(known, default=None), len(known) == len(lags)) if lags else None,
    )


async def brokers(visit: PageVisit) -> Response:
    await trio.lowlevel.checkpoint()
    return visit.page("brokers.html")


PAGES = (Page("GET", "/", overview), Page("GET", "/brokers", brokers))
