"""Users and policies (3001 to 3010) and the accounts of 4.4 to 5.2 (54).

3005 and 3010 answer with JSON arrays of these: read them with ``decode_array``. Source: remoting/…/protocol/body/UserInfo.java,
AclInfo.java; for the accounts common/…/PlainAccessConfig.java, AclConfig.java of 4.9.
"""

import attrs

from triomq.remoting.protocol.bodies.schema import JsonBody, named


@attrs.frozen(kw_only=True, eq=False, repr=False)
class User(JsonBody):
    """Types ``Super`` and ``Normal``, states ``enable`` and ``disable``; None leaves a member as it is (3002)."""

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class PolicyEntry(JsonBody):
    """One rule: a resource such as ``Topic:orders*``, what may be done with it, from where, ``Allow`` or ``Deny``."""

    resource: str | None = None
    actions: list[str] | None = None
    source_ips: list[str] | None = None
    decision: str | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Policy(JsonBody):
    """Rules that count first (``Custom``) or last (``Default``)."""

    policy_type: str | None = None
    entries: list[PolicyEntry] | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Acl(JsonBody):
    """All policies of a subject, ``User:name``."""

    subject: str | None = None
    policies: list[Policy] | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class PlainAccount(JsonBody):
    """An account of 4.x; permissions are ``name=PUB|SUB``."""

    access_key: str | None = None
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_permission: str | None = attrs.field(default=None, metadata=named("defaultTopicPerm"))
    default_group_permission: str | None = attrs.field(default=None, metadata=named("defaultGroupPerm"))
    topic_permissions: list[str] | None = attrs.field(default=None, metadata=named("topicPerms"))
    group_permissions: list[str] | None = attrs.field(default=None, metadata=named("groupPerms"))


@attrs.frozen(eq=False, repr=False)
class PlainAccounts(JsonBody):
    """54."""

    global_white_addresses: list[str] | None = attrs.field(default=None, metadata=named("globalWhiteAddrs"))
    accounts: list[PlainAccount] | None = attrs.field(default=None, metadata=named("plainAccessConfigs"))
