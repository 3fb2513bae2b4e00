"""Configuration of brokers and name servers: compare servers, and change a setting with a diff."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import Response

from triomq.client.admin.answers import Answers, all_of, problem_lines
from triomq.client.admin.server_settings import read_settings
from triomq.client.console.core.forms import FormFields, FormInvalid
from triomq.client.console.core.page_visit import Page, PageVisit, ask_all
from triomq.client.console.core.paging import page_of
from triomq.client.console.core.users import UserRole
from triomq.remoting.core.properties_file import format_properties
from triomq.remoting.protocol.codes import RequestCode

SECRET_WORDS = ("password", "secret", "credential", "initauthenticationuser")
HIDDEN = "\N{BULLET}\N{BULLET}\N{BULLET}"
VALUE_CHARACTERS_MAX = 10_000


def is_secret(key: str) -> bool:
    """Tell whether the value of a setting is hidden."""
    return any(word in key.casefold() for word in SECRET_WORDS)


def _servers(visit: PageVisit, kind: str) -> list[str]:
    if kind == "namesrv":
        return list(visit.console.admin.namesrv_addresses)
    return [row.address for row in visit.console.poller.view.brokers]


async def _settings(
    visit: PageVisit, kind: str, addresses: list[str]
) -> Answers[Mapping[str, str]]:
    code = RequestCode.GET_NAMESRV_CONFIG if kind == "namesrv" else RequestCode.GET_BROKER_CONFIG
    return await read_settings(visit.console.admin, addresses, code)


def _kind(fields: FormFields) -> str:
    return "namesrv" if fields.text("kind") == "namesrv" else "broker"


async def configuration(visit: PageVisit) -> Response:
    """Show the settings of all servers of a kind, one row each, and mark where they differ."""
    kind, search = _kind(visit.query), visit.query.text("search")
    only = visit.query.text("differences") == "1"
    answers = await _settings(visit, kind, _servers(visit, kind))
    names = list(answers.values)
    rows = []
    for key in sorted({key for settings in answers.values.values() for key in settings}):
        values = [answers.values[name].get(key) for name in names]
        differs = len(set(values)) > 1
        if only and not differs:
            continue
        shown = [HIDDEN if is_secret(key) and value else value for value in values]
        rows.append((key, shown, differs))
    table = page_of(rows, visit.query.text("page"), search=search, text=lambda row: row[0])
    return visit.page(
        "configuration.html",
        kind=kind,
        servers=names,
        table=table,
        search=search,
        only=only,
        problems=problem_lines(answers),
    )


def _change(visit: PageVisit, fields: FormFields) -> tuple[str, str, str, list[str]]:
    """Return kind, key, new value and servers of a change. Raises: FormInvalid."""
    kind, key = _kind(fields), fields.needed("key")
    value = fields.text("value")
    if len(value) > VALUE_CHARACTERS_MAX or len(key) > 200:
        raise FormInvalid("config.long")
    known = _servers(visit, kind)
    chosen = list(fields.all("server")) or known
    if unknown := [server for server in chosen if server not in known]:
        raise FormInvalid("brokers.none", address=unknown[0][:100])
    return kind, key, value, chosen


async def show_change(visit: PageVisit) -> Response:
    """Show old and new value at each server; nothing is changed."""
    kind, key, value, chosen = _change(visit, visit.asked)
    answers = await _settings(visit, kind, chosen)
    if answers.values and not any(key in settings for settings in answers.values.values()):
        raise FormInvalid("config.unknown_key", key=key)
    old = {server: settings.get(key) for server, settings in answers.values.items()}
    return visit.page(
        "configuration_change.html",
        kind=kind,
        key=key,
        value=value,
        chosen=chosen,
        previewed=visit.request.method == "POST" or "value" in visit.request.query_params,
        old={
            server: HIDDEN if is_secret(key) and present else present
            for server, present in old.items()
        },
        problems=problem_lines(answers),
    )


async def change(visit: PageVisit) -> Response:
    kind, key, value, chosen = _change(visit, visit.form)
    code = (
        RequestCode.UPDATE_NAMESRV_CONFIG if kind == "namesrv" else RequestCode.UPDATE_BROKER_CONFIG
    )
    present = all_of(await _settings(visit, kind, chosen))
    if not any(key in settings for settings in present.values()):
        raise FormInvalid("config.unknown_key", key=key)
    body = format_properties({key: value}).encode()
    hide = is_secret(key)
    await visit.change(
        "configuration.change",
        key,
        lambda: ask_all(visit, chosen, code, body=body),
        before={
            server: HIDDEN if hide else settings.get(key) for server, settings in present.items()
        },
        after={"value": HIDDEN if hide else value, "servers": chosen},
    )
    visit.done("config.changed", key=key)
    return visit.go("/configuration", kind=kind, search=key)


PAGES = (
    Page("GET", "/configuration", configuration),
    Page("GET", "/configuration/change", show_change, role=UserRole.ADMIN),
    Page("POST", "/configuration/change", change, UserRole.ADMIN, change=True, form=show_change),
)
