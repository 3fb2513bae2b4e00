"""``Console``, what all pages share, and ``PageVisit``, one request with its user."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import urlencode

import attrs
import trio
from jinja2 import Environment
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from triomq.client.admin.admin import Admin
from triomq.client.admin.answers import Answers, all_of, problem_lines
from triomq.client.admin.cluster_poller import ClusterPoller
from triomq.client.admin.holding_admin import HoldingAdmin
from triomq.client.console.core.audit import AuditLog
from triomq.client.console.core.catalogue import texts_of
from triomq.client.console.core.cluster_doctor import ClusterDoctor
from triomq.client.console.core.console_settings import ConsoleSettings
from triomq.client.console.core.forms import FormFields, FormInvalid, FormRefusal
from triomq.client.console.core.logins import PasswordCheck
from triomq.client.console.core.paging import order_of, page_of
from triomq.client.console.core.sessions import ConsoleSession, LoginLimiter, SessionTable
from triomq.client.console.core.users import UserRole
from triomq.client.core.errors import TrioMQError
from triomq.remoting.protocol.codes import RequestCode

T = TypeVar("T")


@attrs.define(eq=False)
class Console:
    """What all pages share."""

    settings: ConsoleSettings
    admin: Admin
    """for pages; it does not wait for brokers that the poller found silent"""
    poller: ClusterPoller
    doctor: ClusterDoctor
    trial: Callable[[], HoldingAdmin]
    """opens an administration that changes nothing, and tells what it would change"""
    passwords: PasswordCheck
    audit: AuditLog
    templates: Environment
    sessions: SessionTable = attrs.field(factory=SessionTable)
    limiter: LoginLimiter = attrs.field(factory=LoginLimiter)


Render = Callable[..., str]


@attrs.define(eq=False)
class PageVisit:
    """One request to one page, after its checks."""

    console: Console
    request: Request
    language: str
    cookie: str
    """the session's; before the login, one that only ties forms to this browser"""
    session: ConsoleSession | None
    form: FormFields
    """of a POST; empty otherwise"""
    query: FormFields
    refusal: FormRefusal | None = None
    """why the form is shown again, with what the user wrote"""

    def text(self, key: str, /, **values: object) -> str:
        """Return a text in the user's language."""
        found = texts_of(self.language)[key]
        return found.format(**values) if values else found

    @property
    def asked(self) -> FormFields:
        """The fields of a POST, otherwise those of the address."""
        return self.form if self.request.method == "POST" else self.query

    def refused_in(self, action: str, **hidden: str) -> bool:
        """Tell whether this form, of several on a page, is the refused one.

        ``hidden``: fields that tell it from others with the same address.
        """
        return (
            self.refusal is not None
            and self.request.url.path == action
            and all(self.asked.text(field) == value for field, value in hidden.items())
        )

    @property
    def user(self) -> str:
        return self.session.user if self.session is not None else ""

    @property
    def address(self) -> str:
        return self.request.client.host if self.request.client is not None else "?"

    def confirmed(self) -> str:
        """Return the name in the form. Raises: FormInvalid unless the user typed it again."""
        name = self.form.needed("name")
        if self.form.text("confirm") != name:
            raise FormInvalid("form.confirm_wrong", "confirm", name=name)
        return name

    def may(self, role: UserRole) -> bool:
        """Tell whether this user may change things that need a role, in this console."""
        return (
            self.session is not None
            and self.session.role >= role
            and self.console.settings.allow_changes
        )

    def listed(
        self,
        rows: Sequence[T],
        columns: Mapping[str, Callable[[T], str | float | None]],
        name: Callable[[T], str],
    ) -> dict[str, object]:
        """Return what the template of a list needs: the rows that the address asks for.

        ``columns``: those by which the list can be sorted.
        """
        sort, search = self.query.text("sort"), self.query.text("search")
        order = order_of(sort, columns)
        table = page_of(
            order.sorted(rows, columns), self.query.text("page"), search=search, text=name
        )
        return {"table": table, "order": order, "sort": sort, "search": search}

    def page(self, template: str, code: int = 200, /, **values: object) -> Response:
        """Render a template."""
        view = self.console.poller.view
        text = self.console.templates.get_template(template).render(
            t=self.text,
            visit=self,
            session=self.session,
            language=self.language,
            theme=self.request.cookies.get("console_theme", ""),
            form_token=self.console.sessions.form_token(self.cookie),
            view=view,
            now=time.time(),
            operator=self.may(UserRole.OPERATOR),
            admin=self.may(UserRole.ADMIN),
            read_only=not self.console.settings.allow_changes,
            path=self.request.url.path,
            here=self.request.url.path
            + (f"?{self.request.url.query}" if self.request.url.query else ""),
            **values,
        )
        if self.session is not None:
            self.session.notices = []
        return HTMLResponse(text, code if self.refusal is None else self.refusal.status)

    async def ask(
        self, **calls: Callable[[], Awaitable[object]]
    ) -> tuple[dict[str, Any], list[str]]:
        """Ask the cluster at the same time; return the answers, and why some (None) are missing."""
        answers: dict[str, Any] = dict.fromkeys(calls)
        problems: list[str] = []

        async def read(part: str) -> None:
            try:
                answers[part] = await calls[part]()
            except TrioMQError as error:
                problems.append(str(error))

        async with trio.open_nursery() as nursery:
            for part in calls:
                nursery.start_soon(read, part)
        for answer in answers.values():
            if isinstance(answer, Answers):
                problems += problem_lines(answer)
        return answers, sorted(set(problems))

    def go(self, path: str, **query: str) -> Response:
        """Lead the browser to another page, after a change."""
        return RedirectResponse(f"{path}?{urlencode(query)}" if query else path, 303)

    async def change(
        self,
        action: str,
        target: str,
        do: Callable[[], Awaitable[object]],
        *,
        before: object = None,
        after: object = None,
    ) -> Any:
        """Carry out a change between two lines of the audit file; without the first, it is not.

        Raises: OSError if the first line cannot be written, and whatever ``do`` raises.
        """
        line: Mapping[str, Any] = {
            "user": self.user,
            "address": self.address,
            "action": action,
            "target": target,
            "before": before,
            "after": after,
        }
        record = self.console.audit.record
        await record(**line, outcome="begun")
        outcome, error = "unknown", None
        try:
            result = await do()
            outcome = "done"
        except Exception as problem:
            outcome, error = "failed", str(problem)
            raise
        finally:
            await record(**line, outcome=outcome, error=error)
            self.console.poller.refresh_soon()
        return result

    def done(self, key: str, /, **values: object) -> None:
        """Say on the next page that a change was made."""
        if self.session is not None:
            self.session.notice("done", self.text(key, **values))


async def ask_all(
    visit: PageVisit,
    addresses: Iterable[str],
    code: RequestCode,
    header: object | None = None,
    body: bytes = b"",
) -> None:
    """Send a change to several servers. Raises: TrioMQError if one of them fails."""
    admin = visit.console.admin
    all_of(await admin.for_each(addresses, lambda address: admin.ask(address, code, header, body)))


Handler = Callable[[PageVisit], Awaitable[Response]]


@attrs.frozen
class Page:
    """One address of the console."""

    method: str
    path: str
    handler: Handler
    role: UserRole | None = UserRole.VIEWER
    """None: also without a login"""
    change: bool = False
    """refused while the console is read-only"""
    form: Handler | None = None
    """shows its form once more, with the reason, if it was refused"""
