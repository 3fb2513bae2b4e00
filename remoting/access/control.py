"""Decide about one request: who sends it, and may that user do what it needs? SANS-IO."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

import attrs

from triomq.remoting.access.administration import CHANGES
from triomq.remoting.access.resources import Need
from triomq.remoting.access.rules import AccessDecision
from triomq.remoting.access.users import AccessUser, UserTable, refused
from triomq.remoting.core.errors import Rejected
from triomq.remoting.core.networks import AddressRange, is_listed
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.signing import ACCESS_KEY


class Check(enum.Enum):
    """The checks, as metrics count their refusals."""

    IDENTITY = "authentication"
    RIGHTS = "authorization"
    PLACE = "address"
    DATE = "date"


@attrs.define(eq=False)
class AccessControl:
    """The decisions of one server.

    ``cluster_name``: of the resource that requests about the whole broker use. ``authorizes``:
    False if every known user may do everything. ``authenticates``: False if everybody may. The
    lists name request codes that are not checked, which are those of ``authenticationWhitelist``
    and ``authorizationWhitelist``. ``admin_networks``: where requests that destroy or change
    configuration may come from; empty: from anywhere. ``date_window_seconds``: how far the signed
    date of a call may be from this server's clock; 0: any date is good.
    """

    table: UserTable
    cluster_name: str
    authorizes: bool = True
    unauthenticated_codes: Collection[int] = ()
    unauthorized_codes: Collection[int] = ()
    authenticates: bool = attrs.field(default=True, kw_only=True)
    admin_networks: Sequence[AddressRange] = attrs.field(default=(), kw_only=True)
    certificate_users: bool = attrs.field(default=False, kw_only=True)
    """Whether a client's verified certificate names the user of its unsigned requests."""
    date_window_seconds: float = attrs.field(default=0, kw_only=True)
    refusals: Counter[Check] = attrs.field(factory=Counter, init=False)

    @classmethod
    def without_users(
        cls, cluster_name: str, admin_networks: Sequence[AddressRange] = ()
    ) -> AccessControl:
        """Return one that allows everybody what may come from everywhere."""
        return cls(
            UserTable(),
            cluster_name,
            authorizes=False,
            authenticates=False,
            admin_networks=admin_networks,
        )

    def identify(
        self,
        code: int,
        ext: Mapping[str, str],
        body: bytes | memoryview = b"",
        version: int | None = None,
        *,
        address: str = "",
        certificate: str = "",
        by_date: bool = False,
    ) -> AccessUser | None:
        """Return who sends a request; None for a code that is not checked.

        *certificate*: the common name of the client's verified certificate, empty without one. It
        counts for requests without an access key.

        Raises: Rejected.
        """
        if not self.authenticates or code in self.unauthenticated_codes:
            return None
        try:
            if self.certificate_users and certificate and not ext.get(ACCESS_KEY):
                return self.table.usable(certificate)
            return self.table.authenticated(ext, body, version, address=address, by_date=by_date)
        except Rejected:
            self.refusals[Check.IDENTITY] += 1
            raise

    def require_recent(self, date: str, now: float) -> None:
        """Refuse a call whose signature is older or newer than the window. Raises: Rejected.

        *date*: what it has signed; *now*: the wall clock when the call came (seconds).
        """
        if not self.date_window_seconds:
            return
        try:
            away = abs(datetime.fromisoformat(date).timestamp() - now)
        except (ValueError, OverflowError):
            self.refusals[Check.DATE] += 1
            raise refused(
                "x-mq-date-time is not a date: write it as 20261129T215003Z, and sign it"
            ) from None
        if away > self.date_window_seconds:
            self.refusals[Check.DATE] += 1
            raise refused(
                f"x-mq-date-time is {away:.0f} s away from the clock of this server, and"
                f" grpcSignatureWindowSeconds is {self.date_window_seconds}: set the clock of the"
                " client, or make that setting larger"
            )

    def require_place(self, code: int, address: str) -> None:
        """Refuse a change from an address that is none of an administrator's. Raises: Rejected."""
        if self.admin_networks and code in CHANGES and not is_listed(address, self.admin_networks):
            self.refusals[Check.PLACE] += 1
            raise refused(
                f"{RequestCode(code).name} may not come from {address}: it is none of the"
                " adminAddresses of this server; send it from one of them, or add the address to"
                " that setting"
            )

    def require(
        self, user: AccessUser | None, needs: Iterable[Need], address: str, code: int = 0
    ) -> None:
        """Refuse a request unless its user may do all that it needs.

        *user*: None for nobody: allowed is what needs nothing.

        Raises: Rejected, with the first need that is not met.
        """
        if not self.authorizes or code in self.unauthorized_codes:
            return
        for need in needs:
            if user is None:
                self.refusals[Check.RIGHTS] += 1
                raise refused(
                    "Authorization failed. Please verify your access rights and try again."
                )
            decision = self.decide(user, need, address)
            if not decision.allowed:
                self.refusals[Check.RIGHTS] += 1
                why = "no matched policies" if decision.rule is None else "the decision is deny"
                raise self.table.wording.refusal_of_right(user.name, need, address, why, code)

    def decide(self, user: AccessUser, need: Need, address: str) -> AccessDecision:
        """Return whether *user* may do what *need* says from *address*, and why."""
        if user.is_super:
            return AccessDecision(allowed=True)
        return self.table.rules_of(user.name).decide(need, address)

    def reason(
        self, user: AccessUser | None, needs: Iterable[Need], address: str, code: int = 0
    ) -> str:
        """Return why a request is allowed, for people."""
        if not self.authenticates:
            return "authenticationEnabled is false"
        if code in self.unauthenticated_codes:
            return "requests of this kind need no signature"
        if not self.authorizes:
            return "authorizationEnabled is false"
        if code in self.unauthorized_codes:
            return "authorizationWhitelist"
        if user is not None and user.trusted_by:
            return f"it comes from an address of {user.trusted_by}"
        if user is not None and user.is_super:
            return "a super user may do everything"
        rules = [] if user is None else [self.decide(user, need, address).rule for need in needs]
        return "; ".join(dict.fromkeys(map(str, rules))) or "it needs no right"
