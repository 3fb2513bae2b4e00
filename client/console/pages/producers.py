"""Producers: who is connected to the brokers."""

from __future__ import annotations

from starlette.responses import Response

from triomq.client.admin.answers import problem_lines, read_body
from triomq.client.console.core.page_visit import Page, PageVisit
from triomq.client.console.core.paging import page_of
from triomq.remoting.protocol.bodies.groups import ProducerTable
from triomq.remoting.protocol.codes import RequestCode, version_name


async def producers(visit: PageVisit) -> Response:
    admin, search = visit.console.admin, visit.query.text("search")
    brokers = {row.name: row.address for row in visit.console.poller.view.masters}

    async def producers_of(name: str) -> ProducerTable:
        return read_body(
            ProducerTable, await admin.ask(brokers[name], RequestCode.GET_ALL_PRODUCER_INFO)
        )

    answers = await admin.for_each(brokers, producers_of)
    rows: dict[tuple[str, str], dict[str, object]] = {}
    for broker, found in answers.values.items():
        for group, entries in found.data.items():
            for entry in entries:
                row = rows.setdefault(
                    (group, entry.client_id),
                    {
                        "group": group,
                        "client": entry.client_id,
                        "address": entry.remote_address.lstrip("/"),
                        "language": entry.language,
                        "version": version_name(entry.version),
                        "seen": entry.last_update_timestamp,
                        "brokers": [],
                    },
                )
                seen_at = row["brokers"]
                assert isinstance(seen_at, list)
                seen_at.append(broker)
    table = page_of(
        [rows[key] for key in sorted(rows)],
        visit.query.text("page"),
        search=search,
        text=lambda row: f"{row['group']} {row['client']} {row['address']}",
    )
    return visit.page("producers.html", table=table, search=search, problems=problem_lines(answers))


PAGES = (Page("GET", "/producers", producers),)
