"""One broker: its group, disk and settings; take it out for maintenance, or make it the master."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from starlette.responses import Response

from triomq.client.admin.admin import Admin
from triomq.client.admin.broker_address import BrokerAddress
from triomq.client.admin.cluster_view import BrokerRow
from triomq.client.admin.disk_use import disk_use
from triomq.client.admin.draining import (
    allow_writes,
    controllers_of,
    elect,
    hindrance_of,
    stop_writes,
    stored_drain,
    takes_all,
)
from triomq.client.admin.server_settings import read_settings
from triomq.client.console.core.forms import FormFields, FormInvalid
from triomq.client.console.core.page_visit import Page, PageVisit
from triomq.client.console.core.users import UserRole
from triomq.client.console.pages.configuration import HIDDEN, is_secret
from triomq.remoting.protocol.codes import RequestCode

TOPICS = 5
"""that fill the disk, on the page of a broker"""
TOPICS_ASKED_MAX = 200
"""one of RocketMQ is asked about each of its topics: with more of them, only if the user wants"""


def row_of(visit: PageVisit, fields: FormFields) -> BrokerRow:
    """Return the broker of a form or address. Raises: FormInvalid."""
    address = fields.needed("address")
    row = visit.console.poller.view.broker(address)
    if row is None:
        raise FormInvalid("brokers.none", address=address[:100])
    return row


def place_of(row: BrokerRow) -> BrokerAddress:
    return BrokerAddress(row.cluster, row.name, row.id, row.address)


async def maintenance(admin: Admin, broker: BrokerAddress) -> dict[str, object]:
    """Return since when a broker is closed to producers, and what keeps it from being stopped."""
    drained = await stored_drain(admin, broker.name)
    return {
        "drained": drained,
        "hindrance": drained and await hindrance_of(admin, broker.address, drained),
        "alone": drained is None and await takes_all(admin, broker),
    }


async def broker(visit: PageVisit) -> Response:
    row, view, admin = row_of(visit, visit.asked), visit.console.poller.view, visit.console.admin
    address, topics = row.address, [one for one in view.topics.values() if row.name in one.brokers]
    status, search = row.status or {}, visit.query.text("search")
    one_answer = "changedSettings" in status  # a broker of TrioMQ tells its largest topics at once
    few = len(topics) <= TOPICS_ASKED_MAX
    wants_disk = one_answer or few or visit.query.text("disk") == "1"
    code = RequestCode.GET_BROKER_CONFIG
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "settings": partial(read_settings, admin, [address], code)
    }
    if wants_disk:
        calls["disk"] = partial(disk_use, admin, address, TOPICS)
    if row.id == 0:
        calls["maintenance"] = partial(maintenance, admin, place_of(row))
    parts, problems = await visit.ask(**calls) if row.answers else ({}, [])
    settings = parts["settings"].values.get(address, {}) if parts.get("settings") else {}
    return visit.page(
        "broker.html",
        broker=row,
        group=view.sets.get(row.name),
        lags=view.slave_lags,
        members=[one for one in view.brokers if one.name == row.name],
        findings=visit.console.doctor.about(row.name, row.id),
        disk=parts.get("disk"),
        asks_disk=row.answers and not wants_disk,
        maintenance=parts.get("maintenance"),
        changed=None
        if "changedSettings" not in status
        else {
            key: HIDDEN if is_secret(key) else settings[key]
            for key in status["changedSettings"].split()
            if key in settings
        },
        problems=problems,
        counters={
            key: value
            for key, value in sorted(status.items())
            if search.casefold() in key.casefold()
        },
        search=search,
    )


def confirmed(visit: PageVisit) -> BrokerAddress:
    """Return the broker of a form. Raises: FormInvalid unless the user typed its name."""
    visit.confirmed()
    return place_of(row_of(visit, visit.form))


async def drain(visit: PageVisit) -> Response:
    """Close a broker to producers; in controller mode, let another member be the master."""
    place, admin = confirmed(visit), visit.console.admin
    controllers = await controllers_of(admin, place)

    async def do() -> object:
        if controllers:
            return await elect(admin, place, controllers)
        return await stop_writes(admin, place)

    await visit.change("broker.drain", place.address, do)
    visit.done("brokers.moved" if controllers else "brokers.drained", name=place.name)
    return visit.go("/broker", address=place.address)


async def undrain(visit: PageVisit) -> Response:
    """Give a drained broker back to its clients."""
    place = place_of(row_of(visit, visit.form))
    await visit.change(
        "broker.undrain", place.address, lambda: allow_writes(visit.console.admin, place)
    )
    visit.done("brokers.undrained", name=place.name)
    return visit.go("/broker", address=place.address)


async def promote(visit: PageVisit) -> Response:
    """Make a member of the sync state set the master of its group."""
    place, admin = confirmed(visit), visit.console.admin
    controllers = await controllers_of(admin, place)
    await visit.change(
        "broker.promote", place.address, lambda: elect(admin, place, controllers, place.address)
    )
    visit.done("brokers.promoted", name=place.name, address=place.address)
    return visit.go("/broker", address=place.address)


PAGES = (
    Page("GET", "/broker", broker),
    Page("POST", "/broker/drain", drain, UserRole.ADMIN, change=True, form=broker),
    Page("POST", "/broker/undrain", undrain, UserRole.ADMIN, change=True, form=broker),
    Page("POST", "/broker/promote", promote, UserRole.ADMIN, change=True, form=broker),
)
