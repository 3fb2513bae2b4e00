"""Login, logout, and the choice of language and colours."""

from __future__ import annotations

import time

import trio
from starlette.responses import RedirectResponse, Response

from triomq.client.console.core.catalogue import LANGUAGES
from triomq.client.console.core.guard import SESSION_COOKIE, set_cookie
from triomq.client.console.core.page_visit import Page, PageVisit

THEMES = ("auto", "light", "dark")
USER_CHARACTERS_MAX = 64


def local_path(text: str) -> str:
    """Return a path of this console, ``/`` for anything else: no way to other sites."""
    plain = text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable()
    return text if plain else "/"


async def show_login(visit: PageVisit) -> Response:
    await trio.lowlevel.checkpoint()
    wanted = local_path(visit.query.text("next"))
    if visit.session is not None:
        return RedirectResponse(wanted, 303)
    return visit.page("login.html", wanted=wanted, problem=None, name="")


async def log_in(visit: PageVisit) -> Response:
    console, now = visit.console, time.monotonic()
    wanted = local_path(visit.form.text("next"))
    name, password = visit.form.text("name")[:USER_CHARACTERS_MAX], visit.form.raw("password")

    def again(status: int, key: str, **values: object) -> Response:
        return visit.page(
            "login.html", status, wanted=wanted, problem=visit.text(key, **values), name=name
        )

    wait = console.limiter.wait_seconds(name, visit.address, now)
    if wait > 0:
        return again(429, "login.blocked", seconds=round(wait))
    # Counted before the check: tries at the same time must not all pass.
    console.limiter.failed(name, visit.address, now)
    role = await console.passwords.role_of(name, password)
    await console.audit.record(
        user=name,
        address=visit.address,
        action="login",
        target="console",
        outcome="done" if role is not None else "failed",
    )
    if role is None:
        return again(401, "login.wrong")
    console.limiter.worked(name, visit.address)
    response = RedirectResponse(wanted, 303)
    set_cookie(
        visit, response, SESSION_COOKIE, console.sessions.begin(name, role, time.monotonic())
    )
    return response


async def log_out(visit: PageVisit) -> Response:
    await trio.lowlevel.checkpoint()
    visit.console.sessions.end(visit.cookie)
    response = RedirectResponse("/login", 303)
    response.delete_cookie(SESSION_COOKIE, path="/")
    return response


async def prefer(visit: PageVisit) -> Response:
    """Keep the choice of language or colours in a cookie."""
    await trio.lowlevel.checkpoint()
    response = RedirectResponse(local_path(visit.query.text("next")), 303)
    for name, allowed in (("language", tuple(LANGUAGES)), ("theme", THEMES)):
        if (value := visit.query.text(name)) in allowed:
            set_cookie(visit, response, f"console_{name}", value)
    return response


PAGES = (
    Page("GET", "/login", show_login, role=None),
    Page("POST", "/login", log_in, role=None),
    Page("POST", "/logout", log_out),
    Page("GET", "/preferences", prefer, role=None),
)
