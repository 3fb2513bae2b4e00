"""Users and policies of the cluster's access control, when it is on."""

from __future__ import annotations

from typing import TypeVar

from starlette.responses import Response

from triomq.client.admin.answers import Answers
from triomq.client.console.users import UserRole
from triomq.client.console.visit import Page, PageVisit
from triomq.client.errors import BrokerError, from_remoting
from triomq.remoting.errors import RemotingError
from triomq.remoting.protocol.bodies.auth import Acl, User
from triomq.remoting.protocol.bodies.schema import JsonBody, decode_array
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.auth import ListAclsHeader, ListUsersHeader

B = TypeVar("B", bound=JsonBody)


async def policies(visit: PageVisit) -> Response:
    """List users and policies of every master; passwords are not shown."""
    admin = visit.console.admin
    masters = {row.name: row.address for row in visit.console.poller.view.masters}

    async def users_of(name: str) -> list[User]:
        answer = await admin.ask(masters[name], RequestCode.AUTH_LIST_USER, ListUsersHeader())
        return _array(User, answer.body)

    async def acls_of(name: str) -> list[Acl]:
        answer = await admin.ask(masters[name], RequestCode.AUTH_LIST_ACL, ListAclsHeader())
        return _array(Acl, answer.body)

    users: Answers[list[User]] = await admin.for_each(masters, users_of)
    acls: Answers[list[Acl]] = await admin.for_each(masters, acls_of)
    refusals = [error for error in users.failures.values() if isinstance(error, BrokerError)]
    off = bool(masters) and not users.values and len(refusals) == len(users.failures)
    problems = (
        []
        if off
        else sorted(
            {
                f"{broker}: {reason}"
                for part in (users, acls)
                for broker, reason in part.reasons().items()
            }
        )
    )
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
    )


def _array(kind: type[B], body: bytes | memoryview) -> list[B]:
    try:
        return decode_array(kind, body)
    except RemotingError as error:
        raise from_remoting(error) from error


PAGES = (Page("GET", "/policies", policies, role=UserRole.ADMIN),)
