"""Users and policies (3001 to 3010), and the accounts of RocketMQ 4.4 to 5.2 (54).

3005 and 3010 answer with JSON arrays of these: read them with ``decode_array``. Source:
remoting/…/protocol/body/UserInfo.java, AclInfo.java; for the accounts
common/…/PlainAccessConfig.java, AclConfig.java of 4.9.
"""

import attrs

from triomq.remoting.protocol.bodies.schema import JsonBody, named


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


@attrs.frozen(kw_only=True, eq=False, repr=False)
class PlainAccount(JsonBody):
    """An account of 4.x; permissions are ``name=PUB|SUB``."""

    access_key: str | None = None
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_permission: str | None = named("defaultTopicPerm", default=None)
    default_group_permission: str | None = named("defaultGroupPerm", default=None)
    topic_permissions: list[str] | None = named("topicPerms", default=None)
    group_permissions: list[str] | None = named("groupPerms", default=None)


@attrs.frozen(eq=False, repr=False)
class PlainAccounts(JsonBody):
    """Answer to 54."""

    global_white_addresses: list[str] | None = named("globalWhiteAddrs", default=None)
    accounts: list[PlainAccount] | None = named("plainAccessConfigs", default=None)
