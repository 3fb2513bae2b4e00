"""What the commands about users and those about their rights share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import attrs

from triomq.client.admin.answers import Answers
from triomq.client.admin.arguments import Option, Values, filled
from triomq.client.admin.errors import SubjectMissing, UserExists
from triomq.client.core.errors import PermissionDenied, SettingsError, from_remoting
from triomq.client.mqadmin.core.command import Result, answered
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

EVERYWHERE = (
    Option("-b, --brokerAddr ADDRESS", "at one broker, host:port"),
    Option("-c, --clusterName NAME", "at all brokers of a cluster, slaves too"),
)


BETWEEN = (
    Option("-f, --fromBroker ADDRESS", "the source, host:port", required=True),
    Option("-t, --toBroker ADDRESS", "the target, host:port", required=True),
)
COPIED = (
    '{"fromBroker", "toBroker", "copied": {name: "created" or "updated"}, "failures": {address:'
    " reason}}"
)
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
        if "not exist" in error.remark:
            raise SubjectMissing(repr(who), CREATE_FIX) from error
        if "existed" in error.remark:
            raise UserExists(str(who), address) from error
        raise


CREATE_FIX = "correct the name, or create the user with `mqadmin user create`"


def same_reason(answers: Answers[Any]) -> None:
    """Raise the failure of a broker if none answers. Raises: TrioMQError."""
    if answers.failures and not answers.values:
        kinds = {type(error) for error in answers.failures.values()}
        if kinds <= {SubjectMissing, UserExists}:
            raise next(iter(answers.failures.values()))
    answers.some()


def preposition(verb: str) -> str:
    return "from" if verb == "delete" else "to"


def chosen_names(
    wanted: Iterable[str] | None, known: Mapping[str, object], source: str, what: str
) -> list[str]:
    """Return the names to copy: the wanted ones, or all.

    Raises: SettingsError if the source does not have one of them.
    """
    if wanted is None:
        return sorted(known)
    names = list(wanted)
    if missing := [name for name in names if name not in known]:
        raise SettingsError(
            f"{source} has no {what} {', '.join(missing)}; it has {', '.join(sorted(known)) or 0}"
        )
    return names


@attrs.frozen
class AccountCopy(Generic[Record]):
    """Copies users, or the rules of subjects, from one broker to another.

    ``codes``: of the requests that create and update one; ``read`` returns all of a broker.
    """

    kind: str
    what: str
    """before the name in an error"""
    codes: tuple[RequestCode, RequestCode]
    header: Callable[[str], UserHeader | AclHeader]
    read: Callable[[str], Awaitable[list[Record]]]
    name_of: Callable[[Record], str]

    async def run(self, admin: Admin, options: Values, wanted: Iterable[str] | None) -> Result:
        """Copy the wanted ones, or all; others of the target stay. Raises: SettingsError."""
        source, target = options.text("fromBroker"), options.text("toBroker")
        records = {self.name_of(record): record for record in await self.read(source)}
        chosen = chosen_names(wanted, records, source, self.what)
        present = {self.name_of(record) for record in await self.read(target)}

        async def copy(name: str) -> str:
            known = name in present
            body = records[name].encode()
            await ask_access(admin, target, self.codes[known], self.header(name), body)
            return "updated" if known else "created"

        answers = await admin.for_each(chosen, copy)
        return answered(
            answers,
            {"fromBroker": source, "toBroker": target, "copied": dict(answers.some())},
            [
                f"copy {self.kind} of {name} from {source} to {target} success."
                for name in answers.values
            ],
        )


def names(text: str) -> list[str]:
    """Read ``a,b``."""
    return [filled(part) for part in filled(text).split(",")]
