"""What the commands about users and those about their rights share."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from triomq.client.admin.answers import Answers
from triomq.client.admin.errors import SubjectMissing, UserExists
from triomq.client.core.errors import PermissionDenied, from_remoting
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.protocol.bodies.auth import Acl, User
from triomq.remoting.protocol.bodies.schema import decode_array
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.auth import (
    AclHeader,
    DeleteAclHeader,
    ListAclsHeader,
    ListUsersHeader,
    UserHeader,
)

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin
    from triomq.remoting.protocol.command import Command


Record = TypeVar("Record", User, Acl)


async def listed(
    admin: Admin,
    address: str,
    code: RequestCode,
    header: ListUsersHeader | ListAclsHeader,
    kind: type[Record],
) -> list[Record]:
    """Return what a broker lists. Raises: TrioMQError."""
    answer = await admin.ask(address, code, header)
    try:
        return decode_array(kind, answer.body)
    except RemotingError as error:
        raise from_remoting(error) from error


async def ask_access(
    admin: Admin,
    address: str,
    code: RequestCode,
    header: UserHeader | AclHeader | DeleteAclHeader,
    body: bytes = b"",
) -> Command:
    """Ask a broker about a user or its rules.

    Brokers refuse unknown and existing users with NO_PERMISSION, whose usual reasons would mislead.

    Raises: SubjectMissing, UserExists.
    """
    try:
        return await admin.ask(address, code, header, body)
    except PermissionDenied as error:
        who = header.username if isinstance(header, UserHeader) else header.subject
        # The user of a creation need not exist: this refusal is about the caller.
        if "not exist" in error.remark and code is not RequestCode.AUTH_CREATE_USER:
            raise SubjectMissing(repr(who), CREATE_FIX) from error
        if "existed" in error.remark:
            raise UserExists(str(who), address) from error
        raise


CREATE_FIX = "correct the name, or create the user with `mqadmin user create`"


def same_reason(answers: Answers[object]) -> None:
    """Raise the failure of a broker if none answers. Raises: TrioMQError."""
    if answers.failures and not answers.values:
        kinds = {type(error) for error in answers.failures.values()}
        if kinds <= {SubjectMissing, UserExists}:
            raise next(iter(answers.failures.values()))
    answers.some()
