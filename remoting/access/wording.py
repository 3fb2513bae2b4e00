"""Codes and texts of refusals: those of ACL 2.0, and those of ACL 1.0 for its clients. SANS-IO.

Source: auth/…/authentication/chain/DefaultAuthenticationHandler.java,
auth/…/authorization/chain/*.java; acl/…/plain/PlainPermissionManager.java (4.9.4), and the answers
of both.
"""

from __future__ import annotations

import attrs

from triomq.remoting.access.resources import Action, Need, ResourceType
from triomq.remoting.core.errors import Rejected
from triomq.remoting.protocol.codes import ResponseCode

_PLAIN = "org.apache.rocketmq.acl.common.AclException: "
_OF_ACCOUNTS = frozenset({Action.PUB, Action.SUB, Action.GET})


@attrs.frozen(kw_only=True)
class Wording:
    """``{name}``: the access key; the other fields are those of ``no_right``."""

    code: ResponseCode
    no_name: str
    unknown: str
    disabled: str
    wrong_signature: str
    no_right: str
    not_admin: str
    """For what no permission of an account gives; empty: ``no_right``."""

    def refusal(self, text: str, name: str = "") -> Rejected:
        """Return the refusal of a request for its credentials; *text*: one of the above."""
        return Rejected(self.code, text.format(name=name))

    def refusal_of_right(
        self, name: str, need: Need, address: str, why: str, code: int
    ) -> Rejected:
        """Return the refusal of a request that needs what its user may not do."""
        admin = need.resource.type is ResourceType.CLUSTER or not _OF_ACCOUNTS & {*need.actions}
        text = self.not_admin if admin and self.not_admin else self.no_right
        return Rejected(
            self.code,
            text.format(
                name=name,
                resource=need.resource,
                kind=need.resource.type.name.lower(),
                of=need.resource.name,
                address=address,
                why=why,
                code=code,
            ),
        )


WORDING = Wording(
    code=ResponseCode.NO_PERMISSION,
    no_name="username cannot be null.",
    unknown="User:{name} is not found.",
    disabled="User:{name} is disabled.",
    wrong_signature="check signature failed.",
    no_right="User:{name} has no permission to access {resource} from {address}, {why}.",
    not_admin="",
)
PLAIN_WORDING = Wording(
    code=ResponseCode.SYSTEM_ERROR,
    no_name=_PLAIN + "No accessKey is configured",
    unknown=_PLAIN + "No acl config for {name}",
    disabled=_PLAIN + "No acl config for {name}",
    wrong_signature=_PLAIN + "Check signature failed for accessKey={name}",
    no_right=_PLAIN + "No default permission for {kind}:{of}",
    not_admin=_PLAIN + "Need admin permission for request code={code}, but accessKey={name} is not",
)
