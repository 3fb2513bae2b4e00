"""Copying users and rules between brokers, for the commands copyUser and copyAcl."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Generic

import attrs

from triomq.client.admin.accounts import Record, ask_access
from triomq.client.admin.arguments import Option, Values, filled
from triomq.client.core.errors import SettingsError
from triomq.client.mqadmin.core.result import Result, answered
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.auth import AclHeader, UserHeader

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin

BETWEEN = (
    Option("-f, --fromBroker ADDRESS", "the source, host:port", required=True),
    Option("-t, --toBroker ADDRESS", "the target, host:port", required=True),
)


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

    async def copy_records(
        self, admin: Admin, options: Values, wanted: Iterable[str] | None
    ) -> Result:
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
