"""Users, their passwords and rules: the table that access control reads. SANS-IO.

Source: auth/…/authentication/model/User.java, manager/AuthenticationMetadataManagerImpl.java.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from triomq.remoting.access.rules import AccessRules
from triomq.remoting.core.errors import Rejected
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.signing import ACCESS_KEY, DATE_TIME, is_signed_by

SUBJECT = "User:"
"""How the name of a user begins where rules name their subject."""
NO_RULES = AccessRules()


@attrs.frozen
class AccessUser:
    """A user. A super user may do everything; a disabled one nothing.

    The password is the secret key of requests: it is kept as it is, since a signature is verified
    with it.
    """

    name: str
    password: str = attrs.field(repr=False)
    is_super: bool = False
    enabled: bool = True

    @property
    def subject(self) -> str:
        return SUBJECT + self.name


@attrs.define(eq=False)
class UserTable:
    """All users and their rules. A change replaces an entry as a whole."""

    users: dict[str, AccessUser] = attrs.field(factory=dict)
    rules: dict[str, AccessRules] = attrs.field(factory=dict)
    """User name -> its rules; none for users without."""

    def authenticated(
        self,
        ext: Mapping[str, str],
        body: bytes | memoryview,
        version: int | None,
        *,
        by_date: bool,
    ) -> AccessUser:
        """Return the user that has signed a request with these fields (``is_signed_by``).

        The signature is verified at every request. Texts are Java's.

        Raises: Rejected.
        """
        name = ext.get(ACCESS_KEY)
        if not name:
            raise refused("username cannot be null.")
        user = self.users.get(name)
        if user is None:
            raise unknown_user(name)
        if not user.enabled:
            raise refused(f"User:{name} is disabled.")
        if by_date and not ext.get(DATE_TIME):
            raise refused("datetime is null.")
        if not is_signed_by(ext, body, user.password, version=version, by_date=by_date):
            raise refused("check signature failed.")
        return user

    def rules_of(self, name: str) -> AccessRules:
        return self.rules.get(name, NO_RULES)

    def put(self, user: AccessUser) -> None:
        """Add or replace a user."""
        self.users[user.name] = user

    def delete(self, name: str) -> None:
        """Delete a user and its rules, if there are any."""
        self.users.pop(name, None)
        self.rules.pop(name, None)

    def put_rules(self, name: str, rules: AccessRules) -> None:
        """Replace the rules of a user."""
        if rules:
            self.rules[name] = rules
        else:
            self.rules.pop(name, None)


def unknown_user(name: str) -> Rejected:
    """Return the refusal of a name that is none of a user."""
    return refused(f"User:{name} is not found.")


def refused(remark: str) -> Rejected:
    """Return the refusal of a request for lack of credentials or rights."""
    return Rejected(ResponseCode.NO_PERMISSION, remark)
