"""What happens around every page: session, role, CSRF, limits, errors, and security headers."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from urllib.parse import quote, urlsplit

import trio
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from triomq.client.admin.errors import ClusterNotFound, SubjectMissing, UserExists
from triomq.client.console.core.catalogue import preferred_language
from triomq.client.console.core.forms import (
    LABELS,
    FormFields,
    FormInvalid,
    FormRefusal,
    fields_of,
    read_form,
)
from triomq.client.console.core.page_visit import Console, Page, PageVisit
from triomq.client.core.errors import RouteNotFound, TrioMQError
from triomq.remoting.core.printable import printable
from triomq.remoting.core.settings import ConfigError

logger = logging.getLogger(__name__)

SESSION_COOKIE = "console_session"
FORM_COOKIE = "console_form"
PAGE_SECONDS = 15.0
"""a page whose cluster needs longer is an error page"""
EXPLAINED = (TrioMQError, ValueError, OSError)
"""what a page says about a request; any other exception is a defect"""
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src"
        " 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def guarded(console: Console, page: Page) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint of a page."""

    async def endpoint(request: Request) -> Response:
        visit = _visit(console, request)
        response = await _answer(visit, page)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        if console.settings.secure_cookies:
            response.headers["Strict-Transport-Security"] = "max-age=31536000"
        if visit.session is None and request.cookies.get(FORM_COOKIE) != visit.cookie:
            set_cookie(visit, response, FORM_COOKIE, visit.cookie)
        return response

    return endpoint


def set_cookie(visit: PageVisit, response: Response, name: str, value: str) -> None:
    """Set a cookie that scripts and other sites cannot use."""
    response.set_cookie(
        name,
        value,
        httponly=True,
        samesite="strict" if name != SESSION_COOKIE else "lax",
        secure=visit.console.settings.secure_cookies,
        path="/",
    )


def _visit(console: Console, request: Request) -> PageVisit:
    cookie = request.cookies.get(SESSION_COOKIE)
    session = console.sessions.find(
        cookie, time.monotonic(), touch="x-refresh" not in request.headers
    )
    if session is None or cookie is None:
        cookie = request.cookies.get(FORM_COOKIE) or secrets.token_urlsafe(32)
    try:
        query = fields_of(request.url.query)
    except FormInvalid:
        query = FormFields({})
    return PageVisit(
        console=console,
        request=request,
        language=preferred_language(
            request.cookies.get("console_language"), request.headers.get("accept-language", "")
        ),
        cookie=cookie,
        session=session,
        form=FormFields({}),
        query=query,
    )


async def _answer(visit: PageVisit, page: Page) -> Response:
    """Check a request and let its page answer; every failure becomes a page that says why."""
    if page.role is not None and visit.session is None:
        if visit.request.method == "GET" and "x-refresh" not in visit.request.headers:
            wanted = visit.request.url.path + (
                f"?{visit.request.url.query}" if visit.request.url.query else ""
            )
            return RedirectResponse(f"/login?next={quote(wanted, safe='')}", 303)
        return refused(visit, 401, "error.login")
    if page.role is not None and visit.session is not None and visit.session.role < page.role:
        return refused(visit, 403, "error.role", role=page.role.word)
    try:
        with trio.fail_after(PAGE_SECONDS):
            if visit.request.method == "POST":
                if not same_origin(visit.request):
                    return refused(visit, 403, "error.origin")
                visit.form = await read_form(visit.request)
                if not visit.console.sessions.token_matches(visit.cookie, visit.form.text("token")):
                    return refused(visit, 403, "error.token")
                if page.change and not visit.console.settings.allow_changes:
                    return refused(visit, 403, "error.read_only")
            try:
                return await page.handler(visit)
            except EXPLAINED as error:
                if page.form is None:
                    raise
                visit.refusal = _refusal(visit, error)
                try:
                    return await page.form(visit)
                except EXPLAINED:  # what the form stands on cannot be shown, either
                    visit.refusal = None
                    raise error from None
    except EXPLAINED as error:
        return _failed(visit, _refusal(visit, error))
    except trio.TooSlowError:
        return refused(visit, 504, "error.slow", seconds=int(PAGE_SECONDS))


def _refusal(visit: PageVisit, error: Exception) -> FormRefusal:
    """Return why a form or an address was refused, in the user's language where a text is."""
    if isinstance(error, FormInvalid):
        label = LABELS.get(error.field)
        field = "" if label is None else f"{visit.text(label)}{visit.text('form.colon')}"
        return FormRefusal(field + visit.text(error.key, **error.values), error.field)
    if isinstance(error, TrioMQError):  # a refused connection is an OSError, too
        text = _explained(visit, error)
        return FormRefusal(text or str(error), english=not text, status=502)
    if isinstance(error, (ConfigError, OSError)):
        logger.error("%s: %s", visit.request.url.path, error)
        return FormRefusal(str(error), english=True, status=500)
    return FormRefusal(str(error), english=True)  # what the SDK says about a name or a number


def _explained(visit: PageVisit, error: TrioMQError) -> str:
    """Return an error that many forms may meet in the user's language; empty for the others."""
    match error:
        case RouteNotFound(offered=False):
            return visit.text("error.no_topic", topic=error.topic)
        case SubjectMissing():
            return visit.text("error.no_user", name=error.what)
        case UserExists():
            return visit.text("error.user_exists", name=error.name)
        case ClusterNotFound():
            return visit.text("error.no_cluster", name=error.name)
    return ""


def same_origin(request: Request) -> bool:
    """Tell whether a form comes from a page of this console, as far as the browser says."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host", "")


def refused(visit: PageVisit, status: int, key: str, **values: object) -> Response:
    """Return an error page with a text of ours."""
    return _failed(visit, FormRefusal(visit.text(key, **values), status=status))


def _failed(visit: PageVisit, refusal: FormRefusal) -> Response:
    return visit.page(
        "error.html",
        refusal.status,
        reason=printable(refusal.text),
        english=refusal.english,
        status=refusal.status,
    )
