"""What the doors of a server say about the requests that they let in, and refuse.

A refusal goes to the log of the server, one line in ten seconds, and to the audit log; an allowed
request only to the audit log, if it is an administrative one or its turn in the sample. The names
of unknown users are written nowhere: somebody may have mistaken a secret for a name.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import attrs

from triomq.remoting.access.administration import ORDINARY
from triomq.remoting.access.control import AccessControl
from triomq.remoting.access.resources import Need
from triomq.remoting.access.users import AccessUser
from triomq.remoting.audit.audit_entry import AuditEntry, names_of, resource_texts
from triomq.remoting.audit.decision_log import DecisionLog
from triomq.remoting.core.address import format_address
from triomq.remoting.core.errors import Rejected
from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.protocol.signing import ACCESS_KEY

logger = logging.getLogger(__name__)

NO_CODE = 0
"""The request code of a gRPC call, which has none: no white list names it."""


@attrs.frozen
class Asked:
    """A request as a door sees it. ``header``: the object whose names are written."""

    door: str
    what: str
    peer: tuple[str, int]
    code: int = NO_CODE
    header: object = None


@attrs.frozen(eq=False)
class DecisionNotes:
    """The notes of one server. ``log``: None without an audit log."""

    control: AccessControl
    log: DecisionLog | None = None
    limit: LogLimit = attrs.field(factory=LogLimit)

    def wants(self, code: int = NO_CODE) -> bool:
        """Return whether an allowed request of this kind is to be written now."""
        if self.log is None:
            return False
        return not (code in ORDINARY or code == NO_CODE) or self.log.sampled()

    def allowed(self, asked: Asked, user: AccessUser | None, needs: Sequence[Need]) -> None:
        """Write an allowed request that ``wants`` wanted."""
        if self.log is not None:
            why = self.control.reason(user, needs, asked.peer[0], asked.code)
            self.log.note(_decision(asked, user, None, needs, why, allowed=True))

    def refused(
        self,
        asked: Asked,
        error: Rejected,
        user: AccessUser | None,
        fields: Mapping[str, str],
        needs: Sequence[Need],
    ) -> None:
        """Write a refusal. *user*: None if its identity was refused; *fields*: with credentials."""
        peer = format_address(*asked.peer)
        name = fields.get(ACCESS_KEY) if user is None else None
        claimed = name if name in self.control.table.users else None
        unknown = name is not None and error.remark == self.control.table.unknown(name).remark
        why = "an unknown user" if unknown else error.remark
        self.limit.warning(logger, "refused %s from %s: %s", asked.what, peer, why)
        if self.log is not None:
            self.log.note(_decision(asked, user, claimed, needs, why, allowed=False))


def _decision(
    asked: Asked,
    user: AccessUser | None,
    claimed: str | None,
    needs: Sequence[Need],
    why: str,
    *,
    allowed: bool,
) -> AuditEntry:
    return AuditEntry(
        door=asked.door,
        what=asked.what,
        code=asked.code or None,
        peer=format_address(*asked.peer),
        user=None if user is None else user.name or None,
        claimed=claimed,
        resources=resource_texts(needs),
        names=names_of(asked.header),
        allowed=allowed,
        why=why,
    )
