"""Headers of access control.

Users and policies of RocketMQ 5.3 and later: 3001 to 3010.

Source: remoting/…/header/CreateUserRequestHeader.java and the classes beside it.
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
