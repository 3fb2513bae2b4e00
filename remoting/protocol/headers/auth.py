"""Headers of access control.

Users and policies of RocketMQ 5.3 and later: 3001 to 3010. Accounts of 4.4 to 5.2: 50 to 54.

Source: remoting/…/header/CreateUserRequestHeader.java and the classes beside it; for the accounts
common/…/protocol/header/CreateAccessConfigRequestHeader.java and the classes beside it of 4.9.
"""

from triomq.remoting.protocol.fields import header, wire


@header
class UserHeader:
    """Header of 3001 to 3004; the body has the user to create or change."""

    username: str | None = wire("username", default=None)


@header
class ListUsersHeader:
    """Header of 3005; ``filter`` is a part of the name."""

    filter: str | None = wire("filter", default=None)


@header
class AclHeader:
    """Header of 3006, 3007 and 3009; a subject is ``User:name``."""

    subject: str | None = wire("subject", default=None)


@header
class DeleteAclHeader:
    """Header of 3008; without a resource, all rules of the subject are deleted."""

    subject: str | None = wire("subject", default=None)
    policy_type: str | None = wire("policyType", default=None)
    resource: str | None = wire("resource", default=None)


@header
class ListAclsHeader:
    """Header of 3010; filters are parts of the texts."""

    subject_filter: str | None = wire("subjectFilter", default=None)
    resource_filter: str | None = wire("resourceFilter", default=None)


@header
class PlainAccountHeader:
    """Create or alter an account (50); permission lists are ``name=PUB|SUB`` joined by commas."""

    access_key: str = wire("accessKey")
    secret_key: str | None = wire("secretKey", default=None)
    white_remote_address: str | None = wire("whiteRemoteAddress", default=None)
    admin: bool = wire("admin", default=False)
    default_topic_permission: str | None = wire("defaultTopicPerm", default=None)
    default_group_permission: str | None = wire("defaultGroupPerm", default=None)
    topic_permissions: str | None = wire("topicPerms", default=None)
    group_permissions: str | None = wire("groupPerms", default=None)


@header
class DeletePlainAccountHeader:
    """Header of 51."""

    access_key: str = wire("accessKey")


@header
class GlobalWhiteAddressesHeader:
    """Header of 53; addresses joined by commas."""

    addresses: str = wire("globalWhiteAddrs")
    file: str | None = wire("aclFileFullPath", default=None)


@header
class AclVersionResponseHeader:
    """Answer to 52; the versions are JSON texts."""

    version: str | None = wire("version", default=None)
    all_file_versions: str | None = wire("allAclFileVersion", default=None)
    broker_name: str | None = wire("brokerName", default=None)
    broker_address: str | None = wire("brokerAddr", default=None)
    cluster_name: str | None = wire("clusterName", default=None)
