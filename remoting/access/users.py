"""Users, their passwords and rules: the table that access control reads. SANS-IO.

Source: auth/…/authentication/model/User.java, manager/AuthenticationMetadataManagerImpl.java.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from triomq.remoting.access.address_patterns import AddressPatterns
from triomq.remoting.access.rules import AccessRules
from triomq.remoting.access.wording import WORDING, Wording
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
    trusted: AddressPatterns | None = attrs.field(default=None, kw_only=True)
    """From where it needs neither signature nor rights (``whiteRemoteAddress`` of ACL 1.0)."""
    trusted_by: str = attrs.field(default="", kw_only=True)
    """The setting that let the sender of a request in without them; empty if none did."""

    @property
    def subject(self) -> str:
        return SUBJECT + self.name


TRUSTED = AccessUser("", "", is_super=True, trusted_by="globalWhiteRemoteAddresses")
"""Whoever sends a request from an address that is trusted without a name."""


@attrs.define(eq=False)
class UserTable:
    """All users and their rules. A change replaces an entry as a whole."""

    users: dict[str, AccessUser] = attrs.field(factory=dict)
    rules: dict[str, AccessRules] = attrs.field(factory=dict)
    """User name -> its rules; none for users without."""
    trusted: AddressPatterns | None = None
    """From where everybody may do everything (``globalWhiteRemoteAddresses`` of ACL 1.0)."""
    wording: Wording = WORDING

    def authenticated(
        self,
        ext: Mapping[str, str],
        body: bytes | memoryview,
        version: int | None,
        *,
        address: str,
        by_date: bool,
    ) -> AccessUser:
        """Return the user that has signed a request with these fields (``is_signed_by``).

        The signature is verified at every request. Texts are Java's.

        Raises: Rejected.
        """
        if self.trusted is not None and self.trusted.has(address):
            return TRUSTED
        words = self.wording
        name = ext.get(ACCESS_KEY)
        if not name:
            raise words.refusal(words.no_name)
        user = self.usable(name)
        if user.trusted is not None and user.trusted.has(address):
            return attrs.evolve(user, is_super=True, trusted_by="whiteRemoteAddress")
        if by_date and not ext.get(DATE_TIME):
            raise refused("datetime is null.")
        if not is_signed_by(ext, body, user.password, version=version, by_date=by_date):
            raise words.refusal(words.wrong_signature, name)
        return user

    def usable(self, name: str) -> AccessUser:
        """Return a user that is known and enabled. Raises: Rejected."""
        user = self.users.get(name)
        if user is None:
            raise self.unknown(name)
        if not user.enabled:
            raise self.wording.refusal(self.wording.disabled, name)
        return user

    def unknown(self, name: str) -> Rejected:
        """Return the refusal of a name that is none of a user."""
        return self.wording.refusal(self.wording.unknown, name)

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


def refused(remark: str) -> Rejected:
    """Return the refusal of a request for lack of credentials or rights."""
    return Rejected(ResponseCode.NO_PERMISSION, remark)
