"""Users and policies of the cluster's access control, when it is on."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import Response

from triomq.client.admin.accounts import ask_access, listed
from triomq.client.admin.answers import Answers, all_of, problem_lines
from triomq.client.admin.decisions import ASKABLE, decided, read_resource
from triomq.client.console.core.forms import FormFields, FormInvalid
from triomq.client.console.core.page_visit import Page, PageVisit
from triomq.client.console.core.users import UserRole
from triomq.client.core.errors import BrokerError
from triomq.remoting.access.changes import NAME_LENGTH_MAX
from triomq.remoting.access.resources import Action, Need, ResourcePattern
from triomq.remoting.access.rules import Network
from triomq.remoting.access.users import SUBJECT
from triomq.remoting.protocol.bodies.auth import Acl, Policy, PolicyEntry, User
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.auth import (
    AclHeader,
    DeleteAclHeader,
    ListAclsHeader,
    ListUsersHeader,
    UserHeader,
)


async def policies(visit: PageVisit) -> Response:
    """List users and policies of every master; passwords are not shown."""
    admin = visit.console.admin
    masters = {row.name: row.address for row in visit.console.poller.view.masters}

    async def users_of(name: str) -> list[User]:
        code = RequestCode.AUTH_LIST_USER
        return await listed(admin, masters[name], code, ListUsersHeader(), User)

    async def acls_of(name: str) -> list[Acl]:
        code = RequestCode.AUTH_LIST_ACL
        return await listed(admin, masters[name], code, ListAclsHeader(), Acl)

    users: Answers[list[User]] = await admin.for_each(masters, users_of)
    acls: Answers[list[Acl]] = await admin.for_each(masters, acls_of)
    refusals = [error for error in users.failures.values() if isinstance(error, BrokerError)]
    answer, unanswered = ({}, []) if visit.refusal else await _decisions(visit, masters)
    off = bool(masters) and not users.values and len(refusals) == len(users.failures)
    problems = [] if off else sorted({*problem_lines(users), *problem_lines(acls), *unanswered})
    return visit.page(
        "policies.html",
        off=off,
        why=str(refusals[0]) if off else "",
        users=[(broker, user) for broker, some in users.values.items() for user in some],
        acls=[
            (broker, acl.subject, policy.policy_type or "Custom", entry)
            for broker, some in acls.values.items()
            for acl in some
            for policy in acl.policies or ()
            for entry in policy.entries or ()
        ],
        problems=problems,
        askable=ASKABLE,
        answer=answer,
    )


async def _decisions(
    visit: PageVisit, masters: Mapping[str, str]
) -> tuple[Mapping[str, Mapping[str, object]], list[str]]:
    """Return what each broker says to the question of the page's form, and what is missing.

    Raises: FormInvalid.
    """
    query = visit.query
    name, action = query.text("user"), query.text("action")
    if not name:
        return {}, []
    named = query.needed("resource")
    try:
        resource = read_resource(named)
    except ValueError:
        raise FormInvalid("policies.one_resource", "resource") from None
    need = Need(resource, tuple(_actions(action)))
    admin, source = visit.console.admin, query.text("from") or "127.0.0.1"
    _networks(source, "from")
    answers = await admin.for_each(
        masters, lambda broker: decided(admin, masters[broker], name, need, source)
    )
    return answers.values, problem_lines(answers)


async def _at_all(
    visit: PageVisit,
    code: RequestCode,
    header: UserHeader | AclHeader | DeleteAclHeader,
    body: bytes = b"",
) -> None:
    """Send a change to every broker: they have no common store. Raises: TrioMQError."""
    admin = visit.console.admin
    addresses = [broker.address for broker in await admin.brokers()]
    all_of(
        await admin.for_each(
            addresses, lambda address: ask_access(admin, address, code, header, body)
        )
    )


async def create_user(visit: PageVisit) -> Response:
    form = visit.form
    name, password = form.needed("name"), form.raw("password")
    if len(name) > NAME_LENGTH_MAX:
        raise FormInvalid("policies.long_name", "name", most=NAME_LENGTH_MAX)
    if not password:
        raise FormInvalid("policies.no_password", "password")
    kind = "Super" if form.text("type") == "Super" else "Normal"
    body = User(username=name, password=password, user_type=kind).encode()
    await visit.change(
        "user.create",
        name,
        lambda: _at_all(visit, RequestCode.AUTH_CREATE_USER, UserHeader(name), body),
        after={"type": kind},
    )
    visit.done("policies.user_created", name=name)
    return visit.go("/policies")


async def update_user(visit: PageVisit) -> Response:
    """Change the state, the type or the password of a user; an empty field leaves what is."""
    form = visit.form
    name, password = form.needed("name"), form.raw("password")
    status, kind = form.text("status"), form.text("type")
    body = User(password=password or None, user_type=kind or None, user_status=status or None)
    header, code = UserHeader(name), RequestCode.AUTH_UPDATE_USER
    await visit.change(
        "user.update",
        name,
        lambda: _at_all(visit, code, header, body.encode()),
        after={"status": status, "type": kind, "password": "changed" if password else ""},
    )
    visit.done("policies.user_updated", name=name)
    return visit.go("/policies")


async def delete_user(visit: PageVisit) -> Response:
    """Delete a user and the rules of that user."""
    name = visit.confirmed()
    header = UserHeader(name)
    await visit.change(
        "user.delete", name, lambda: _at_all(visit, RequestCode.AUTH_DELETE_USER, header)
    )
    visit.done("policies.user_deleted", name=name)
    return visit.go("/policies")


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _actions(text: str) -> list[Action]:
    """Read actions, one at least. Raises: FormInvalid."""
    names = {action.name: action for action in Action if action is not Action.ANY}
    found = [names.get(word.upper()) for word in _words(text)]
    if not found or None in found:
        known = ", ".join(action.text for action in names.values())
        raise FormInvalid("policies.bad_action", "actions", known=known)
    return [action for action in found if action is not None]


def _networks(text: str, field: str) -> list[str]:
    """Read addresses and networks. Raises: FormInvalid."""
    words = _words(text)
    try:
        return [Network(word).text for word in words]
    except ValueError:
        raise FormInvalid("policies.bad_source", field) from None


def _subject_and_resource(form: FormFields) -> tuple[str, str]:
    """Return whose rule it is and about what. Raises: FormInvalid."""
    subject, resource = form.needed("subject"), form.needed("resource")
    if not subject.removeprefix(SUBJECT) or not subject.startswith(SUBJECT):
        raise FormInvalid("policies.bad_subject", "subject")
    try:
        ResourcePattern.parse(resource)
    except ValueError:
        raise FormInvalid("policies.bad_resource", "resource") from None
    return subject, resource


async def create_rule(visit: PageVisit) -> Response:
    """Add a rule, or replace the one with this subject and resource."""
    form = visit.form
    subject, resource = _subject_and_resource(form)
    entry = PolicyEntry(
        resource=resource,
        actions=[action.text for action in _actions(form.needed("actions"))],
        source_ips=_networks(form.text("sources"), "sources") or None,
        decision="Deny" if form.text("decision") == "Deny" else "Allow",
    )
    acl = Acl(subject=subject, policies=[Policy(policy_type="Custom", entries=[entry])])
    await visit.change(
        "rule.create",
        subject,
        lambda: _at_all(visit, RequestCode.AUTH_CREATE_ACL, AclHeader(subject), acl.encode()),
        after={"resource": resource, "actions": entry.actions, "decision": entry.decision},
    )
    visit.done("policies.rule_created", subject=subject)
    return visit.go("/policies")


async def delete_rule(visit: PageVisit) -> Response:
    form = visit.form
    subject, resource = _subject_and_resource(form)
    header = DeleteAclHeader(subject, form.text("policy") or "Custom", resource)
    await visit.change(
        "rule.delete",
        subject,
        lambda: _at_all(visit, RequestCode.AUTH_DELETE_ACL, header),
        before={"resource": resource},
    )
    visit.done("policies.rule_deleted", subject=subject)
    return visit.go("/policies")


PAGES = (
    Page("GET", "/policies", policies, role=UserRole.ADMIN, form=policies),
    Page("POST", "/policies/user", create_user, UserRole.ADMIN, change=True, form=policies),
    Page("POST", "/policies/user/update", update_user, UserRole.ADMIN, change=True, form=policies),
    Page("POST", "/policies/user/delete", delete_user, UserRole.ADMIN, change=True, form=policies),
    Page("POST", "/policies/rule", create_rule, UserRole.ADMIN, change=True, form=policies),
    Page("POST", "/policies/rule/delete", delete_rule, UserRole.ADMIN, change=True, form=policies),
)
