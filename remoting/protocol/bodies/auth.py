"""Users and policies (3001 to 3010).

3005 and 3010 answer with JSON arrays of these: read them with ``decode_array``. Source:
remoting/…/protocol/body/UserInfo.java, AclInfo.java.
"""

import attrs

from triomq.remoting.protocol.bodies.schema import JsonBody


@attrs.frozen(kw_only=True, eq=False, repr=False)
class User(JsonBody):
    """A user. Types are ``Super`` and ``Normal``, states ``enable`` and ``disable``.

    In an update (3002), None leaves a member as it is.
    """

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class PolicyEntry(JsonBody):
    """One rule: a resource such as ``Topic:orders*``, actions, source addresses, decision.

    The decision is ``Allow`` or ``Deny``.
    """

    resource: str | None = None
    actions: list[str] | None = None
    source_ips: list[str] | None = None
    decision: str | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Policy(JsonBody):
    """Rules, of which ``Custom`` ones come first and ``Default`` ones last."""

    policy_type: str | None = None
    entries: list[PolicyEntry] | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Acl(JsonBody):
    """All policies of a subject, ``User:name``."""

    subject: str | None = None
    policies: list[Policy] | None = None
