"""Commands about users: createUser, updateUser, deleteUser, getUser, listUser, copyUser.

Passwords are never printed, only copied.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from triomq.client.admin.accounts import CREATE_FIX, ask_access, listed, same_reason
from triomq.client.admin.answers import Answers, read_body
from triomq.client.admin.arguments import Option, UsageError, Values, one_of_words
from triomq.client.admin.documents import members_of
from triomq.client.admin.errors import SubjectMissing
from triomq.client.core.errors import UserNotFound
from triomq.client.mqadmin.core.account_copy import BETWEEN, AccountCopy, names, preposition
from triomq.client.mqadmin.core.command import AdminCommand, Effect
from triomq.client.mqadmin.core.places import BROKERS, EVERYWHERE, beside_missing, chosen_brokers
from triomq.client.mqadmin.core.result import Result, answered, table_of
from triomq.remoting.protocol.bodies.auth import User
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.auth import ListUsersHeader, UserHeader

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin


async def change_user(admin: Admin, options: Values, *, code: RequestCode, verb: str) -> Result:
    """Create, change or delete a user at the brokers that the options name."""
    name = options.text("username")
    body = b""
    if code is not RequestCode.AUTH_DELETE_USER:
        updating = code is RequestCode.AUTH_UPDATE_USER
        body = User(
            username=name,
            password=options.maybe_text("password"),
            user_type=options.maybe_text("userType"),
            user_status=options.maybe_text("userStatus") if updating else None,
        ).encode()
    addresses = await chosen_brokers(admin, options, masters_only=False)
    answers = await admin.for_each(
        addresses, lambda address: ask_access(admin, address, code, UserHeader(name), body)
    )
    same_reason(answers)
    return answered(
        answers,
        {"username": name, "brokers": sorted(answers.values)},
        [f"{verb} user {preposition(verb)} {address} success." for address in answers.values],
    )


async def users_at(admin: Admin, address: str, name_filter: str | None) -> list[User]:
    """Return the users of a broker whose names have a part."""
    header = ListUsersHeader(name_filter)
    return await listed(admin, address, RequestCode.AUTH_LIST_USER, header, User)


async def user_at(admin: Admin, address: str, name: str) -> User | None:
    """Return a user of a broker, None if it does not know the name."""
    try:
        answer = await admin.ask(address, RequestCode.AUTH_GET_USER, UserHeader(name))
    except UserNotFound:
        return None
    return read_body(User, answer) if answer.body else None


def users_result(answers: Answers[list[User]]) -> Result:
    known = {
        address: [members_of(user, "username", "userType", "userStatus") for user in users]
        for address, users in answers.some().items()
    }
    rows = [{"broker": address, **user} for address, users in known.items() for user in users]
    table = table_of(
        rows,
        {
            "UserName": "username",
            "UserType": "userType",
            "UserStatus": "userStatus",
            "Broker Addr": "broker",
        },
    )
    return answered(answers, {"brokers": known}, [table])


async def get_user(admin: Admin, options: Values) -> Result:
    name = options.maybe_text("username")
    if name is None:
        raise UsageError("-u/--username is missing: name the user; `mqadmin user list` lists all")
    addresses = await chosen_brokers(admin, options)

    async def users_named(address: str) -> list[User]:
        return [user for user in [await user_at(admin, address, name)] if user is not None]

    answers = await beside_missing(admin, options, await admin.for_each(addresses, users_named))
    if not any(answers.some().values()) and not answers.failures:
        raise SubjectMissing(f"user {name!r}", CREATE_FIX)
    return users_result(answers)


async def list_users(admin: Admin, options: Values) -> Result:
    addresses = await chosen_brokers(admin, options)
    name_filter = options.maybe_text("filter")
    return users_result(
        await admin.for_each(addresses, lambda address: users_at(admin, address, name_filter))
    )


async def copy_users(admin: Admin, options: Values) -> Result:
    """Copy users with their passwords; the target's users of the same names are replaced."""
    copy = AccountCopy(
        "user",
        "user",
        (RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_UPDATE_USER),
        UserHeader,
        lambda address: users_at(admin, address, None),
        lambda user: user.username or "",
    )
    return await copy.copy_records(admin, options, options.value("usernames"))


USERNAME = Option("-u, --username NAME", "name of the user", required=True)
USER_TYPE = Option(
    "-t, --userType TYPE", "Super (may do everything) or Normal", one_of_words("Super", "Normal")
)

COMMANDS = (
    AdminCommand(
        "createUser",
        partial(change_user, code=RequestCode.AUTH_CREATE_USER, verb="create"),
        effect=Effect.CHANGES,
    ).with_options(
        *EVERYWHERE,
        USERNAME,
        Option("-p, --password TEXT", "the password", required=True),
        USER_TYPE,
    ),
    AdminCommand(
        "updateUser",
        partial(change_user, code=RequestCode.AUTH_UPDATE_USER, verb="update"),
        effect=Effect.CHANGES,
        one_of=(("password", "userType", "userStatus"),),
    ).with_options(
        *EVERYWHERE,
        USERNAME,
        Option("-p, --password TEXT", "the new password"),
        USER_TYPE,
        Option("-s, --userStatus STATUS", "enable or disable", one_of_words("enable", "disable")),
    ),
    AdminCommand(
        "deleteUser",
        partial(change_user, code=RequestCode.AUTH_DELETE_USER, verb="delete"),
        effect=Effect.DESTROYS,
        loss="the user",
    ).with_options(*EVERYWHERE, USERNAME),
    AdminCommand("getUser", get_user).with_options(
        *BROKERS, Option("-u, --username NAME", "name of the user")
    ),
    AdminCommand("listUser", list_users).with_options(
        *BROKERS, Option("-f, --filter TEXT", "only users with this part of the name")
    ),
    AdminCommand("copyUser", copy_users, effect=Effect.CHANGES).with_options(
        *BETWEEN,
        Option("-u, --usernames NAMES", "only these, joined by commas (default: all)", names),
    ),
)
