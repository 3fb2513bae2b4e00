"""Requests that read and change users and rules (3001 to 3010): what each does. SANS-IO.

Texts and codes are Java's. On purpose different: only a super user reads passwords (Java shows them
to everyone with Get on the cluster), rules that would be deleted because their resource cannot be
read stay, and a body that is missing is refused in words.

Source: broker/processor/AdminBrokerProcessor.java, auth/…/manager/AuthenticationMetadataManagerImpl
.java, AuthorizationMetadataManagerImpl.java.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from triomq.remoting.access.documents import rules_body, rules_of_policy, user_body
from triomq.remoting.access.resources import ResourcePattern
from triomq.remoting.access.rules import AccessRules, PolicyType
from triomq.remoting.access.users import SUBJECT, AccessUser, UserTable, refused
from triomq.remoting.core.errors import Rejected
from triomq.remoting.protocol.bodies import auth
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.auth import AclHeader, DeleteAclHeader, ListAclsHeader

NAME_LENGTH_MAX = 255
RULES_MAX = 1_000
"""Of one user. Each request of the user compares all of them."""
USERS_MAX = 10_000
_ONLY_SUPER = "The super user can only be update by super user"


@attrs.frozen(eq=False)
class AccessChanges:
    """The table as one caller sees and changes it; ``caller`` is None where nobody is verified."""

    table: UserTable
    caller: AccessUser | None = None

    def create_user(self, name: str | None, body: auth.User | None) -> None:
        """Add a user. Raises: Rejected."""
        name = _named(name)
        body = _given(body, "user")
        is_super = _is_super(body) is True
        if is_super and not self._is_super:
            raise Rejected(
                ResponseCode.SYSTEM_ERROR, "The super user can only be create by super user"
            )
        if not body.password:
            raise refused("password can not be blank")
        if name in self.table.users:
            raise refused("The user is existed")
        _require_room("name", len(name), NAME_LENGTH_MAX, "characters")
        _require_room("table", len(self.table.users) + 1, USERS_MAX, "users")
        self.table.put(AccessUser(name, body.password, is_super, _is_enabled(body) is not False))

    def update_user(self, name: str | None, body: auth.User | None) -> None:
        """Change password, type or state of a user; what is absent stays. Raises: Rejected."""
        name = _named(name)
        body = _given(body, "user")
        is_super, enabled = _is_super(body), _is_enabled(body)
        if is_super and not self._is_super:
            raise Rejected(ResponseCode.SYSTEM_ERROR, _ONLY_SUPER)
        user = self._changeable(name)
        if user is None:
            raise refused("The user is not exist")
        self.table.put(
            AccessUser(
                name,
                body.password or user.password,
                user.is_super if is_super is None else is_super,
                user.enabled if enabled is None else enabled,
            )
        )

    def delete_user(self, name: str | None) -> None:
        """Delete a user and its rules; an unknown one is no error. Raises: Rejected."""
        if not name:
            raise refused("username can not be blank")
        if self._changeable(name) is not None:
            self.table.delete(name)

    def user(self, name: str | None) -> auth.User | None:
        """Return a user, None if there is none. Raises: Rejected."""
        found = self.table.users.get(_named(name))
        return None if found is None else self._shown(found)

    def users(self, part: str | None) -> list[auth.User]:
        """Return the users whose names have this part, in the order of names.

        A thread may call it: users that are deleted meanwhile are left out.
        """
        return [
            self._shown(user)
            for name in sorted(self.table.users)
            if (part or "") in name and (user := self.table.users.get(name)) is not None
        ]

    def put_rules(self, header: AclHeader, body: auth.Acl | None) -> None:
        """Add rules to a user's (3006 and 3007 do the same). Raises: Rejected.

        A subject in the body wins over the header's, if it can be read.
        """
        if body is None or not body.policies:
            raise Rejected(ResponseCode.SYSTEM_ERROR, "The body of acl is null")
        name = _subject(body.subject) or _subject(header.subject)
        if name is None:
            raise Rejected(
                ResponseCode.SYSTEM_ERROR,
                f"The subject {header.subject!r} is not of the form User:NAME",
            )
        if name not in self.table.users:
            raise refused(f"The subject of User:{name} is not exist.")
        rules = self.table.rules_of(name)
        for policy in body.policies:
            kind = PolicyType.parse(policy.policy_type)
            rules = rules.merged(kind, rules_of_policy(policy))
        count = len(rules.custom) + len(rules.default)
        _require_room("user", count, RULES_MAX, "rules")
        self.table.put_rules(name, rules)

    def delete_rules(self, header: DeleteAclHeader) -> None:
        """Delete the first rule of a resource, or all rules without one. Raises: Rejected."""
        name = self.named_subject(header.subject)
        rules = self.table.rules_of(name)
        if not rules:
            raise refused("The acl is not exist.")
        if not header.resource:
            self.table.put_rules(name, type(rules)())
            return
        try:
            resources = ResourcePattern.parse(header.resource)
        except ValueError as error:
            raise refused(f"The resource is null. {error}") from None
        kind = PolicyType.parse(header.policy_type)
        left = list(rules.of(kind))
        for at, rule in enumerate(left):
            if rule.resources == resources:
                del left[at]
                break
        self.table.put_rules(name, rules.with_rules(kind, left))

    def rules(self, subject: str | None) -> auth.Acl | None:
        """Return the rules of a user, None without any. Raises: Rejected."""
        name = self.named_subject(subject)
        rules = self.table.rules_of(name)
        return rules_body(name, rules) if rules else None

    def all_rules(self, header: ListAclsHeader) -> list[auth.Acl]:
        """Return the rules of which subject and resource have these parts, in order of names.

        A thread may call it: subjects that are deleted meanwhile are left out.
        """
        found = []
        for name in sorted(self.table.rules):
            if (header.subject_filter or "") not in SUBJECT + name:
                continue
            rules = self.table.rules.get(name)
            if rules is None:
                continue
            for kind in PolicyType:
                rules = rules.with_rules(
                    kind,
                    [
                        rule
                        for rule in rules.of(kind)
                        if (header.resource_filter or "") in str(rule.resources)
                    ],
                )
            if rules:
                found.append(rules_body(name, rules))
        return found

    @property
    def _is_super(self) -> bool:
        return self.caller is None or self.caller.is_super

    def _changeable(self, name: str) -> AccessUser | None:
        """Return a user that the caller may change; None if there is none. Raises: Rejected."""
        user = self.table.users.get(name)
        if user is not None and user.is_super and not self._is_super:
            raise refused(_ONLY_SUPER)
        return user

    def _shown(self, user: AccessUser) -> auth.User:
        body = user_body(user)
        return body if self._is_super else attrs.evolve(body, password=None)

    def named_subject(self, text: str | None) -> str:
        """Return the name of the user that a header names. Raises: Rejected."""
        name = _subject(text)
        if name is None:
            raise refused("The subject is null.")
        if name not in self.table.users:
            raise refused("The subject is not exist.")
        return name


def copied_rules(acl: auth.Acl) -> AccessRules:
    """Return the rules that a broker has sent. Raises: Rejected."""
    rules = AccessRules()
    for policy in acl.policies or ():
        rules = rules.merged(PolicyType.parse(policy.policy_type), rules_of_policy(policy))
    return rules


def copied_table(users: Iterable[auth.User], rules: Iterable[auth.Acl]) -> UserTable:
    """Return the table that another broker has sent. Raises: Rejected.

    Passwords are shown to super users only: without them the copy would lock everybody out.
    """
    table = UserTable()
    copying = AccessChanges(table)
    for user in users:
        copying.create_user(user.username, user)
    for acl in rules:
        table.put_rules(copying.named_subject(acl.subject), copied_rules(acl))
    return table


def _named(name: str | None) -> str:
    if not name:
        raise Rejected(ResponseCode.INVALID_PARAMETER, "The username is blank")
    return name


def _given(body: auth.User | None, what: str) -> auth.User:
    if body is None:
        raise Rejected(ResponseCode.SYSTEM_ERROR, f"the body with the {what} is missing")
    return body


def _is_super(body: auth.User) -> bool | None:
    return {"super": True, "normal": False}.get((body.user_type or "").lower())


def _is_enabled(body: auth.User) -> bool | None:
    return {"enable": True, "disable": False}.get((body.user_status or "").lower())


def _subject(text: str | None) -> str | None:
    """Return the name in ``User:name``, the type in any case; None for other texts."""
    kind, colon, name = (text or "").partition(":")
    return name if colon and f"{kind}:".lower() == SUBJECT.lower() else None


def _require_room(what: str, count: int, most: int, unit: str) -> None:
    if count > most:
        raise Rejected(
            ResponseCode.INVALID_PARAMETER,
            f"the {what} would have {count} {unit}, and {most} is the limit",
        )
