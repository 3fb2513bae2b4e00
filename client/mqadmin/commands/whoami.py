"""``mqadmin whoami``: for whom the brokers take this caller, by the credentials that it uses.

Each broker is asked for the caller's own user. An answer proves the user; so does a refusal that
names it as a user without the right to ask. Name servers are not asked: they check changes only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from triomq.client.admin.answers import read_body
from triomq.client.admin.arguments import Values
from triomq.client.core.broker_errors import RequestNotSupported
from triomq.client.core.errors import PermissionDenied
from triomq.client.mqadmin.core.command import AdminCommand
from triomq.client.mqadmin.core.places import BROKERS, chosen_brokers
from triomq.client.mqadmin.core.result import Result, answered, table_of
from triomq.remoting.access.users import SUBJECT
from triomq.remoting.protocol.bodies.auth import User
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.auth import UserHeader

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin

OFF = "this broker authenticates nobody (authenticationEnabled is false): everybody may do all"
NO_CREDENTIALS = "no credentials are given: use --credentials FILE, or TRIOMQ_CREDENTIALS"


async def whoami(admin: Admin, options: Values) -> Result:
    """Ask the brokers that the options name."""
    from triomq.client.admin.access import given_access  # not for the help: start-up time
    from triomq.client.core.servers import checked_access

    credentials = checked_access(*given_access(options)).credentials
    name = None if credentials is None else credentials.access_key
    addresses = await chosen_brokers(admin, options)
    answers = await admin.for_each(addresses, lambda address: taken_for(admin, address, name))
    answers.some()
    rows = [
        {"broker": address, **found, "name": found["user"] or "nobody"}
        for address, found in answers.values.items()
    ]
    columns = {"Broker Addr": "broker", "User": "name", "Type": "type", "Why": "why"}
    document = {"accessKey": name, "brokers": answers.values}
    stranger = any(row["authenticates"] and row["user"] is None for row in rows)
    result = answered(answers, document, [table_of(rows, columns)])
    return attrs.evolve(result, bad_news=stranger)


async def taken_for(admin: Admin, address: str, name: str | None) -> dict[str, object]:
    """Return for whom one broker takes the sender of this request. Raises: TrioMQError."""
    try:
        answer = await admin.ask(address, RequestCode.AUTH_GET_USER, UserHeader(name or ""))
    except RequestNotSupported:
        return _found(None, None, OFF, authenticates=False)
    except PermissionDenied as error:
        if name is not None and error.remark.startswith(f"{SUBJECT}{name} has no permission"):
            return _found(name, "Normal", "the signature is good; it may not read users")
        why = NO_CREDENTIALS if name is None else error.remark
        return _found(None, None, why)
    if not answer.body:  # RocketMQ with a store for users, and authentication off
        return _found(None, None, OFF, authenticates=False)
    return _found(name, read_body(User, answer).user_type, "the signature is good")


def _found(
    user: str | None, kind: str | None, why: str, *, authenticates: bool = True
) -> dict[str, object]:
    return {"authenticates": authenticates, "user": user, "type": kind, "why": why}


COMMANDS = (AdminCommand("whoami", whoami).with_options(*BROKERS),)
