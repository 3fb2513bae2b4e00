"""``mqadmin convertAcl FILE…``: users and rules (ACL 2.0) of the accounts of ACL 1.0.

An account becomes the user and the rules that a broker of TrioMQ with ``aclEnable`` makes of it.
The differences to what a broker has are printed; nothing is changed without ``--yes``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from triomq.client.admin.accounts import ask_access, listed
from triomq.client.admin.arguments import Option, Values
from triomq.client.core.errors import SettingsError
from triomq.client.mqadmin.core.command import AdminCommand, Effect
from triomq.client.mqadmin.core.places import EVERYWHERE, chosen_brokers
from triomq.client.mqadmin.core.result import Result, answered
from triomq.remoting.access.changes import copied_rules
from triomq.remoting.access.documents import rules_body, user_body
from triomq.remoting.access.plain_acl import PlainAcl
from triomq.remoting.access.plain_acl_text import parsed
from triomq.remoting.access.rules import AccessRules, PolicyType
from triomq.remoting.access.users import SUBJECT, AccessUser
from triomq.remoting.protocol.bodies.auth import Acl, User
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.headers.auth import (
    AclHeader,
    DeleteAclHeader,
    ListAclsHeader,
    ListUsersHeader,
    UserHeader,
)

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin

FILE_BYTES_MAX = 4 * 1024 * 1024


@attrs.frozen(kw_only=True)
class Conversion:
    """What one account means for one broker. ``lines``: what differs there."""

    user: AccessUser
    rules: AccessRules
    known: User | None
    had_rules: bool
    lines: Sequence[str]


async def convert(admin: Admin, options: Values) -> Result:
    """Print what differs at each broker, and with --yes change it."""
    acl = read_accounts(options.value("files"))
    yes = options.flag("yes")
    addresses = await chosen_brokers(admin, options, masters_only=False)

    async def at(address: str) -> list[Conversion]:
        found = [each for each in await conversions(admin, address, acl) if each.lines]
        if yes:
            for each in found:
                await apply(admin, address, each)
        return found

    answers = await admin.for_each(addresses, at)
    blocks: list[str] = []
    for address, found in answers.values.items():
        lines = [line for each in found for line in each.lines]
        blocks.append("\n".join([f"{address}:", *(lines or ["  nothing differs"])]))
    notes = list(left_out(acl))
    if not yes and any(answers.values.values()):
        notes.append("Nothing was changed: --yes makes these changes.")
    document = {
        "applied": yes,
        "brokers": {
            address: {each.user.name: list(each.lines) for each in found}
            for address, found in answers.values.items()
        },
    }
    return answered(answers, document, blocks, notes=notes)


def read_accounts(files: Sequence[Path]) -> PlainAcl:
    """Read the files. Raises: SettingsError."""
    contents = {}
    for path in files:
        try:
            with path.open("rb") as file:
                contents[path] = file.read(FILE_BYTES_MAX + 1)
        except OSError as error:
            raise SettingsError(
                f"{path} cannot be read: {error.strerror}; name plain_acl.yml of a broker"
            ) from None
        if len(contents[path]) > FILE_BYTES_MAX:
            raise SettingsError(f"{path} is larger than {FILE_BYTES_MAX} bytes")
    try:
        return parsed(contents).acl
    except ValueError as error:
        raise SettingsError(f"{error}; correct the file") from None


def left_out(acl: PlainAcl) -> Iterator[str]:
    """Yield what users and rules cannot say."""
    if acl.white_addresses:
        yield "globalWhiteRemoteAddresses are not converted: every request needs a signature."
    if names := [each.access_key for each in acl.accounts if each.white_address]:
        yield f"whiteRemoteAddress is not converted: {', '.join(names)} must sign from everywhere."


async def conversions(admin: Admin, address: str, acl: PlainAcl) -> list[Conversion]:
    """Compare the accounts with what a broker has. Raises: TrioMQError."""
    users = await listed(admin, address, Code.AUTH_LIST_USER, ListUsersHeader(), User)
    rules = await listed(admin, address, Code.AUTH_LIST_ACL, ListAclsHeader(), Acl)
    known = {user.username: user for user in users}
    rights = {each.subject: copied_rules(each) for each in rules}
    found = []
    for account in acl.accounts:
        user, wanted = account.user(), account.rules()
        had = rights.get(user.subject, AccessRules())
        lines = [*user_lines(user, known.get(user.name)), *rule_lines(user.name, wanted, had)]
        found.append(
            Conversion(
                user=user,
                rules=wanted,
                known=known.get(user.name),
                had_rules=bool(had),
                lines=lines,
            )
        )
    return found


def user_lines(user: AccessUser, known: User | None) -> Iterator[str]:
    wanted = user_body(user)
    if known is None:
        yield f"  + user {user.name} ({wanted.user_type})"
        return
    if known.password is not None and known.password != wanted.password:
        yield f"  ~ user {user.name}: password = (hidden, new)"
    if known.user_type != wanted.user_type:
        yield f"  ~ user {user.name}: type {known.user_type} -> {wanted.user_type}"


def rule_lines(name: str, wanted: AccessRules, had: AccessRules) -> Iterator[str]:
    for kind in PolicyType:
        now, old = (dict.fromkeys(map(str, each.of(kind))) for each in (wanted, had))
        suffix = "" if kind is PolicyType.CUSTOM else " (Default)"
        yield from (f"  - {name}: {text}{suffix}" for text in old if text not in now)
        yield from (f"  + {name}: {text}{suffix}" for text in now if text not in old)


async def apply(admin: Admin, address: str, change: Conversion) -> None:
    """Make user and rules of one account what they are to be. Raises: TrioMQError."""
    name = change.user.name
    code = Code.AUTH_CREATE_USER if change.known is None else Code.AUTH_UPDATE_USER
    await ask_access(admin, address, code, UserHeader(name), user_body(change.user).encode())
    subject = SUBJECT + name
    if change.had_rules:
        # Merged with others, the second rule of a resource would replace the first one.
        await ask_access(admin, address, Code.AUTH_DELETE_ACL, DeleteAclHeader(subject))
    if change.rules:
        body = rules_body(name, change.rules).encode()
        await ask_access(admin, address, Code.AUTH_CREATE_ACL, AclHeader(subject), body)


def read_files(text: str) -> list[Path]:
    return [Path(part).expanduser() for part in text.split(",") if part]


COMMANDS = (
    AdminCommand("convertAcl", convert, effect=Effect.ACTS).with_options(
        Option(
            "FILES",
            "plain_acl.yml, or several files joined by commas; the first account of a key counts",
            read_files,
            required=True,
        ),
        *EVERYWHERE,
        Option("-y, --yes", "make the changes; without it they are only printed"),
    ),
)
