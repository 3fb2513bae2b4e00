"""Whether a user may do something at a broker, and which rule decides.

The decision is computed here, from the user and the rules that each broker has, by the same code
that brokers of TrioMQ decide with; RocketMQ's decide alike.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from triomq.client.admin.accounts import ask_access
from triomq.client.admin.answers import read_body
from triomq.client.admin.errors import SubjectMissing
from triomq.client.core.errors import PolicyNotFound
from triomq.remoting.access.changes import copied_rules
from triomq.remoting.access.control import AccessControl
from triomq.remoting.access.resources import Action, Need, Pattern, Resource, ResourcePattern
from triomq.remoting.access.users import SUBJECT, AccessUser, UserTable
from triomq.remoting.protocol.bodies.auth import Acl, User
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.auth import AclHeader, UserHeader

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin

ASKABLE = tuple(action.text for action in Action if action not in (Action.ALL, Action.ANY))


def read_resource(text: str) -> Resource:
    """Read ``Topic:orders``: one resource, not several."""
    pattern = ResourcePattern.parse(text)
    if pattern.pattern is not Pattern.LITERAL or not pattern.name:
        raise ValueError(f"{text!r} names several; ask for one, as Topic:orders")
    return Resource(pattern.type, pattern.name)


async def decided(
    admin: Admin, address: str, name: str, need: Need, source: str
) -> dict[str, object]:
    """Return what one broker decides, and why. Raises: TrioMQError."""
    answer = await ask_access(admin, address, RequestCode.AUTH_GET_USER, UserHeader(name))
    if not answer.body:
        raise SubjectMissing(repr(name), "`mqadmin user list` lists the users")
    found = read_body(User, answer)
    if (found.user_status or "").lower() == "disable":
        return {"allowed": False, "why": "the user is disabled"}
    user = AccessUser(name, "-", is_super=(found.user_type or "").lower() == "super")
    if user.is_super:
        return {"allowed": True, "why": "a super user may do everything"}
    table = UserTable({name: user})
    with contextlib.suppress(PolicyNotFound):
        header = AclHeader(SUBJECT + name)
        answer = await ask_access(admin, address, RequestCode.AUTH_GET_ACL, header)
        if answer.body:
            table.put_rules(name, copied_rules(read_body(Acl, answer)))
    decision = AccessControl(table, "").decide(user, need, source)
    if decision.rule is None:
        return {"allowed": False, "why": "no rule is about that"}
    return {"allowed": decision.allowed, "why": str(decision.rule)}
